//! The reading half.

use std::os::fd::BorrowedFd;

use super::staging::Staging;
use super::{AHEAD, Stream, cut};
use crate::kernels::{Bytes, copy};
use crate::transport::{Broken, Rx};

pub(super) struct Inbound {
    /// Its position is that of the next byte to be received; what lies in `staging` are the bytes before it.
    stream: Stream,
    staging: Staging,
}

impl Inbound {
    pub(super) fn new(stream: Stream) -> Inbound {
        Inbound { stream, staging: Staging::new() }
    }

    /// Receives into `staging` until `enough` bytes are there.
    fn look(&mut self, enough: usize) -> Result<(), Broken> {
        let room = self.staging.room(enough);
        let n = self.stream.advance(room.len(), |sockets, which, all| sockets.receive(which, &room[all], &[]))?;
        self.staging.arrived(n);
        Ok(())
    }

    /// Receives into `dst`, which takes the next bytes since nothing is staged, and what follows into `staging`.
    fn straight(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        let split = dst.len();
        self.staging.restart(self.stream.position.wrapping_add(split as u64));
        let more = self.staging.room(AHEAD);
        let moved = self.stream.advance(split + more.len(), |sockets, which, all| {
            match (cut(dst, 0, &all), cut(more, split, &all)) {
                ([], more) => sockets.receive(which, more, &[]),
                (dst, more) => sockets.receive(which, dst, more),
            }
        });
        match moved {
            Ok(n) if n > split => self.staging.arrived(n - split),
            _ => self.staging.restart(self.stream.position),
        }
        moved.map(|n| n.min(split))
    }
}

impl Rx for Inbound {
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken> {
        if self.staging.len() < enough {
            self.look(enough.max(AHEAD))?;
        }
        Ok(self.staging.bytes())
    }

    fn consume(&mut self, n: usize) {
        self.staging.consume(n);
    }

    fn read(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        let staged = self.staging.len().min(dst.len());
        let (first, rest) = dst.split_at(staged);
        copy(first, &self.staging.bytes()[..staged]);
        self.staging.consume(staged);
        if rest.is_empty() {
            return Ok(staged);
        }
        match self.straight(rest) {
            Ok(n) => Ok(staged + n),
            // The next call meets it again.
            Err(_) if staged > 0 => Ok(staged),
            Err(broken) => Err(broken),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.fd())
    }
}
