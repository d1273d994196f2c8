//! A deal through the staging rings.
//!
//! ```text
//! a round in the ring of a rank that shows       its array to all    |slice|
//!                                                a block to each     |slice for a|slice for b|...|   of all but itself
//!
//! for each round k:   stage the slices of round k+1, say so
//!                     take those of round k out of the others' rings (wait for those who show them), say so
//! ```
//! Round k holds the k-th slice of every block, so that all blocks are worked on at the same time and each one's end is
//! contiguous. A rank that shows nothing stages nothing, and one that takes nothing says at once that it has read: both keep
//! the stream of the rings in step. Bytes touched per byte of a block: 2 read and 2 written, one of each in the caches.

use std::ops::Range;

use crate::kernels::{self, Bytes};
use crate::wait::{Stop, Wait};

use super::deal::Deal;
use super::exchange::{Site, slot};
use super::ring::place;
use super::{Direct, Turn};

/// Longest slice where only the root shows, or only the root takes: that much of its time passes before the other side begins.
const ONE_WAY: usize = 64 << 10;

/// The slices of all blocks that are worked on at the same time.
pub(super) struct Round {
    number: usize,
    /// Bytes of a slice; the last ones may be shorter or empty.
    slice: usize,
    start: u64,
    pub end: u64,
}

impl Round {
    /// Bytes of a block of `len`.
    pub fn span(&self, len: usize) -> Range<usize> {
        let at = |k: usize| len.min(k * self.slice);
        at(self.number)..at(self.number + 1)
    }

    /// Where in a ring the slice in `slot` stands.
    pub fn position(&self, slot: usize) -> u64 {
        self.start + (slot * self.slice) as u64
    }
}

impl Direct {
    /// Stages the first round, which costs no waiting for others; returns where it ends.
    pub(super) fn stage_first_round(&mut self, deal: &Deal<'_>, wait: &mut Wait<'_>) -> Result<u64, Stop> {
        let Some(first) = self.slices(deal, 0, self.position, deal.size.bytes()) else { return Ok(self.position) };
        self.stage_slices(deal, &first, wait)?;
        Ok(first.end)
    }

    /// In a call in which all have arrived. `longest`: bytes of the longest block.
    pub(super) fn deal_in_rounds(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        longest: usize,
    ) -> Result<(), Stop> {
        let Some(first) = self.slices(deal, 0, self.position, longest) else { return Ok(()) };
        // A root that takes nothing of the others would keep them waiting with what it does for itself. So it does that where it
        // would wait for them, and at the end; in a crowd at the end, since they may need its core.
        let alone = deal.takes_from_nobody(self.me);
        let mut own = 0;
        let mut position = self.position;
        if self.place(turn, self.me).staged < first.end {
            self.stage_slices(deal, &first, wait)?;
            self.advance(|p| &p.staged, first.end);
        }
        let mut staged = Some(first);
        while let Some(round) = staged.take() {
            position = round.end;
            staged = self.slices(deal, round.number + 1, position, longest);
            if let Some(next) = &staged {
                // What it writes may be what it shows, so it does not pass what is staged.
                while alone && !self.crowd && own < next.number * next.slice && !self.has_room(next.end) {
                    self.take(turn, wait, deal, &Site::Own(own..own + next.slice))?;
                    own += next.slice;
                }
                self.stage_slices(deal, next, wait)?;
                self.advance(|p| &p.staged, next.end);
            }
            if !alone {
                self.take(turn, wait, deal, &Site::Rings(&round))?;
            }
            self.advance(|p| &p.read, position);
        }
        if alone {
            self.take(turn, wait, deal, &Site::Own(own..longest))?;
        }
        self.leave_rings(position);
        Ok(())
    }

    fn slices(&self, deal: &Deal<'_>, number: usize, position: u64, longest: usize) -> Option<Round> {
        let (slots, slice) = match deal.cut {
            None => (1, self.tuning.chunk),
            Some(_) => (self.world - 1, (self.tuning.round / self.world).next_multiple_of(64)),
        };
        let slice = if deal.rooted && !self.crowd { slice.min(ONE_WAY) } else { slice };
        // Ranks that know their own blocks alone stage their first slices before they know the longest.
        let slice = if deal.size.is_shared() { slice.min(longest.next_multiple_of(64)) } else { slice };
        let (start, end) = place(position, slots * slice, self.boards.ring_len());
        (number * slice < longest).then_some(Round { number, slice, start, end })
    }

    /// Copies this rank's slices of the round into its ring, without announcing them.
    fn stage_slices(&mut self, deal: &Deal<'_>, round: &Round, wait: &mut Wait<'_>) -> Result<(), Stop> {
        let Some(array) = deal.show else { return Ok(()) };
        self.make_room(round.end, wait)?;
        let copy = |slot: usize, block: Bytes<'_>| {
            let span = round.span(block.len());
            kernels::copy(self.boards.ring(self.me, round.position(slot), span.len()), &block[span]);
        };
        match deal.cut {
            None => copy(0, array),
            Some(cut) => self.others().for_each(|rank| copy(slot(self.me, rank), &array[cut.of(rank)])),
        }
        Ok(())
    }
}
