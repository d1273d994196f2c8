//! The connections among those who are left when rank 0 is gone, for as long as they find out what it said last (`inquest`).
//!
//! A rank that has lost rank 0 calls another by its door, as links are opened; before that nobody but rank 0 is called. Two
//! ranks may call each other at the same time, and then have two connections. All this is part of the control thread's round:
//! nothing here waits, so that two ranks that call each other also answer each other.
//!
//! A child that is forked in these few milliseconds has copies of the connections. If its parent dies before all is over, the
//! others find that out by the time limits of the inquest only.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::PollFd;

use crate::admission::{Attempt, Channel, Claim, End, Framed};
use crate::error::{Rank, ranks, seconds};
use crate::transport::tcp;

use super::contacts::Contacts;
use super::desk::Desk;
use super::inquest::{Deed, Inquest, WORD};
use super::news::{Letter, News};
use super::seat::Group;
use super::verdict::{Kind, Verdict};

/// Connections between two ranks: each may have called the other.
const LINES: usize = 2;

#[derive(Debug)]
pub(super) struct Circle {
    job: Group,
    inquest: Inquest,
    calls: Vec<(Rank, Attempt)>,
    lines: Vec<(Rank, Framed)>,
    /// When this rank has told rank 0 that it leaves the job, until that has come back.
    leaving: Option<Instant>,
}

impl Circle {
    pub fn new(me: Rank, job: Group) -> Circle {
        Circle { inquest: Inquest::new(me, job.clone()), job, calls: Vec::new(), lines: Vec::new(), leaving: None }
    }

    /// Adds what to sleep on: as many as `advance` wants to know about.
    pub fn watch<'a>(&'a self, list: &mut Vec<PollFd<'a>>) {
        list.extend(self.calls.iter().map(|(_, attempt)| attempt.interest()));
        list.extend(self.lines.iter().map(|(_, line)| line.interest()));
    }

    /// When to call `advance` although nothing has happened.
    pub fn deadline(&self) -> Option<Instant> {
        self.inquest.deadline().into_iter().chain(self.leaving.map(|since| since + WORD)).min()
    }

    /// Whether this rank may leave without harm to others. Rank 0 says to all who leaves, and what comes back has been said after
    /// every verdict before: then there is none that this rank has raised and another will not hear.
    pub fn is_quiet(&self) -> bool {
        self.inquest.is_quiet() && self.leaving.is_none()
    }

    /// This rank says something to rank 0.
    pub fn posted(&mut self, letter: &Letter) {
        let leaves = letter.group.id.is_job() && matches!(letter.news, News::Left(_));
        if leaves && self.inquest.has_word() {
            self.leaving = Some(Instant::now());
        }
    }

    /// Rank 0 has said something.
    pub fn note(&mut self, letter: &Letter, contacts: &Contacts, desk: &Desk) {
        let of_me = matches!(letter.news, News::Left(left) if left.rank == contacts.me);
        self.leaving = self.leaving.filter(|_| !(of_me && letter.group.id.is_job()));
        self.inquest.note(letter, |group| desk.is_past(group.id));
    }

    /// Rank 0 is gone.
    pub fn bereave(&mut self, end: End, contacts: &Contacts, desk: &Desk) {
        self.leaving = None;
        self.inquest.bereave(own_verdict(end, contacts), &desk.departed(), Instant::now());
    }

    /// A rank has called this one; false if there are connections to it already.
    pub fn arrive(&mut self, rank: Rank, socket: OwnedFd) -> bool {
        let room = self.lines.iter().filter(|(other, _)| *other == rank).count() < LINES;
        if room {
            self.lines.push((rank, self.framed(socket)));
            self.inquest.arrived(rank, Instant::now());
        }
        room
    }

    fn framed(&self, socket: OwnedFd) -> Framed {
        Framed::new(socket, Letter::limit(self.job.ranks.len()))
    }

    /// Goes on with all that has `stirred`, as `watch` has listed it, and does what follows.
    pub fn advance(&mut self, stirred: &[bool], contacts: &Contacts, desk: &Desk) {
        let (calls, lines) = stirred.split_at(self.calls.len().min(stirred.len()));
        // What is new since is at the end, and comes next time; what is left keeps its order.
        let spoke: Vec<usize> = (0..lines.len()).filter(|k| lines[*k]).collect();
        for at in spoke.into_iter().rev() {
            self.hear(at);
        }
        for at in (0..calls.len()).rev().filter(|k| calls[*k]) {
            self.connect(at, contacts);
        }
        let now = Instant::now();
        self.leaving = self.leaving.filter(|since| now < *since + WORD);
        self.inquest.tick(now);
        self.act(contacts, desk);
    }

    /// Reads what a line has brought.
    fn hear(&mut self, at: usize) {
        let (rank, line) = &mut self.lines[at];
        let rank = *rank;
        line.flush();
        let sound = loop {
            match line.receive() {
                Ok(None) => break true,
                Ok(Some(bytes)) => {
                    let letter = Letter::decode(&bytes, &self.job);
                    if !letter.is_some_and(|letter| self.inquest.hear(rank, letter, Instant::now())) {
                        break false;
                    }
                }
                Err(_) => break false,
            }
        };
        if !sound {
            self.lines.remove(at);
            self.inquest.ended(rank, Instant::now());
        }
    }

    /// Goes on with a call of this rank.
    fn connect(&mut self, at: usize, contacts: &Contacts) {
        let (rank, attempt) = &mut self.calls[at];
        let (rank, Some(outcome)) = (*rank, attempt.advance()) else { return };
        let (_, attempt) = self.calls.remove(at);
        let socket = attempt.into_socket();
        if outcome.is_ok() && tcp::heartbeat(&socket, contacts.silence).is_ok() {
            self.lines.push((rank, self.framed(socket)));
            self.inquest.reached(rank, Instant::now());
        } else {
            self.inquest.missed(rank, Instant::now());
        }
    }

    fn act(&mut self, contacts: &Contacts, desk: &Desk) {
        loop {
            let deeds = self.inquest.take();
            if deeds.is_empty() {
                return;
            }
            for deed in deeds {
                match deed {
                    Deed::Call(rank) => self.call(rank, contacts),
                    Deed::Tell(rank, letter) => {
                        let bytes = letter.encode();
                        let lines = self.lines.iter_mut().filter(|(other, _)| *other == rank);
                        lines.for_each(|(_, line)| line.send(&bytes));
                    }
                    Deed::Know(Letter { group, news: News::Verdict(verdict) }) => desk.pronounce(&group, verdict),
                    Deed::Know(Letter { group, news: News::Left(left) }) => desk.note_left(&group, left),
                    Deed::Know(_) => {}
                    Deed::Over(verdict) => desk.orphan(&self.job, verdict),
                }
            }
        }
    }

    fn call(&mut self, rank: Rank, contacts: &Contacts) {
        let Contacts { me, members, key, network, .. } = contacts;
        let claim = Claim { from: *me, to: rank, channel: Channel::Control };
        match Attempt::start(key, claim, network, members[rank as usize].address) {
            Ok(Ok(attempt)) => self.calls.push((rank, attempt)),
            // Without a descriptor, or a way to it, it cannot be asked.
            Ok(Err(_)) | Err(_) => self.inquest.missed(rank, Instant::now()),
        }
    }

    pub fn lines(&mut self) -> &mut [(Rank, Framed)] {
        &mut self.lines
    }
}

/// What a rank says that knows of rank 0 no more than how their connection ended.
fn own_verdict(end: End, contacts: &Contacts) -> Verdict {
    let members = &contacts.members;
    let zero = &members[0];
    let (lost, why): (Vec<Rank>, String) = match end {
        End::Silent => {
            let with_it = (0..).zip(members).filter(|(_, m)| m.node == zero.node).map(|(rank, _)| rank);
            (with_it.collect(), format!("{} has not answered for {}", zero.host, seconds(contacts.silence)))
        }
        End::Garbled => (vec![0], format!("{zero} said something that cannot be")),
        End::Closed => (vec![0], format!("{zero} is gone (killed, crashed, out of memory?)")),
    };
    let text = format!("{} lost: {why}. The group is closed", ranks(&lost));
    Verdict { kind: Kind::Lost, ranks: lost, text }
}
