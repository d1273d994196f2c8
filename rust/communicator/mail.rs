//! Sending and receiving, between any two ranks of a group: opens the ways that letters take, and waits for the post office.
//!
//! ```text
//! within a host:  a ring for each pair and direction, not those of collectives; both ends are made without a word
//! between hosts:  who has something to send calls the other, whatever that does meanwhile; its control thread answers
//! ```
//! Whoever waits takes in what arrives on all ways (`drive`), for itself and for calls that go on without their callers
//! (`outstanding`). What is said when it does not arrive is in `undelivered`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::direct::{Boards, Direct};
use crate::error::{Error, Rank};
use crate::health::{Control, Ear, Roster, State};
use crate::kernels::Bytes;
use crate::post::{Failure, Memory, Office, Status, Tag, Ticket};
use crate::transport::{Tx, tcp};
use crate::wait::{Host, raise};

use super::config::Manner;
use super::neighbours::Neighbours;
use super::outstanding::{Outstanding, Tray};
use super::pipes::Pipes;
use super::roll::Roll;
use super::undelivered::{interrupted, is_gone};

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
    pub office: Office,
    /// Of calls that go on without their callers, and those that are to be taken in.
    pub outstanding: Outstanding,
    pub tray: Arc<Tray>,
    /// Why the group is closed, whoever found out.
    pub closed: Arc<OnceLock<Error>>,
    pub me: Rank,
    pub roll: Roll,
    /// With the bell. None for a rank that is alone.
    pub boards: Option<Boards>,
    pub manner: Manner,
    pub reach: Reach,
    /// The ranks of this host, until the ways to them are opened.
    neighbours: Option<Neighbours>,
    /// What is slept on between hosts, once a letter has been written.
    pub ear: Option<Arc<Ear>>,
    /// Connections from others that have been looked at (`Control::posts`).
    pub calls: u64,
    /// What the thread has seen of the alarm, and when it asked last whether letters can still arrive.
    pub asked: Option<(u64, Duration)>,
}

/// Where the arrays of a call are.
#[derive(Default)]
pub(super) struct Arrays<'a> {
    give: Option<(Ticket, Bytes<'a>)>,
    take: Option<(Ticket, Bytes<'a>)>,
}

impl<'a> Arrays<'a> {
    pub fn find(&self, ticket: Ticket) -> Option<Bytes<'a>> {
        let arrays = [self.give, self.take];
        arrays.into_iter().flatten().find(|(known, _)| *known == ticket).map(|(_, array)| array)
    }
}

/// Those of a call, and of all that is outstanding.
pub(super) struct Both<'a> {
    pub own: &'a Arrays<'a>,
    pub outstanding: &'a Outstanding,
}

impl Memory for Both<'_> {
    fn of(&self, ticket: Ticket) -> Bytes<'_> {
        // A call ends with its letters, or the group with it.
        self.own.find(ticket).unwrap_or_else(|| self.outstanding.of(ticket))
    }
}

impl<'a> Exchange<'a> {
    /// What is still to be received. Once a letter of somebody has begun to come, it can be no other one.
    pub(super) fn rest_of(&self, take: Ticket, office: &Office) -> Option<Take<'a>> {
        self.take.map(|call| Take { from: call.from.or_else(|| office.met_by(take)), ..call })
    }

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
pub(super) struct Due<'a> {
    pub call: &'a Exchange<'a>,
    give: bool,
    take: Option<Ticket>,
}

impl<'a> Due<'a> {
    pub fn rest(&self, office: &Office) -> Exchange<'a> {
        let give = self.call.give.filter(|_| self.give);
        let take = self.take.filter(|ticket| !office.is_done(*ticket));
        let take = take.and_then(|ticket| self.call.rest_of(ticket, office));
        Exchange { give, take, timeout: self.call.timeout }
    }

    /// Whether the receive has failed for good: what is to be sent does not matter any more.
    fn is_broken(&self, office: &Office) -> bool {
        self.take.is_some_and(|ticket| office.is_broken(ticket))
    }
}

impl Mail {
    pub fn new((me, roll): (Rank, &Roll), direct: &Direct, pipes: &Pipes, manner: Manner, reach: Reach) -> Mail {
        let neighbours = Some(Neighbours::new(direct, pipes));
        Mail { boards: Some(direct.boards().clone()), reach, neighbours, ..Mail::alone((me, roll), manner) }
    }

    /// Of a rank that has nobody but itself.
    pub fn alone((me, roll): (Rank, &Roll), manner: Manner) -> Mail {
        Mail {
            office: Office::new(me, roll.ranks().len() as u32),
            outstanding: Outstanding::default(),
            tray: Arc::default(),
            closed: Arc::default(),
            me,
            roll: roll.clone(),
            boards: None,
            manner,
            reach: Reach::Alone,
            neighbours: None,
            ear: None,
            calls: 0,
            asked: None,
        }
    }

    /// Lets go of all ways.
    pub fn shut(&mut self) {
        let (tray, closed) = (Arc::clone(&self.tray), Arc::clone(&self.closed));
        *self = Mail { tray, closed, ..Mail::alone((self.me, &self.roll), self.manner) };
    }

    /// Before the first letter: most groups never write one.
    #[cold]
    fn open(&mut self, neighbours: &Neighbours) -> Result<(), Fault> {
        for peer in (0..self.roll.ranks().len() as Rank).filter(|peer| *peer != self.me) {
            if let Some((link, sight)) = neighbours.meet(peer) {
                self.office.open_to(peer, link.tx);
                self.office.open_from(peer, link.rx);
                self.office.see(peer, sight);
            }
        }
        if let Reach::Hosts(control) = &self.reach {
            let failed = |error| Fault { leave: Some((State::Failed, Vec::new())), error };
            self.ear = Some(control.ear().map_err(failed)?);
        }
        Ok(())
    }

    /// Sees to it that there are ways.
    #[inline]
    pub fn ensure_ways(&mut self) -> Result<(), Fault> {
        match self.neighbours.take() {
            Some(neighbours) => self.open(&neighbours),
            None => Ok(()),
        }
    }

    /// Sends and receives what the call says; returns when the array that was sent may be used again, and the other one is there.
    pub fn run(&mut self, call: &Exchange<'_>, host: &mut dyn Host) -> Result<Option<Status>, Fault> {
        self.ensure_ways()?;
        if let Some(give) = call.give
            && let Some(way) = self.reach_out(call, give.to, host)?
        {
            self.office.open_to(give.to, way);
        }
        let give = call.give.map(|g| (self.office.post_send(g.to, g.tag, g.array.len()), g.array));
        let take = call.take.map(|t| (self.office.post_recv(t.from, t.tag, t.array.len()), t.array));
        let arrays = Arrays { give, take };
        self.office.progress(&Both { own: &arrays, outstanding: &self.outstanding });
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
    pub fn is_from_self(&self, call: &Exchange<'_>) -> bool {
        let from = call.take.and_then(|take| take.from);
        self.roll.ranks().len() == 1 || from == Some(self.me)
    }

    /// What has come of a letter, once that is known.
    fn finish(
        &mut self,
        ticket: Ticket,
        arrays: &Arrays<'_>,
        due: &Due<'_>,
        host: &mut dyn Host,
    ) -> Result<Status, Fault> {
        let over = |office: &Office| office.is_done(ticket) || due.is_broken(office);
        if !over(&self.office) {
            let limit = due.call.timeout.unwrap_or(self.manner.timeout);
            let own = Own { due, arrays, since: self.outstanding.clock(), limit };
            let driven = self.drive(Some(&own), &|office, _| over(office), None, host);
            if let Err(fault) = driven {
                if fault.leave.is_none() {
                    // A collective has closed the group. Whoever closes it here sees to this after that has been said.
                    self.office.withdraw();
                }
                return Err(fault);
            }
        }
        let outcome = self.office.test(ticket).or_else(|| self.office.test(due.take?));
        match outcome.expect("one of them is done") {
            Ok(status) => Ok(status),
            Err(failure) => Err(self.failed(failure, due.call, host)),
        }
    }

    #[cold]
    pub fn failed(&self, failure: Failure, call: &Exchange<'_>, host: &mut dyn Host) -> Fault {
        match failure {
            Failure::TooLong(status) => self.too_long(status, call),
            Failure::Broken(broken) => self.broken(broken, call, host),
        }
    }

    /// Sees to it that there is somebody at the end of the way to `peer`: the way, if it must be opened.
    pub fn reach_out(
        &self,
        call: &Exchange<'_>,
        peer: Rank,
        host: &mut dyn Host,
    ) -> Result<Option<Box<dyn Tx>>, Fault> {
        if is_gone(&self.reach, &self.roll, peer) {
            return Err(self.gone(&[peer], call, host));
        }
        let Reach::Hosts(control) = &self.reach else { return Ok(None) };
        if self.office.reaches(peer) {
            return Ok(None);
        }
        let limit = call.timeout.unwrap_or(self.manner.timeout);
        let until = Instant::now() + limit.min(LONGEST);
        match control.dial_post(self.roll.of(peer), until, host) {
            Ok(Some(socket)) => Ok(Some(tcp::link(peer, vec![socket]).tx)),
            Ok(None) => Err(self.gone(&[peer], call, host)),
            Err(Error::Interrupted) => Err(interrupted()),
            Err(error) => Err(Fault { leave: Some((State::Failed, Vec::new())), error }),
        }
    }

    /// Leaves the group, and tells the others.
    #[cold]
    pub fn leave(&self, state: State, missing: &[Rank]) {
        match (&self.reach, &self.boards) {
            (Reach::Hosts(control), _) => control.leave(state),
            (Reach::Host(roster), Some(boards)) if roster.leave(self.me, state, missing) => {
                raise(&boards.control().alarm, &boards.control().bell);
            }
            _ => {}
        }
    }
}

/// What its caller waits for, and since when.
pub(super) struct Own<'a> {
    pub due: &'a Due<'a>,
    pub arrays: &'a Arrays<'a>,
    pub since: Duration,
    pub limit: Duration,
}
