//! The system calls of a link, and what they say when the connection is gone.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::error::Rank;
use crate::kernels::Bytes;
use crate::transport::Broken;

/// Up to so many bytes are put together and sent as one piece: the kernel takes longer to find three pieces than it takes to
/// copy these.
const SMALL: usize = 1024;

/// Connected sockets, shared by both halves of a link.
pub(super) struct Sockets {
    rank: Rank,
    fds: Vec<OwnedFd>,
    /// The kernel tells an error once, to the half that asks first; afterwards the connection just looks closed.
    broken: OnceLock<Broken>,
}

impl Sockets {
    pub(super) fn new(rank: Rank, fds: Vec<OwnedFd>) -> Sockets {
        Sockets { rank, fds, broken: OnceLock::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.fds.len()
    }

    pub(super) fn fd(&self, which: usize) -> BorrowedFd<'_> {
        self.fds[which].as_fd()
    }

    /// Sends what fits now of `head`, `body` and `tail`, in one call. 0: full.
    pub(super) fn send(&self, which: usize, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        let fd = self.fd(which);
        // SAFETY: the memory is lent to us for this call, nothing here writes to it, and the system call has copied it when it
        // returns. Where another process writes to it meanwhile, the peer gets some of either, which only the kernel sees.
        let body = unsafe { std::slice::from_raw_parts(body.as_ptr().cast::<u8>(), body.len()) };
        let len = head.len() + body.len() + tail.len();
        let sent = if head.is_empty() && tail.is_empty() {
            retried(|| rustix::net::send(fd, body, FLAGS))
        } else if len <= SMALL {
            let mut all = [0; SMALL];
            all[..head.len()].copy_from_slice(head);
            all[head.len()..len - tail.len()].copy_from_slice(body);
            all[len - tail.len()..len].copy_from_slice(tail);
            retried(|| rustix::net::send(fd, &all[..len], FLAGS))
        } else {
            let parts = [head, body, tail].map(IoSlice::new);
            retried(|| rustix::net::sendmsg(fd, &parts, &mut SendAncillaryBuffer::default(), FLAGS))
        };
        match sent {
            Err(Errno::AGAIN) => Ok(0),
            sent => sent.map_err(|errno| self.broken(io::Error::from(errno).to_string())),
        }
    }

    /// Receives what is there into `dst` and, once that is full, into `more`, in one call. 0: nothing has arrived.
    /// The two do not overlap, and `dst` is not empty.
    pub(super) fn receive(&self, which: usize, dst: Bytes<'_>, more: Bytes<'_>) -> Result<usize, Broken> {
        const FLAGS: RecvFlags = RecvFlags::DONTWAIT;
        let fd = self.fd(which);
        // SAFETY: lent to us for this call, in which only the kernel writes to it; the two do not overlap.
        let (dst, more) = unsafe { (writable(dst), writable(more)) };
        let received = if more.is_empty() {
            retried(|| Ok(rustix::net::recv(fd, &mut *dst, FLAGS)?.1))
        } else {
            let both = &mut [IoSliceMut::new(dst), IoSliceMut::new(more)];
            retried(|| Ok(rustix::net::recvmsg(fd, both, &mut RecvAncillaryBuffer::default(), FLAGS)?.bytes))
        };
        match received {
            Err(Errno::AGAIN) => Ok(0),
            Ok(0) => Err(self.broken("the other end closed the connection".to_owned())),
            received => received.map_err(|errno| self.broken(io::Error::from(errno).to_string())),
        }
    }

    /// Tells the peer that nothing more will come.
    pub(super) fn finish(&self) {
        for fd in &self.fds {
            // A connection that is gone needs no farewell.
            let _ = rustix::net::shutdown(fd, Shutdown::Write);
        }
    }

    fn broken(&self, why: String) -> Broken {
        self.broken.get_or_init(|| Broken { rank: self.rank, why }).clone()
    }
}

/// The result of `call` that no signal cut short.
fn retried(mut call: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// # Safety
/// Nothing else may touch this memory as long as the result lives.
unsafe fn writable<'a>(bytes: Bytes<'a>) -> &'a mut [u8] {
    // SAFETY: memory of that many bytes, borrowed for 'a; `Cell` allows writing to it, and the caller keeps others away.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr() as *mut u8, bytes.len()) }
}
