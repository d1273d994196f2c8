//! The writing half.

use std::os::fd::BorrowedFd;

use super::{Stream, cut};
use crate::kernels::Bytes;
use crate::transport::{Broken, Tx};

pub(super) struct Outbound {
    stream: Stream,
}

impl Outbound {
    pub(super) fn new(stream: Stream) -> Outbound {
        Outbound { stream }
    }
}

impl Tx for Outbound {
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        let second = head.len();
        let third = second + body.len();
        self.stream.advance(third + tail.len(), |sockets, which, all| {
            sockets.send(which, cut(head, 0, &all), cut(body, second, &all), cut(tail, third, &all))
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.fd())
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.stream.sockets.finish();
    }
}
