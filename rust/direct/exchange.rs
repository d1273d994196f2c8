//! Doing a deal: arrive, find out which way all go, take.
//!
//! ```text
//! lines      up to 1 KiB: what is shown came with the arrival
//! in place   large arrays made by `arx.empty`: read, or written, where they lie (`in_place`)
//! by kernel  large private arrays that are only moved: read where they lie, by the kernel (`by_kernel`), if faster (`trials`)
//! rounds     all others: slice by slice through the staging rings (`rounds`)
//! ```
//! A crowd needs no way of its own. Its ranks meet once, the last to arrive looks at all lines for everybody, and what fits
//! into one round has been staged by then.
//!
//! *Lengths* travel in the head lines where ranks do not know them (`Size`). Where all suppose that blocks are as long as
//! their own, and are wrong, nothing moves and everybody is told. Where each rank knows its own blocks alone, the longest
//! of all decides how many rounds there are.

use std::ops::Range;

use crate::blocks::ASK;
use crate::dtype::{DType, ReduceOp};
use crate::kernels::{self, Bytes};
use crate::wait::{Stop, Wait};

use super::deal::{Deal, Size, Take};
use super::rounds::Round;
use super::words::{Code, PAYLOAD};
use super::{Algorithm, Direct, Turn, Verdict, sources};

/// Of an array that is filled past the caches, so many bytes are computed and then copied.
const PATTERN: usize = 32 << 10;

/// How a deal ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Dealt {
    Done,
    /// Somebody came with another call, or refused; no data has moved.
    Differs,
    /// Blocks were supposed to be equally long and are not. Their bytes by rank; no data has moved.
    Uneven(Vec<usize>),
}

/// Where the bytes that ranks show lie.
pub(super) enum Site<'a> {
    Lines,
    Arrays,
    Rings(&'a Round),
    /// With the rank that takes them, which takes nothing else: these bytes of the block.
    Own(Range<usize>),
}

impl Site<'_> {
    /// Which part of a block of `len` bytes lies there.
    fn span(&self, len: usize) -> Range<usize> {
        match self {
            Site::Lines | Site::Arrays => 0..len,
            Site::Rings(round) => round.span(len),
            Site::Own(span) => span.start.min(len)..span.end.min(len),
        }
    }
}

impl Direct {
    /// This rank's part in a collective.
    pub fn deal(&mut self, turn: &Turn, wait: &mut Wait<'_>, deal: &Deal<'_>) -> Result<Dealt, Stop> {
        let lines = goes_by_lines(turn, deal);
        if !matches!(deal.size, Size::Known(_)) {
            let length = deal.size.bytes() | if deal.ask { ASK } else { 0 };
            self.boards.of(self.me).arrival(turn.sequence).head.set_length(length);
        }
        if lines {
            self.show_lines(turn, deal);
        } else {
            self.show_place(turn, wait, deal)?;
        }
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Dealt::Differs);
        }
        let longest = match deal.size {
            Size::Known(bytes) => bytes,
            Size::Supposed(bytes) if self.lengths(turn).all(|length| length == bytes) => bytes,
            Size::Supposed(_) => return Ok(Dealt::Uneven(self.lengths(turn).map(|length| length & !ASK).collect())),
            Size::Own(_) => self.lengths(turn).fold(0, usize::max),
        };
        if lines {
            self.take(turn, wait, deal, &Site::Lines)?;
        } else {
            self.deal_large(turn, wait, deal, longest)?;
        }
        Ok(Dealt::Done)
    }

    /// What everybody said about the length of its blocks.
    fn lengths(&self, turn: &Turn) -> impl Iterator<Item = usize> {
        (0..self.world).map(|rank| self.boards.of(rank).arrival(turn.sequence).head.length())
    }

    /// Arrives with all that this rank shows.
    fn show_lines(&self, turn: &Turn, deal: &Deal<'_>) {
        match (deal.show, deal.cut) {
            (None, _) => {}
            (Some(array), None) => kernels::copy(self.boards.payload(self.me, turn.sequence, array.len()), array),
            (Some(array), Some(cut)) => {
                let longest = deal.size.bytes();
                let payload = self.boards.payload(self.me, turn.sequence, deal.shown_bytes(longest));
                for rank in self.others() {
                    let block = &array[cut.of(rank)];
                    kernels::copy(&payload[rank * longest..][..block.len()], block);
                }
            }
        }
        self.boards.of(self.me).arrival(turn.sequence).head.post(turn.sequence, turn.fingerprint, Code::Ready);
        self.after_arrival(turn);
    }

    /// Arrives with word of where this rank's arrays are, and what has been staged of them.
    fn show_place(&mut self, turn: &Turn, wait: &mut Wait<'_>, deal: &Deal<'_>) -> Result<(), Stop> {
        let mut place = self.offer(turn, deal);
        let stays = self.begin(turn, deal, &place);
        if !stays {
            place.staged = self.stage_first_round(deal, wait)?;
        }
        self.arrive(turn, place);
        Ok(())
    }

    /// Takes what lies at `site` of the blocks that this rank is due.
    pub(super) fn take(&self, turn: &Turn, wait: &mut Wait<'_>, deal: &Deal<'_>, site: &Site<'_>) -> Result<(), Stop> {
        match &deal.take {
            Take::Nothing => {}
            Take::Blocks { dst, blocks, from } => {
                // Its own first, which gives the others time.
                for rank in (self.me..self.world).chain(0..self.me).filter(|rank| from.contains(rank)) {
                    let block = &dst[blocks.of(rank - from.start)];
                    let span = site.span(block.len());
                    if !span.is_empty() {
                        self.await_shown(turn, wait, site, rank)?;
                        self.put(&block[span.clone()], self.shown(turn, deal, site, rank, span), dst.len());
                    }
                }
            }
            Take::Identity { dst, dtype, op } => {
                self.put_identity((*dtype, *op), &dst[site.span(dst.len())], dst.len())
            }
            Take::Combined { dst, reducer, from } => {
                let span = site.span(dst.len());
                if span.is_empty() {
                    return Ok(());
                }
                for rank in from.clone() {
                    self.await_shown(turn, wait, site, rank)?;
                }
                let part = &dst[span.clone()];
                let source = |rank| self.shown(turn, deal, site, rank, span.clone());
                sources(from.clone(), source, |sources| match sources {
                    [one] => self.put(part, one, dst.len()),
                    _ => reducer.run(part, sources),
                });
            }
        }
        Ok(())
    }

    fn await_shown(&self, turn: &Turn, wait: &mut Wait<'_>, site: &Site<'_>, rank: usize) -> Result<(), Stop> {
        match site {
            Site::Rings(round) if rank != self.me => self.await_staged(turn, rank, round.end, wait),
            _ => Ok(()),
        }
    }

    /// Copies to a part of an array of `len` bytes, unless that is where it comes from.
    pub(super) fn put(&self, dst: Bytes<'_>, src: Bytes<'_>, len: usize) {
        if dst.as_ptr() == src.as_ptr() {
            return;
        }
        match self.goes_past_caches(len) {
            true => kernels::copy_streaming(dst, src),
            false => kernels::copy(dst, src),
        }
    }

    /// The same of what combining nothing gives.
    pub(super) fn put_identity(&self, (dtype, op): (DType, ReduceOp), dst: Bytes<'_>, len: usize) {
        if !self.goes_past_caches(len) {
            return kernels::fill_identity(dtype, op, dst);
        }
        let (first, rest) = dst.split_at(dst.len().min(PATTERN));
        kernels::fill_identity(dtype, op, first);
        rest.chunks(PATTERN).for_each(|part| kernels::copy_streaming(part, &first[..part.len()]));
    }

    /// Whether what is written to an array of `len` bytes need not be fetched into the caches first, since it will have left them
    /// by the end (`trials`).
    fn goes_past_caches(&self, len: usize) -> bool {
        self.past_caches && len >= self.long()
    }

    /// From so many bytes on an array does not stay in the second-level cache.
    pub(super) fn long(&self) -> usize {
        2 * self.boards.ring_len()
    }

    /// Bytes `span` of the block that `rank` shows to this one.
    fn shown<'b>(
        &'b self,
        turn: &Turn,
        deal: &Deal<'b>,
        site: &Site<'_>,
        rank: usize,
        span: Range<usize>,
    ) -> Bytes<'b> {
        if rank == self.me {
            return &deal.own[span];
        }
        match site {
            Site::Lines => match deal.cut {
                None => self.boards.payload(rank, turn.sequence, span.len()),
                Some(_) => {
                    let longest = deal.size.bytes();
                    let payload = self.boards.payload(rank, turn.sequence, deal.shown_bytes(longest));
                    &payload[self.me * longest..][span]
                }
            },
            Site::Arrays => self.boards.array(self.block_at(turn, deal, rank) + span.start, span.len()),
            Site::Rings(round) => {
                let slot = if deal.cut.is_some() { slot(rank, self.me) } else { 0 };
                self.boards.ring(rank, round.position(slot), span.len())
            }
            Site::Own(_) => unreachable!("nobody else shows it anything"),
        }
    }
}

/// Whether all that each rank shows comes with its arrival; the same on all ranks, or the call is uneven.
fn goes_by_lines(turn: &Turn, deal: &Deal<'_>) -> bool {
    deal.size.is_shared()
        && deal.shown_bytes(deal.size.bytes()) <= PAYLOAD
        && matches!(turn.algorithm, Algorithm::Auto | Algorithm::Lines)
}

/// Where among the slices that rank `from` stages that of rank `to` is: its own is not among them.
pub(super) fn slot(from: usize, to: usize) -> usize {
    if to < from { to } else { to - 1 }
}
