//! Who is alive.
//!
//! The **roster** in shared memory has one entry a rank: its state, its process id, the last call it completed. The
//! **watcher**, one thread a process, sleeps on the pidfds of all local peers; when a process is gone (SIGKILL, the
//! out-of-memory killer, `os._exit`) it marks the entry, advances the alarm and rings the bell, which every wait listens
//! to. A rank that leaves by itself (it finished, timed out, was interrupted) does the same to its own entry.
//!
//! A rank blocks a call only if it is not active *and* has not completed that call: what a rank published before it left
//! stays readable, since the memory is shared.
//!
//! The watcher never runs Python and is joined at shutdown.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arena::Segment;
use crate::error::{Error, Rank, Result};
use crate::sync::{AtomicU64, Ordering};

/// Ranks that one host may have; also bounds the list of missing ranks in an entry.
pub const MAX_WORLD: usize = 1024;

const MISSING: usize = MAX_WORLD / 64;
const CPUS: usize = 16;

/// Words of one entry.
pub type Entry = [AtomicU64; 64];

const STATE: usize = 0;
const PID: usize = 1;
const COMPLETED: usize = 2;
const QUOTA: usize = 3;
const MISSING_AT: usize = 8;
const CPUS_AT: usize = MISSING_AT + MISSING;

/// In rank 0's entry: who says for all which ranks were lost (its rank + 1), and whether it has said so.
const SPEAKER: usize = CPUS_AT + CPUS;
const SPOKEN: usize = SPEAKER + 1;

const _: () = assert!(SPOKEN < 64);

/// Deaths so close together are one event: an out-of-memory killer or an operator ends several processes at once.
const TOGETHER: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    Absent = 0,
    Active = 1,
    /// Left by `shutdown` or at the end of its program.
    Finished = 2,
    /// Its process is gone without a word.
    Dead = 3,
    /// Gave up waiting for the ranks in its `missing`.
    TimedOut = 4,
    /// Left a call because of Ctrl-C or another exception of a signal handler.
    Interrupted = 5,
    /// Closed its group because of what happened to others.
    Failed = 6,
    /// Left the group, or its program, with an exception.
    Raised = 7,
}

impl State {
    fn of(word: u64) -> State {
        use State::*;
        [Active, Finished, Dead, TimedOut, Interrupted, Failed, Raised]
            .into_iter()
            .find(|s| *s as u64 == word)
            .unwrap_or(Absent)
    }
}

/// The entries of all ranks of this host.
#[derive(Clone, Debug)]
pub struct Roster {
    segment: Arc<Segment>,
    offset: usize,
    world: usize,
}

impl Roster {
    pub const fn bytes(world: usize) -> usize {
        world * size_of::<Entry>()
    }

    pub fn new(segment: Arc<Segment>, offset: usize, world: usize) -> Roster {
        Roster { segment, offset, world }
    }

    pub fn world(&self) -> usize {
        self.world
    }

    fn entry(&self, rank: Rank) -> &Entry {
        &self.segment.array(self.offset, self.world)[rank as usize]
    }

    pub fn state(&self, rank: Rank) -> State {
        // acquires: everything that the rank published before it left
        State::of(self.entry(rank)[STATE].load(Ordering::Acquire))
    }

    pub fn pid(&self, rank: Rank) -> u64 {
        self.entry(rank)[PID].load(Ordering::Relaxed)
    }

    /// Number of the last call that the rank has completed.
    pub fn completed(&self, rank: Rank) -> u64 {
        self.entry(rank)[COMPLETED].load(Ordering::Acquire)
    }

    pub fn complete(&self, rank: Rank, sequence: u64) {
        self.entry(rank)[COMPLETED].store(sequence, Ordering::Release);
    }

    /// Enters this process; `cpus` are those it may use, `quota` how many its group may use at once (0: no limit).
    pub fn enter(&self, rank: Rank, cpus: &[usize], quota: u64) {
        let entry = self.entry(rank);
        for cpu in cpus.iter().filter(|cpu| **cpu < CPUS * 64) {
            entry[CPUS_AT + cpu / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        }
        entry[QUOTA].store(quota, Ordering::Relaxed);
        entry[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
        // publishes: the rest of the entry
        entry[STATE].store(State::Active as u64, Ordering::Release);
    }

    /// Cores that all ranks together may use at once.
    pub fn cores(&self) -> usize {
        let entries = || (0..self.world as Rank).map(|rank| self.entry(rank));
        let union = |word: usize| entries().fold(0, |all, e| all | e[CPUS_AT + word].load(Ordering::Relaxed));
        let cores: u32 = (0..CPUS).map(|word| union(word).count_ones()).sum();
        let quota = entries().map(|e| e[QUOTA].load(Ordering::Relaxed)).filter(|q| *q > 0).min();
        (cores as usize).min(quota.map_or(usize::MAX, |q| q as usize)).max(1)
    }

    /// Leaves the active state, once: the first reason stays.
    pub fn leave(&self, rank: Rank, state: State, missing: &[Rank]) -> bool {
        self.note_missing(rank, missing);
        let entry = self.entry(rank);
        // publishes: the missing ranks, and all that this rank did
        entry[STATE].compare_exchange(State::Active as u64, state as u64, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ranks for which a rank that timed out was waiting.
    pub fn missing(&self, rank: Rank) -> Vec<Rank> {
        let entry = self.entry(rank);
        let bit = |r: &Rank| entry[MISSING_AT + *r as usize / 64].load(Ordering::Relaxed) >> (r % 64) & 1 == 1;
        (0..self.world as Rank).filter(bit).collect()
    }

    /// Ranks in `state` that have not completed call `sequence`.
    pub fn behind(&self, sequence: u64, state: State) -> Vec<Rank> {
        (0..self.world as Rank).filter(|r| self.state(*r) == state && self.completed(*r) < sequence).collect()
    }

    /// Ranks whose processes are gone, the same list for every survivor: the first to ask waits a moment for others that
    /// die at the same time, and then says it for all.
    pub fn lost(&self, me: Rank) -> Vec<Rank> {
        let (speaker, spoken) = (&self.entry(0)[SPEAKER], &self.entry(0)[SPOKEN]);
        let mine = u64::from(me) + 1;
        match speaker.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                std::thread::sleep(TOGETHER);
                self.note_missing(me, &self.dead());
                // publishes: the speaker's list
                spoken.store(1, Ordering::Release);
            }
            Err(_) => {
                // The speaker may have died too; then everybody says what it sees.
                let until = Instant::now() + 4 * TOGETHER;
                while spoken.load(Ordering::Acquire) == 0 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        match spoken.load(Ordering::Acquire) {
            0 => self.dead(),
            _ => self.missing(speaker.load(Ordering::Acquire) as Rank - 1),
        }
    }

    fn dead(&self) -> Vec<Rank> {
        (0..self.world as Rank).filter(|r| self.state(*r) == State::Dead).collect()
    }

    fn note_missing(&self, rank: Rank, missing: &[Rank]) {
        for r in missing {
            self.entry(rank)[MISSING_AT + *r as usize / 64].fetch_or(1 << (r % 64), Ordering::Relaxed);
        }
    }

    /// Whether call `sequence` can no longer end because somebody left before completing it.
    pub fn broken(&self, sequence: u64, me: Rank) -> bool {
        let left = |r: &Rank| !matches!(self.state(*r), State::Active | State::Absent) && self.completed(*r) < sequence;
        (0..self.world as Rank).filter(|r| *r != me).any(|r| left(&r))
    }
}

/// Somebody who knocks at the job's socket after it has formed; answered by the watcher, since no other thread is free to.
pub trait Door: Send {
    fn listener(&self) -> &OwnedFd;
    /// Takes one visitor in; false when there was none after all.
    fn admit(&mut self) -> bool;
    fn visitors(&self) -> &[OwnedFd];
    /// Answers a visitor who has spoken, and lets go of it.
    fn answer(&mut self, visitor: usize);
}

/// What the watcher does on a death, besides marking it.
pub struct Alarm {
    pub segment: Arc<Segment>,
    pub raise: fn(&Segment),
}

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
        for rank in (0..roster.world as Rank).filter(|r| *r != me) {
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
    if roster.leave(rank, State::Dead, &[]) {
        (alarm.raise)(&alarm.segment);
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
