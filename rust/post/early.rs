//! A letter that has come before anybody asked for it, or what has come of it so far.

use std::cell::Cell;

use crate::error::Rank;
use crate::kernels::{Bytes, copy};

use super::{Failure, Outcome, Status, Tag};

pub(super) struct Early {
    pub from: Rank,
    pub tag: Tag,
    len: usize,
    /// Grows as it comes: what somebody claims to send is no reason to take memory.
    bytes: Vec<Cell<u8>>,
    /// Its sender has still to be told that it is there.
    pub untold: bool,
}

impl Early {
    pub fn new(from: Rank, tag: Tag, len: usize) -> Early {
        Early { from, tag, len, bytes: Vec::new(), untold: false }
    }

    pub fn append(&mut self, more: Bytes<'_>) {
        copy(self.extend(more.len()), more);
    }

    /// Where the next `n` bytes belong, which are there now.
    pub fn extend(&mut self, n: usize) -> Bytes<'_> {
        let at = self.bytes.len();
        self.bytes.resize(at + n, Cell::new(0));
        &self.bytes[at..]
    }

    /// It comes from the beginning again, by the way of all others.
    pub fn restart(&mut self) {
        (self.untold, self.bytes) = (false, Vec::new());
    }

    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.len && !self.untold
    }

    /// Copies what is there, as far as it fits.
    pub fn copy_to(&self, dst: Bytes<'_>) {
        let n = self.bytes.len().min(dst.len());
        copy(&dst[..n], &self.bytes[..n]);
    }

    pub fn outcome(&self, room: usize) -> Outcome {
        outcome(Status { peer: self.from, tag: self.tag, len: self.len }, room)
    }
}

/// What becomes of a letter that has come whole.
pub(super) fn outcome(status: Status, room: usize) -> Outcome {
    if status.len > room { Err(Failure::TooLong(status)) } else { Ok(status) }
}
