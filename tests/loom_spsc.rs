//! The ring between two ranks under every interleaving: bytes are published after they are written and freed after they are read,
//! whether the ring is full, empty or wraps; who closes loses nothing; nobody sleeps through what it waits for.
//!
//! `Words`, `Producer` and `Consumer` are those of production. Each byte of the ring is one watched word here.
#![cfg(loom)]

mod watched;

use arx::transport::shm::words::{Consumer, End, Producer, Words};
use arx::wait::Bell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use watched::{Plain, until};

#[derive(Default)]
struct Ring {
    words: Words,
    bell: Bell,
    bytes: Vec<Plain>,
}

impl Ring {
    fn at(&self, position: u64) -> &Plain {
        &self.bytes[position as usize % self.bytes.len()]
    }

    /// Writes up to `n` bytes, as `Writer::write` does; how many. Without the bell, whose fence would hide orderings that are
    /// too weak.
    fn write(&self, producer: &mut Producer, n: usize) -> Result<usize, End> {
        let n = producer.room(&self.words, n)?.min(n);
        for k in 0..n as u64 {
            self.at(producer.position() + k).set(value(producer.position() + k));
        }
        producer.publish(&self.words, n);
        Ok(n)
    }

    /// Reads up to `n` bytes, as `Rx::read` does; how many.
    fn read(&self, consumer: &mut Consumer, n: usize) -> Result<usize, End> {
        let n = consumer.arrived(&self.words, n)?.min(n);
        for k in 0..n as u64 {
            assert_eq!(self.at(consumer.position() + k).get(), value(consumer.position() + k));
        }
        consumer.consume(&self.words, n);
        Ok(n)
    }
}

/// What the writer writes at `position`.
fn value(position: u64) -> u64 {
    position + 1
}

/// A ring of `capacity` bytes, its writer in a thread of its own, its reader in that of the model.
fn explore(capacity: usize, writer: fn(&Ring, Producer), reader: fn(&Ring, Consumer)) {
    loom::model(move || {
        let bytes = (0..capacity).map(|_| Plain::default()).collect();
        let ring = Arc::new(Ring { bytes, ..Ring::default() });
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || writer(&other, Producer::new(capacity)));
        reader(&ring, Consumer::new(capacity));
        thread.join().expect("the writer");
    });
}

/// Does `n` bytes at most at a time, until `all` are done.
fn all(all: usize, n: usize, mut some: impl FnMut(usize) -> Result<usize, End>) {
    let mut done = 0;
    while done < all {
        until(|| {
            let now = some(n.min(all - done)).expect("nobody closes");
            done += now;
            now > 0
        });
    }
}

#[test]
fn bytes_pass_a_ring_that_is_full_and_empty_in_turn() {
    explore(
        1,
        |ring, mut producer| all(3, 1, |n| ring.write(&mut producer, n)),
        |ring, mut consumer| all(3, 1, |n| ring.read(&mut consumer, n)),
    );
}

#[test]
fn bytes_pass_in_pieces_that_wrap() {
    explore(
        3,
        |ring, mut producer| all(5, 2, |n| ring.write(&mut producer, n)),
        |ring, mut consumer| all(5, 2, |n| ring.read(&mut consumer, n)),
    );
}

#[test]
fn who_asks_for_more_than_is_there_gets_what_there_is() {
    explore(
        2,
        |ring, mut producer| all(3, 3, |n| ring.write(&mut producer, n)),
        |ring, mut consumer| all(3, 3, |n| ring.read(&mut consumer, n)),
    );
}

#[test]
fn a_writer_that_closes_loses_nothing() {
    explore(
        2,
        |ring, mut producer| {
            all(3, 2, |n| ring.write(&mut producer, n));
            producer.close(&ring.words);
        },
        |ring, mut consumer| {
            let (mut read, mut end) = (0, None);
            until(|| {
                match ring.read(&mut consumer, 1) {
                    Ok(n) => read += n,
                    Err(why) => end = Some(why),
                }
                end.is_some()
            });
            assert_eq!((read, end), (3, Some(End::Closed)));
        },
    );
}

#[test]
fn bytes_that_will_never_be_enough_are_an_end() {
    explore(
        2,
        |ring, mut producer| {
            all(1, 1, |n| ring.write(&mut producer, n));
            producer.close(&ring.words);
        },
        |ring, mut consumer| {
            let mut end = None;
            until(|| {
                match consumer.arrived(&ring.words, 2) {
                    Ok(there) => assert!(there < 2),
                    Err(why) => end = Some(why),
                }
                end.is_some()
            });
            assert_eq!(end, Some(End::Closed));
            assert_eq!(ring.read(&mut consumer, 1), Ok(1));
        },
    );
}

#[test]
fn a_writer_notices_that_the_reader_has_closed() {
    explore(
        1,
        |ring, mut producer| {
            let (mut written, mut end) = (0, None);
            until(|| {
                match ring.write(&mut producer, 1) {
                    Ok(n) => written += n,
                    Err(why) => end = Some(why),
                }
                end.is_some()
            });
            assert_eq!(end, Some(End::Closed));
            assert!((1..=2).contains(&written), "{written}");
        },
        |ring, mut consumer| {
            all(1, 1, |n| ring.read(&mut consumer, n));
            consumer.close(&ring.words);
        },
    );
}

#[test]
fn what_was_read_while_the_way_was_open_had_not_been_taken_back() {
    loom::model(|| {
        // What was offered lies elsewhere; its owner writes to it again once it has closed the way. As `Writer::drop` and the
        // caller of `Office::withdraw` do, and on the other side `Peers::read` and `Office::read_on`.
        let shared = Arc::new((Words::default(), AtomicU64::new(1)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (words, letter) = &*other;
            Producer::new(1).close(words);
            fence(Ordering::SeqCst); // of the bell
            letter.store(2, Ordering::Relaxed);
        });
        let (words, letter) = &*shared;
        let read = letter.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        assert!(Consumer::new(1).is_closed(words) || read == 1);
        thread.join().expect("the sender");
    });
}

/// A sleep that nothing ends is a deadlock, which loom reports.
fn asleep(bell: &Bell, mut ready: impl FnMut() -> bool) {
    while !ready() {
        bell.sleep(&mut ready);
    }
}

#[test]
fn nobody_sleeps_through_a_byte_or_a_free_place() {
    explore(
        1,
        |ring, mut producer| {
            for _ in 0..2 {
                asleep(&ring.bell, || producer.room(&ring.words, 1) == Ok(1));
                assert_eq!(ring.write(&mut producer, 1), Ok(1));
                ring.bell.ring();
            }
        },
        |ring, mut consumer| {
            for _ in 0..2 {
                asleep(&ring.bell, || consumer.arrived(&ring.words, 1) == Ok(1));
                assert_eq!(ring.read(&mut consumer, 1), Ok(1));
                ring.bell.ring();
            }
        },
    );
}

#[test]
fn nobody_sleeps_through_the_end() {
    explore(
        1,
        |ring, producer| {
            producer.close(&ring.words);
            ring.bell.ring();
        },
        |ring, mut consumer| asleep(&ring.bell, || consumer.arrived(&ring.words, 1) == Err(End::Closed)),
    );
}
