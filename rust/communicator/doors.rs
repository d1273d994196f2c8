//! Links to ranks anywhere: to those that share memory with this one by pipes, to the others by connections that the control
//! plane has made or taken in. Ranks here are those of the group; the control plane knows those of the job.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::engine::Halt;
use crate::error::{Error, Rank};
use crate::health::Control;
use crate::messages::Opener;
use crate::transport::{Broken, Link, tcp};
use crate::wait::{Bell, SLICE, Stop, Task, Wait};

use super::pipes::Pipes;
use super::roll::Roll;

/// As good as never.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// Opens links; connections by way of the control plane: the higher rank of the job dials, the lower one waits until it has.
pub(super) struct Doors {
    me: Rank,
    roll: Roll,
    pipes: Pipes,
    control: Arc<Control>,
    /// Connections that a link is made of.
    streams: u16,
}

impl Doors {
    pub fn new(me: Rank, roll: Roll, pipes: Pipes, control: Arc<Control>, streams: u16) -> Doors {
        Doors { me, roll, pipes, control, streams }
    }

    fn dial(&self, peer: Rank, wait: &mut Wait<'_>) -> Result<Vec<OwnedFd>, Halt> {
        let until = Instant::now() + wait.patience.limit.min(LONGEST);
        let dial = |stream| self.control.dial(self.roll.of(peer), stream, until, wait.host);
        (0..self.streams).map(dial).collect::<Result<_, Error>>().map_err(|error| match error {
            Error::Interrupted => Halt::Stop(Stop::Interrupted),
            _ if self.control.verdict().is_some() => Halt::Stop(Stop::Gone),
            _ if Instant::now() >= until => Halt::Stop(Stop::Timeout),
            other => Halt::Broken(Broken { rank: peer, why: other.to_string() }),
        })
    }
}

impl Opener for Doors {
    fn open(&mut self, peer: Rank, wait: &mut Wait<'_>) -> Result<Link, Halt> {
        if let Some(link) = self.pipes.link(peer) {
            return Ok(link);
        }
        let sockets = if self.roll.of(self.me) > self.roll.of(peer) {
            self.dial(peer, wait)?
        } else {
            let mut knock = Knock { doors: self, peer, come: None };
            wait.on(&mut knock).map_err(Halt::Stop)?;
            knock.come.expect("`on` returns when it is there")
        };
        Ok(tcp::link(peer, sockets))
    }

    fn alert(&self) -> Option<BorrowedFd<'_>> {
        Some(self.control.alert_fd())
    }
}

/// Waiting for a higher rank.
struct Knock<'a> {
    doors: &'a Doors,
    peer: Rank,
    come: Option<Vec<OwnedFd>>,
}

impl Task for Knock<'_> {
    fn attempt(&mut self) -> bool {
        if self.come.is_none() {
            self.come = self.doors.control.take(self.doors.roll.of(self.peer), self.doors.streams);
        }
        self.come.is_some()
    }

    fn rest(&mut self, _bell: &Bell, stop: &dyn Fn() -> bool) -> bool {
        // First calm, then look, then sleep: what changes after the look makes the descriptor readable again.
        self.doors.control.calm();
        if self.attempt() || stop() {
            return false;
        }
        let alert = PollFd::from_borrowed_fd(self.doors.control.alert_fd(), PollFlags::IN);
        let slice = Timespec { tv_sec: 0, tv_nsec: SLICE.as_nanos() as _ };
        poll(&mut [alert], Some(&slice)) == Err(Errno::INTR)
    }
}
