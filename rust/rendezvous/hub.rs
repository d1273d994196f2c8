//! Rank 0 while the job forms.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, listen};

use crate::arena::{Segment, handover};
use crate::error::{Error, Rank, Result, ranks, seconds};
use crate::wait::{Host, SLICE};

use super::frame::{Frame, lost};
use super::local::{Clock, Enter, Job, Joined, Terms, address, poll_slice, same_user, socket};

/// How long rank 0 still answers those who come to a job that has failed: start-up of ranks is seldom spread wider, and
/// the rank's own error must not come late.
const LINGER: Duration = Duration::from_millis(100);

/// The next process that knocks, if there is one.
fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(newcomer) => Ok(Some(newcomer)),
        Err(e @ (Errno::MFILE | Errno::NFILE)) => Err(Error::os("rank 0 cannot accept another rank (ulimit -n)", e)),
        Err(_) => Ok(None),
    }
}

/// Where one rank stands.
enum Seat {
    Empty,
    Taken(OwnedFd),
    Ready(OwnedFd),
}

impl Seat {
    fn socket(&self) -> Option<&OwnedFd> {
        match self {
            Seat::Empty => None,
            Seat::Taken(socket) | Seat::Ready(socket) => Some(socket),
        }
    }
}

/// Rank 0 while the job forms.
pub(super) struct Hub<'a> {
    job: &'a Job,
    clock: Clock,
    /// One for each rank from 1.
    seats: Vec<Seat>,
    host: &'a mut dyn Host,
}

impl<'a> Hub<'a> {
    pub fn new(job: &'a Job, clock: Clock, host: &'a mut dyn Host) -> Hub<'a> {
        Hub { job, clock, seats: (1..job.world).map(|_| Seat::Empty).collect(), host }
    }
    pub fn form(mut self, terms: Terms, enter: Enter<'_>) -> Result<Joined> {
        let listener = self.listen()?;
        let outcome = self.seat_all(&listener).and_then(|()| self.furnish(&listener, terms, enter));
        match outcome {
            Ok(segment) => {
                self.tell_all(&Frame::Go);
                Ok(Joined { segment, terms, listener: Some(listener) })
            }
            Err(error) => {
                self.give_up(&listener, &error);
                Err(error)
            }
        }
    }

    /// Tells everybody, also those who knock in this moment, that the group will not form.
    fn give_up(&self, listener: &OwnedFd, error: &Error) {
        let news = match error {
            Error::PeerLost { ranks, .. } => Frame::Lost(ranks.clone()),
            Error::Interrupted => Frame::Failed("rank 0 was interrupted while the group was forming".into()),
            other => Frame::Failed(format!("rank 0 could not form the group: {other}")),
        };
        self.tell_all(&news);
        let mut late: Vec<OwnedFd> = Vec::new();
        let until = Instant::now() + LINGER;
        while !matches!(error, Error::Interrupted) && self.missing().next().is_some() && Instant::now() < until {
            while let Ok(Some(newcomer)) = accept(listener) {
                let _ = handover::send(&newcomer, &news.encode(), None);
                // Kept open until the news has been read.
                late.push(newcomer);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn listen(&self) -> Result<OwnedFd> {
        let (listener, name) = (socket()?, address(self.job)?);
        bind(&listener, &name).map_err(|e| match e {
            Errno::ADDRINUSE => Error::Init(format!(
                "rank 0 of job '{}' is already taken by another process of this host. Did a child process inherit the \
                 environment of a rank, or was the script started twice with one ARX_JOB_ID?",
                self.job.id
            )),
            e => Error::os("cannot bind the job's socket", e),
        })?;
        listen(&listener, 4096).map_err(|e| Error::os("cannot listen on the job's socket", e))?;
        Ok(listener)
    }

    /// Waits for every rank's hello.
    fn seat_all(&mut self, listener: &OwnedFd) -> Result<()> {
        let mut strangers: Vec<OwnedFd> = Vec::new();
        while self.missing().next().is_some() {
            let seated: Vec<&OwnedFd> = self.seats.iter().filter_map(Seat::socket).collect();
            let all: Vec<&OwnedFd> = std::iter::once(listener).chain(seated).chain(&strangers).collect();
            let count = all.len() - strangers.len();
            let ready = poll_slice(&all, SLICE, self.host)?;
            self.hear_seated(&ready[1..count])?;
            for k in (0..strangers.len()).rev().filter(|k| ready[count + k]) {
                self.seat(strangers.remove(k))?;
            }
            while let Some(newcomer) = accept(listener)? {
                strangers.push(newcomer);
            }
            if self.clock.over() {
                let missing: Vec<Rank> = self.missing().collect();
                return Err(Error::Rendezvous(format!(
                    "rank 0 waited {} for {} of {} (job '{}'): not started, still starting, or gone. Raise timeout= or \
                     ARX_TIMEOUT if start-up takes longer",
                    seconds(self.clock.limit),
                    ranks(&missing),
                    self.job.world,
                    self.job.id
                )));
            }
        }
        Ok(())
    }

    fn missing(&self) -> impl Iterator<Item = Rank> + use<'_> {
        self.seats.iter().enumerate().filter(|(_, s)| matches!(s, Seat::Empty)).map(|(k, _)| k as Rank + 1)
    }

    /// Reads the hello of a process that has connected.
    fn seat(&mut self, newcomer: OwnedFd) -> Result<()> {
        let Ok((bytes, _)) = handover::receive(&newcomer) else { return Ok(()) };
        if bytes.is_empty() || !same_user(&newcomer) {
            return Ok(());
        }
        let refuse = |why: String| {
            // Whoever left before the answer does not need it.
            let _ = handover::send(&newcomer, &Frame::Refused(why).encode(), None);
        };
        let Some(Frame::Hello { rank, world }) = Frame::decode(&bytes) else {
            refuse("rank 0 runs another version of arx".into());
            return Ok(());
        };
        if world != self.job.world {
            let why = format!(
                "ranks disagree about the size of job '{}': rank 0 was told {}, rank {rank} was told {world}",
                self.job.id, self.job.world
            );
            refuse(why.clone());
            return Err(Error::Rendezvous(why));
        }
        match (rank as usize).checked_sub(1).and_then(|k| self.seats.get_mut(k)) {
            Some(seat @ Seat::Empty) => *seat = Seat::Taken(newcomer),
            _ => refuse(format!("rank {rank} of job '{}' is already taken by another process", self.job.id)),
        }
        Ok(())
    }

    /// Takes what seated ranks say; one that says nothing but is readable has died.
    fn hear_seated(&mut self, ready: &[bool]) -> Result<()> {
        let mut dead = Vec::new();
        let seated = self.seats.iter_mut().enumerate().filter(|(_, s)| s.socket().is_some());
        for ((k, seat), _) in seated.zip(ready).filter(|(_, ready)| **ready) {
            let heard = handover::receive(seat.socket().expect("filtered")).ok().and_then(|(b, _)| Frame::decode(&b));
            *seat = match (std::mem::replace(seat, Seat::Empty), heard) {
                (Seat::Taken(socket), Some(Frame::Ready)) => Seat::Ready(socket),
                (_, Some(Frame::Failed(why))) => return Err(Error::Aborted(why)),
                _ => {
                    dead.push(k as Rank + 1);
                    Seat::Empty
                }
            };
        }
        if dead.is_empty() { Ok(()) } else { Err(Error::PeerLost { text: lost(&dead, self.job.world), ranks: dead }) }
    }

    /// Makes the memory, hands it out and waits until everybody stands in the roster.
    fn furnish(&mut self, listener: &OwnedFd, terms: Terms, enter: Enter<'_>) -> Result<Arc<Segment>> {
        let (segment, fd) = Segment::create(terms.layout.total())?;
        let segment = Arc::new(segment);
        enter(&segment, &terms.layout);
        let welcome = Frame::Welcome { layout: terms.layout, settings: terms.settings }.encode();
        for seat in self.seats.iter().filter_map(Seat::socket) {
            // A rank that cannot be told is dead; `hear_seated` finds that out and names it.
            let _ = handover::send(seat, &welcome, Some(fd.as_fd()));
        }
        while self.seats.iter().any(|s| !matches!(s, Seat::Ready(_))) {
            let sockets: Vec<&OwnedFd> = self.seats.iter().filter_map(Seat::socket).collect();
            let ready = poll_slice(&sockets, SLICE, self.host)?;
            self.hear_seated(&ready)?;
            self.turn_away(listener);
            if self.clock.over() {
                let slow: Vec<Rank> =
                    (1..self.job.world).filter(|r| matches!(self.seats[*r as usize - 1], Seat::Taken(_))).collect();
                return Err(Error::Rendezvous(format!(
                    "rank 0 waited {} in all; {} connected but did not get ready",
                    seconds(self.clock.limit),
                    ranks(&slow)
                )));
            }
        }
        Ok(segment)
    }

    /// Everybody is seated: whoever comes now is one too many.
    fn turn_away(&self, listener: &OwnedFd) {
        while let Ok(Some(visitor)) = accept(listener) {
            let why = format!("all {} ranks of job '{}' are taken", self.job.world, self.job.id);
            let _ = handover::send(&visitor, &Frame::Refused(why).encode(), None);
        }
    }

    fn tell_all(&self, frame: &Frame) {
        for seat in self.seats.iter().filter_map(Seat::socket) {
            // A rank that died in this moment is noticed by the watchers.
            let _ = handover::send(seat, &frame.encode(), None);
        }
    }
}
