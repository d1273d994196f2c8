//! Forming a job on one host.
//!
//! ```text
//! rank 0                                          rank r
//! bind "\0arx-…", make the memory                 connect, again until rank 0 is there
//!                              <- Hello{r, p}
//! all p here:  Welcome + memfd ->
//!                                                 map it, enter the roster
//!                              <- Ready
//! all ready:   Go ->
//! ```
//! Nobody waits without a deadline. A rank that dies meanwhile closes its connection, and rank 0 tells all the others; if
//! rank 0 dies they see that for themselves. Only processes of the same user are let in (the kernel says who they are).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with, sockopt,
};

use crate::arena::{Layout, Segment, handover};
use crate::error::{Error, Rank, Result, ranks, seconds};
use crate::wait::{Host, SLICE};

use super::frame::{Frame, Settings, lost};

/// Which job, and which place in it.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: String,
    /// How often this process has joined a job of this id before: ranks that form it anew do not meet its former socket.
    pub generation: u32,
    pub rank: Rank,
    pub world: u32,
    pub timeout: Duration,
}

/// What rank 0 decides for all.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub layout: Layout,
    pub settings: Settings,
}

/// A place in a job that has formed.
#[derive(Debug)]
pub struct Joined {
    pub segment: Arc<Segment>,
    pub terms: Terms,
    /// Rank 0's socket.
    pub listener: Option<OwnedFd>,
}

/// What the caller does with the memory when it is there: enters itself into the roster.
pub type Enter<'a> = &'a dyn Fn(&Arc<Segment>, &Layout);

/// Takes the place that `job` names, and returns when all ranks have.
pub fn join(job: &Job, terms: Terms, enter: Enter<'_>, host: &mut dyn Host) -> Result<Joined> {
    let clock = Clock { from: Instant::now(), limit: job.timeout };
    if job.rank == 0 {
        Hub { job, clock, seats: (1..job.world).map(|_| Seat::Empty).collect(), host }.form(terms, enter)
    } else {
        newcomer(job, &clock, enter, host)
    }
}

struct Clock {
    from: Instant,
    limit: Duration,
}

impl Clock {
    fn over(&self) -> bool {
        self.from.elapsed() >= self.limit
    }
}

/// The socket's name: readable for people, unique by the hash, at most 107 bytes.
fn address(job: &Job) -> Result<SocketAddrUnix> {
    let hash = job.id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let plain: String = job.id.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
    let uid = rustix::process::getuid().as_raw();
    let name = format!("arx-{uid}-{plain}-{hash:016x}-{}", job.generation);
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| Error::os("cannot name the job's socket", e))
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::os("cannot open a unix socket", e))
}

/// Sleeps until one of `fds` can be read, or for a slice of time; lets the host run and be interrupted meanwhile.
fn poll_slice(fds: &[&OwnedFd], slice: Duration, host: &mut dyn Host) -> Result<Vec<bool>> {
    let mut list: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: 0, tv_nsec: slice.as_nanos() as _ };
    host.aside(&mut || {
        // A signal ends the sleep early, as it should.
        let _ = poll(&mut list, Some(&time));
    });
    if host.interrupted() {
        return Err(Error::Interrupted);
    }
    Ok(list.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// Whether the process at the other end belongs to this user.
fn same_user(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|cred| cred.uid == rustix::process::geteuid())
}

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
struct Hub<'a> {
    job: &'a Job,
    clock: Clock,
    /// One for each rank from 1.
    seats: Vec<Seat>,
    host: &'a mut dyn Host,
}

impl Hub<'_> {
    fn form(mut self, terms: Terms, enter: Enter<'_>) -> Result<Joined> {
        let listener = self.listen()?;
        let outcome = self.seat_all(&listener).and_then(|()| self.furnish(&listener, terms, enter));
        match outcome {
            Ok(segment) => {
                self.tell_all(&Frame::Go);
                Ok(Joined { segment, terms, listener: Some(listener) })
            }
            Err(error) => {
                self.tell_all(&match &error {
                    Error::PeerLost { ranks, .. } => Frame::Lost(ranks.clone()),
                    Error::Interrupted => Frame::Failed("rank 0 was interrupted while the group was forming".into()),
                    other => Frame::Failed(format!("rank 0 could not form the group: {other}")),
                });
                Err(error)
            }
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
            while let Ok(newcomer) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
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
        while let Ok(visitor) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
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

/// A rank other than 0.
fn newcomer(job: &Job, clock: &Clock, enter: Enter<'_>, host: &mut dyn Host) -> Result<Joined> {
    let hub = knock(job, clock, host)?;
    if !same_user(&hub) {
        return Err(Error::Auth(format!("the socket of job '{}' belongs to another user", job.id)));
    }
    let hello = Frame::Hello { rank: job.rank, world: job.world }.encode();
    handover::send(&hub, &hello, None).map_err(|_| gone(job))?;
    let (Frame::Welcome { layout, settings }, Some(fd)) = hear(job, &hub, clock, host)? else {
        return Err(Error::Init("rank 0 speaks another version of arx".into()));
    };
    if layout.world != job.world as usize {
        return Err(Error::Auth("rank 0 sent the memory of another job".into()));
    }
    let segment = Arc::new(Segment::adopt(fd.as_fd(), layout.total())?);
    enter(&segment, &layout);
    handover::send(&hub, &Frame::Ready.encode(), None).map_err(|_| gone(job))?;
    let (Frame::Go, _) = hear(job, &hub, clock, host)? else {
        return Err(Error::Init("rank 0 speaks another version of arx".into()));
    };
    let terms = Terms { layout, settings };
    Ok(Joined { segment, terms, listener: None })
}

/// Connects to rank 0 as soon as it listens.
fn knock(job: &Job, clock: &Clock, host: &mut dyn Host) -> Result<OwnedFd> {
    let name = address(job)?;
    let mut pause = Duration::from_millis(1);
    loop {
        let hub = socket()?;
        match connect(&hub, &name) {
            Ok(()) => return Ok(hub),
            Err(Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(Error::os("cannot connect to rank 0", e)),
        }
        if clock.over() {
            return Err(Error::Rendezvous(format!(
                "rank {} of {} waited {} for rank 0 of job '{}', which never opened its socket. Is rank 0 running, on this \
                 host and in the same network namespace, with the same ARX_JOB_ID?",
                job.rank,
                job.world,
                seconds(clock.limit),
                job.id
            )));
        }
        poll_slice(&[], pause, host)?;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Rank 0's next frame.
fn hear(job: &Job, hub: &OwnedFd, clock: &Clock, host: &mut dyn Host) -> Result<(Frame, Option<OwnedFd>)> {
    // Rank 0 gives up at its own time-out and says whom it missed, which is worth waiting a little longer for.
    while clock.from.elapsed() < clock.limit + Duration::from_secs(1) {
        if !poll_slice(&[hub], SLICE, host)?[0] {
            continue;
        }
        let (bytes, fd) = match handover::receive(hub) {
            Err(Errno::AGAIN) => continue,
            Err(_) => return Err(gone(job)),
            Ok(got) => got,
        };
        return match Frame::decode(&bytes) {
            None => Err(gone(job)),
            Some(Frame::Refused(why)) => Err(Error::Init(why)),
            Some(Frame::Failed(why)) => Err(Error::Rendezvous(why)),
            Some(Frame::Lost(ranks)) => Err(Error::PeerLost { text: lost(&ranks, job.world), ranks }),
            Some(frame) => Ok((frame, fd)),
        };
    }
    Err(Error::Rendezvous(format!(
        "rank {} of {} reached rank 0 of job '{}' but waited {} in vain for the group to form",
        job.rank,
        job.world,
        job.id,
        seconds(clock.limit)
    )))
}

fn gone(job: &Job) -> Error {
    Error::PeerLost { ranks: vec![0], text: lost(&[0], job.world) }
}
