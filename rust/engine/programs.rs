//! The two programs of a plan, and what their moves do.

use std::cell::Cell;
use std::ops::Range;

use super::{Call, Halt, Header, SEGMENT};
use crate::error::Rank;
use crate::kernels::{self, Bytes};
use crate::plan::{ALIGN, Job, Move};
use crate::schedule::Apply;
use crate::transport::{Broken, Link};

/// What is passed on while the rest still arrives, at least: smaller pieces would cost more in system calls than they gain in time.
const GRAIN: usize = 16 << 10;

/// From here on bytes that are only stored go to their place without staging.
const DIRECT: usize = 16 << 10;

const PADDING: [u8; ALIGN] = [0; ALIGN];

/// How far a program has come.
#[derive(Default)]
struct Cursor {
    index: usize,
    /// Bytes of the current move on the wire: header, the move itself, padding.
    done: usize,
    /// Of the program.
    position: u64,
}

/// What is left of a move, as far as its gate is open.
struct Left {
    head: usize,
    /// From here to here of the move itself.
    lo: usize,
    hi: usize,
    pad: usize,
}

impl Cursor {
    /// What the current move, which is `m`, may do while the other program is at `position`; None if nothing. No part of an element
    /// of `elem` bytes: what can only be looked at must not keep a rank from sleeping.
    #[inline]
    fn left(&self, m: &Move, position: u64, elem: usize) -> Option<Left> {
        let (head, len) = (head_of(m), m.len);
        let lo = self.done.saturating_sub(head).min(len);
        let opened = m.gate.opened(len, position);
        let hi = (opened - opened % elem).max(lo);
        if lo == hi && hi < len {
            return None;
        }
        let pad = if hi == len { m.frame().pad - self.done.saturating_sub(head + len) } else { 0 };
        Some(Left { head: head.saturating_sub(self.done), lo, hi, pad })
    }

    #[inline]
    fn advance(&mut self, m: &Move, n: usize) {
        let head = head_of(m);
        self.done += n;
        self.position = m.start + self.done.saturating_sub(head).min(m.len) as u64;
        if self.done == head + m.len + m.frame().pad {
            self.index += 1;
            self.done = 0;
        }
    }
}

#[inline]
fn head_of(m: &Move) -> usize {
    if m.frame().head { Header::SIZE } else { 0 }
}

pub(super) struct Programs<'a> {
    call: &'a Call<'a>,
    head: [u8; Header::SIZE],
    /// Bytes of an element.
    elem: usize,
    outbound: Cursor,
    inbound: Cursor,
    /// Place for the operands of a move.
    operands: Vec<Bytes<'a>>,
}

impl<'a> Programs<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Programs<'a> {
        Programs {
            call,
            head: call.header.to_bytes(),
            elem: call.arithmetic.last.elem(),
            outbound: Cursor::default(),
            inbound: Cursor::default(),
            operands: Vec::with_capacity(call.plan.widest),
        }
    }

    pub(super) fn done(&self) -> bool {
        self.sending().is_none() && self.receiving().is_none()
    }

    fn sending(&self) -> Option<&'a Move> {
        self.call.plan.outbound.get(self.outbound.index)
    }

    fn receiving(&self) -> Option<&'a Move> {
        self.call.plan.inbound.get(self.inbound.index)
    }

    /// The peer from which bytes must come before inbound can go on.
    pub(super) fn awaits_arrival(&self) -> Option<Rank> {
        let m = self.receiving()?;
        self.inbound.left(m, self.outbound.position, self.elem)?;
        m.peer()
    }

    /// The peer to which there must be room before outbound can go on.
    pub(super) fn awaits_room(&self) -> Option<Rank> {
        let m = self.sending()?;
        self.may_send(m)?;
        m.peer()
    }

    /// Both programs go on as far as they can, by a segment at most. Whether they did.
    pub(super) fn turn(&mut self, links: &mut [Option<Link>]) -> Result<bool, Halt> {
        match self.turn_outbound(links) {
            Ok(sent) => Ok(self.turn_inbound(links)? | sent),
            Err(broken) => Err(self.last_words(links, broken)),
        }
    }

    fn turn_outbound(&mut self, links: &mut [Option<Link>]) -> Result<bool, Broken> {
        let mut sent = 0;
        while sent < SEGMENT
            && let Some(m) = self.sending()
            && let Some(left) = self.may_send(m)
        {
            let index = self.outbound.index;
            let Job::Send { peer, .. } = m.job else { unreachable!("inbound") };
            let n = self.send(m, link_of(links, peer), left)?;
            self.outbound.advance(m, n);
            sent += n;
            if self.outbound.index == index {
                break;
            }
        }
        Ok(sent > 0)
    }

    fn turn_inbound(&mut self, links: &mut [Option<Link>]) -> Result<bool, Halt> {
        let mut received = 0;
        while received < SEGMENT
            && let Some(m) = self.receiving()
            && let Some(left) = self.inbound.left(m, self.outbound.position, self.elem)
        {
            let index = self.inbound.index;
            let n = match &m.job {
                Job::Combine { sources, finish } => self.combine(m, sources, *finish, left),
                Job::Receive { peer, apply, .. } if left.head == 0 && is_direct(*apply, &left) => {
                    self.store(m, link_of(links, *peer), left)?
                }
                Job::Receive { peer, apply, .. } => self.receive(m, *peer, *apply, link_of(links, *peer), left)?,
                Job::Send { .. } => unreachable!("outbound"),
            };
            self.inbound.advance(m, n);
            received += n;
            if self.inbound.index == index {
                break;
            }
        }
        Ok(received > 0)
    }

    /// What is worth a system call now.
    fn may_send(&self, m: &Move) -> Option<Left> {
        let left = self.outbound.left(m, self.inbound.position, self.elem)?;
        (left.hi == m.len || left.hi - left.lo >= GRAIN).then_some(left)
    }

    fn send(&self, m: &Move, link: &mut Link, left: Left) -> Result<usize, Broken> {
        let hi = left.hi.min(left.lo + SEGMENT);
        let pad = if hi == left.hi { left.pad } else { 0 };
        let body = self.call.memory.slice(m.place, left.lo, hi);
        link.tx.write(&self.head[Header::SIZE - left.head..], body, &PADDING[..pad])
    }

    /// Straight to where it belongs.
    fn store(&self, m: &Move, link: &mut Link, left: Left) -> Result<usize, Broken> {
        let hi = left.hi.min(left.lo + SEGMENT);
        link.rx.read(self.call.memory.slice(m.place, left.lo, hi))
    }

    /// Out of the memory in which it arrived.
    fn receive(&self, m: &Move, peer: Rank, apply: Apply, link: &mut Link, mut left: Left) -> Result<usize, Halt> {
        if left.head > 0 && is_direct(apply, &left) {
            // The header is taken alone; the rest will be read to where it belongs.
            (left.hi, left.pad) = (left.lo, 0);
        }
        let arrived = link.rx.peek(left.head + (left.hi - left.lo + left.pad).min(SEGMENT))?;
        if arrived.len() < left.head {
            return Ok(0);
        }
        let (head, arrived) = arrived.split_at(left.head);
        self.check(head, peer)?;
        let n = self.whole_elements(&left, arrived.len());
        self.apply(apply, self.call.memory.slice(m.place, left.lo, left.lo + n), &arrived[..n]);
        let pad = if left.lo + n == m.len { left.pad.min(arrived.len() - n) } else { 0 };
        link.rx.consume(left.head + n + pad);
        Ok(left.head + n + pad)
    }

    /// Compares the header of a stream, if that is what comes next, with that of this call.
    fn check(&self, head: Bytes<'_>, peer: Rank) -> Result<(), Halt> {
        if head.iter().map(Cell::get).eq(self.head[Header::SIZE - head.len()..].iter().copied()) {
            return Ok(());
        }
        match Header::parse(&std::array::from_fn(|i| head[i].get())) {
            Some(header) => Err(Halt::Differs { rank: peer, header }),
            None => {
                Err(Halt::Broken(Broken { rank: peer, why: "what it sends does not start with a header".to_owned() }))
            }
        }
    }

    /// Why a peer is gone that takes nothing any more. If it found itself in another call, its header is still there to be read.
    fn last_words(&self, links: &mut [Option<Link>], broken: Broken) -> Halt {
        let next = self.receiving().filter(|m| self.inbound.done == 0 && m.frame().head);
        if next.and_then(Move::peer) == Some(broken.rank)
            && let Ok(arrived) = link_of(links, broken.rank).rx.peek(Header::SIZE)
            && let Some(head) = arrived.get(..Header::SIZE)
            && let Err(halt) = self.check(head, broken.rank)
        {
            return halt;
        }
        Halt::Broken(broken)
    }

    fn apply(&self, apply: Apply, dst: Bytes<'_>, src: Bytes<'_>) {
        let arithmetic = &self.call.arithmetic;
        match apply {
            Apply::Store => kernels::copy(dst, src),
            Apply::Reduce => arithmetic.partial.run(dst, &[dst, src]),
            Apply::Finish => arithmetic.last.run_counted(dst, &[dst, src], arithmetic.count),
        }
    }

    fn combine(&mut self, m: &Move, sources: &Range<usize>, finish: bool, left: Left) -> usize {
        let Call { plan, memory, arithmetic, .. } = self.call;
        let (lo, hi) = (left.lo, left.lo + self.whole_elements(&left, SEGMENT));
        let dst = memory.slice(m.place, lo, hi);
        self.operands.clear();
        self.operands.extend(plan.sources[sources.clone()].iter().map(|place| memory.slice(*place, lo, hi)));
        match *self.operands {
            _ if finish => arithmetic.last.run_counted(dst, &self.operands, arithmetic.count),
            [only] => kernels::copy(dst, only),
            _ => arithmetic.partial.run(dst, &self.operands),
        }
        hi - lo
    }

    /// How many of `there` bytes can be applied now.
    fn whole_elements(&self, left: &Left, there: usize) -> usize {
        let end = left.hi.min(left.lo + there.min(SEGMENT));
        (end - end % self.elem).saturating_sub(left.lo)
    }
}

fn link_of(links: &mut [Option<Link>], peer: Rank) -> &mut Link {
    links[peer as usize].as_mut().expect("a link to every peer of the plan")
}

fn is_direct(apply: Apply, left: &Left) -> bool {
    apply == Apply::Store && left.hi - left.lo >= DIRECT
}
