//! One rank and a peer that does as the test says: comes with another call, breaks off, does not come at all; and how often the rank
//! asks the system for something.

use std::cell::Cell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arx::dtype::{DType, ReduceOp};
use arx::engine::{self, Call, Halt, Header, Memory, SEGMENT};
use arx::kernels::Bytes;
use arx::plan::ALIGN;
use arx::schedule::{Algorithm, Collective};
use arx::transport::{Broken, Link, Rx, Tx};
use arx::wait::{Host, Plain, Stop};
use ranks::case::{Case, FOREVER, reduce};
use ranks::{Array, Group, Medium, Rank};

mod ranks;

/// A rank, and the end of its only link.
struct Couple {
    case: Case,
    rank: Rank,
    other: Link,
}

impl Couple {
    fn new(elements: usize, capacity: usize) -> Couple {
        let (dtype, op) = (DType::Float32, ReduceOp::Sum);
        let (algorithm, collective) = (Algorithm::Exchange, Collective::AllReduce);
        let case = Case {
            algorithm,
            collective,
            world: 2,
            elements,
            dtype,
            op,
            tile: usize::MAX,
            medium: Medium::Pipes(capacity),
        };
        let mut ranks = ranks::world(2, case.medium);
        let other = ranks[1].links[0].take().expect("a link");
        Couple { case, rank: ranks.swap_remove(0), other }
    }

    /// Runs the exchange on rank 0; what its array was and is.
    fn run(&mut self, limit: Duration) -> (Result<(), Halt>, Vec<u8>, Vec<u8>) {
        let before = self.case.input(0);
        let data = Array::new(&before);
        let plan = self.case.plan(0);
        let ended = reduce(&mut self.rank, &plan, &data, self.case.arithmetic(None), self.case.header(), limit);
        (ended, before, data.content())
    }

    /// Rank 1 sends a stream with this header, `elements` elements and what padding these need.
    fn send(&mut self, header: &[u8; Header::SIZE], elements: usize) {
        let body = Array::new(&self.case.input(1)[..4 * elements]);
        let pad = vec![0; (4 * elements).next_multiple_of(ALIGN) - 4 * elements];
        let all = Header::SIZE + 4 * elements + pad.len();
        assert_eq!(self.other.tx.write(header, body.bytes(), &pad), Ok(all), "the pipe is large enough");
    }
}

#[test]
fn another_header_stops_the_call_before_a_byte_is_applied() {
    for other in [
        Header { kind: 2, ..Couple::new(5, 256).case.header() },
        Header { sequence: 8, ..Couple::new(5, 256).case.header() },
        Header { fingerprint: 0xfeee, ..Couple::new(5, 256).case.header() },
        Header { bytes: 24, ..Couple::new(5, 256).case.header() },
    ] {
        let mut couple = Couple::new(5, 256);
        couple.send(&other.to_bytes(), 5);
        let (ended, before, after) = couple.run(FOREVER);
        assert_eq!(ended, Err(Halt::Differs { rank: 1, header: other }));
        assert_eq!(after, before);
    }
}

#[test]
fn every_receiver_of_another_header_learns_whose_it_is() {
    let header = |rank: usize| Header { kind: 0, sequence: 1, fingerprint: rank as u64 / 2, bytes: 12 };
    let (dtype, op) = (DType::Int32, ReduceOp::Sum);
    let (algorithm, collective) = (Algorithm::Ring, Collective::AllReduce);
    let case =
        Case { algorithm, collective, world: 4, elements: 3, dtype, op, tile: usize::MAX, medium: Medium::Pipes(256) };
    let ended = ranks::run(format!("{case:?}"), ranks::world(4, case.medium), move |mut rank| {
        let data = Array::new(&case.input(rank.rank));
        let plan = case.plan(rank.rank);
        let (header, limit) = (header(rank.rank), Duration::from_millis(200));
        (reduce(&mut rank, &plan, &data, case.arithmetic(None), header, limit), rank)
    });
    let ended: Vec<_> = ended.into_iter().map(|(ended, _)| ended).collect();
    // Round the ring 0 -> 1 -> 2 -> 3 -> 0, ranks 1 and 3 hear from one who agrees, and then nothing more.
    assert_eq!(ended[0], Err(Halt::Differs { rank: 3, header: header(3) }));
    assert_eq!(ended[1], Err(Halt::Stop(Stop::Timeout)));
    assert_eq!(ended[2], Err(Halt::Differs { rank: 1, header: header(1) }));
    assert_eq!(ended[3], Err(Halt::Stop(Stop::Timeout)));
}

#[test]
fn what_is_no_header_is_a_broken_link() {
    let mut couple = Couple::new(5, 256);
    couple.send(&[0x41; Header::SIZE], 5);
    let (ended, before, after) = couple.run(FOREVER);
    let why = "what it sends does not start with a header".to_owned();
    assert_eq!(ended, Err(Halt::Broken(Broken { rank: 1, why })));
    assert_eq!(after, before);
}

#[test]
fn a_link_that_breaks_ends_the_call() {
    // 100 elements, of which rank 1 sends none, no whole one, or some before it closes.
    for bytes in [0, 7, Header::SIZE, Header::SIZE + 3, Header::SIZE + 4 * 50] {
        let Couple { case, mut rank, mut other } = Couple::new(100, 1024);
        let stream = [&case.header().to_bytes()[..], &case.input(1)].concat();
        assert_eq!(other.tx.write(&stream[..bytes], &[], &[]), Ok(bytes));
        drop(other.tx);
        let data = Array::new(&case.input(0));
        let ended = reduce(&mut rank, &case.plan(0), &data, case.arithmetic(None), case.header(), FOREVER);
        let Err(Halt::Broken(broken)) = ended else { panic!("{ended:?} after {bytes} bytes") };
        assert_eq!(broken.rank, 1);
        drop(other.rx);
    }
}

#[test]
fn a_peer_that_reads_no_more_ends_the_call() {
    let Couple { case, mut rank, other } = Couple::new(100, 64);
    drop(other.rx);
    let data = Array::new(&case.input(0));
    let ended = reduce(&mut rank, &case.plan(0), &data, case.arithmetic(None), case.header(), FOREVER);
    let Err(Halt::Broken(broken)) = ended else { panic!("{ended:?}") };
    assert_eq!(broken.rank, 1);
}

#[test]
fn a_peer_that_does_not_come_is_waited_for_as_long_as_said() {
    let mut couple = Couple::new(5, 256);
    assert_eq!(couple.run(Duration::from_millis(60)).0, Err(Halt::Stop(Stop::Timeout)));
}

/// Rank 0 of two waits for a rank 1 that does not come.
fn alone(
    medium: Medium,
    alert: Option<BorrowedFd<'_>>,
    host: &mut dyn Host,
    meanwhile: impl FnOnce(&Group) + Send,
) -> Halt {
    let mut couple = Couple::new(5, 256);
    let mut ranks = ranks::world(2, medium);
    couple.rank = ranks.swap_remove(0);
    let (plan, data) = (couple.case.plan(0), Array::new(&couple.case.input(0)));
    let memory = Memory { array: data.bytes(), source: &[], scratch: &[] };
    let call = Call { plan: &plan, memory, arithmetic: couple.case.arithmetic(None), header: couple.case.header() };
    let mut links = std::mem::take(&mut couple.rank.links);
    let group = Arc::clone(&couple.rank.group);
    std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&group));
        let ended = couple.rank.waiting(FOREVER, host, |wait| engine::run(&call, &mut links, alert, wait));
        ended.expect_err("nobody came")
    })
}

const MEDIA: [Medium; 3] = [Medium::Pipes(256), Medium::Rings(256), Medium::Sockets(1)];

#[test]
fn a_group_that_lost_somebody_ends_the_call() {
    for medium in MEDIA {
        let halt = alone(medium, None, &mut Plain, |group| {
            std::thread::sleep(Duration::from_millis(20));
            group.lose();
        });
        assert_eq!(halt, Halt::Stop(Stop::Gone));
    }
}

#[test]
fn an_alert_is_read_away() {
    let (bell_push, waiter) = UnixStream::pair().expect("sockets");
    waiter.set_nonblocking(true).expect("an option");
    // Several alerts for nothing, then one with a reason.
    let halt = alone(Medium::Sockets(1), Some(waiter.as_fd()), &mut Plain, |group| {
        for k in 0..20 {
            (&bell_push).write_all(&[k]).expect("written");
            std::thread::sleep(Duration::from_millis(5));
        }
        group.lose();
    });
    assert_eq!(halt, Halt::Stop(Stop::Gone));
    let left = (&waiter).read(&mut [0; 64]);
    assert!(left.as_ref().is_ok_and(|n| *n <= 2) || left.is_err_and(|e| e.kind() == ErrorKind::WouldBlock));
}

/// A program that has had enough after some slices of waiting.
struct Impatient(usize);

impl Host for Impatient {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }
    fn interrupted(&mut self) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

#[test]
fn the_program_can_interrupt_a_wait() {
    for medium in MEDIA {
        assert_eq!(alone(medium, None, &mut Impatient(2), |_| {}), Halt::Stop(Stop::Interrupted));
    }
}

/// How often a medium was asked.
#[derive(Default)]
struct Calls {
    writes: AtomicUsize,
    looks: AtomicUsize,
}

struct Counted<T>(T, Arc<Calls>);

impl Tx for Counted<Box<dyn Tx>> {
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        self.1.writes.fetch_add(1, Ordering::Relaxed);
        self.0.write(head, body, tail)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

impl Rx for Counted<Box<dyn Rx>> {
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken> {
        self.1.looks.fetch_add(1, Ordering::Relaxed);
        self.0.peek(enough)
    }
    fn consume(&mut self, n: usize) {
        self.0.consume(n);
    }
    fn read(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        self.1.looks.fetch_add(1, Ordering::Relaxed);
        self.0.read(dst)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

#[test]
fn an_exchange_is_one_write_and_one_read_if_the_peer_was_first() {
    for elements in [0, 2, 3, 1000, SEGMENT / 8] {
        let mut couple = Couple::new(elements, 1 << 20);
        let calls = Arc::new(Calls::default());
        let Link { tx, rx } = couple.rank.links[1].take().expect("a link");
        let (tx, rx) = (Counted(tx, Arc::clone(&calls)), Counted(rx, Arc::clone(&calls)));
        couple.rank.links[1] = Some(Link { tx: Box::new(tx), rx: Box::new(rx) });
        couple.send(&couple.case.header().to_bytes(), elements);
        let (ended, _, after) = couple.run(FOREVER);
        assert_eq!((ended, after), (Ok(()), couple.case.expected().remove(0)), "{elements} elements");
        assert_eq!(calls.writes.load(Ordering::Relaxed), 1, "{elements} elements");
        assert_eq!(calls.looks.load(Ordering::Relaxed), 1, "{elements} elements");
        // Header, array and padding, nothing else.
        let stream = (Header::SIZE + 4 * elements).next_multiple_of(ALIGN);
        assert_eq!(couple.other.rx.peek(stream).map(<[_]>::len), Ok(stream));
    }
}

#[test]
fn an_array_of_several_segments_is_one_stream() {
    let elements = SEGMENT / 2 + 1;
    let mut couple = Couple::new(elements, 1 << 20);
    couple.send(&couple.case.header().to_bytes(), elements);
    let (ended, before, after) = couple.run(FOREVER);
    assert!(ended == Ok(()) && after == couple.case.expected().remove(0));
    let stream = [&couple.case.header().to_bytes()[..], &before, &[0; ALIGN - 4]].concat();
    let seen = couple.other.rx.peek(stream.len()).expect("a live link");
    assert!(seen.iter().map(Cell::get).eq(stream), "header, array and padding, nothing else");
}

/// A link that takes so many bytes and no more.
struct Stuck {
    room: usize,
    /// Never becomes writable.
    fd: OwnedFd,
}

impl Tx for Stuck {
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        let n = self.room.min(head.len() + body.len() + tail.len());
        self.room -= n;
        Ok(n)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// With a descriptor that always says that something has arrived.
struct Ready(Counted<Box<dyn Rx>>, UnixStream);

impl Rx for Ready {
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken> {
        self.0.peek(enough)
    }
    fn consume(&mut self, n: usize) {
        self.0.consume(n);
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_fd())
    }
}

#[test]
fn a_rank_sleeps_while_no_whole_element_may_be_overwritten() {
    let mut couple = Couple::new(5, 256);
    couple.send(&couple.case.header().to_bytes(), 5);
    let (never, _writable) = std::io::pipe().expect("a pipe");
    let (mut bell_push, readable) = UnixStream::pair().expect("sockets");
    bell_push.write_all(b"x").expect("written");
    let calls = Arc::new(Calls::default());
    let Link { rx, .. } = couple.rank.links[1].take().expect("a link");
    // The header, an element, and most of the next one.
    let tx = Stuck { room: Header::SIZE + 7, fd: never.into() };
    let rx = Ready(Counted(rx, Arc::clone(&calls)), readable);
    couple.rank.links[1] = Some(Link { tx: Box::new(tx), rx: Box::new(rx) });
    let (ended, before, after) = couple.run(Duration::from_millis(100));
    assert_eq!(ended, Err(Halt::Stop(Stop::Timeout)));
    assert_eq!(after[..4], couple.case.expected()[0][..4]);
    assert_eq!(after[4..], before[4..]);
    assert_eq!(calls.looks.load(Ordering::Relaxed), 1, "looked at what it could not take");
}

#[test]
fn a_peer_that_is_gone_because_it_was_in_another_call_says_so() {
    let Couple { case, mut rank, mut other } = Couple::new(100, 512);
    let header = Header { sequence: 9, ..case.header() };
    assert_eq!(other.tx.write(&header.to_bytes(), &[], &[]), Ok(Header::SIZE));
    drop(other);
    let data = Array::new(&case.input(0));
    let ended = reduce(&mut rank, &case.plan(0), &data, case.arithmetic(None), case.header(), FOREVER);
    // Nothing could be sent, so nothing may be received in place; the header is looked at nevertheless.
    assert_eq!(ended, Err(Halt::Differs { rank: 1, header }));
}
