//! Forming a job on one host: what both sides share. `hub` is rank 0, `newcomer` every other rank.
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
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use crate::arena::{Layout, Segment};
use crate::error::{Error, Rank, Result};
use crate::wait::Host;

use super::frame::Settings;
use super::hub::Hub;
use super::newcomer::newcomer;

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
    if job.rank == 0 { Hub::new(job, clock, host).form(terms, enter) } else { newcomer(job, &clock, enter, host) }
}

pub(super) struct Clock {
    pub from: Instant,
    pub limit: Duration,
}

impl Clock {
    pub fn over(&self) -> bool {
        self.from.elapsed() >= self.limit
    }
}

/// The socket's name: readable for people, unique by the hash, at most 107 bytes.
pub(super) fn address(job: &Job) -> Result<SocketAddrUnix> {
    let hash = job.id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let plain: String = job.id.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
    let uid = rustix::process::getuid().as_raw();
    let name = format!("arx-{uid}-{plain}-{hash:016x}-{}", job.generation);
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| Error::os("cannot name the job's socket", e))
}

pub(super) fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::os("cannot open a unix socket", e))
}

/// Sleeps until one of `fds` can be read, or for a slice of time; lets the host run and be interrupted meanwhile.
pub(super) fn poll_slice(fds: &[&OwnedFd], slice: Duration, host: &mut dyn Host) -> Result<Vec<bool>> {
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
pub(super) fn same_user(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|cred| cred.uid == rustix::process::geteuid())
}
