//! Links over TCP: one or several connected sockets between two ranks, driven by whoever calls.
//!
//! ```text
//! write(head, body, tail) ─► one sendmsg ─►  socket  ─► one recvmsg ─┬─► dst         read: straight to where it belongs,
//!                                                                    └─► staging     and a little of what follows
//!                                                       one recv    ───► staging     peek: bytes where they lie
//! ```
//! Nothing here blocks or allocates per call. What arrives is cut as the caller's needs are: a `peek` takes what it was asked
//! for and at least [`AHEAD`] bytes, so that a short message comes with its header in one call, and a long one that goes to
//! its place by `read` is hardly copied twice.
//!
//! **Several sockets.** One flow may be slower than the wire: its window is full, a switch gives each flow a share, a bond
//! takes one cable per flow. The stream is then dealt out in stripes,
//!
//! ```text
//! position   0 ······ STRIPE ······ 2 STRIPE ······ 3 STRIPE ···
//! socket     │   0    │      1      │      0        │   1           two sockets
//! ```
//! which both ends work out from the position: there are no headers, and a message that ends in the stripe in which it began
//! touches one socket. The caller drives them all, so this does not help where the core is the limit.
//!
//! How connections are made and who is at the other end is not known here: `link` takes sockets that are connected, and
//! [`prepare`] is for whoever makes them.

mod inbound;
mod options;
mod outbound;
mod sockets;
mod staging;

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Broken, Link};
use crate::error::Rank;
use inbound::Inbound;
use outbound::Outbound;
use sockets::Sockets;

pub use options::{heartbeat, prepare};

/// Bytes of the stream after which the next socket takes over.
pub const STRIPE: usize = 128 << 10;

/// Most bytes of one `write`, `read` or `peek`. A call that went on for as long as the peer keeps up would starve the other
/// direction; a quarter of a usual second-level cache leaves what has arrived warm for whoever combines it. And a little more, so
/// that a header does not push the end of a segment into a call of its own.
const BURST: usize = (256 << 10) + 1024;

/// Bytes that are received without having been asked for, if they are there: a page.
const AHEAD: usize = 4096;

/// A link to `rank` over sockets that are connected to it, in the same order at both ends.
///
/// Dropping `tx` ends the stream for the peer, which reads what was sent before; the sockets close when both halves are gone.
///
/// # Panics
/// Without a socket.
pub fn link(rank: Rank, sockets: Vec<OwnedFd>) -> Link {
    assert!(!sockets.is_empty(), "a link needs a socket");
    let sockets = Arc::new(Sockets::new(rank, sockets));
    Link { tx: Box::new(Outbound::new(Stream::new(&sockets))), rx: Box::new(Inbound::new(Stream::new(&sockets))) }
}

/// One direction of a link: how far it has come, and hence which socket is next.
struct Stream {
    sockets: Arc<Sockets>,
    position: u64,
}

impl Stream {
    fn new(sockets: &Arc<Sockets>) -> Stream {
        Stream { sockets: Arc::clone(sockets), position: 0 }
    }

    /// The socket of the next byte.
    fn socket(&self) -> usize {
        (self.position / STRIPE as u64 % self.sockets.count() as u64) as usize
    }

    /// What becomes ready when the next byte can move.
    fn fd(&self) -> BorrowedFd<'_> {
        self.sockets.fd(self.socket())
    }

    /// How many bytes the next socket takes before another one does.
    fn run(&self) -> usize {
        match self.sockets.count() {
            1 => usize::MAX,
            _ => STRIPE - (self.position % STRIPE as u64) as usize,
        }
    }

    /// Moves `total` bytes, at most [`BURST`], from stripe to stripe until a socket does less than it could. `call` is told the
    /// socket, and which of these bytes are its. What was done before something broke counts; the next call meets the break
    /// again.
    fn advance(
        &mut self,
        total: usize,
        mut call: impl FnMut(&Sockets, usize, Range<usize>) -> Result<usize, Broken>,
    ) -> Result<usize, Broken> {
        let total = total.min(BURST);
        let mut done = 0;
        while done < total {
            let end = total.min(done.saturating_add(self.run()));
            match call(&self.sockets, self.socket(), done..end) {
                Ok(n) => {
                    self.position += n as u64;
                    done += n;
                    if done < end {
                        break;
                    }
                }
                Err(broken) if done == 0 => return Err(broken),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// What of `bytes`, which are those from `start` of something longer, lies in `range` of it.
fn cut<'a, T>(bytes: &'a [T], start: usize, range: &Range<usize>) -> &'a [T] {
    let within = |position: usize| position.clamp(start, start + bytes.len()) - start;
    &bytes[within(range.start)..within(range.end)]
}
