//! A ring of bytes in memory that two ranks of one host share.
//!
//! ```text
//! write:  copy into what is free, publish, ring the bell
//! peek:   the published bytes where they lie: what receives them reduces straight out of the ring
//! ```
//! `words` is the protocol, `ring` the memory; here is what makes a link of them. Nobody locks, and the kernel is called only to
//! wake a peer that sleeps.

pub mod ring;
pub mod words;

use std::cell::Cell;
use std::os::fd::BorrowedFd;

use super::{Broken, Rx, Tx};
use crate::error::Rank;
use crate::kernels::{self, Bytes};
use ring::Ring;
use words::{Consumer, End, Producer};

/// Bytes after which the reader is told, so that it reads one piece while the next is copied.
const PIECE: usize = 32 << 10;

/// What a reader may count on to see in one piece.
const TOGETHER: usize = 64;

fn broken(rank: Rank, end: End) -> Broken {
    let why = match end {
        End::Closed => "the other end of the ring was closed",
        End::Spoilt => "the words of the ring make no sense",
    };
    Broken { rank, why: why.to_owned() }
}

/// The writing end, on the rank that sends.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    peer: Rank,
    producer: Producer,
}

impl Writer {
    /// There must be one writer of a ring, and one reader.
    pub fn new(ring: Ring, peer: Rank) -> Writer {
        let producer = Producer::new(ring.capacity());
        Writer { ring, peer, producer }
    }

    fn publish(&mut self, filled: &mut usize) {
        self.producer.publish(self.ring.words(), std::mem::take(filled));
        self.ring.bell().ring();
    }

    /// Behind the `filled` bytes that are not published yet, has `fill` write `len` bytes, each of them by its place among these.
    fn put(&mut self, filled: &mut usize, len: usize, fill: impl Fn(Bytes<'_>, usize)) {
        let mut done = 0;
        while done < len {
            let piece = self.ring.bytes(self.producer.position() + *filled as u64, (len - done).min(PIECE));
            fill(piece, done);
            done += piece.len();
            *filled += piece.len();
            if *filled >= PIECE {
                self.publish(filled);
            }
        }
    }
}

impl Tx for Writer {
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        let all = head.len() + body.len() + tail.len();
        let room = self.producer.room(self.ring.words(), all).map_err(|end| broken(self.peer, end))?.min(all);
        let plain = |bytes: &[u8], piece: Bytes<'_>, at: usize| {
            piece.iter().zip(&bytes[at..]).for_each(|(cell, byte)| cell.set(*byte));
        };
        let (of_head, mut filled) = (head.len().min(room), 0);
        let of_body = body.len().min(room - of_head);
        self.put(&mut filled, of_head, |piece, at| plain(head, piece, at));
        self.put(&mut filled, of_body, |piece, at| kernels::copy(piece, &body[at..at + piece.len()]));
        self.put(&mut filled, room - of_head - of_body, |piece, at| plain(tail, piece, at));
        if filled > 0 {
            self.publish(&mut filled);
        }
        Ok(room)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.producer.close(self.ring.words());
        self.ring.bell().ring();
    }
}

/// The reading end, on the rank that receives.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    peer: Rank,
    consumer: Consumer,
    /// What lies on both sides of the ring's end, in one piece.
    bridge: Bridge,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bridge([Cell<u8>; TOGETHER + 64]);

impl Reader {
    /// There must be one writer of a ring, and one reader.
    pub fn new(ring: Ring, peer: Rank) -> Reader {
        let consumer = Consumer::new(ring.capacity());
        Reader { ring, peer, consumer, bridge: Bridge([const { Cell::new(0) }; TOGETHER + 64]) }
    }

    /// The next `len` bytes, which lie on both sides of the ring's end, at an address of the same alignment.
    fn bridged(&self, len: usize) -> Bytes<'_> {
        let position = self.consumer.position();
        let at = (position % 64) as usize;
        let whole = &self.bridge.0[at..at + len];
        let first = self.ring.bytes(position, len);
        kernels::copy(&whole[..first.len()], first);
        kernels::copy(&whole[first.len()..], self.ring.bytes(position + first.len() as u64, len - first.len()));
        whole
    }
}

impl Rx for Reader {
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken> {
        let there = self.consumer.arrived(self.ring.words(), enough).map_err(|end| broken(self.peer, end))?;
        let straight = self.ring.bytes(self.consumer.position(), there);
        let together = there.min(enough).min(TOGETHER);
        Ok(if straight.len() < together { self.bridged(together) } else { straight })
    }

    fn consume(&mut self, n: usize) {
        self.consumer.consume(self.ring.words(), n);
        self.ring.bell().ring();
    }

    fn read_past_caches(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        if dst.is_empty() {
            return Ok(0);
        }
        let arrived = self.peek(1)?;
        let n = arrived.len().min(dst.len());
        kernels::copy_streaming(&dst[..n], &arrived[..n]);
        self.consume(n);
        Ok(n)
    }

    fn is_closed(&self) -> bool {
        self.consumer.is_closed(self.ring.words())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.consumer.close(self.ring.words());
        self.ring.bell().ring();
    }
}
