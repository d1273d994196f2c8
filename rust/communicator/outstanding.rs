//! Letters whose callers do something else meanwhile: whose they are, where they lie, and how long nothing has come of them.
//!
//! ```text
//! insert ─► under way ──all of it is done─► ready ─► Parcel::end
//! ```
//! Time is counted by whoever waits, not read off a clock: a process that was stopped does not use up the patience of its letters.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::kernels::Bytes;
use crate::post::{Failure, Memory, Office, Status, Ticket};

use super::mail::Exchange;

/// Steps in a row in which something always moved, so that no wait has asked the host, after which that is done: 64 MiB of a letter
/// that is read where it lies, some milliseconds.
pub(super) const STEPS: u32 = 64;

/// A call that goes on without its caller, and owns what it sends and receives.
pub trait Parcel: Send {
    fn call(&self) -> Exchange<'_>;
    /// It is over. Whoever drives calls this, so it must not wait.
    fn end(self: Box<Self>, outcome: Result<Option<Status>>);
}

/// Where parcels lie until whoever drives takes them in, in the order in which they were handed in.
#[derive(Default)]
pub(super) struct Tray {
    parcels: Mutex<VecDeque<(u64, Box<dyn Parcel>)>>,
    waiting: AtomicUsize,
    /// Handed in and not over.
    pub pending: AtomicUsize,
}

impl std::fmt::Debug for Tray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tray").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Tray {
    fn parcels(&self) -> MutexGuard<'_, VecDeque<(u64, Box<dyn Parcel>)>> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers are given out in the order of the tray.
    pub fn put(&self, parcel: Box<dyn Parcel>, numbers: &AtomicUsize) -> u64 {
        let mut parcels = self.parcels();
        let number = numbers.fetch_add(1, Ordering::Relaxed) as u64;
        parcels.push_back((number, parcel));
        self.pending.fetch_add(1, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        number
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    pub fn take(&self) -> Option<(u64, Box<dyn Parcel>)> {
        if self.is_empty() {
            return None;
        }
        let found = self.parcels().pop_front();
        self.waiting.fetch_sub(usize::from(found.is_some()), Ordering::SeqCst);
        found
    }

    /// A parcel that was taken is over.
    pub fn end(&self, parcel: Box<dyn Parcel>, outcome: Result<Option<Status>>) {
        // Whoever sees it done finds nothing of it left here.
        self.pending.fetch_sub(1, Ordering::SeqCst);
        parcel.end(outcome);
    }
}

/// One of them.
pub(super) struct Letter {
    pub parcel: Box<dyn Parcel>,
    /// What of it is still to be done.
    pub give: Option<Ticket>,
    pub take: Option<Ticket>,
    pub status: Option<Status>,
    pub failure: Option<Failure>,
    since: Duration,
    pub limit: Duration,
}

impl Letter {
    /// What of the call is still to be done.
    pub fn rest(&self, office: &Office) -> Exchange<'_> {
        let call = self.parcel.call();
        let (give, take) =
            (call.give.filter(|_| self.give.is_some()), self.take.and_then(|take| call.rest_of(take, office)));
        Exchange { give, take, ..call }
    }
}

#[derive(Default)]
pub(super) struct Outstanding {
    letters: BTreeMap<u64, Letter>,
    whose: HashMap<Ticket, u64>,
    ready: VecDeque<Letter>,
    /// Time that was spent waiting, and how much of it when something moved last.
    clock: Duration,
    moved: Duration,
}

impl std::fmt::Debug for Outstanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outstanding").field("letters", &self.letters.len()).finish_non_exhaustive()
    }
}

impl Memory for Outstanding {
    fn of(&self, ticket: Ticket) -> Bytes<'_> {
        let letter = &self.letters[&self.whose[&ticket]];
        let call = letter.parcel.call();
        let array = match letter.give == Some(ticket) {
            true => call.give.map(|give| give.array),
            false => call.take.map(|take| take.array),
        };
        array.expect("the ticket was given out for it")
    }
}

impl Outstanding {
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty() && self.ready.is_empty()
    }

    /// A parcel that has not been posted yet.
    pub fn insert(&mut self, number: u64, parcel: Box<dyn Parcel>, limit: Duration) {
        let (since, status, failure) = (self.clock, None, None);
        self.letters.insert(number, Letter { parcel, give: None, take: None, status, failure, since, limit });
    }

    /// It has been posted.
    pub fn name(&mut self, number: u64, give: Option<Ticket>, take: Option<Ticket>) {
        let letter = self.letters.get_mut(&number).expect("just put there");
        (letter.give, letter.take) = (give, take);
        self.whose.extend(give.into_iter().chain(take).map(|ticket| (ticket, number)));
    }

    pub fn get(&self, number: u64) -> Option<&Letter> {
        self.letters.get(&number)
    }

    pub fn remove(&mut self, number: u64) -> Option<Letter> {
        let letter = self.letters.remove(&number)?;
        for ticket in letter.give.iter().chain(&letter.take) {
            self.whose.remove(ticket);
        }
        Some(letter)
    }

    /// Receives, and nothing else, that no letter has met.
    pub fn unmet(&self, office: &Office) -> Vec<(u64, Ticket)> {
        let unmet = |letter: &Letter| letter.take.filter(|take| letter.give.is_none() && office.is_unmet(*take));
        self.letters.iter().filter_map(|(number, letter)| Some((*number, unmet(letter)?))).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Letter> {
        self.letters.values()
    }

    /// Takes note of what has been done of them. Whether some are over.
    pub fn note(&mut self, office: &mut Office) -> bool {
        for (ticket, outcome) in office.take_done(|ticket| self.whose.contains_key(&ticket)) {
            let number = self.whose.remove(&ticket).expect("asked for");
            let letter = self.letters.get_mut(&number).expect("it is not over");
            let of_take = letter.take == Some(ticket);
            *if of_take { &mut letter.take } else { &mut letter.give } = None;
            match outcome {
                Ok(status) if of_take => letter.status = Some(status),
                Ok(_) => {}
                Err(failure) => letter.failure = Some(failure),
            }
            let broken = matches!(letter.failure, Some(Failure::Broken(_)));
            if broken || (letter.give.is_none() && letter.take.is_none()) {
                let letter = self.remove(number);
                self.ready.extend(letter);
            }
        }
        !self.ready.is_empty()
    }

    pub fn pop_ready(&mut self) -> Option<Letter> {
        self.ready.pop_front()
    }

    /// The same is the next one again.
    pub fn put_back(&mut self, letter: Letter) {
        self.ready.push_front(letter);
    }

    /// All that are under way, in the order in which they were handed in.
    pub fn take_all(&mut self) -> impl Iterator<Item = Letter> + use<> {
        self.whose.clear();
        std::mem::take(&mut self.letters).into_values()
    }

    pub fn clock(&self) -> Duration {
        self.clock
    }

    /// So long, nothing has moved.
    pub fn waited(&mut self, time: Duration) {
        self.clock = self.clock.saturating_add(time);
    }

    pub fn note_progress(&mut self) {
        self.moved = self.clock;
    }

    /// How long something may still take that was begun at `since`.
    pub fn left(&self, since: Duration, limit: Duration) -> Duration {
        limit.saturating_sub(self.clock - since.max(self.moved).min(self.clock))
    }

    /// How long nothing may move until one of them has taken too long.
    pub fn shortest(&self) -> Duration {
        self.iter().map(|letter| self.left(letter.since, letter.limit)).min().unwrap_or(Duration::MAX)
    }

    /// One that has taken too long.
    pub fn expired(&self) -> Option<&Letter> {
        self.iter().find(|letter| self.left(letter.since, letter.limit).is_zero())
    }
}
