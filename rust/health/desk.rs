//! Where the control thread and the threads that make calls meet. Nothing here waits for anything but the other's few
//! instructions under the lock.
//!
//! Each group has a *seat* of its own: how far its calls are on this rank, who has left it, and its verdict. News may come before
//! this rank has made the group, and after it has left it: the first are kept, the others dropped.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::admission::GroupId;
use crate::error::{Error, Rank, Result};
use crate::sync::{AtomicU64, Ordering};

use super::news::{Letter, News};
use super::roster::State;
use super::seat::{Group, Seat};
use super::verdict::{Kind, Left, Verdict};

/// What the control thread does when a call must look up: wakes those who sleep on other things than the desk's own alert. It is
/// told who has left the job since.
pub(super) type Raise = Box<dyn Fn(&[(Rank, State)]) + Send + Sync>;

/// In place of a stream's number: the connection by which a rank sends this one what is no part of a collective.
pub(super) const POST: u16 = u16::MAX;

pub(super) struct Desk {
    pub strangers: AtomicU64,
    /// Connections for sending that have come in so far.
    posts: AtomicU64,
    papers: Mutex<Papers>,
    /// Written by calls, read by the control thread.
    pub wake: OwnedFd,
    /// The other way round.
    pub alert: OwnedFd,
    ears: Mutex<Vec<Weak<Ear>>>,
    raise: Raise,
}

/// A descriptor that becomes readable whenever the alert does, for one sleeper alone. Letters are waited for while a collective of
/// the same group is: were both to calm the alert, one would take away the news for which the other is about to sleep.
#[derive(Debug)]
pub struct Ear(OwnedFd);

impl Ear {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// To be called before looking at what has changed.
    pub fn calm(&self) {
        calm(&self.0);
    }

    /// Ends the sleep of whoever listens, or the next one.
    pub fn ring(&self) {
        ring(&self.0);
    }
}

#[derive(Default)]
struct Papers {
    outgoing: Vec<Letter>,
    /// Of groups that this rank has made and not left, and of some that it has not made yet.
    seats: BTreeMap<GroupId, Arc<Seat>>,
    /// For each list of ranks, how many of its groups this rank has made.
    made: BTreeMap<u64, u64>,
    /// Who has left the job by itself, and what has been said of those who were lost.
    left: Vec<Left>,
    lost: Vec<Verdict>,
    /// Data connections that have come in; one that has been taken leaves its place, so that nobody takes it again.
    streams: BTreeMap<(GroupId, Rank, u16), Option<OwnedFd>>,
    /// Second descriptors of the connections by which this rank sends letters.
    outbound: Vec<(GroupId, OwnedFd)>,
    /// Rank 0 has left: nobody judges any more.
    orphaned: bool,
    closing: bool,
}

impl Papers {
    /// Whether this rank has left the group. Those of one list are made one after the other.
    fn is_past(&self, id: GroupId) -> bool {
        !self.seats.contains_key(&id) && self.made.get(&id.list).is_some_and(|made| id.number < *made)
    }

    fn seat(&mut self, group: &Group) -> Option<Arc<Seat>> {
        if self.is_past(group.id) {
            return None;
        }
        let Papers { seats, left, lost, .. } = self;
        let seat = seats.entry(group.id).or_insert_with(|| {
            let seat = Seat::new(group.clone());
            left.iter().for_each(|left| seat.note_departed(*left));
            lost.iter().for_each(|verdict| seat.mourn(verdict));
            Arc::new(seat)
        });
        Some(Arc::clone(seat))
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    pub fn new(raise: Raise) -> Result<Desk> {
        Ok(Desk {
            strangers: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            papers: Mutex::new(Papers::default()),
            wake: bell()?,
            alert: bell()?,
            ears: Mutex::default(),
            raise,
        })
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().expect("nothing panics while it holds the lock")
    }

    // What calls do.

    /// One more who hears of all that the alert says, from now on.
    pub fn ear(&self) -> Result<Arc<Ear>> {
        let ear = Arc::new(Ear(bell()?));
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        ears.retain(|ear| ear.strong_count() > 0);
        ears.push(Arc::downgrade(&ear));
        Ok(ear)
    }

    /// Wakes all who sleep on a descriptor.
    fn ring(&self) {
        ring(&self.alert);
        let ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        ears.iter().filter_map(Weak::upgrade).for_each(|ear| ear.ring());
    }

    /// The seat of a group that this rank makes now.
    pub fn open(&self, group: &Group) -> Arc<Seat> {
        let mut papers = self.papers();
        let seat = papers.seat(group).expect("made once");
        let made = papers.made.entry(group.id.list).or_default();
        *made = (*made).max(group.id.number + 1);
        seat
    }

    /// Leaves a group, and forgets it.
    pub fn dismiss(&self, id: GroupId) {
        let mut papers = self.papers();
        papers.seats.remove(&id);
        papers.streams.retain(|(group, ..), _| *group != id);
        papers.outbound.retain(|(group, _)| *group != id);
    }

    /// This rank sends letters by `socket`, of which this is a second descriptor.
    pub fn keep(&self, id: GroupId, socket: OwnedFd) {
        self.papers().outbound.push((id, socket));
    }

    /// Says on the connections for letters of these groups that nothing will follow, after all that is still under way on them:
    /// others hear of a departure by another connection, which may be faster.
    pub fn hang_up(&self, whether: impl Fn(GroupId) -> bool) {
        self.papers().outbound.retain(|(group, socket)| {
            if whether(*group) {
                // It fails where the other end is gone already.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
            }
            !whether(*group)
        });
    }

    pub fn post(&self, group: &Group, news: News) {
        self.papers().outgoing.push(Letter { group: group.clone(), news });
        ring(&self.wake);
    }

    /// Says of every group that this rank leaves it.
    pub fn leave_all(&self, me: Rank, state: State) {
        let seats: Vec<_> = self.papers().seats.values().cloned().collect();
        for seat in seats.iter().filter(|seat| !seat.group.id.is_job() && seat.leave()) {
            self.post(&seat.group, News::Left(Left { rank: me, state, completed: seat.completed() }));
        }
    }

    pub fn close(&self) {
        self.papers().closing = true;
        ring(&self.wake);
    }

    /// Whether rank 0 has left the job: nobody judges any more.
    pub fn is_orphaned(&self) -> bool {
        self.papers().orphaned
    }

    /// Who has left the job by itself.
    pub fn departed(&self) -> Vec<Rank> {
        self.papers().left.iter().map(|left| left.rank).collect()
    }

    /// Whether this rank has left a group.
    pub fn is_past(&self, id: GroupId) -> bool {
        self.papers().is_past(id)
    }

    /// All `count` streams from `rank`, once all have come.
    pub fn take(&self, group: GroupId, rank: Rank, count: u16) -> Option<Vec<OwnedFd>> {
        let mut papers = self.papers();
        let ready = (0..count).all(|stream| matches!(papers.streams.get(&(group, rank, stream)), Some(Some(_))));
        if !ready {
            return None;
        }
        let streams = (0..count).filter_map(|stream| papers.streams.get_mut(&(group, rank, stream))?.take());
        Some(streams.collect())
    }

    pub fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// Ranks of a group from which connections for sending have come in since.
    pub fn take_posts(&self, group: GroupId) -> Vec<(Rank, OwnedFd)> {
        let mut papers = self.papers();
        let range = (group, 0, 0)..=(group, Rank::MAX, POST);
        let posts = papers.streams.range_mut(range).filter(|((.., stream), _)| *stream == POST);
        posts.filter_map(|((_, rank, _), socket)| Some((*rank, socket.take()?))).collect()
    }

    // What the control thread does.

    pub fn outgoing(&self) -> (Vec<Letter>, bool) {
        let mut papers = self.papers();
        (std::mem::take(&mut papers.outgoing), papers.closing)
    }

    /// The seat that news of `group` concern; None if this rank has left it.
    pub fn seat(&self, group: &Group) -> Option<Arc<Seat>> {
        self.papers().seat(group)
    }

    pub fn ask(&self, group: &Group, sequence: u64) {
        if let Some(seat) = self.seat(group) {
            seat.ask(sequence);
            self.alert(&[]);
        }
    }

    /// Another rank has left a group; the group of all, if it has left the job.
    pub fn note_left(&self, group: &Group, left: Left) {
        if let Some(seat) = self.seat(group) {
            seat.note_left(left);
        }
        let departs = group.id.is_job() && matches!(left.state, State::Finished | State::Raised);
        if departs {
            let mut papers = self.papers();
            papers.left.push(left);
            papers.seats.values().for_each(|seat| seat.note_departed(left));
        }
        let departed = [(left.rank, left.state)];
        self.alert(if departs { &departed } else { &[] });
    }

    /// Rank 0 is gone, and what it said last is known; `verdict` if it had not left by itself.
    pub fn orphan(&self, job: &Group, verdict: Option<Verdict>) {
        // First: a call that finds nobody to judge, and no verdict, makes one of its own, which may name another rank.
        if let Some(verdict) = verdict {
            self.pronounce(job, verdict);
        }
        self.papers().orphaned = true;
        self.alert(&[]);
    }

    /// Only the first verdict on a group counts. Of those who are lost all groups hear in which they were.
    pub fn pronounce(&self, group: &Group, verdict: Verdict) {
        if let Some(seat) = self.seat(group) {
            seat.pronounce(verdict.clone());
        }
        let mut departed = Vec::new();
        if group.id.is_job() && verdict.kind == Kind::Lost {
            departed.extend(verdict.ranks.iter().map(|rank| (*rank, State::Dead)));
            let mut papers = self.papers();
            papers.seats.values().for_each(|seat| seat.mourn(&verdict));
            papers.lost.push(verdict);
        }
        self.alert(&departed);
    }

    /// Takes in a data connection; gives it back if there has been one in its place, or this rank has left the group.
    pub fn put(&self, group: GroupId, rank: Rank, stream: u16, socket: OwnedFd) -> std::result::Result<(), OwnedFd> {
        let mut papers = self.papers();
        if papers.is_past(group) || papers.streams.contains_key(&(group, rank, stream)) {
            return Err(socket);
        }
        papers.streams.insert((group, rank, stream), Some(socket));
        drop(papers);
        // publishes: that it is there to be taken
        self.posts.fetch_add(u64::from(stream == POST), Ordering::Release);
        self.ring();
        Ok(())
    }

    fn alert(&self, departed: &[(Rank, State)]) {
        self.ring();
        (self.raise)(departed);
    }
}

fn bell() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::os("cannot create an eventfd for the control thread", e))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn group(list: u64, number: u64, ranks: &[Rank]) -> Group {
        Group { id: GroupId { list, number }, ranks: ranks.into(), name: "g".into() }
    }

    fn left(rank: Rank) -> Left {
        Left { rank, state: State::Finished, completed: 0 }
    }

    #[test]
    fn news_of_a_group_wait_until_it_is_made_and_are_dropped_once_it_is_left() {
        let desk = Desk::new(Box::new(|_| ())).expect("descriptors");
        let [first, second] = [0, 1].map(|number| group(5, number, &[1, 2]));
        desk.note_left(&first, left(2));
        let seat = desk.open(&first);
        assert!(seat.is_broken(1));
        desk.dismiss(first.id);
        desk.note_left(&first, left(1));
        assert!(desk.seat(&first).is_none(), "it is past");
        assert!(!desk.open(&second).is_broken(1), "the same ranks, another group");
        assert_eq!(desk.papers().seats.len(), 1);
    }

    #[test]
    fn whoever_sees_that_rank_0_is_gone_sees_the_verdict_too() {
        let desk = Arc::new_cyclic(|desk: &std::sync::Weak<Desk>| {
            let desk = desk.clone();
            let look = move |_: &[(Rank, State)]| {
                let desk = desk.upgrade().expect("it is alive");
                let seat = desk.seat(&Group::job(2)).expect("the group of all");
                assert!(!desk.is_orphaned() || seat.verdict().is_some());
            };
            Desk::new(Box::new(look)).expect("descriptors")
        });
        let verdict = Verdict { kind: Kind::Lost, ranks: vec![0], text: "rank 0 lost".into() };
        desk.orphan(&Group::job(2), Some(verdict));
        assert!(desk.is_orphaned());
    }

    #[test]
    fn who_has_left_the_job_or_is_lost_is_missed_in_every_group_of_which_it_is_a_member() {
        let desk = Desk::new(Box::new(|_| ())).expect("descriptors");
        let job = Group::job(5);
        let [of_2, of_3, late] =
            [&[1, 2][..], &[1, 3], &[1, 3]].map(|ranks| group(ranks.len() as u64, ranks[1].into(), ranks));
        let seats = [&of_2, &of_3].map(|group| desk.open(group));
        desk.note_left(&job, left(2));
        assert_eq!(seats.each_ref().map(|seat| seat.is_broken(1)), [true, false]);
        let verdict = Verdict { kind: Kind::Lost, ranks: vec![3], text: "rank 3 lost".into() };
        desk.pronounce(&job, verdict.clone());
        assert_eq!(seats[1].verdict(), Some(&verdict));
        let late = Group { id: GroupId { list: 9, number: 0 }, ..late };
        assert_eq!(desk.open(&late).verdict(), Some(&verdict), "made afterwards");
    }
}
