//! The entries of all ranks of one host, in shared memory: who is there, who has left and why, how far each has come.
//!
//! A group within the job has a roster of its own for what its members do in it. What becomes of their processes is in that of
//! the job: a member is gone if it has left either.

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
/// State in which the process left the job itself, whatever it had done before in the group of all.
const DEPARTED: usize = 4;
/// The process does not exist any more.
const ENDED: usize = 5;
/// The member touches nothing of the group's memory any more.
const LET_GO: usize = 6;
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
    /// Of a group within the job.
    job: Option<Job>,
}

/// Where the job's roster says what has become of the members' processes.
#[derive(Clone, Debug)]
struct Job {
    offset: usize,
    world: usize,
    /// Each member's place there.
    places: Arc<[usize]>,
}

impl Roster {
    pub const fn bytes(world: usize) -> usize {
        world * size_of::<Entry>()
    }

    pub fn new(segment: Arc<Segment>, offset: usize, world: usize) -> Roster {
        Roster { segment, offset, world, job: None }
    }

    /// The roster, at `offset`, of a group of those that have these places in this one, which is the job's.
    pub fn of_group(&self, offset: usize, places: Vec<usize>) -> Roster {
        let job = Job { offset: self.offset, world: self.world, places: places.into() };
        Roster { segment: Arc::clone(&self.segment), offset, world: job.places.len(), job: Some(job) }
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// The entry of a rank's process.
    fn process(&self, rank: Rank) -> &Entry {
        match &self.job {
            None => self.entry(rank),
            Some(job) => &self.segment.array(job.offset, job.world)[job.places[rank as usize]],
        }
    }

    fn entry(&self, rank: Rank) -> &Entry {
        &self.segment.array(self.offset, self.world)[rank as usize]
    }

    pub fn state(&self, rank: Rank) -> State {
        // acquires: everything that the rank published before it left
        let here = State::of(self.entry(rank)[STATE].load(Ordering::Acquire));
        match (here, State::of(self.process(rank)[DEPARTED].load(Ordering::Acquire))) {
            (State::Active | State::Absent, departed) if departed != State::Absent => departed,
            _ => here,
        }
    }

    pub fn pid(&self, rank: Rank) -> u64 {
        self.process(rank)[PID].load(Ordering::Relaxed)
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

    /// Enters this process into the roster of a group within the job.
    pub fn join(&self, rank: Rank) {
        self.entry(rank)[STATE].store(State::Active as u64, Ordering::Release);
    }

    /// Cores that all ranks together may use at once.
    pub fn cores(&self) -> usize {
        let entries = || (0..self.world as Rank).map(|rank| self.entry(rank));
        let union = |word: usize| entries().fold(0, |all, e| all | e[CPUS_AT + word].load(Ordering::Relaxed));
        let cores: u32 = (0..CPUS).map(|word| union(word).count_ones()).sum();
        let quota = entries().map(|e| e[QUOTA].load(Ordering::Relaxed)).filter(|q| *q > 0).min();
        (cores as usize).min(quota.map_or(usize::MAX, |q| q as usize)).max(1)
    }

    /// Leaves the active state, once: the first reason stays. Whether the others have to be told.
    pub fn leave(&self, rank: Rank, state: State, missing: &[Rank]) -> bool {
        self.note_missing(rank, missing);
        let first = |word: &AtomicU64, before: State| {
            // publishes: the missing ranks, and all that this rank did
            word.compare_exchange(before as u64, state as u64, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let entry = self.entry(rank);
        // Who closes the group of all because a call failed stays a member of other groups.
        let departs = self.job.is_none() && matches!(state, State::Finished | State::Dead | State::Raised);
        let departed = departs && first(&entry[DEPARTED], State::Absent);
        first(&entry[STATE], State::Active) || departed
    }

    /// The rank's process does not exist any more. Whether the others have to be told.
    pub fn bury(&self, rank: Rank) -> bool {
        self.entry(rank)[ENDED].store(1, Ordering::Release);
        self.leave(rank, State::Dead, &[])
    }

    /// Whether the rank has left the job, or has died.
    pub fn has_departed(&self, rank: Rank) -> bool {
        State::of(self.process(rank)[DEPARTED].load(Ordering::Acquire)) != State::Absent
    }

    /// The rank touches nothing of the group's memory any more.
    pub fn let_go(&self, rank: Rank) {
        // publishes: its last use of that memory
        self.entry(rank)[LET_GO].store(1, Ordering::Release);
    }

    /// Whether nobody touches the group's memory any more. Members that have not come yet may still do so, unless they have
    /// left the job.
    pub fn is_abandoned(&self) -> bool {
        (0..self.world as Rank).all(|rank| {
            let absent = self.entry(rank)[STATE].load(Ordering::Acquire) == State::Absent as u64;
            self.entry(rank)[LET_GO].load(Ordering::Acquire) == 1
                || self.process(rank)[ENDED].load(Ordering::Acquire) == 1
                || absent && self.has_departed(rank)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of four, and a group of its ranks 3 and 1, all of whom have come.
    fn rosters() -> (Roster, Roster) {
        let (segment, _) = Segment::create(1 << 20).expect("memory");
        let job = Roster::new(Arc::new(segment), 4096, 4);
        (0..4).for_each(|rank| job.enter(rank, &[0], 0));
        let group = job.of_group(64 << 10, vec![3, 1]);
        (0..2).for_each(|rank| group.join(rank));
        (job, group)
    }

    #[test]
    fn a_member_is_gone_when_its_process_is_and_a_stranger_does_not_matter() {
        let (job, group) = rosters();
        assert!(job.bury(0) && job.leave(2, State::Raised, &[]));
        assert!(job.broken(1, 1) && !group.broken(1, 1));
        assert!(job.bury(3));
        assert_eq!(group.state(0), State::Dead);
        assert_eq!((group.behind(1, State::Dead), group.lost(1)), (vec![0], vec![0]));
        assert!(group.broken(1, 1));
        group.complete(0, 1);
        assert!(!group.broken(1, 1), "what it did before is there");
    }

    #[test]
    fn a_call_of_all_that_failed_leaves_other_groups_alone_until_the_process_leaves() {
        let (job, group) = rosters();
        assert!(job.leave(3, State::TimedOut, &[0]));
        assert_eq!((job.state(3), group.state(0)), (State::TimedOut, State::Active));
        assert!(job.leave(3, State::Finished, &[]), "others have to be told");
        assert_eq!((job.state(3), group.state(0)), (State::TimedOut, State::Finished));
        assert!(!job.bury(3), "they know");
    }

    #[test]
    fn leaving_a_group_leaves_no_other() {
        let (job, group) = rosters();
        assert!(group.leave(0, State::Finished, &[]) && !group.leave(0, State::Raised, &[]));
        assert_eq!((job.state(3), group.state(0)), (State::Active, State::Finished));
    }

    #[test]
    fn memory_is_abandoned_when_the_last_one_lets_go_or_dies() {
        let (job, group) = rosters();
        group.let_go(0);
        assert!(!group.is_abandoned());
        job.leave(1, State::Finished, &[]);
        assert!(!group.is_abandoned(), "it has left the job, but is there");
        job.bury(1);
        assert!(group.is_abandoned());
        let late = job.of_group(128 << 10, vec![0, 3]);
        late.let_go(1);
        assert!(!late.is_abandoned(), "rank 0 may yet come");
        job.leave(0, State::Finished, &[]);
        assert!(late.is_abandoned());
    }
}
