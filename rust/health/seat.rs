//! What is known of one group on this rank: how far its calls are, who has left it, the verdict on it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::admission::GroupId;
use crate::error::Rank;
use crate::sync::{AtomicU64, Ordering};

use super::news::News;
use super::verdict::{Left, Verdict};

impl GroupId {
    /// The group of all ranks of the job.
    pub fn is_job(self) -> bool {
        self == GroupId::default()
    }
}

/// Which group is meant, for the job and for people. Ranks here are those of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    pub ranks: Arc<[Rank]>,
    pub name: Arc<str>,
}

impl Group {
    /// All ranks of a job.
    pub fn job(world: u32) -> Group {
        Group { id: GroupId::default(), ranks: (0..world).collect(), name: "world".into() }
    }

    /// " of group 'rows[1]'": what distinguishes its calls from those of the group of all.
    pub fn suffix(&self) -> String {
        if self.id.is_job() { String::new() } else { format!(" of group '{}'", self.name) }
    }
}

#[derive(Debug)]
pub(super) struct Seat {
    pub group: Group,
    begun: AtomicU64,
    completed: AtomicU64,
    /// Later calls than this need somebody who has left.
    unbroken: AtomicU64,
    /// Call whose description is wanted; 0: none.
    asked: AtomicU64,
    verdict: OnceLock<Verdict>,
    left: Mutex<Vec<Left>>,
    /// This rank has said that it leaves.
    over: AtomicU64,
}

impl Seat {
    pub fn new(group: Group) -> Seat {
        Seat {
            group,
            begun: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            unbroken: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            verdict: OnceLock::new(),
            left: Mutex::default(),
            over: AtomicU64::new(0),
        }
    }

    fn lefts(&self) -> MutexGuard<'_, Vec<Left>> {
        self.left.lock().expect("nothing panics while it holds the lock")
    }

    // What calls do.

    pub fn begin(&self, sequence: u64) {
        // Relaxed: read only to say how far this rank is.
        self.begun.store(sequence, Ordering::Relaxed);
    }

    pub fn complete(&self, sequence: u64) {
        self.completed.store(sequence, Ordering::Relaxed);
    }

    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    pub fn is_broken(&self, sequence: u64) -> bool {
        // acquires: the list of those who have left
        sequence > self.unbroken.load(Ordering::Acquire) || self.verdict.get().is_some()
    }

    /// Whether rank 0 wants to know what this rank calls in call `sequence`; asked once.
    pub fn is_asked(&self, sequence: u64) -> bool {
        self.asked.load(Ordering::Relaxed) == sequence
            && self.asked.compare_exchange(sequence, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// This rank leaves; whether it has not said so before.
    pub fn leave(&self) -> bool {
        self.over.swap(1, Ordering::Relaxed) == 0
    }

    pub fn left(&self) -> Vec<Left> {
        self.lefts().clone()
    }

    // What the control thread does.

    pub fn where_am_i(&self, question: u32) -> News {
        // In this order, so that a rank never seems to have completed what it has not begun.
        let completed = self.completed();
        News::Here { question, begun: self.begun.load(Ordering::Relaxed), completed }
    }

    pub fn ask(&self, sequence: u64) {
        self.asked.store(sequence, Ordering::Relaxed);
    }

    pub fn note_left(&self, left: Left) {
        self.lefts().push(left);
        // publishes: the list
        self.unbroken.fetch_min(left.completed, Ordering::Release);
    }

    /// A rank has left the job. Of the groups that it has made it has taken its leave before.
    pub fn note_departed(&self, left: Left) {
        let is_news = self.lefts().iter().all(|known| known.rank != left.rank);
        if !self.group.id.is_job() && self.group.ranks.contains(&left.rank) && is_news {
            self.note_left(Left { completed: 0, ..left });
        }
    }

    /// Only the first verdict counts.
    pub fn pronounce(&self, verdict: Verdict) {
        // Later ones are about what follows from the first.
        let _ = self.verdict.set(verdict);
    }

    /// Ranks of the job are lost.
    pub fn mourn(&self, verdict: &Verdict) {
        if verdict.ranks.iter().any(|rank| self.group.ranks.contains(rank)) {
            self.pronounce(verdict.clone());
        }
    }
}
