//! Who goes on with letters: a caller, who waits for its own and for all that are outstanding, or the thread, which takes a step
//! from time to time.
//!
//! ```text
//! drive:  take in ─► progress ─► end what is done ─► over? ─► wait until something moves ─► …      in the foreground
//! step:   take in ─► progress as long as something moves ─► end what is done ─► still possible?     never waits
//! ```
//! What is slept on is one's own: the bell, which everybody hears, or the `Ear`, which no collective calms.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Rank};
use crate::health::{Control, Ear, State};
use crate::post::Office;
use crate::sync::Ordering;
use crate::transport::tcp;
use crate::wait::{Bell, Host, Patience, SLICE, Stop, Task, Wait};

use super::mail::{Arrays, Both, Fault, Mail, Own, Reach};
use super::outstanding::{Letter, Outstanding, STEPS, Tray};
use super::roll::Roll;
use super::undelivered::{interrupted, is_broken};

/// First and longest sleep while both descriptors and the bell are waited for (`engine`).
const BRIEF: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// How often the thread asks whether letters can still arrive though no alarm has called it, as in `wait`.
const AGAIN: Duration = Duration::from_secs(1);

/// Steps in a row after which the thread lets others have the office.
const ROUNDS: usize = 64;

type Step<T> = Result<T, Fault>;

impl Mail {
    /// Goes on with everything until `over` says so: true; or until `until`: false. `own` is what the caller needs itself.
    pub fn drive(
        &mut self,
        own: Option<&Own<'_>>,
        over: &dyn Fn(&Office, &Outstanding) -> bool,
        until: Option<Instant>,
        host: &mut dyn Host,
    ) -> Step<bool> {
        let mut steps = 0_u32;
        loop {
            steps = steps.wrapping_add(1);
            self.admit(host)?;
            self.end_ready(host)?;
            self.ensure_open()?;
            if over(&self.office, &self.outstanding) {
                return Ok(true);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let patience = own.map_or(Duration::MAX, |own| self.outstanding.left(own.since, own.limit));
            let (limit, from) = (patience.min(self.outstanding.shortest()).min(left), Instant::now());
            match self.wait(own, over, limit, host) {
                Ok(()) if !(steps.is_multiple_of(STEPS) && host.interrupted()) => self.outstanding.note_progress(),
                Err(Stop::Timeout) => {
                    self.outstanding.waited(limit);
                    self.check_time(own, host)?;
                }
                Err(Stop::Gone) => {
                    // Somebody has left, if not who is waited for: no sign that anything has moved.
                    self.outstanding.waited(from.elapsed().min(limit));
                    self.ensure_open()?;
                    self.check_presence(own, host)?;
                }
                Ok(()) | Err(Stop::Interrupted) if own.is_some() => return Err(interrupted()),
                // Only the wait is left: what is outstanding goes on.
                Ok(()) | Err(Stop::Interrupted) => return Err(Fault { leave: None, error: Error::Interrupted }),
            }
        }
    }

    /// A collective may find out that the group cannot go on.
    fn ensure_open(&self) -> Step<()> {
        self.closed.get().map_or(Ok(()), |why| Err(Fault { leave: None, error: why.clone() }))
    }

    /// Returns when something has moved.
    fn wait(
        &mut self,
        own: Option<&Own<'_>>,
        over: &dyn Fn(&Office, &Outstanding) -> bool,
        limit: Duration,
        host: &mut dyn Host,
    ) -> Result<(), Stop> {
        let boards = self.boards.clone().expect("who is alone does not wait for others");
        let control = boards.control();
        let Mail { office, outstanding, tray, closed, manner, reach, roll, me, calls, ear, .. } = self;
        let (office, outstanding) = (RefCell::new(office), RefCell::new(outstanding));
        let whom = (&*reach, &*roll, *me);
        let gone = || {
            let (office, outstanding) = (office.borrow(), outstanding.borrow());
            closed.get().is_some()
                || own.is_some_and(|own| is_broken(whom, &office, &own.due.rest(&office)))
                || outstanding.iter().any(|letter| is_broken(whom, &office, &letter.rest(&office)))
        };
        let mut wait = Wait {
            bell: &control.bell,
            alarm: &control.alarm,
            gone: &gone,
            patience: Patience { spin: manner.spin, limit },
            host,
        };
        let none = Arrays::default();
        let mut round = Round {
            office: &office,
            outstanding: &outstanding,
            tray,
            whom: (reach, roll, ear.as_deref()),
            own: own.map_or(&none, |own| own.arrays),
            over,
            calls,
            brief: BRIEF.0,
            moved: false,
        };
        wait.on(&mut round)
    }

    /// Posts what has been handed in.
    pub fn admit(&mut self, host: &mut dyn Host) -> Step<()> {
        while let Some((number, parcel)) = self.tray.take() {
            let call = parcel.call();
            let (limit, to) = (call.timeout.unwrap_or(self.manner.timeout), call.give.map(|give| give.to));
            let terms = (
                call.give.map(|give| (give.to, give.tag, give.array.len())),
                call.take.map(|take| (take.from, take.tag, take.array.len())),
            );
            // First: whatever goes wrong from here on ends it with all others.
            self.outstanding.insert(number, parcel, limit);
            self.ensure_ways()?;
            if let Some(to) = to {
                let letter = self.outstanding.get(number).expect("just put there");
                if let Some(way) = self.reach_out(&letter.parcel.call(), to, host)? {
                    self.office.open_to(to, way);
                }
            }
            let give = terms.0.map(|(to, tag, len)| self.office.post_send(to, tag, len));
            let take = terms.1.map(|(from, tag, room)| self.office.post_recv(from, tag, room));
            self.outstanding.name(number, give, take);
            self.asked = None;
            self.progress();
        }
        Ok(())
    }

    /// Goes on with what is outstanding, as far as it goes now. Whether anything moved.
    fn progress(&mut self) -> bool {
        self.progress_with(&Arrays::default())
    }

    /// The same, and with a caller's own arrays.
    pub(super) fn progress_with(&mut self, own: &Arrays<'_>) -> bool {
        let Mail { office, outstanding, .. } = self;
        let moved = office.progress(&Both { own, outstanding });
        if moved {
            outstanding.note(office);
            outstanding.note_progress();
        }
        moved
    }

    /// Says so of what is done.
    fn end_ready(&mut self, host: &mut dyn Host) -> Step<()> {
        while let Some(letter) = self.outstanding.ready() {
            let fault = letter.failure.clone().map(|failure| self.failed(failure, &letter.parcel.call(), host));
            if let Some(fault @ (Fault { error: Error::Interrupted, .. } | Fault { leave: Some(_), .. })) = fault {
                // What became of it is not known yet, and no longer asked; or it ends with all others, once they have been told.
                return Err(fault);
            }
            let Letter { parcel, status, .. } = self.outstanding.pop_ready().expect("what broke closes the group");
            self.tray.end(parcel, fault.map_or(Ok(status), |fault| Err(fault.error)));
        }
        Ok(())
    }

    /// Whether nothing has moved for too long.
    fn check_time(&self, own: Option<&Own<'_>>, host: &mut dyn Host) -> Step<()> {
        if let Some(own) = own.filter(|own| self.outstanding.left(own.since, own.limit).is_zero()) {
            let rest = own.due.rest(&self.office);
            return Err(self.stopped(Stop::Timeout, (own.due.call, &rest), own.limit, host));
        }
        match self.outstanding.expired() {
            Some(letter) => {
                let rest = letter.rest(&self.office);
                Err(self.stopped(Stop::Timeout, (&letter.parcel.call(), &rest), letter.limit, host))
            }
            None => Ok(()),
        }
    }

    /// What the thread does from time to time: so long ago it did so last. `others` says that somebody else wants the office.
    /// Whether anything moved.
    pub fn step(&mut self, ago: Duration, others: &dyn Fn() -> bool, host: &mut dyn Host) -> Step<bool> {
        self.admit(host)?;
        self.end_ready(host)?;
        if let Reach::Hosts(control) = &self.reach {
            answer_calls(&mut self.office, control, &self.roll, &mut self.calls);
        }
        let mut moved = false;
        for _ in 0..ROUNDS {
            if !self.progress() {
                break;
            }
            moved = true;
            self.end_ready(host)?;
            if others() {
                return Ok(true);
            }
        }
        if !moved && !ago.is_zero() {
            self.outstanding.waited(ago);
            self.check(host)?;
        }
        Ok(moved)
    }

    /// Nothing has moved: whether it still may.
    fn check(&mut self, host: &mut dyn Host) -> Step<()> {
        let Some(boards) = &self.boards else { return Ok(()) };
        // acquires: the state of who left, and so all that it had done before
        let (alarm, now) = (boards.control().alarm.load(Ordering::Acquire), self.outstanding.clock());
        if self.asked.is_none_or(|(seen, at)| seen != alarm || now >= at + AGAIN) {
            self.asked = Some((alarm, now));
            if self.check_presence(None, host)? {
                self.asked = None;
                return self.end_ready(host);
            }
        }
        self.check_time(None, host)
    }

    /// Ends a receive that only this rank could answer, and has not.
    pub fn end_never_sent(&mut self, number: u64) {
        let Some(letter) = self.outstanding.get(number) else { return };
        let (Some(ticket), call) = (letter.take, letter.parcel.call()) else { return };
        if letter.give.is_some() || !self.is_from_self(&call) || !self.office.is_unmet(ticket) {
            return;
        }
        let error = self.never_sent(&call).error;
        self.office.cancel(ticket);
        if let Some(letter) = self.outstanding.remove(number) {
            self.tray.end(letter.parcel, Err(error));
        }
    }

    /// Ends all that is outstanding, also what has not been taken in.
    pub fn end_all(&mut self, error: &Error) {
        // First: with their end the arrays are given back.
        self.office.withdraw();
        self.end_over(error);
        for letter in self.outstanding.take_all() {
            self.tray.end(letter.parcel, Err(error.clone()));
        }
        while let Some((_, parcel)) = self.tray.take() {
            self.tray.end(parcel, Err(error.clone()));
        }
    }

    /// Ends what is over, with `error` if that is not well.
    fn end_over(&mut self, error: &Error) {
        while let Some(Letter { parcel, status, failure, .. }) = self.outstanding.pop_ready() {
            self.tray.end(parcel, if failure.is_none() { Ok(status) } else { Err(error.clone()) });
        }
    }

    /// Ends all that is outstanding, since the group is left. It is over if a letter is under way, of which the rest never comes.
    pub fn give_up(&mut self, raised: bool) {
        let why = if raised { "with an exception" } else { "before a message came that fits" };
        let error = Error::Aborted(format!("the group was shut down {why}"));
        self.end_over(&error);
        for (number, ticket) in self.outstanding.unmet(&self.office) {
            self.office.cancel(ticket);
            if let Some(letter) = self.outstanding.remove(number) {
                self.tray.end(letter.parcel, Err(error.clone()));
            }
        }
        if self.outstanding.is_empty() && self.tray.is_empty() {
            return;
        }
        // First, as always: whoever finds that an offer has been taken back asks why.
        self.leave(if raised { State::Raised } else { State::Interrupted }, &[]);
        let why = self.closed.get_or_init(|| error).clone();
        self.end_all(&why);
    }

    /// Ends what of it is done, after a call that did not wait.
    pub fn settle(&mut self, host: &mut dyn Host) -> Step<()> {
        let Mail { office, outstanding, .. } = self;
        if !outstanding.is_empty() && outstanding.note(office) { self.end_ready(host) } else { Ok(()) }
    }
}

/// Takes in those who have called since. Whether anybody has.
fn answer_calls(office: &mut Office, control: &Control, roll: &Roll, calls: &mut u64) -> bool {
    if *calls == control.posts() {
        return false;
    }
    // Counted first: whoever comes meanwhile is looked at again.
    *calls = control.posts();
    let mut any = false;
    for (rank, socket) in control.take_posts() {
        if let Some(member) = roll.ranks().iter().position(|r| *r == rank) {
            let member = member as Rank;
            office.open_from(member, tcp::link(member, vec![socket]).rx);
            any = true;
        }
    }
    any
}

/// One wait for the post office.
struct Round<'a> {
    /// Shared with the wait, which asks them whether it makes sense to go on.
    office: &'a RefCell<&'a mut Office>,
    outstanding: &'a RefCell<&'a mut Outstanding>,
    tray: &'a Tray,
    whom: (&'a Reach, &'a Roll, Option<&'a Ear>),
    own: &'a Arrays<'a>,
    over: &'a dyn Fn(&Office, &Outstanding) -> bool,
    calls: &'a mut u64,
    /// Next sleep of those that the bell cannot end.
    brief: Duration,
    /// Something has moved and `attempt` has not said so yet.
    moved: bool,
}

impl Round<'_> {
    fn look(&mut self) -> bool {
        let mut office = self.office.borrow_mut();
        if let (Reach::Hosts(control), roll, _) = self.whom {
            // What came with a call comes first, even if its sender is known to have left by now.
            self.moved |= answer_calls(&mut office, control, roll, self.calls);
        }
        let mut outstanding = self.outstanding.borrow_mut();
        self.moved = self.moved || office.progress(&Both { own: self.own, outstanding: &outstanding });
        if !outstanding.is_empty() {
            self.moved |= outstanding.note(&mut office);
        }
        self.moved = self.moved || (self.over)(&office, &outstanding) || !self.tray.is_empty();
        self.moved
    }
}

impl Task for Round<'_> {
    fn attempt(&mut self) -> bool {
        if self.look() {
            self.brief = BRIEF.0;
        }
        std::mem::take(&mut self.moved)
    }

    fn rest(&mut self, bell: &Bell, stop: &dyn Fn() -> bool) -> bool {
        let (_, _, Some(ear)) = self.whom else {
            return bell.sleep(&mut || self.look() || stop());
        };
        // First calm, then look, then sleep: what changes after the look makes the descriptor readable again. Nobody else calms
        // this one, whoever else waits for what meanwhile.
        ear.calm();
        if self.look() || stop() {
            return false;
        }
        let mut silent = false;
        let office = self.office.borrow();
        let ways = office.interest(&mut silent);
        let flags = |out| if out { PollFlags::OUT } else { PollFlags::IN };
        let mut fds: Vec<PollFd<'_>> =
            ways.into_iter().map(|(fd, out)| PollFd::from_borrowed_fd(fd, flags(out))).collect();
        fds.push(PollFd::from_borrowed_fd(ear.fd(), PollFlags::IN));
        let limit = if silent { self.brief } else { SLICE };
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as _ };
        let signal = poll(&mut fds, Some(&limit)) == Err(Errno::INTR);
        if silent {
            self.brief = (2 * self.brief).min(BRIEF.1);
        }
        signal
    }
}
