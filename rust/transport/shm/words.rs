//! The words through which two ranks share a ring of bytes: one of them only writes, the other only reads.
//!
//! ```text
//!   ..... │ free again │ published, not consumed │ free ............     positions only grow; what is at position x
//!                      head                      tail                    lies in the ring at x modulo its capacity
//! ```
//! The writer fills free bytes and then moves the tail past them; the reader uses published bytes and then moves the head past
//! them. Each word is on a line of its own and written by one side only, and each side remembers what it last saw of the other's,
//! so that lines travel only when a side has used up what it knew of.
//!
//! A side that closes says so on its own line, after its last move: who sees that it is closed also sees all that it published.
//!
//! Safe code on borrowed words, so that `tests/loom_spsc.rs` runs the same lines as production.

use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded};

#[repr(C)]
#[derive(Debug, Default)]
pub struct Words {
    tail: Padded<Side>,
    head: Padded<Side>,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Side {
    position: AtomicU64,
    closed: AtomicU32,
}

/// Why a side cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The other side has closed.
    Closed,
    /// The other side's position cannot be: it would not be safe to go on.
    Spoilt,
}

/// The writing side.
#[derive(Debug)]
pub struct Producer {
    capacity: u64,
    tail: u64,
    /// Head, when it was last looked at.
    head: u64,
}

impl Producer {
    pub fn new(capacity: usize) -> Producer {
        Producer { capacity: capacity as u64, tail: 0, head: 0 }
    }

    /// Where the next byte goes.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// How many bytes are free; looks for more if that is less than `wanted`, and may not see that the reader has closed before.
    #[inline]
    pub fn room(&mut self, words: &Words, wanted: usize) -> Result<usize, End> {
        if self.free() < wanted as u64 {
            // acquires: the reader is done with everything before the head
            self.head = words.head.position.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) > self.capacity {
                return Err(End::Spoilt);
            }
            // acquires: all that the reader did and said elsewhere before it closed
            if words.head.closed.load(Ordering::Acquire) != 0 {
                return Err(End::Closed);
            }
        }
        Ok(self.free() as usize)
    }

    fn free(&self) -> u64 {
        self.capacity - (self.tail - self.head)
    }

    /// The first `n` free bytes are filled.
    #[inline]
    pub fn publish(&mut self, words: &Words, n: usize) {
        assert!(n as u64 <= self.free(), "published more than there was room for");
        self.tail += n as u64;
        // publishes: the bytes before the tail
        words.tail.position.store(self.tail, Ordering::Release);
    }

    pub fn close(&self, words: &Words) {
        // publishes: the last tail
        words.tail.closed.store(1, Ordering::Release);
    }
}

/// The reading side.
#[derive(Debug)]
pub struct Consumer {
    capacity: u64,
    head: u64,
    /// Tail, when it was last looked at.
    tail: u64,
}

impl Consumer {
    pub fn new(capacity: usize) -> Consumer {
        Consumer { capacity: capacity as u64, head: 0, tail: 0 }
    }

    /// Where the next byte comes from.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// How many bytes are there to be read; looks for more if that is less than `enough`. `Closed` if that will never be.
    #[inline]
    pub fn arrived(&mut self, words: &Words, enough: usize) -> Result<usize, End> {
        if self.there() < enough as u64 {
            // acquires: the last tail, if it is closed. Looked at first, so that no tail comes after the one seen below.
            let closed = words.tail.closed.load(Ordering::Acquire) != 0;
            // acquires: the bytes before the tail
            self.tail = words.tail.position.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) > self.capacity {
                return Err(End::Spoilt);
            }
            if closed && self.there() < enough as u64 {
                return Err(End::Closed);
            }
        }
        Ok(self.there() as usize)
    }

    /// Whether the writer has closed, whatever is still to be read.
    pub fn is_closed(&self, words: &Words) -> bool {
        // acquires: the last tail
        words.tail.closed.load(Ordering::Acquire) != 0
    }

    fn there(&self) -> u64 {
        self.tail - self.head
    }

    /// The reader is done with the next `n` bytes.
    #[inline]
    pub fn consume(&mut self, words: &Words, n: usize) {
        assert!(n as u64 <= self.there(), "consumed more than was there");
        self.head += n as u64;
        // publishes: the reader's last use of what is before the head
        words.head.position.store(self.head, Ordering::Release);
    }

    pub fn close(&self, words: &Words) {
        // publishes: that the reader has left, and why, which is said elsewhere
        words.head.closed.store(1, Ordering::Release);
    }
}
