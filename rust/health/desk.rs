//! Where the control thread and the thread that makes calls meet. Nothing here waits for anything but the other's few
//! instructions under the lock.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::error::{Error, Rank, Result};
use crate::sync::{AtomicU64, Ordering};

use super::news::News;
use super::verdict::{Left, Verdict};

/// What the control thread does when a call must look up: wakes those who sleep on other things than the desk's own alert.
pub(super) type Raise = Box<dyn Fn() + Send + Sync>;

pub(super) struct Desk {
    begun: AtomicU64,
    completed: AtomicU64,
    /// Later calls than this need somebody who has left.
    unbroken: AtomicU64,
    /// Call whose description is wanted; 0: none.
    asked: AtomicU64,
    pub strangers: AtomicU64,
    verdict: OnceLock<Verdict>,
    papers: Mutex<Papers>,
    /// Written by calls, read by the control thread.
    pub wake: OwnedFd,
    /// The other way round.
    pub alert: OwnedFd,
    raise: Raise,
}

#[derive(Default)]
struct Papers {
    outgoing: Vec<News>,
    left: Vec<Left>,
    /// Data connections that have come in; one that has been taken leaves its place, so that nobody takes it again.
    streams: BTreeMap<(Rank, u16), Option<OwnedFd>>,
    /// Rank 0 has left: nobody judges any more.
    orphaned: bool,
    closing: bool,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("verdict", &self.verdict.get()).finish_non_exhaustive()
    }
}

impl Desk {
    pub fn new(raise: Raise) -> Result<Desk> {
        let bell = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| Error::os("cannot create an eventfd for the control thread", e))
        };
        Ok(Desk {
            begun: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            unbroken: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            verdict: OnceLock::new(),
            papers: Mutex::new(Papers::default()),
            wake: bell()?,
            alert: bell()?,
            raise,
        })
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().expect("nothing panics while it holds the lock")
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

    pub fn post(&self, news: News) {
        self.papers().outgoing.push(news);
        ring(&self.wake);
    }

    pub fn close(&self) {
        self.papers().closing = true;
        ring(&self.wake);
    }

    pub fn left(&self) -> Vec<Left> {
        self.papers().left.clone()
    }

    pub fn is_orphaned(&self) -> bool {
        self.papers().orphaned
    }

    /// All `count` streams from `rank`, once all have come.
    pub fn take(&self, rank: Rank, count: u16) -> Option<Vec<OwnedFd>> {
        let mut papers = self.papers();
        let ready = (0..count).all(|stream| matches!(papers.streams.get(&(rank, stream)), Some(Some(_))));
        if !ready {
            return None;
        }
        let streams = (0..count).filter_map(|stream| papers.streams.get_mut(&(rank, stream))?.take());
        Some(streams.collect())
    }

    // What the control thread does.

    pub fn outgoing(&self) -> (Vec<News>, bool) {
        let mut papers = self.papers();
        (std::mem::take(&mut papers.outgoing), papers.closing)
    }

    pub fn where_am_i(&self, question: u32) -> News {
        // In this order, so that a rank never seems to have completed what it has not begun.
        let completed = self.completed();
        News::Here { question, begun: self.begun.load(Ordering::Relaxed), completed }
    }

    pub fn ask(&self, sequence: u64) {
        self.asked.store(sequence, Ordering::Relaxed);
        self.alert();
    }

    pub fn note_left(&self, left: Left) {
        self.papers().left.push(left);
        // publishes: the list
        self.unbroken.fetch_min(left.completed, Ordering::Release);
        self.alert();
    }

    pub fn orphan(&self) {
        self.papers().orphaned = true;
        self.alert();
    }

    /// Only the first verdict counts.
    pub fn pronounce(&self, verdict: Verdict) {
        if self.verdict.set(verdict).is_ok() {
            self.alert();
        }
    }

    /// Takes in a data connection; gives it back if there has been one in its place.
    pub fn put(&self, rank: Rank, stream: u16, socket: OwnedFd) -> std::result::Result<(), OwnedFd> {
        let mut papers = self.papers();
        if papers.streams.contains_key(&(rank, stream)) {
            return Err(socket);
        }
        papers.streams.insert((rank, stream), Some(socket));
        drop(papers);
        ring(&self.alert);
        Ok(())
    }

    fn alert(&self) {
        ring(&self.alert);
        (self.raise)();
    }
}

/// Makes the eventfd readable.
fn ring(bell: &OwnedFd) {
    // It takes this write unless it is full, and then it is readable already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes the eventfd unreadable until it is rung again.
pub(super) fn calm(bell: &OwnedFd) {
    let mut count = [0; 8];
    // Nothing to read: it was calm.
    while rustix::io::read(bell, &mut count) == Err(Errno::INTR) {}
}
