//! The writing half.

use std::os::fd::BorrowedFd;

use super::Stream;
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
    fn write(&mut self, head: &[u8], body: Bytes<'_>) -> Result<usize, Broken> {
        let split = head.len();
        self.stream.advance(split + body.len(), |sockets, which, from, to| {
            let head = &head[from.min(split)..to.min(split)];
            sockets.send(which, head, &body[from.max(split) - split..to.max(split) - split])
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
