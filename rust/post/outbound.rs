//! Letters to one rank, one after the other.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::transport::{Broken, Tx};

use super::stamp::Stamp;
use super::{Failure, Memory, Outcome, SEGMENT, Status, Tag, Ticket};

const PADDING: [u8; Stamp::SIZE] = [0; Stamp::SIZE];

struct Sending {
    ticket: Ticket,
    stamp: Stamp,
    /// Bytes that are on their way, of stamp, letter and padding.
    done: usize,
}

#[derive(Default)]
pub(super) struct Outbound {
    tx: Option<Box<dyn Tx>>,
    queue: VecDeque<Sending>,
}

impl Outbound {
    pub fn is_open(&self) -> bool {
        self.tx.is_some()
    }

    pub fn open(&mut self, tx: Box<dyn Tx>) {
        self.tx = Some(tx);
    }

    pub fn push(&mut self, ticket: Ticket, tag: Tag, len: usize) {
        self.queue.push_back(Sending { ticket, stamp: Stamp { tag, len }, done: 0 });
    }

    /// The next letter, of one rank to itself.
    pub fn pop(&mut self) -> Option<(Ticket, Tag, usize)> {
        self.queue.pop_front().map(|sending| (sending.ticket, sending.stamp.tag, sending.stamp.len))
    }

    /// Sends as much as the way takes, up to a segment. Whether that was anything.
    pub fn advance(&mut self, peer: Rank, memory: &dyn Memory, done: &mut Vec<(Ticket, Outcome)>) -> bool {
        let Outbound { tx: Some(tx), queue } = self else { return false };
        let mut sent = 0;
        while sent < SEGMENT
            && let Some(sending) = queue.front_mut()
        {
            match sending.advance(&mut **tx, memory) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(broken) => {
                    done.extend(queue.drain(..).map(|s| (s.ticket, Err(Failure::Broken(broken.clone())))));
                    return true;
                }
            }
            if sending.is_through() {
                let Stamp { tag, len } = sending.stamp;
                done.push((sending.ticket, Ok(Status { peer, tag, len })));
                queue.pop_front();
            }
        }
        sent > 0
    }

    /// What becomes writable when a letter that is under way can go on; None if none is, or the bell says so.
    pub fn interest(&self) -> Option<Option<BorrowedFd<'_>>> {
        self.tx.as_ref().filter(|_| !self.queue.is_empty()).map(|tx| tx.fd())
    }
}

impl Sending {
    fn advance(&mut self, tx: &mut dyn Tx, memory: &dyn Memory) -> Result<usize, Broken> {
        let Stamp { len, .. } = self.stamp;
        let head = &self.stamp.to_bytes()[self.done.min(Stamp::SIZE)..];
        let lo = self.done.saturating_sub(Stamp::SIZE).min(len);
        let hi = len.min(lo + SEGMENT);
        let padded = self.done.saturating_sub(Stamp::SIZE + len);
        let tail = if hi == len { &PADDING[padded..self.stamp.pad()] } else { &[] };
        let n = tx.write(head, &memory.of(self.ticket)[lo..hi], tail)?;
        self.done += n;
        Ok(n)
    }

    fn is_through(&self) -> bool {
        self.done == Stamp::SIZE + self.stamp.len + self.stamp.pad()
    }
}
