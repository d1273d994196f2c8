//! Letters from one rank, one after the other.

use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::transport::{Broken, Rx};

use super::early::{Early, outcome};
use super::stamp::{Stamp, Word};
use super::{Failure, Memory, Office, Peer, SEGMENT, Status, Ticket};
use crate::kernels::{Bytes, copy};

/// A letter that is as long as this, or longer, will have left the caches when it has come whole. On Zen 5 with 2 MiB of
/// second-level cache and 32 of the third, 4 MiB took a fifth longer if written past the caches, 8 MiB as long, 12 MiB a tenth less
/// and 16 MiB a seventh less time.
const LONG: usize = 12 << 20;

/// Where a letter goes that is coming in.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// To who asked for it, who has so much room.
    Request(Ticket, usize),
    /// To the last of the early letters of this rank.
    Early,
}

/// Where its bytes are.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Way,
    /// Where it lies (`reading`).
    Place(u64),
    /// They have been read, or could not be, which its sender is to be told; it is being told.
    Answer(Word),
    Told(Word),
    /// They have been read, and its sender knows.
    Taken,
    /// They will come by the way after all.
    Again,
}

#[derive(Clone, Copy)]
pub(super) struct Receiving {
    pub stamp: Stamp,
    pub goal: Goal,
    pub source: Source,
    /// Bytes that have come, of letter and padding.
    pub done: usize,
}

impl Receiving {
    fn is_whole(&self) -> bool {
        match self.source {
            Source::Way => self.done == self.stamp.len + self.stamp.pad(),
            Source::Taken => true,
            _ => false,
        }
    }
}

#[derive(Default)]
pub(super) struct Inbound {
    rx: Option<Box<dyn Rx>>,
    pub current: Option<Receiving>,
    broken: Option<Broken>,
}

impl Inbound {
    pub fn open(&mut self, rx: Box<dyn Rx>) {
        self.rx = Some(rx);
    }

    /// Why nothing will come any more.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Who is getting the letter that is coming in.
    pub fn ticket(&self) -> Option<Ticket> {
        match self.current?.goal {
            Goal::Request(ticket, _) => Some(ticket),
            Goal::Early => None,
        }
    }

    /// The letter that is coming in has been asked for meanwhile.
    pub fn redirect(&mut self, ticket: Ticket, room: usize) {
        let current = self.current.as_mut().expect("a letter that is not whole is coming in");
        current.goal = Goal::Request(ticket, room);
    }

    /// What becomes readable when something comes; None if nothing will, or the bell says so.
    pub fn interest(&self) -> Option<Option<BorrowedFd<'_>>> {
        self.rx.as_ref().map(|rx| rx.fd())
    }
}

pub(super) fn nonsense(rank: Rank, why: &str) -> Broken {
    Broken { rank, why: why.to_owned() }
}

/// The stamp that the bytes which have arrived from a rank begin with, if it has come.
fn stamp_of(arrived: Bytes<'_>, peer: Rank) -> Result<Option<(Word, Stamp)>, Broken> {
    let Some((stamp, _)) = arrived.split_at_checked(Stamp::SIZE) else { return Ok(None) };
    let stamp = Stamp::parse(std::array::from_fn(|i| stamp[i].get()));
    stamp.ok_or_else(|| nonsense(peer, "what it sends does not start with a stamp")).map(Some)
}

impl Office {
    /// Takes in what has come from a rank, up to a segment. Whether that was anything.
    pub(super) fn receive(&mut self, peer: Rank, memory: &dyn Memory) -> bool {
        let Some(mut rx) = self.peers[peer as usize].inbound.rx.take() else { return false };
        let done = self.done.len();
        match self.take_in(peer, &mut *rx, memory) {
            Ok(moved) => {
                self.peers[peer as usize].inbound.rx = Some(rx);
                moved
            }
            Err(broken) => {
                self.close(peer, broken);
                // Who leaves is no sign of life for what goes on between others. But the end of a connection is news of its own:
                // in a host, leaving is heard of first.
                self.done.len() > done || rx.fd().is_some()
            }
        }
    }

    fn take_in(&mut self, peer: Rank, rx: &mut dyn Rx, memory: &dyn Memory) -> Result<bool, Broken> {
        let mut taken = 0;
        while taken < SEGMENT {
            let n = match self.peers[peer as usize].inbound.current {
                None => self.begin(peer, None, rx, memory)?,
                Some(Receiving { source: Source::Again, stamp, goal, .. }) => {
                    self.begin(peer, Some((stamp, goal)), rx, memory)?
                }
                Some(current) => self.go_on(peer, current, rx, memory)?,
            };
            if n == 0 {
                break;
            }
            taken += n;
        }
        Ok(taken > 0)
    }

    /// The next letter, whole if it has come whole, of a longer one the stamp; or what is said instead. How many bytes that was.
    /// `again`: which letter comes next, and where it goes.
    #[inline]
    fn begin(
        &mut self,
        peer: Rank,
        again: Option<(Stamp, Goal)>,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<usize, Broken> {
        let arrived = rx.peek(Stamp::SIZE)?;
        let Some((word, stamp)) = stamp_of(arrived, peer)? else { return Ok(0) };
        if word != Word::Letter {
            return self.hear(peer, word, stamp, rx);
        }
        let goal = match again {
            None => self.goal(peer, stamp),
            Some((expected, goal)) if expected == stamp => goal,
            Some(_) => return Err(nonsense(peer, "it sends something else than what could not be read")),
        };
        let all = Stamp::SIZE + stamp.len + stamp.pad();
        if arrived.len() < all {
            self.peers[peer as usize].inbound.current = Some(Receiving { stamp, goal, source: Source::Way, done: 0 });
            rx.consume(Stamp::SIZE);
            return Ok(Stamp::SIZE);
        }
        let letter = &arrived[Stamp::SIZE..Stamp::SIZE + stamp.len];
        match goal {
            Goal::Request(ticket, room) => {
                let n = stamp.len.min(room);
                copy(&memory.of(ticket)[..n], &letter[..n]);
            }
            Goal::Early => self.early_of(peer).append(letter),
        }
        rx.consume(all);
        self.finish(peer, stamp, goal);
        Ok(all)
    }

    /// What is said of a letter that is not sent.
    #[cold]
    fn hear(&mut self, peer: Rank, word: Word, stamp: Stamp, rx: &mut dyn Rx) -> Result<usize, Broken> {
        if word == Word::Offer {
            return self.begin_reading(peer, stamp, rx);
        }
        let answered = self.peers[peer as usize].outbound.answered(peer, word, stamp);
        self.done.extend(answered.map_err(|()| nonsense(peer, "it answers what it was not offered"))?);
        rx.consume(Stamp::SIZE);
        Ok(Stamp::SIZE)
    }

    /// More of the letter that has begun. How many bytes that was.
    fn go_on(
        &mut self,
        peer: Rank,
        mut current: Receiving,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<usize, Broken> {
        let moved = match current.source {
            Source::Way => self.deliver(peer, &mut current, rx, memory),
            _ => self.read_on(peer, &mut current, rx, memory),
        };
        self.peers[peer as usize].inbound.current = Some(current);
        let moved = moved?;
        if current.is_whole() {
            if let (Goal::Early, Source::Taken) = (current.goal, current.source) {
                self.early_of(peer).untold = false;
            }
            self.finish(peer, current.stamp, current.goal);
        }
        Ok(moved)
    }

    /// A letter has come whole.
    #[inline]
    fn finish(&mut self, peer: Rank, stamp: Stamp, goal: Goal) {
        self.peers[peer as usize].inbound.current = None;
        if let Goal::Request(ticket, room) = goal {
            let Stamp { tag, len } = stamp;
            self.done.push((ticket, outcome(Status { peer, tag, len }, room)));
        }
    }

    /// Who has asked for it; if nobody has, it is early.
    pub(super) fn goal(&mut self, peer: Rank, stamp: Stamp) -> Goal {
        match self.asked_for(peer, stamp.tag) {
            Some(request) => Goal::Request(request.ticket, request.room),
            None => {
                self.early.push_back(Early::new(peer, stamp.tag, stamp.len));
                Goal::Early
            }
        }
    }

    /// The early letter of a rank that is coming in.
    pub(super) fn early_of(&mut self, peer: Rank) -> &mut Early {
        self.early.iter_mut().rfind(|letter| letter.from == peer).expect("begun with its stamp")
    }

    /// Takes in more of a letter, then its padding. How many bytes that was.
    fn deliver(
        &mut self,
        peer: Rank,
        current: &mut Receiving,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<usize, Broken> {
        let Receiving { stamp, goal, done, .. } = current;
        let before = *done;
        let left = stamp.len.saturating_sub(*done).min(SEGMENT);
        if left > 0 {
            match *goal {
                Goal::Request(ticket, room) if *done < room => {
                    let dst = &memory.of(ticket)[*done..room.min(*done + left)];
                    *done += if stamp.len < LONG { rx.read(dst)? } else { rx.read_past_caches(dst)? };
                }
                // More than there is room for.
                Goal::Request(..) => *done += skip(rx, left)?,
                Goal::Early => {
                    let arrived = rx.peek(1)?;
                    let n = arrived.len().min(left);
                    self.early_of(peer).append(&arrived[..n]);
                    rx.consume(n);
                    *done += n;
                }
            }
        }
        if *done >= stamp.len {
            let pad = stamp.len + stamp.pad() - *done;
            if pad > 0 {
                *done += skip(rx, pad)?;
            }
        }
        Ok(*done - before)
    }

    /// Nothing will come from a rank any more.
    fn close(&mut self, peer: Rank, broken: Broken) {
        let Peer { inbound, outbound, .. } = &mut self.peers[peer as usize];
        inbound.broken = Some(broken.clone());
        if outbound.is_waiting() {
            outbound.fail(&broken, &mut self.done);
        }
        match inbound.current.take().map(|current| current.goal) {
            Some(Goal::Request(ticket, _)) => self.done.push((ticket, Err(Failure::Broken(broken)))),
            Some(Goal::Early) => {
                // Nobody will ever get it. Where only padding is missing it is whole.
                self.early.retain(|letter| letter.from != peer || letter.is_whole());
            }
            None => {}
        }
        self.give_up_hopeless();
    }
}

/// Takes up to `len` bytes and forgets them.
fn skip(rx: &mut dyn Rx, len: usize) -> Result<usize, Broken> {
    let n = rx.peek(1)?.len().min(len);
    rx.consume(n);
    Ok(n)
}
