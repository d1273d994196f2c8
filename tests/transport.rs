//! What every medium does, for all of them: a test here takes a medium and knows nothing about it.

#[path = "tcp/ends.rs"]
mod ends;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arx::arena::Segment;
use arx::kernels::Bytes;
use arx::transport::shm::ring::Ring;
use arx::transport::{Broken, Link, Rx, Tx, mem, shm, tcp};
use arx::wait::Bell;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How to make a pair of links between two ranks.
#[derive(Clone, Copy)]
struct Medium {
    /// The end of rank 3, the end of rank 8; in each direction about so many bytes may be under way.
    pair: fn(usize) -> (Link, Link),
    /// It is exactly so many.
    exact: bool,
}

const MEM: Medium = Medium { pair: |capacity| mem::pair([3, 8], capacity, &Arc::new(Bell::default())), exact: true };
const SHM: Medium = Medium { pair: shm_pair, exact: true };
const TCP: Medium = Medium { pair: |capacity| tcp_pair(1, capacity), exact: false };
const TCP_STREAMS: Medium = Medium { pair: |capacity| tcp_pair(3, capacity), exact: false };

fn shm_pair(capacity: usize) -> (Link, Link) {
    let first = size_of::<Bell>().next_multiple_of(Ring::ALIGN);
    let second = first + Ring::size(capacity).next_multiple_of(Ring::ALIGN);
    let segment = Arc::new(Segment::create(second + Ring::size(capacity)).expect("memory").0);
    let ring = |offset| Ring::new(Arc::clone(&segment), offset, capacity, 0);
    let link = |out, inn, peer| Link {
        tx: Box::new(shm::Writer::new(ring(out), peer)),
        rx: Box::new(shm::Reader::new(ring(inn), peer)),
    };
    (link(first, second, 8), link(second, first, 3))
}

fn tcp_pair(streams: usize, capacity: usize) -> (Link, Link) {
    let (left, right) = ends::connections(ends::V4, streams, Some(capacity));
    (tcp::link(8, left), tcp::link(3, right))
}

/// All tests, for one medium.
macro_rules! conformance {
    ($name:ident, $medium:expr) => {
        conformance!($name, $medium;
                        single_bytes_arrive_in_order, the_three_parts_follow_each_other, nothing_there_is_no_failure,
            a_full_pipe_takes_no_more_until_it_is_read, what_is_not_consumed_is_seen_again,
            sixty_four_bytes_are_seen_together_wherever_they_lie, directions_do_not_touch_each_other,
            long_messages_pass_between_two_threads, what_was_sent_before_closing_is_read,
            more_than_will_ever_come_is_broken, a_writer_notices_that_the_reader_is_gone, descriptors_tell_what_can_be_done,
            empty_writes_and_reads_do_nothing, any_sequence_of_calls_is_that_of_a_queue,
        );
    };
    ($name:ident, $medium:expr; $($test:ident),* $(,)?) => {
        mod $name {
            $(#[test]
            fn $test() {
                super::$test($medium);
            })*
        }
    };
}
conformance!(mem_pipe, super::MEM);
conformance!(shm_ring, super::SHM);
conformance!(tcp_socket, super::TCP);
conformance!(tcp_sockets, super::TCP_STREAMS);

/// Nothing here takes long; a medium may need a moment to deliver.
const HANG: Duration = Duration::from_secs(30);

/// Tries until it is something.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let from = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(from.elapsed() < HANG, "nothing happens");
        thread::yield_now();
    }
}

/// What the stream has at `position`, if a test does not care.
fn byte(position: usize) -> u8 {
    (position.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn bytes(position: usize, len: usize) -> Vec<u8> {
    (position..position + len).map(byte).collect()
}

fn cells(bytes: &[u8]) -> Vec<Cell<u8>> {
    bytes.iter().map(|byte| Cell::new(*byte)).collect()
}

fn plain(bytes: Bytes<'_>) -> Vec<u8> {
    bytes.iter().map(Cell::get).collect()
}

fn write(tx: &mut dyn Tx, all: &[u8]) {
    let all = cells(all);
    let mut done = 0;
    while done < all.len() {
        done += until(|| Some(tx.write(&[], &all[done..], &[]).expect("a live link")).filter(|n| *n > 0));
    }
}

fn read(rx: &mut dyn Rx, len: usize) -> Vec<u8> {
    let all = cells(&vec![0; len]);
    let mut done = 0;
    while done < len {
        done += until(|| Some(rx.read(&all[done..]).expect("a live link")).filter(|n| *n > 0));
    }
    plain(&all)
}

/// At least `enough` bytes, not consumed.
fn see(rx: &mut dyn Rx, enough: usize) -> Vec<u8> {
    until(|| {
        let there = rx.peek(enough).expect("a live link");
        (there.len() >= enough).then(|| plain(there))
    })
}

fn single_bytes_arrive_in_order(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(64);
    for k in 0..500 {
        write(&mut *left.tx, &[byte(k)]);
        assert_eq!(read(&mut *right.rx, 1), [byte(k)]);
    }
}

fn the_three_parts_follow_each_other(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(4096);
    for (head, body, tail) in [(32, 8, 8), (32, 0, 0), (0, 5, 0), (0, 0, 3), (7, 1000, 15), (0, 5, 11), (32, 64, 0)] {
        let all = bytes(head, head + body + tail);
        let middle = cells(&all[head..head + body]);
        assert_eq!(left.tx.write(&all[..head], &middle, &all[head + body..]), Ok(all.len()));
        assert_eq!(read(&mut *right.rx, all.len()), all);
    }
}

fn nothing_there_is_no_failure(medium: Medium) {
    let (_left, mut right) = (medium.pair)(64);
    assert_eq!(right.rx.peek(1).map(<[_]>::len), Ok(0));
    assert_eq!(right.rx.peek(1000).map(<[_]>::len), Ok(0));
    assert_eq!(right.rx.read(&cells(&[0; 5])), Ok(0));
}

fn empty_writes_and_reads_do_nothing(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(64);
    assert_eq!(left.tx.write(&[], &[], &[]), Ok(0));
    write(&mut *left.tx, b"x");
    assert_eq!(right.rx.read(&[]), Ok(0));
    assert_eq!(see(&mut *right.rx, 1), b"x");
    right.rx.consume(0);
    assert_eq!(read(&mut *right.rx, 1), b"x");
}

fn a_full_pipe_takes_no_more_until_it_is_read(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(192);
    let mut position = 0;
    for _ in 0..3 {
        let start = position;
        // Where there is a system in between it moves bytes on, and may take some more for a while.
        let mut refused = 0;
        while refused < 100 {
            let piece = cells(&bytes(position, 4096));
            match left.tx.write(&[], &piece, &[]).expect("a live link") {
                0 => refused += 1,
                n => (position, refused) = (position + n, 0),
            }
        }
        assert!(position - start >= 192, "{} bytes", position - start);
        assert!(!medium.exact || position - start == 192, "{} bytes", position - start);
        assert_eq!(read(&mut *right.rx, position - start), bytes(start, position - start));
        assert_eq!(right.rx.peek(1).map(<[_]>::len), Ok(0));
    }
}

fn what_is_not_consumed_is_seen_again(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(256);
    let all = bytes(0, 100);
    write(&mut *left.tx, &all);
    assert_eq!(see(&mut *right.rx, 100), all);
    assert_eq!(see(&mut *right.rx, 1), all);
    right.rx.consume(1);
    right.rx.consume(29);
    assert_eq!(see(&mut *right.rx, 70), all[30..]);
    assert_eq!(read(&mut *right.rx, 5), all[30..35]);
    write(&mut *left.tx, &bytes(100, 10));
    assert_eq!(see(&mut *right.rx, 75), bytes(35, 75));
}

fn sixty_four_bytes_are_seen_together_wherever_they_lie(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(128);
    let mut position = 0;
    for k in 0..300 {
        write(&mut *left.tx, &bytes(position, 64));
        let address = until(|| {
            let there = right.rx.peek(64).expect("a live link");
            (there.len() >= 64).then(|| there.as_ptr().addr() % 16)
        });
        assert_eq!(address, position % 16, "at position {position}");
        assert_eq!(see(&mut *right.rx, 64)[..64], bytes(position, 64));
        // Every place of the ring is the first one at times.
        let n = if k % 2 == 0 { 64 } else { 63 };
        right.rx.consume(n);
        position += n;
        assert_eq!(read(&mut *right.rx, 64 - n), bytes(position, 64 - n));
        position += 64 - n;
        if k % 3 == 0 {
            write(&mut *left.tx, &bytes(position, 1 + k % 17));
            assert_eq!(read(&mut *right.rx, 1 + k % 17), bytes(position, 1 + k % 17));
            position += 1 + k % 17;
        }
    }
}

fn directions_do_not_touch_each_other(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(128);
    write(&mut *left.tx, b"from three");
    write(&mut *right.tx, b"from eight");
    assert_eq!(read(&mut *left.rx, 10), b"from eight");
    assert_eq!(left.rx.peek(1).map(<[_]>::len), Ok(0));
    assert_eq!(read(&mut *right.rx, 10), b"from three");
}

fn long_messages_pass_between_two_threads(medium: Medium) {
    const ALL: usize = 3 << 20;
    let (mut left, mut right) = (medium.pair)(64 << 10);
    let writer = thread::spawn(move || {
        let mut position = 0;
        for len in (0..).map(|k| 1 + k * 7919 % 100_000) {
            let len = len.min(ALL - position);
            write(&mut *left.tx, &bytes(position, len));
            position += len;
            if position == ALL {
                return left;
            }
        }
        unreachable!("an endless sequence")
    });
    let mut position = 0;
    for len in (0..).map(|k| 1 + k * 104_729 % 70_000) {
        let len = len.min(ALL - position);
        if len % 2 == 0 {
            assert!(read(&mut *right.rx, len) == bytes(position, len), "read at {position}");
            position += len;
        } else {
            let seen = see(&mut *right.rx, len.min(64));
            let n = seen.len().min(len);
            assert!(seen[..n] == bytes(position, n), "seen at {position}");
            right.rx.consume(n);
            position += n;
        }
        if position == ALL {
            break;
        }
    }
    writer.join().expect("the writer");
}

fn what_was_sent_before_closing_is_read(medium: Medium) {
    for len in [0, 1, 100] {
        let (mut left, mut right) = (medium.pair)(128);
        write(&mut *left.tx, &bytes(0, len));
        drop(left);
        assert_eq!(read(&mut *right.rx, len), bytes(0, len));
        let Broken { rank, .. } = until(|| right.rx.read(&cells(&[0; 8])).err());
        assert_eq!(rank, 3);
        assert_eq!(right.rx.peek(1).map(<[_]>::len).expect_err("a broken link").rank, 3);
    }
}

fn more_than_will_ever_come_is_broken(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(128);
    write(&mut *left.tx, &bytes(0, 31));
    drop(left);
    assert_eq!(until(|| right.rx.peek(32).map(<[_]>::len).err()).rank, 3);
    assert_eq!(see(&mut *right.rx, 31), bytes(0, 31));
    right.rx.consume(1);
    assert_eq!(right.rx.peek(31).map(<[_]>::len).expect_err("a broken link").rank, 3);
    assert_eq!(read(&mut *right.rx, 30), bytes(1, 30));
}

fn a_writer_notices_that_the_reader_is_gone(medium: Medium) {
    let (mut left, right) = (medium.pair)(128);
    drop(right);
    let piece = cells(&bytes(0, 4096));
    assert_eq!(until(|| left.tx.write(&[], &piece, &[]).err()).rank, 8);
    assert_eq!(left.tx.write(&[], &piece, &[]).expect_err("a broken link").rank, 8);
}

/// Whether poll says so within `limit` seconds; true for a medium without descriptors.
fn holds(fd: Option<BorrowedFd<'_>>, flags: PollFlags, limit: i64) -> bool {
    fd.is_none_or(|fd| {
        let timeout = Timespec { tv_sec: limit, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)).expect("poll") > 0
    })
}

fn descriptors_tell_what_can_be_done(medium: Medium) {
    let (mut left, mut right) = (medium.pair)(256);
    assert_eq!(left.tx.fd().is_some(), left.rx.fd().is_some(), "both or none, so that one sleep is enough");
    assert!(holds(left.tx.fd(), PollFlags::OUT, 30), "room in a new pipe");
    if left.tx.fd().is_some() {
        assert!(!holds(right.rx.fd(), PollFlags::IN, 0), "nothing has come");
    }
    write(&mut *left.tx, b"now");
    assert!(holds(right.rx.fd(), PollFlags::IN, 30), "something has come");
    assert_eq!(read(&mut *right.rx, 3), b"now");
    drop(left);
    assert!(holds(right.rx.fd(), PollFlags::IN, 30), "the end has come");
}

#[derive(Clone, Debug)]
enum Act {
    Write(usize, usize, usize),
    Peek(usize),
    /// That much of what was seen last, in 256ths.
    Consume(usize),
    Read(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0..40usize, 0..200usize, 0..17usize).prop_map(|(head, body, tail)| Act::Write(head, body, tail)),
        2 => (0..300usize).prop_map(Act::Peek),
        2 => (0..=256usize).prop_map(Act::Consume),
        2 => (0..200usize).prop_map(Act::Read),
    ];
    prop::collection::vec(act, 0..120)
}

fn any_sequence_of_calls_is_that_of_a_queue(medium: Medium) {
    proptest!(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }, |(lines in 1..5usize, acts in acts())| {
        let capacity = 64 * lines;
        let (mut left, mut right) = (medium.pair)(capacity);
        let mut model: VecDeque<u8> = VecDeque::new();
        let (mut written, mut seen) = (0, 0);
        for act in acts {
            match act {
                Act::Write(head, body, tail) => {
                    let all = bytes(written, head + body + tail);
                    let n = left.tx.write(&all[..head], &cells(&all[head..head + body]), &all[head + body..]);
                    let n = n.expect("a live link");
                    prop_assert!(n <= all.len());
                    prop_assert!(!medium.exact || n == all.len().min(capacity - model.len()));
                    model.extend(&all[..n]);
                    written += n;
                }
                Act::Peek(enough) => {
                    let there = plain(right.rx.peek(enough).expect("a live link"));
                    prop_assert!(there.iter().eq(model.iter().take(there.len())));
                    prop_assert!(!medium.exact || there.len() >= enough.min(model.len()).min(64));
                    seen = there.len();
                }
                Act::Consume(part) => {
                    let n = seen * part / 256;
                    right.rx.consume(n);
                    model.drain(..n);
                    seen -= n;
                }
                Act::Read(len) => {
                    let place = cells(&vec![0; len]);
                    let n = right.rx.read(&place).expect("a live link");
                    prop_assert!(plain(&place[..n]).iter().eq(model.iter().take(n)));
                    prop_assert!(!medium.exact || n >= len.min(model.len()).min(1));
                    model.drain(..n);
                    seen = 0;
                }
            }
        }
        prop_assert_eq!(read(&mut *right.rx, model.len()), Vec::from(model));
        prop_assert_eq!(right.rx.peek(1).map(<[_]>::len), Ok(0));
    });
}

#[test]
fn a_ring_whose_words_make_no_sense_is_broken() {
    let bell = size_of::<Bell>().next_multiple_of(Ring::ALIGN);
    let segment = Arc::new(Segment::create(bell + Ring::size(128)).expect("memory").0);
    let ring = || Ring::new(Arc::clone(&segment), bell, 128, 0);
    let (mut tx, mut rx) = (shm::Writer::new(ring(), 8), shm::Reader::new(ring(), 3));
    assert_eq!(tx.write(b"abc", &[], &[]), Ok(3));
    assert_eq!(plain(rx.peek(3).expect("a live link")), b"abc");
    rx.consume(3);
    // Tail and head are the first words of the first two lines; both positions jump by 2^24 bytes.
    segment.cells(bell + 3, 1)[0].set(1);
    assert_eq!(rx.peek(1).map(<[_]>::len).expect_err("a broken link").rank, 3);
    segment.cells(bell + 128 + 3, 1)[0].set(1);
    assert_eq!(tx.write(&[0; 128], &[], &[]).expect_err("a broken link").rank, 8);
}
