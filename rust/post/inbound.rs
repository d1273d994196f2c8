//! Letters from one rank, one after the other.

use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::transport::{Broken, Rx};

use super::early::{Early, outcome};
use super::stamp::Stamp;
use super::{Failure, Memory, Office, SEGMENT, Status, Ticket};
use crate::kernels::{Bytes, copy};

/// Where a letter goes that is coming in.
#[derive(Clone, Copy)]
enum Goal {
    /// To who asked for it, who has so much room.
    Request(Ticket, usize),
    /// To the last of the early letters of this rank.
    Early,
}

#[derive(Clone, Copy)]
struct Receiving {
    stamp: Stamp,
    goal: Goal,
    /// Bytes that have come, of letter and padding.
    done: usize,
}

#[derive(Default)]
pub(super) struct Inbound {
    rx: Option<Box<dyn Rx>>,
    current: Option<Receiving>,
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

/// The stamp that the bytes which have arrived from a rank begin with, if it has come.
fn stamp_of(arrived: Bytes<'_>, peer: Rank) -> Result<Option<Stamp>, Broken> {
    let Some((stamp, _)) = arrived.split_at_checked(Stamp::SIZE) else { return Ok(None) };
    let stamp = Stamp::parse(std::array::from_fn(|i| stamp[i].get()));
    let why = || Broken { rank: peer, why: "what it sends does not start with a stamp".to_owned() };
    stamp.ok_or_else(why).map(Some)
}

impl Office {
    /// Takes in what has come from a rank, up to a segment. Whether that was anything.
    pub(super) fn receive(&mut self, peer: Rank, memory: &dyn Memory) -> bool {
        let Some(mut rx) = self.peers[peer as usize].inbound.rx.take() else { return false };
        match self.take_in(peer, &mut *rx, memory) {
            Ok(moved) => {
                self.peers[peer as usize].inbound.rx = Some(rx);
                moved
            }
            Err(broken) => {
                self.close(peer, broken);
                true
            }
        }
    }

    fn take_in(&mut self, peer: Rank, rx: &mut dyn Rx, memory: &dyn Memory) -> Result<bool, Broken> {
        let mut taken = 0;
        while taken < SEGMENT {
            let n = match self.peers[peer as usize].inbound.current {
                Some(current) => self.go_on(peer, current, rx, memory)?,
                None => self.begin(peer, rx, memory)?,
            };
            if n == 0 {
                break;
            }
            taken += n;
        }
        Ok(taken > 0)
    }

    /// The next letter, whole if it has come whole; of a longer one the stamp. How many bytes that was.
    fn begin(&mut self, peer: Rank, rx: &mut dyn Rx, memory: &dyn Memory) -> Result<usize, Broken> {
        let arrived = rx.peek(Stamp::SIZE)?;
        let Some(stamp) = stamp_of(arrived, peer)? else { return Ok(0) };
        let goal = self.goal(peer, stamp);
        let all = Stamp::SIZE + stamp.len + stamp.pad();
        let mut current = Receiving { stamp, goal, done: 0 };
        if arrived.len() < all {
            self.peers[peer as usize].inbound.current = Some(current);
            rx.consume(Stamp::SIZE);
            return Ok(Stamp::SIZE);
        }
        let letter = &arrived[Stamp::SIZE..Stamp::SIZE + stamp.len];
        match goal {
            Goal::Request(ticket, room) => {
                let n = stamp.len.min(room);
                copy(&memory.of(ticket)[..n], &letter[..n]);
            }
            Goal::Early => self.early.back_mut().expect("begun with its stamp").append(letter),
        }
        rx.consume(all);
        current.done = stamp.len + stamp.pad();
        self.finish(peer, current);
        Ok(all)
    }

    /// More of the letter that has begun. How many bytes that was.
    fn go_on(
        &mut self,
        peer: Rank,
        mut current: Receiving,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<usize, Broken> {
        let before = current.done;
        let delivered = self.deliver(peer, &mut current, rx, memory);
        self.peers[peer as usize].inbound.current = Some(current);
        delivered?;
        if current.done == current.stamp.len + current.stamp.pad() {
            self.finish(peer, current);
        }
        Ok(current.done - before)
    }

    /// A letter has come whole.
    fn finish(&mut self, peer: Rank, current: Receiving) {
        self.peers[peer as usize].inbound.current = None;
        if let Goal::Request(ticket, room) = current.goal {
            let Stamp { tag, len } = current.stamp;
            self.done.push((ticket, outcome(Status { peer, tag, len }, room)));
        }
    }

    /// Who has asked for it; if nobody has, it is early.
    fn goal(&mut self, peer: Rank, stamp: Stamp) -> Goal {
        match self.asked_for(peer, stamp.tag) {
            Some(request) => Goal::Request(request.ticket, request.room),
            None => {
                self.early.push_back(Early::new(peer, stamp.tag, stamp.len));
                Goal::Early
            }
        }
    }

    /// Takes in more of a letter, then its padding.
    fn deliver(
        &mut self,
        peer: Rank,
        current: &mut Receiving,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<(), Broken> {
        let Receiving { stamp, goal, done } = current;
        let left = stamp.len.saturating_sub(*done).min(SEGMENT);
        if left > 0 {
            match *goal {
                Goal::Request(ticket, room) if *done < room => {
                    let dst = memory.of(ticket);
                    *done += rx.read(&dst[*done..room.min(*done + left)])?;
                }
                // More than there is room for.
                Goal::Request(..) => *done += skip(rx, left)?,
                Goal::Early => {
                    let letter = self.early.iter_mut().rfind(|letter| letter.from == peer);
                    let arrived = rx.peek(1)?;
                    let n = arrived.len().min(left);
                    letter.expect("begun with its stamp").append(&arrived[..n]);
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
        Ok(())
    }

    /// Nothing will come from a rank any more.
    fn close(&mut self, peer: Rank, broken: Broken) {
        let inbound = &mut self.peers[peer as usize].inbound;
        inbound.broken = Some(broken.clone());
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
