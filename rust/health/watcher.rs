//! The thread that notices deaths on this host: it sleeps on the pidfds of all local peers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Error, Rank, Result};

use super::roster::Roster;

/// Somebody who knocks at the job's socket after it has formed; answered by the watcher, since no other thread is free to.
pub trait Door: Send {
    fn listener(&self) -> &OwnedFd;
    /// Takes one visitor in; false when there was none after all.
    fn admit(&mut self) -> bool;
    fn visitors(&self) -> &[OwnedFd];
    /// Answers a visitor who has spoken, and lets go of it.
    fn answer(&mut self, visitor: usize);
}

/// What the watcher does on a death, besides marking it: wakes all who may wait for the dead.
pub type Alarm = Box<dyn Fn() + Send>;

/// The thread that notices deaths.
#[derive(Debug)]
pub struct Watcher {
    thread: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
}

impl Watcher {
    /// Watches every other rank of `roster`, whose processes have all entered it.
    pub fn start(roster: Roster, me: Rank, alarm: Alarm, door: Option<Box<dyn Door>>) -> Result<Watcher> {
        let mut peers = Vec::new();
        for rank in (0..roster.world() as Rank).filter(|r| *r != me) {
            match open(roster.pid(rank)) {
                Ok(pidfd) => peers.push((rank, pidfd)),
                Err(Errno::SRCH) => mark_dead(&roster, rank, &alarm),
                Err(e) => return Err(Error::os(&format!("cannot watch the process of rank {rank} (pidfd_open)"), e)),
            }
        }
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(|e| Error::os("cannot create an eventfd for the watcher", e))?;
        let stop = Arc::new(stop);
        let watch = Watch { roster, peers, stop: Arc::clone(&stop), alarm, door };
        let thread = std::thread::Builder::new()
            .name("arx-watcher".into())
            .stack_size(256 << 10)
            .spawn(move || watch.run())
            .map_err(|e| Error::os("cannot start the watcher thread", e))?;
        Ok(Watcher { thread: Some(thread), stop })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // An eventfd takes this write unless it is full, which a counter at 0 is not.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It ran nothing that panics with a lock held; a panic there has already been printed.
            let _ = thread.join();
        }
    }
}

fn open(pid: u64) -> std::result::Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

fn mark_dead(roster: &Roster, rank: Rank, alarm: &Alarm) {
    if roster.bury(rank) {
        alarm();
    }
}

struct Watch {
    roster: Roster,
    peers: Vec<(Rank, OwnedFd)>,
    stop: Arc<OwnedFd>,
    alarm: Alarm,
    door: Option<Box<dyn Door>>,
}

impl Watch {
    fn run(mut self) {
        loop {
            let ready = self.sleep();
            let mut ready = ready.into_iter();
            if ready.next() != Some(false) {
                return;
            }
            let roster = &self.roster;
            let alarm = &self.alarm;
            self.peers.retain(|(rank, _)| {
                let gone = ready.next() == Some(true);
                if gone {
                    mark_dead(roster, *rank, alarm);
                }
                !gone
            });
            if let Some(door) = &mut self.door {
                if ready.next() == Some(true) {
                    door.admit();
                }
                let spoke: Vec<bool> = ready.collect();
                for visitor in (0..spoke.len()).rev().filter(|v| spoke[*v]) {
                    door.answer(visitor);
                }
            }
        }
    }

    /// Sleeps until something happens; one answer for: stop, each peer, the door, each visitor.
    fn sleep(&self) -> Vec<bool> {
        let door = self.door.iter().flat_map(|d| std::iter::once(d.listener()).chain(d.visitors()));
        let all = std::iter::once(&*self.stop).chain(self.peers.iter().map(|(_, fd)| fd)).chain(door);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        loop {
            match poll(&mut fds, None) {
                Ok(_) => return fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
                Err(Errno::INTR) => {}
                // Out of kernel memory: deaths are noticed a little later.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}
