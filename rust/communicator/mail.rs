//! Sending and receiving, between any two ranks of a group: opens the ways that letters take, and waits for the post office.
//!
//! ```text
//! within a host:  a ring for each pair and direction, not those of collectives; both ends are made without a word
//! between hosts:  who has something to send calls the other, whatever that does meanwhile; its control thread answers
//! ```
//! Whoever waits takes in what arrives on all ways. What is said when it does not arrive is in `undelivered`.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::direct::Boards;
use crate::error::{Error, Rank};
use crate::health::{Control, Roster, State};
use crate::kernels::Bytes;
use crate::post::{Failure, Memory, Office, Status, Tag, Ticket};
use crate::transport::tcp;
use crate::wait::{Bell, Host, Patience, SLICE, Task, Wait};

use super::config::Manner;
use super::pipes::Pipes;
use super::roll::Roll;
use super::undelivered::{interrupted, is_broken, is_gone};

/// First and longest sleep while both descriptors and the bell are waited for (`engine`).
const BRIEF: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// As good as never.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// Something to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Give<'a> {
    pub to: Rank,
    pub tag: Tag,
    pub array: Bytes<'a>,
}

/// Something to be received.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// None: from anybody.
    pub from: Option<Rank>,
    /// None: with any tag.
    pub tag: Option<Tag>,
    pub array: Bytes<'a>,
}

/// What a call sends, and what it receives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange<'a> {
    pub give: Option<Give<'a>>,
    pub take: Option<Take<'a>>,
    /// Instead of the group's.
    pub timeout: Option<Duration>,
}

/// How what becomes of other ranks is known.
#[derive(Debug)]
pub(super) enum Reach {
    /// There are none.
    Alone,
    Host(Roster),
    Hosts(Arc<Control>),
}

/// How a call failed: the state in which this rank leaves the group, those for whom it waited, and the error; without a state the
/// group stays open.
pub(super) struct Fault {
    pub leave: Option<(State, Vec<Rank>)>,
    pub error: Error,
}

/// One rank's letters.
#[derive(Debug)]
pub(super) struct Mail {
    office: Office,
    pub me: Rank,
    pub roll: Roll,
    /// With the bell. None for a rank that is alone.
    boards: Option<Boards>,
    manner: Manner,
    pub reach: Reach,
    /// Connections from others that have been looked at (`Control::posts`).
    calls: u64,
    /// The next collective, which will not be if this call fails.
    pub sequence: u64,
}

/// Where the arrays of a call are.
struct Arrays<'a> {
    give: Option<(Ticket, Bytes<'a>)>,
    take: Option<(Ticket, Bytes<'a>)>,
}

impl Memory for Arrays<'_> {
    fn of(&self, ticket: Ticket) -> Bytes<'_> {
        let arrays = [self.give, self.take];
        let found = arrays.into_iter().flatten().find(|(known, _)| *known == ticket);
        found.expect("a call ends with its letters, or the group with it").1
    }
}

impl Exchange<'_> {
    /// As its caller wrote it: `sendrecv(dst=1, tag=0, nbytes=8, src=ANY)`.
    pub(super) fn describe(&self) -> String {
        let any = |word: Option<u32>| word.map_or_else(|| "ANY".to_owned(), |word| word.to_string());
        match (&self.give, &self.take) {
            (Some(give), None) => format!("send(dst={}, tag={}, nbytes={})", give.to, give.tag, give.array.len()),
            (None, Some(take)) => format!("recv(src={}, tag={})", any(take.from), any(take.tag)),
            (Some(give), Some(take)) => format!(
                "sendrecv(dst={}, tag={}, nbytes={}, src={}, recv_tag={})",
                give.to,
                give.tag,
                give.array.len(),
                any(take.from),
                any(take.tag)
            ),
            (None, None) => "nothing".to_owned(),
        }
    }
}

/// What of a call is still to be done: what has been sent is not undone by who leaves afterwards.
struct Due<'a> {
    call: &'a Exchange<'a>,
    give: bool,
    take: Option<Ticket>,
}

impl<'a> Due<'a> {
    fn rest(&self, office: &Office) -> Exchange<'a> {
        let give = self.call.give.filter(|_| self.give);
        let take = self.call.take.filter(|_| self.take.is_some_and(|ticket| !office.is_done(ticket)));
        Exchange { give, take, timeout: self.call.timeout }
    }
}

impl Mail {
    pub fn new((me, roll): (Rank, &Roll), boards: Boards, pipes: &Pipes, manner: Manner, reach: Reach) -> Mail {
        let world = roll.ranks().len() as u32;
        let mut mail = Mail::alone((me, roll), manner);
        for peer in (0..world).filter(|peer| *peer != me) {
            if let Some(link) = pipes.post(peer) {
                mail.office.open_to(peer, link.tx);
                mail.office.open_from(peer, link.rx);
            }
        }
        Mail { boards: Some(boards), reach, ..mail }
    }

    /// Of a rank that has nobody but itself.
    pub fn alone((me, roll): (Rank, &Roll), manner: Manner) -> Mail {
        let office = Office::new(me, roll.ranks().len() as u32);
        Mail { office, me, roll: roll.clone(), boards: None, manner, reach: Reach::Alone, calls: 0, sequence: 0 }
    }

    /// Sends and receives what the call says; returns when the array that was sent may be used again, and the other one is there.
    /// `sequence`: of the next collective.
    pub fn run(&mut self, sequence: u64, call: &Exchange<'_>, host: &mut dyn Host) -> Result<Option<Status>, Fault> {
        self.sequence = sequence;
        if let Some(give) = call.give {
            self.reach_out(call, give.to, host)?;
        }
        let give = call.give.map(|g| (self.office.post_send(g.to, g.tag, g.array.len()), g.array));
        let take = call.take.map(|t| (self.office.post_recv(t.from, t.tag, t.array.len()), t.array));
        let arrays = Arrays { give, take };
        self.office.progress(&arrays);
        let [sent, taken] = [give, take].map(|due| due.map(|(ticket, _)| ticket));
        if let Some(ticket) = sent {
            self.finish(ticket, &arrays, &Due { call, give: true, take: taken }, host)?;
        }
        let Some((ticket, _)) = take else { return Ok(None) };
        if !self.office.is_done(ticket) && self.is_from_self(call) {
            self.office.cancel(ticket);
            return Err(self.never_sent(call));
        }
        // Who has been sent something may leave.
        self.finish(ticket, &arrays, &Due { call, give: false, take: taken }, host).map(Some)
    }

    /// Whether only this rank can have sent what it asks for.
    fn is_from_self(&self, call: &Exchange<'_>) -> bool {
        let from = call.take.and_then(|take| take.from);
        self.roll.ranks().len() == 1 || from == Some(self.me)
    }

    /// What has come of a letter, once that is known.
    fn finish(
        &mut self,
        ticket: Ticket,
        memory: &dyn Memory,
        due: &Due<'_>,
        host: &mut dyn Host,
    ) -> Result<Status, Fault> {
        if !self.office.is_done(ticket) {
            self.wait(ticket, memory, due, host)?;
        }
        let call = due.call;
        match self.office.test(ticket).expect("it is done") {
            Ok(status) => Ok(status),
            Err(Failure::TooLong(status)) => Err(self.too_long(status, call)),
            Err(Failure::Broken(broken)) => Err(self.broken(broken, call, host)),
        }
    }

    fn wait(&mut self, ticket: Ticket, memory: &dyn Memory, due: &Due<'_>, host: &mut dyn Host) -> Result<(), Fault> {
        let boards = self.boards.clone().expect("who is alone does not wait for others");
        let control = boards.control();
        let Mail { office, manner, reach, roll, me, calls, .. } = self;
        let office = RefCell::new(office);
        let limit = due.call.timeout.unwrap_or(manner.timeout);
        let gone = || {
            let office = office.borrow();
            is_broken((reach, roll, *me), &office, &due.rest(&office))
        };
        let mut wait = Wait {
            bell: &control.bell,
            alarm: &control.alarm,
            gone: &gone,
            patience: Patience { spin: manner.spin, limit },
            host,
        };
        let mut round = Round { office: &office, reach, roll, memory, ticket, calls, brief: BRIEF.0, moved: false };
        while !office.borrow().is_done(ticket) {
            if let Err(stop) = wait.on(&mut round) {
                let rest = due.rest(&office.borrow());
                return Err(self.stopped(stop, (due.call, &rest), limit, host));
            }
        }
        Ok(())
    }

    /// Sees to it that there is a way to `peer`, and somebody at its end.
    fn reach_out(&mut self, call: &Exchange<'_>, peer: Rank, host: &mut dyn Host) -> Result<(), Fault> {
        if is_gone(&self.reach, &self.roll, peer) {
            return Err(self.gone(&[peer], call, host));
        }
        let Reach::Hosts(control) = &self.reach else { return Ok(()) };
        if self.office.reaches(peer) {
            return Ok(());
        }
        let limit = call.timeout.unwrap_or(self.manner.timeout);
        let until = Instant::now() + limit.min(LONGEST);
        match control.dial_post(self.roll.of(peer), until, host) {
            Ok(socket) => {
                self.office.open_to(peer, tcp::link(peer, vec![socket]).tx);
                Ok(())
            }
            Err(Error::Interrupted) => Err(interrupted()),
            Err(error) => Err(Fault { leave: Some((State::Failed, Vec::new())), error }),
        }
    }
}

/// One wait for the post office.
struct Round<'a> {
    /// Shared with the wait, which asks it whether it makes sense to go on.
    office: &'a RefCell<&'a mut Office>,
    reach: &'a Reach,
    roll: &'a Roll,
    memory: &'a dyn Memory,
    ticket: Ticket,
    calls: &'a mut u64,
    /// Next sleep of those that the bell cannot end.
    brief: Duration,
    /// Something has moved and `attempt` has not said so yet.
    moved: bool,
}

impl Round<'_> {
    fn look(&mut self) -> bool {
        if let Reach::Hosts(control) = self.reach
            && *self.calls != control.posts()
        {
            self.answer_calls(control);
        }
        let mut office = self.office.borrow_mut();
        self.moved = self.moved || office.progress(self.memory) || office.is_done(self.ticket);
        self.moved
    }

    /// Takes in those who have called since.
    fn answer_calls(&mut self, control: &Control) {
        // Counted first: whoever comes meanwhile is looked at again.
        *self.calls = control.posts();
        for (rank, socket) in control.take_posts() {
            if let Some(member) = self.roll.ranks().iter().position(|r| *r == rank) {
                let member = member as Rank;
                self.office.borrow_mut().open_from(member, tcp::link(member, vec![socket]).rx);
                // What came with it comes first, even if its sender is known to have left by now.
                self.moved = true;
            }
        }
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
        let Reach::Hosts(control) = self.reach else {
            return bell.sleep(&mut || self.look() || stop());
        };
        // First calm, then look, then sleep: what changes after the look makes the descriptor readable again.
        control.calm();
        if self.look() || stop() {
            return false;
        }
        let mut silent = false;
        let office = self.office.borrow();
        let ways = office.interest(&mut silent);
        let flags = |out| if out { PollFlags::OUT } else { PollFlags::IN };
        let mut fds: Vec<PollFd<'_>> =
            ways.into_iter().map(|(fd, out)| PollFd::from_borrowed_fd(fd, flags(out))).collect();
        fds.push(PollFd::from_borrowed_fd(control.alert_fd(), PollFlags::IN));
        let limit = if silent { self.brief } else { SLICE };
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as _ };
        let signal = poll(&mut fds, Some(&limit)) == Err(Errno::INTR);
        if silent {
            self.brief = (2 * self.brief).min(BRIEF.1);
        }
        signal
    }
}
