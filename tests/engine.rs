//! Plans and the engine, over pipes so small that full, empty and half an element happen at once. Every result is compared bit by
//! bit with what the schedules say: their expressions, evaluated step by step by the scalar kernel.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arx::dtype::{DType, ReduceOp};
use arx::engine::{self, Arithmetic, Call, Halt, Header, Memory, SEGMENT};
use arx::kernels::{Bytes, Isa, Reducer};
use arx::plan::{self, Plan};
use arx::schedule::{Algorithm, Apply, Buf, Collective, Schedule, Span, Step};
use arx::transport::{Broken, Link, Rx, Tx};
use arx::wait::{Host, Plain, Stop};
use proptest::prelude::*;
use ranks::{Array, Group, Medium, Rank};

mod ranks;

const FOREVER: Duration = Duration::MAX;

const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::Ring,
    Algorithm::Recursive,
    Algorithm::Doubling,
    Algorithm::Tree,
    Algorithm::CHAIN,
    Algorithm::KAry { arity: 2, pieces: 3 },
    Algorithm::DoubleTree { pieces: 2 },
    Algorithm::Pairwise,
    Algorithm::Exchange,
];

/// One collective of a world.
#[derive(Clone, Debug)]
struct Case {
    algorithm: Algorithm,
    collective: Collective,
    world: usize,
    elements: usize,
    dtype: DType,
    op: ReduceOp,
    tile: usize,
    medium: Medium,
}

impl Case {
    fn schedule(&self, rank: usize) -> Schedule {
        let schedule = self.algorithm.schedule(self.collective, rank as u32, self.world as u32);
        schedule.unwrap_or_else(|| panic!("{} does not serve {:?}", self.algorithm, self.collective))
    }

    fn plan(&self, rank: usize) -> Plan {
        plan::compile(&self.schedule(rank), self.elements * self.dtype.size(), self.dtype.size(), self.tile)
    }

    fn arithmetic(&self, isa: Option<Isa>) -> Arithmetic {
        let reducer = |op| match isa {
            Some(isa) => Reducer::with_isa(self.dtype, op, isa),
            None => Reducer::of(self.dtype, op),
        };
        let partial = if self.op == ReduceOp::Avg { ReduceOp::Sum } else { self.op };
        Arithmetic {
            partial: reducer(partial).expect("a pair that goes together"),
            last: reducer(self.op).expect("a pair that goes together"),
            count: self.world,
        }
    }

    /// What `rank` brings: all bits of every element vary, with rank and position.
    fn input(&self, rank: usize) -> Vec<u8> {
        let byte = |k: usize| {
            let z = ((rank as u64) << 32 | k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
        };
        (0..self.elements * self.dtype.size()).map(byte).collect()
    }

    fn header(&self) -> Header {
        Header { kind: 1, sequence: 7, fingerprint: 0xfeed, bytes: (self.elements * self.dtype.size()) as u64 }
    }

    /// Runs it, twice over the same links, and compares.
    fn check(self) {
        let expected = self.expected();
        let what = format!("{self:?}");
        let case = self.clone();
        let results = ranks::run(what.clone(), ranks::world(self.world, self.medium), move |mut rank| {
            let plan = case.plan(rank.rank);
            let twice = [0, 1].map(|round| {
                let header = Header { sequence: round, ..case.header() };
                let data = Array::new(&case.input(rank.rank));
                let ended = reduce(&mut rank, &plan, &data, case.arithmetic(None), header, FOREVER);
                assert_eq!(ended, Ok(()), "rank {}", rank.rank);
                data.content()
            });
            // Nobody closes a pipe before all have read what is in it.
            (twice, rank)
        });
        for (rank, (twice, _)) in results.iter().enumerate() {
            for result in twice {
                assert!(*result == expected[rank], "rank {rank} of {what}");
                let same = self.collective != Collective::AllReduce || *result == expected[0];
                assert!(same, "ranks differ: {rank} of {what}");
            }
        }
    }

    /// What every rank ends with, tile by tile.
    fn expected(&self) -> Vec<Vec<u8>> {
        let schedules: Vec<_> = (0..self.world).map(|rank| self.schedule(rank)).collect();
        let mut results: Vec<_> = (0..self.world).map(|rank| self.input(rank)).collect();
        let bytes = results[0].len();
        let tile = (self.tile / self.dtype.size()).max(1).saturating_mul(self.dtype.size());
        for lo in (0..bytes).step_by(tile.min(bytes.max(1))) {
            let hi = bytes.min(lo + tile);
            let inputs = results.iter().map(|result| result[lo..hi].to_vec()).collect();
            let arithmetic = self.arithmetic(Some(Isa::Scalar));
            for (result, tile) in results.iter_mut().zip(evaluate(&schedules, inputs, &arithmetic)) {
                result[lo..hi].copy_from_slice(&tile);
            }
        }
        results
    }
}

fn reduce(
    rank: &mut Rank,
    plan: &Plan,
    data: &Array,
    arithmetic: Arithmetic,
    header: Header,
    limit: Duration,
) -> Result<(), Halt> {
    let scratch = Array::new(&vec![0xff; plan.scratch]);
    let memory = Memory { data: data.bytes(), scratch: scratch.bytes() };
    let mut links = std::mem::take(&mut rank.links);
    let call = Call { plan, memory, arithmetic, header };
    let ended = rank.waiting(limit, &mut Plain, |wait| engine::run(&call, &mut links, None, wait));
    rank.links = links;
    ended
}

/// One rank of `evaluate`.
struct Actor {
    data: Vec<u8>,
    chunks: Vec<Range<usize>>,
    scratch: Vec<Vec<u8>>,
    step: usize,
    /// The first half of the current step is done.
    sent: bool,
}

impl Actor {
    fn new(schedule: &Schedule, data: Vec<u8>, elem: usize) -> Actor {
        let (elements, chunks) = (data.len() / elem, schedule.chunks as usize);
        let end = |k: usize| (k * (elements / chunks) + k.min(elements % chunks)) * elem;
        let chunks = (0..chunks).map(|k| end(k)..end(k + 1)).collect();
        Actor { data, chunks, scratch: vec![vec![]; schedule.scratch as usize], step: 0, sent: false }
    }

    fn get(&self, span: Span) -> Vec<u8> {
        match span.buf {
            Buf::Data => self.data[self.bytes_of(span)].to_vec(),
            Buf::Scratch => self.scratch[span.lo as usize..span.hi as usize].concat(),
        }
    }

    fn set(&mut self, span: Span, bytes: Vec<u8>) {
        match span.buf {
            Buf::Data => {
                let place = self.bytes_of(span);
                self.data[place].copy_from_slice(&bytes);
            }
            Buf::Scratch => {
                assert_eq!(span.len(), 1, "the lengths of more than one are not known here");
                self.scratch[span.lo as usize] = bytes;
            }
        }
    }

    fn bytes_of(&self, span: Span) -> Range<usize> {
        self.chunks[span.lo as usize].start..self.chunks[span.hi as usize - 1].end
    }

    /// Whether the step is done.
    fn take(&mut self, me: u32, step: &Step, mail: &mut Mail, arithmetic: &Arithmetic) -> bool {
        match step {
            Step::Exchange { send, recv } => {
                if let (Some((to, span)), false) = (*send, self.sent) {
                    mail.entry((me, to)).or_default().push_back(self.get(span));
                }
                self.sent = true;
                let Some((from, span, apply)) = *recv else { return true };
                let Some(bytes) = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front) else { return false };
                let value = match apply {
                    Apply::Store => bytes,
                    Apply::Reduce => combined(&[self.get(span), bytes], &arithmetic.partial, 2),
                    Apply::Finish => combined(&[self.get(span), bytes], &arithmetic.last, arithmetic.count),
                };
                self.set(span, value);
            }
            Step::Local { dst, srcs, finish } => {
                let operands: Vec<_> = srcs.iter().map(|src| self.get(*src)).collect();
                let reducer = if *finish { &arithmetic.last } else { &arithmetic.partial };
                self.set(*dst, combined(&operands, reducer, arithmetic.count));
            }
        }
        true
    }
}

/// What every rank ends with, by the meaning of schedules alone: no positions, no gates, no streams.
fn evaluate(schedules: &[Schedule], inputs: Vec<Vec<u8>>, arithmetic: &Arithmetic) -> Vec<Vec<u8>> {
    let actor = |(schedule, input)| Actor::new(schedule, input, arithmetic.last.elem());
    let mut actors: Vec<_> = schedules.iter().zip(inputs).map(actor).collect();
    let mut mail = Mail::new();
    while actors.iter().zip(schedules).any(|(actor, schedule)| actor.step < schedule.steps.len()) {
        for (me, (actor, schedule)) in actors.iter_mut().zip(schedules).enumerate() {
            if let Some(step) = schedule.steps.get(actor.step)
                && actor.take(me as u32, step, &mut mail, arithmetic)
            {
                (actor.step, actor.sent) = (actor.step + 1, false);
            }
        }
    }
    actors.into_iter().map(|actor| actor.data).collect()
}

/// What is under way, from whom to whom.
type Mail = HashMap<(u32, u32), VecDeque<Vec<u8>>>;

fn combined(operands: &[Vec<u8>], reducer: &Reducer, count: usize) -> Vec<u8> {
    let operands: Vec<_> = operands.iter().map(|operand| Array::new(operand)).collect();
    let result = Array::new(&operands[0].content());
    let sources: Vec<Bytes<'_>> = operands.iter().map(Array::bytes).collect();
    reducer.run_counted(result.bytes(), &sources, count);
    result.content()
}

/// Whether the bits are the same on all ranks: where partial results are rounded, only if everything is combined at once.
fn suits(algorithm: Algorithm, dtype: DType, op: ReduceOp) -> bool {
    let rounds = matches!(dtype, DType::Float16 | DType::BFloat16)
        && matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg);
    !rounds || matches!(algorithm, Algorithm::Pairwise | Algorithm::Exchange)
}

const PAIRS: [(DType, ReduceOp); 6] = [
    (DType::Int8, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Avg),
    (DType::Float64, ReduceOp::Max),
    (DType::Float64, ReduceOp::Avg),
    (DType::Complex128, ReduceOp::Avg),
];

#[test]
fn every_world_and_every_length_at_which_something_changes() {
    let collective = Collective::AllReduce;
    for algorithm in ALGORITHMS {
        for world in 1..=9 {
            for elements in [0, 1, world - 1, world, world + 1, 1000] {
                // All pairs meet all lengths, in worlds that take turns.
                let pairs = PAIRS.into_iter().enumerate().filter(|(k, _)| (k + world + elements) % PAIRS.len() == 0);
                for (_, (dtype, op)) in pairs.filter(|(_, (dtype, op))| suits(algorithm, *dtype, *op)) {
                    let medium = Medium::Pipes(if elements == 1000 { 256 } else { 64 + 16 * (elements % 5) });
                    Case { algorithm, collective, world, elements, dtype, op, tile: usize::MAX, medium }.check();
                }
            }
        }
    }
}

#[test]
fn arrays_longer_than_three_segments() {
    let collective = Collective::AllReduce;
    for algorithm in ALGORITHMS {
        let (int, float) = ((DType::Int8, ReduceOp::Sum), (DType::Float32, ReduceOp::Avg));
        for (world, tile, (dtype, op), medium) in [
            (2, usize::MAX, float, Medium::Sockets(64 << 10)),
            (3, usize::MAX, int, Medium::Both(48 << 10)),
            (3, 64 << 10, float, Medium::Rings(48 << 10)),
        ] {
            let elements = 3 * SEGMENT / dtype.size() + 1;
            Case { algorithm, collective, world, elements, dtype, op, tile, medium }.check();
        }
    }
}

fn pairs() -> Vec<(DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| *dtype != DType::Bool && op.check(*dtype).is_ok()).collect()
}

/// An algorithm and a collective that it serves, whose root is taken modulo the world.
fn jobs() -> Vec<(Algorithm, fn(u32) -> Collective)> {
    let collectives: [fn(u32) -> Collective; 5] = [
        |_| Collective::AllReduce,
        |_| Collective::ReduceScatter,
        |_| Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
    ];
    let all = ALGORITHMS.into_iter().flat_map(|algorithm| collectives.map(|collective| (algorithm, collective)));
    all.filter(|(algorithm, collective)| algorithm.serves(collective(0))).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let tile = prop_oneof![Just(usize::MAX), 1..3000usize];
    let medium = prop_oneof![
        3 => (4..=16usize).prop_map(|k| Medium::Pipes(16 * k)),
        2 => (1..=4usize).prop_map(|k| Medium::Rings(64 * k)),
        1 => Just(Medium::Sockets(1)),
        2 => (4..=16usize).prop_map(|k| Medium::Both(16 * k)),
    ];
    let memory = (tile, medium);
    (prop::sample::select(jobs()), 1..=9usize, 0..9u32, 0..700usize, prop::sample::select(pairs()), memory)
        .prop_filter("combined at once", |((algorithm, _), _, _, _, (dtype, op), _)| suits(*algorithm, *dtype, *op))
        .prop_map(|((algorithm, collective), world, root, elements, (dtype, op), (tile, medium))| {
            let collective = collective(root % world as u32);
            Case { algorithm, collective, world, elements, dtype, op, tile, medium }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_ends_with_the_bits_of_the_schedule(case in case()) {
        case.check();
    }
}

/// Two ranks and what they would exchange, in one thread: `links` of the first, the link of the second.
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
        let pad = vec![0; (4 * elements).next_multiple_of(16) - 4 * elements];
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
    let memory = Memory { data: data.bytes(), scratch: &[] };
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
        let stream = (Header::SIZE + 4 * elements).next_multiple_of(16);
        assert_eq!(couple.other.rx.peek(stream).map(<[_]>::len), Ok(stream));
    }
}
