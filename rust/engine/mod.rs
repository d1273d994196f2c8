//! Runs a plan over links. The only loop that moves data between hosts; it knows no algorithm and no medium.
//!
//! ```text
//! until both programs are done:
//!     outbound: write what its gate has opened, header, bytes and padding together
//!     inbound:  take what has arrived, and apply it while it is in the cache; combine what may be combined
//!     nothing moved: wait, asleep on what can change that
//! ```
//! **One thread.** The caller sends and receives itself, without blocking: with few cores a hand-over to another thread takes longer
//! than the copy. It alternates in segments that fit the second-level cache, so that what was received is reduced while it is warm.
//!
//! **System calls** are what a small message costs. An exchange of 8 bytes is one write and, when the other side was there first, one
//! read: nothing is tried that a gate forbids, and nothing is read again after the last move.
//!
//! **Order.** Each program is in order and stops at its first move that cannot go on. This is why the result does not depend on who
//! comes first (Kahn 1974): a move waits for positions that never go back, so what has become possible stays possible.
//!
//! `header` is what a stream starts with, `programs` the two programs; here is what runs them, and what they wait for.

mod header;
mod programs;

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::Rank;
use crate::kernels::{Bytes, Reducer};
use crate::plan::{Area, Place, Plan};
use crate::transport::{Broken, Link};
use crate::wait::{Bell, SLICE, Stop, Task, Wait};

pub use header::Header;
use programs::Programs;

/// What one program moves before the other has its turn. In a second-level cache of 1 MiB a segment, what it is combined with and the
/// result are warm.
pub const SEGMENT: usize = 256 << 10;

/// First and longest sleep while both descriptors and the bell are waited for: no system call waits for both. Each is twice as long
/// as the one before, so that what the bell would have told is seen after twice the time at most, and a long wait costs little.
const BRIEF: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(1);

/// Element-wise code of a call.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// Combines while contributions are missing: for an average, the sum.
    pub partial: Reducer,
    /// Combines the last of them.
    pub last: Reducer,
    /// How many there are.
    pub count: usize,
}

/// What a plan's places are in.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    pub array: Bytes<'a>,
    /// Nothing, or what is read where it lies.
    pub source: Bytes<'a>,
    /// At least `Plan::scratch` bytes, aligned to 64.
    pub scratch: Bytes<'a>,
}

impl<'a> Memory<'a> {
    /// Bytes `lo..hi` of what starts at `place`.
    #[inline]
    fn slice(&self, place: Place, lo: usize, hi: usize) -> Bytes<'a> {
        let whole = match place.area {
            Area::Array => self.array,
            Area::Source => self.source,
            Area::Scratch => self.scratch,
        };
        &whole[place.at + lo..place.at + hi]
    }
}

/// One collective of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub plan: &'a Plan,
    pub memory: Memory<'a>,
    pub arithmetic: Arithmetic,
    pub header: Header,
}

/// Why a call ended early. The array is in no particular state then, and neither are the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    Stop(Stop),
    Broken(Broken),
    /// This peer is in another call.
    Differs {
        rank: Rank,
        header: Header,
    },
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Halt {
        Halt::Stop(stop)
    }
}

impl From<Broken> for Halt {
    fn from(broken: Broken) -> Halt {
        Halt::Broken(broken)
    }
}

/// Runs `call` over the links; the one to rank `r` is `links[r]`. `alert`: a descriptor that somebody makes readable to have `wait` look
/// around at once; what is in it is read away.
///
/// # Panics
/// When the plan names a peer without a link, or memory that is not there.
pub fn run(
    call: &Call<'_>,
    links: &mut [Option<Link>],
    alert: Option<BorrowedFd<'_>>,
    wait: &mut Wait<'_>,
) -> Result<(), Halt> {
    let programs = Programs::new(call);
    let mut engine = Engine { programs, links, alert, moved: false, brief: *BRIEF.start(), halt: None };
    while !engine.programs.done() {
        wait.on(&mut engine).map_err(Halt::Stop)?;
        if let Some(halt) = engine.halt.take() {
            return Err(halt);
        }
    }
    Ok(())
}

struct Engine<'a> {
    programs: Programs<'a>,
    links: &'a mut [Option<Link>],
    alert: Option<BorrowedFd<'a>>,
    /// Something has moved and `attempt` has not said so yet.
    moved: bool,
    /// Next sleep of those that the bell cannot end.
    brief: Duration,
    halt: Option<Halt>,
}

fn link(links: &[Option<Link>], peer: Rank) -> &Link {
    links[peer as usize].as_ref().expect("a link to every peer of the plan")
}

impl Engine<'_> {
    /// One turn of both programs. Whether `attempt` has something to say.
    fn look(&mut self) -> bool {
        if !self.moved {
            self.moved = self.programs.turn(self.links).unwrap_or_else(|halt| {
                self.halt = Some(halt);
                true
            });
        }
        self.moved
    }
}

impl Task for Engine<'_> {
    fn attempt(&mut self) -> bool {
        if self.look() {
            self.brief = *BRIEF.start();
        }
        std::mem::take(&mut self.moved)
    }

    fn is_system_call(&self) -> bool {
        self.programs.awaits_arrival().is_some_and(|peer| link(self.links, peer).rx.fd().is_some())
    }

    fn rest(&mut self, bell: &Bell, stop: &dyn Fn() -> bool) -> bool {
        let arrival = self.programs.awaits_arrival().map(|peer| (link(self.links, peer).rx.fd(), PollFlags::IN));
        let room = self.programs.awaits_room().map(|peer| (link(self.links, peer).tx.fd(), PollFlags::OUT));
        let (mut fds, mut silent) = (Vec::with_capacity(3), false);
        for (fd, flags) in arrival.into_iter().chain(room) {
            match fd {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, flags)),
                None => silent = true,
            }
        }
        if silent && fds.is_empty() {
            return bell.sleep(&mut || self.look() || stop());
        }
        if stop() {
            return false;
        }
        let limit = if silent { self.brief } else { SLICE };
        if silent {
            self.brief = (2 * self.brief).min(*BRIEF.end());
        }
        // Last, so that it is found again.
        fds.extend(self.alert.iter().map(|alert| PollFd::from_borrowed_fd(*alert, PollFlags::IN)));
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as _ };
        let signal = poll(&mut fds, Some(&limit)) == Err(Errno::INTR);
        if let Some(alert) = self.alert
            && fds.last().is_some_and(|last| last.revents().contains(PollFlags::IN))
        {
            // An eventfd or a pipe; what was written to it says no more than that it was.
            let _ = rustix::io::read(alert, &mut [0; 64]);
        }
        signal
    }
}
