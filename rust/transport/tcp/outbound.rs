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
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        let (split, end) = (head.len(), head.len() + body.len());
        self.stream.advance(end + tail.len(), |sockets, which, from, to| {
            let head = &head[from.min(split)..to.min(split)];
            let body = &body[from.clamp(split, end) - split..to.clamp(split, end) - split];
            let tail = &tail[from.max(end) - end..to.max(end) - end];
            sockets.send(which, head, body, tail)
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
