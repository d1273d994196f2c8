//! Media between two ranks: ordered, reliable, bounded pipes of bytes. Nothing here blocks, reduces, or knows of more than the
//! one peer; all media pass the same tests (`tests/transport.rs`).

pub mod mem;
pub mod shm;
pub mod tcp;

use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::kernels::Bytes;

/// The peer's end is gone: closed, reset, or given up by the kernel. What it had sent before has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub rank: Rank,
    /// What the system said, for the message.
    pub why: String,
}

/// The writing half of a link.
pub trait Tx: Send {
    /// Takes as much of `head`, `body` and `tail`, one after the other, as fits now, and says how many bytes that was; 0 means
    /// full. Header, array and padding come in one call, since a medium may pay for each. 128 bytes fit in any case before the
    /// other end reads: a header, which may be left unread until the first elements can be applied, and these.
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken>;

    /// What becomes writable when there is room again; None if the other end rings the bell.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The reading half of a link.
pub trait Rx: Send {
    /// Bytes that have arrived and are not consumed, where they lie; looks for more if there are fewer than `enough`. They may
    /// be fewer still (the medium is empty, or wraps), but never for ever fewer than 64, once these have been sent.
    /// Their address is the position in the stream, modulo 64: what was written at the start of a cache line is read at one.
    /// Broken if the peer is gone and `enough` will never be there, so nobody asks for more than is yet to come.
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken>;

    /// Gives back the first `n` bytes of those.
    fn consume(&mut self, n: usize);

    /// Moves up to `dst.len()` bytes into `dst`; 0 means that nothing has arrived. Broken only when nothing is left. Media that
    /// can skip a copy do.
    fn read(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        if dst.is_empty() {
            return Ok(0);
        }
        let arrived = self.peek(1)?;
        let n = arrived.len().min(dst.len());
        crate::kernels::copy(&dst[..n], &arrived[..n]);
        self.consume(n);
        Ok(n)
    }

    /// The same for a long array, which will have left the caches by the end.
    fn read_past_caches(&mut self, dst: Bytes<'_>) -> Result<usize, Broken> {
        self.read(dst)
    }

    /// Whether the other end has been closed, in shared memory: looks anew, and does not care about what is still to be read.
    fn is_closed(&self) -> bool {
        false
    }

    /// What becomes readable when more has arrived; None if the other end rings the bell.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Both ways between this rank and one peer.
pub struct Link {
    pub tx: Box<dyn Tx>,
    pub rx: Box<dyn Rx>,
}
