//! The entries of all ranks of one host, in shared memory: who is there, who has left and why, how far each has come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::Segment;
use crate::error::Rank;
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
    pub(super) fn of(word: u64) -> State {
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
