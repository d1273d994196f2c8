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
    /// Those that are over.
    ready: VecDeque<u64>,
    /// The first that broke, with which the group ends. `Memory` still finds it: its other half may be under way.
    broken: Option<u64>,
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
        self.letters.is_empty()
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
            let letter = self.letters.get_mut(&number).expect("it has not been given back");
            let of_take = letter.take == Some(ticket);
            *if of_take { &mut letter.take } else { &mut letter.give } = None;
            match outcome {
                Ok(status) if of_take => letter.status = Some(status),
                Ok(_) => {}
                Err(failure) => letter.failure = Some(failure),
            }
            if matches!(letter.failure, Some(Failure::Broken(_))) {
                self.broken.get_or_insert(number);
            } else if letter.give.is_none() && letter.take.is_none() {
                self.ready.push_back(number);
            }
        }
        self.ready().is_some()
    }

    /// The first of those that are over, or the one that broke.
    pub fn ready(&self) -> Option<&Letter> {
        self.ready.front().or(self.broken.as_ref()).map(|number| &self.letters[number])
    }

    pub fn pop_ready(&mut self) -> Option<Letter> {
        let number = self.ready.pop_front()?;
        self.remove(number)
    }

    /// All that are under way, in the order in which they were handed in.
    pub fn take_all(&mut self) -> impl Iterator<Item = Letter> + use<> {
        self.whose.clear();
        (self.ready, self.broken) = (VecDeque::new(), None);
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::super::mail::{Give, Take};
    use super::*;
    use crate::error::Rank;
    use crate::transport::{Link, mem};
    use crate::wait::Bell;

    /// `sendrecv(dst=1, src)`.
    struct Slip {
        src: Rank,
        give: Vec<Cell<u8>>,
        take: Vec<Cell<u8>>,
    }

    impl Parcel for Slip {
        fn call(&self) -> Exchange<'_> {
            let give = Some(Give { to: 1, tag: 4, array: &self.give });
            Exchange { give, take: Some(Take { from: Some(self.src), tag: None, array: &self.take }), timeout: None }
        }
        fn end(self: Box<Self>, _: Result<Option<Status>>) {}
    }

    /// Rank 0 with a letter to rank 1, too long for the pipe, and one from `src` to come; the other ends.
    fn posted(src: Rank) -> (Office, Outstanding, [Option<Link>; 2]) {
        let (mut office, bell) = (Office::new(0, 3), Arc::new(Bell::default()));
        let ends = [1, 2].map(|rank| {
            let (mine, other) = mem::pair([0, rank], 128, &bell);
            office.open_to(rank, mine.tx);
            office.open_from(rank, mine.rx);
            Some(other)
        });
        let mut outstanding = Outstanding::default();
        let slip = Slip { src, give: vec![Cell::new(7); 1000], take: vec![Cell::new(0); 10] };
        outstanding.insert(9, Box::new(slip), Duration::MAX);
        let (give, take) = (office.post_send(1, 4, 1000), office.post_recv(Some(src), None, 10));
        outstanding.name(9, Some(give), Some(take));
        assert!(office.progress(&outstanding) && !outstanding.note(&mut office));
        (office, outstanding, ends)
    }

    fn is_broken(outstanding: &Outstanding) -> bool {
        outstanding.ready().is_some_and(|letter| matches!(letter.failure, Some(Failure::Broken(_))))
    }

    #[test]
    fn both_halves_may_break_in_one_step() {
        let (mut office, mut outstanding, mut ends) = posted(1);
        ends[0] = None;
        office.progress(&outstanding);
        assert!(outstanding.note(&mut office) && is_broken(&outstanding));
        assert!(outstanding.get(9).is_some_and(|letter| (letter.give, letter.take) == (None, None)), "both have");
        assert!(outstanding.pop_ready().is_none(), "it ends with the group");
        assert_eq!(outstanding.take_all().count(), 1);
        assert!(outstanding.is_empty() && outstanding.ready().is_none());
    }

    #[test]
    fn what_is_sent_is_there_though_the_receive_broke() {
        let (mut office, mut outstanding, mut ends) = posted(2);
        ends[1] = None;
        office.progress(&outstanding);
        assert!(outstanding.note(&mut office) && is_broken(&outstanding));
        let (room, rx) = ([const { Cell::new(0) }; 100], &mut ends[0].as_mut().expect("open").rx);
        assert_eq!(rx.read(&room), Ok(100));
        assert!(office.progress(&outstanding), "the group has not been told yet, and the letter goes on");
        assert!(room[36..].iter().all(|byte| byte.get() == 7));
    }
    /// Or those who wait for others would wait once more after each that leaves.
    #[test]
    fn who_leaves_is_no_sign_of_life_for_what_goes_on_between_others() {
        let (mut office, outstanding, mut ends) = posted(1);
        while office.progress(&outstanding) {}
        ends[1] = None;
        assert!(!office.progress(&outstanding));
        ends[0] = None;
        assert!(office.progress(&outstanding), "it is, for who waits for that one");
    }
}
