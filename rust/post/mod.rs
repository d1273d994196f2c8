//! Letters from one rank to another: what is sent meets what is asked for.
//!
//! ```text
//! post_send ─► queue of the peer ─► tx ──────── way ────────► rx ─┬─ asked for:  straight to where it belongs
//!                                                                 └─ early:      kept, until somebody asks
//! post_recv ─► first of the early letters that fits, else the first that comes
//! progress:  every way, out and in, as far as it goes now; whether anything moved
//! ```
//! **Order.** Letters of one sender are matched in the order in which they were sent, requests in the order in which they were
//! made. Who asks for anybody's letter gets the one that came first; ways are looked at in turn, so that nobody is kept waiting
//! by a talkative neighbour.
//!
//! **Nobody is stuck because nobody listens.** Whoever waits, for whatever, takes in what arrives. So two ranks that send each
//! other more than the ways hold, before either asks for anything, both get on.
//!
//! **A state machine.** Nothing here waits, and any number of letters may be under way. The office knows how long a letter is, not
//! where it lies: each step is told (`Memory`), so whoever keeps the arrays alive, for the length of a call or until a thread
//! that progresses on its own has done its work, need not prove it here.
//!
//! **A letter may stay where it is.** A rank whose memory the other one can read, and whose letter is long, sends no more than the
//! place (`Sight`). Who receives it reads it there, or says that it cannot; until it has answered, nothing else is sent to it, so
//! the order is the same.
//!
//! ```text
//! sender                                    receiver
//! offer: stamp, place          ─────────►   asked for: reads it straight to where it belongs; early: into what is kept
//! next letter, it was sent     ◄─────────   taken         once all of it has been read, and the sender had not closed its way
//! stamp, bytes; never again    ◄─────────   refused       the kernel did not let it; an offer that nobody can read
//! ```
//! A sender that gives up closes its way before it lets go of the array (`withdraw`): what was read while the way was open was
//! the letter. A receiver has its letter when the answer has been written, so that nobody waits for it in vain.
//!
//! What a way is made of is the business of `transport`, who opens it that of the communicator.

mod early;
mod inbound;
mod outbound;
mod reading;
mod stamp;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::kernels::Bytes;
use crate::transport::{Broken, Rx, Tx};

use early::Early;
use inbound::Inbound;
use outbound::Outbound;

pub use stamp::Tag;

/// What one way moves before the others have their turn.
const SEGMENT: usize = 256 << 10;

/// Names what has been posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Where the letters lie that are under way.
pub trait Memory {
    /// The array for which the ticket was given out.
    fn of(&self, ticket: Ticket) -> Bytes<'_>;
}

/// What this rank and another can see of each other's memory.
pub trait Sight: Send {
    /// Where the other one finds this array, if reading it there is better than sending it.
    fn place(&self, array: Bytes<'_>) -> Option<u64>;

    /// `dst` = what lies `at` bytes behind such a place of the other one. Whether it was allowed, and the other one is the process
    /// that it was.
    fn read(&mut self, place: u64, at: usize, dst: Bytes<'_>) -> bool;
}

/// A letter that has been delivered, or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The other rank.
    pub peer: Rank,
    pub tag: Tag,
    /// Bytes of the letter.
    pub len: usize,
}

/// Why something that was posted came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The letter is longer than what was to receive it. It has been taken in and is gone.
    TooLong(Status),
    /// The way was closed before it was through, or nobody is left who could send it.
    Broken(Broken),
}

pub type Outcome = Result<Status, Failure>;

/// Somebody waits for a letter.
#[derive(Clone, Copy, Debug)]
struct Request {
    ticket: Ticket,
    /// None: from anybody.
    from: Option<Rank>,
    /// None: with any tag.
    tag: Option<Tag>,
    room: usize,
}

impl Request {
    fn fits(&self, from: Rank, tag: Tag) -> bool {
        self.from.is_none_or(|rank| rank == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// Both ways between this rank and another; to itself there are none.
#[derive(Default)]
struct Peer {
    outbound: Outbound,
    inbound: Inbound,
    /// None: what is sent goes by these ways.
    sight: Option<Box<dyn Sight>>,
}

/// One rank's post office in a group.
pub struct Office {
    me: Rank,
    peers: Vec<Peer>,
    /// Whose way is looked at first.
    first: usize,
    tickets: u64,
    /// Requests that have not been compared with the early letters yet, and those that have.
    fresh: VecDeque<Request>,
    waiting: VecDeque<Request>,
    /// In the order in which they came.
    early: VecDeque<Early>,
    done: Vec<(Ticket, Outcome)>,
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Office")
            .field("waiting", &self.waiting)
            .field("early", &self.early.len())
            .finish_non_exhaustive()
    }
}

impl Office {
    /// Of rank `me` in a group of `world`.
    pub fn new(me: Rank, world: u32) -> Office {
        Office {
            me,
            peers: (0..world).map(|_| Peer::default()).collect(),
            first: 0,
            tickets: 0,
            fresh: VecDeque::new(),
            waiting: VecDeque::new(),
            early: VecDeque::new(),
            done: Vec::new(),
        }
    }

    /// Whether letters to `peer` have a way.
    pub fn reaches(&self, peer: Rank) -> bool {
        peer == self.me || self.peers[peer as usize].outbound.is_open()
    }

    /// Whether letters from `peer` come over a connection, which has not come to its end.
    pub fn is_connected_from(&self, peer: Rank) -> bool {
        matches!(self.peers[peer as usize].inbound.interest(), Some(Some(_)))
    }

    /// Gives letters to `peer` their way.
    pub fn open_to(&mut self, peer: Rank, tx: Box<dyn Tx>) {
        self.peers[peer as usize].outbound.open(tx);
    }

    /// Gives letters from `peer` their way.
    pub fn open_from(&mut self, peer: Rank, rx: Box<dyn Rx>) {
        self.peers[peer as usize].inbound.open(rx);
    }

    /// How letters between this rank and `peer` that stay where they are can be read.
    pub fn see(&mut self, peer: Rank, sight: Option<Box<dyn Sight>>) {
        self.peers[peer as usize].sight = sight;
    }

    /// The arrays are given back, though not all has been sent: what has been offered must not be read any more.
    pub fn withdraw(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.outbound.withdraw());
    }

    /// A letter of `len` bytes is to go to `to`, to which there is a way.
    pub fn post_send(&mut self, to: Rank, tag: Tag, len: usize) -> Ticket {
        let ticket = self.ticket();
        self.peers[to as usize].outbound.push(ticket, tag, len);
        ticket
    }

    /// A letter of up to `room` bytes is to come from `from`, or from anybody, with `tag` or any.
    pub fn post_recv(&mut self, from: Option<Rank>, tag: Option<Tag>, room: usize) -> Ticket {
        let ticket = self.ticket();
        self.fresh.push_back(Request { ticket, from, tag, room });
        ticket
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// What has come of it, once; None as long as it is under way.
    pub fn test(&mut self, ticket: Ticket) -> Option<Outcome> {
        let at = self.done.iter().position(|(done, _)| *done == ticket)?;
        Some(self.done.swap_remove(at).1)
    }

    /// Takes back a request that no letter has found yet.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.fresh.retain(|request| request.ticket != ticket);
        self.waiting.retain(|request| request.ticket != ticket);
    }

    /// Whether `test` has an answer.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.done.iter().any(|(done, _)| *done == ticket)
    }

    /// Whether `test` will say that the way broke.
    pub fn is_broken(&self, ticket: Ticket) -> bool {
        self.done.iter().any(|(done, outcome)| *done == ticket && matches!(outcome, Err(Failure::Broken(_))))
    }

    /// What has come of those that `whose` says, as far as it is known.
    pub fn take_done(&mut self, whose: impl Fn(Ticket) -> bool) -> Vec<(Ticket, Outcome)> {
        if !self.done.iter().any(|(ticket, _)| whose(*ticket)) {
            return Vec::new();
        }
        let (found, others) = std::mem::take(&mut self.done).into_iter().partition(|(ticket, _)| whose(*ticket));
        self.done = others;
        found
    }

    /// Whether it is a request that no letter has met yet.
    pub fn is_unmet(&self, ticket: Ticket) -> bool {
        self.fresh.iter().chain(&self.waiting).any(|request| request.ticket == ticket)
    }

    /// Whose letter is coming in for a request.
    pub fn met_by(&self, ticket: Ticket) -> Option<Rank> {
        let meets = |peer: &Peer| peer.inbound.ticket() == Some(ticket);
        self.peers.iter().position(meets).map(|rank| rank as Rank)
    }

    /// Goes on with everything as far as it goes now, but no further than a segment on each way. Whether anything moved.
    pub fn progress(&mut self, memory: &dyn Memory) -> bool {
        let mut moved = self.send_to_self(memory);
        moved |= self.answer_fresh(memory);
        let world = self.peers.len();
        self.first = (self.first + 1) % world;
        for peer in (self.first..world).chain(0..self.first) {
            let Peer { outbound, sight, .. } = &mut self.peers[peer];
            if !outbound.is_idle() {
                moved |= outbound.advance(peer as Rank, memory, sight.as_deref(), &mut self.done);
            }
            moved |= self.receive(peer as Rank, memory);
        }
        moved
    }

    /// Compares new requests with the letters that are there.
    fn answer_fresh(&mut self, memory: &dyn Memory) -> bool {
        let mut moved = false;
        while let Some(request) = self.fresh.pop_front() {
            moved = true;
            match self.early.iter().position(|letter| request.fits(letter.from, letter.tag)) {
                Some(at) => self.hand_over(at, request, memory),
                None if self.is_hopeless(&request) => self.give_up(request),
                None => self.waiting.push_back(request),
            }
        }
        moved
    }

    /// An early letter has found who asks for it. What of it is still to come goes straight there.
    fn hand_over(&mut self, at: usize, request: Request, memory: &dyn Memory) {
        let letter = self.early.remove(at).expect("found there");
        letter.copy_to(memory.of(request.ticket));
        match letter.is_whole() {
            true => self.done.push((request.ticket, letter.outcome(request.room))),
            false => self.peers[letter.from as usize].inbound.redirect(request.ticket, request.room),
        }
    }

    /// Letters to this rank itself.
    fn send_to_self(&mut self, memory: &dyn Memory) -> bool {
        let mut moved = false;
        while let Some((ticket, tag, len)) = self.peers[self.me as usize].outbound.pop() {
            moved = true;
            let mut letter = Early::new(self.me, tag, len);
            letter.append(memory.of(ticket));
            self.done.push((ticket, Ok(Status { peer: self.me, tag, len })));
            self.early.push_back(letter);
            if let Some(request) = self.asked_for(self.me, tag) {
                self.hand_over(self.early.len() - 1, request, memory);
            }
        }
        moved
    }

    /// The first request that a letter fits.
    fn asked_for(&mut self, from: Rank, tag: Tag) -> Option<Request> {
        let at = self.waiting.iter().position(|request| request.fits(from, tag))?;
        self.waiting.remove(at)
    }

    /// Whether nobody is left who could send it. Only those count whose ways have been closed: others may yet open one.
    fn is_hopeless(&self, request: &Request) -> bool {
        let closed = |rank: Rank| self.peers[rank as usize].inbound.broken().is_some();
        match request.from {
            Some(rank) => closed(rank),
            None => self.peers.len() > 1 && (0..self.peers.len() as Rank).all(|rank| rank == self.me || closed(rank)),
        }
    }

    fn give_up(&mut self, request: Request) {
        let from = |rank: Rank| self.peers[rank as usize].inbound.broken().cloned();
        let broken = match request.from {
            Some(rank) => from(rank),
            None => (0..self.peers.len() as Rank).find_map(from),
        };
        let broken = broken.expect("a way was closed");
        self.done.push((request.ticket, Err(Failure::Broken(broken))));
    }

    /// A way has been closed: those who wait for letters that can only come by it need not wait any more.
    fn give_up_hopeless(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            if self.is_hopeless(&request) {
                self.give_up(request);
            } else {
                self.waiting.push_back(request);
            }
        }
    }

    /// What becomes readable, or writable, when `progress` has something to do. `silent` is set if some of that is announced by
    /// the bell instead.
    pub fn interest(&self, silent: &mut bool) -> Vec<(BorrowedFd<'_>, bool)> {
        let mut found = Vec::new();
        for peer in &self.peers {
            let ways = [peer.inbound.interest().map(|fd| (fd, false)), peer.outbound.interest().map(|fd| (fd, true))];
            for (fd, out) in ways.into_iter().flatten() {
                match fd {
                    Some(fd) => found.push((fd, out)),
                    None => *silent = true,
                }
            }
        }
        found
    }
}
