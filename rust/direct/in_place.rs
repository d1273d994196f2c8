//! A deal among arrays that all ranks can reach.
//!
//! ```text
//! pull    everybody takes what it is due straight out of the others' arrays          every input is symmetric
//! push    gather: everybody writes its block into root's array                       root's output is
//!         reduce: everybody combines a part of the array into root's                 both
//! then    wait until everybody has done so
//! ```
//! Nothing is staged, which is one read and one write less for each byte. A push does with the cores of all ranks what the
//! root would do alone.

use crate::kernels::{Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::deal::{Deal, Push, Take};
use super::exchange::Site;
use super::words::{PAYLOAD, Place};
use super::{Algorithm, Direct, Turn, sources};

/// From so many bytes on that a rank shows, waiting for everybody at the end costs less than staging does. Measured with 2
/// ranks on 2 cores: equal at 2 KiB, half the time at 8 KiB.
const LARGE: usize = 4 << 10;
/// The same where that wait means that ranks take turns on a core. 4 ranks on 2 cores: equal at 16 KiB.
const LARGE_CROWD: usize = 32 << 10;

/// A way to deal in place.
#[derive(Clone, Copy, Debug)]
pub(super) enum InPlace {
    Pull,
    /// To where root's output is.
    Push(Push, usize),
}

impl Direct {
    /// Whether blocks of `longest` bytes at most are dealt in place if arrays allow it.
    pub(super) fn is_large(&self, turn: &Turn, deal: &Deal<'_>, longest: usize) -> bool {
        match turn.algorithm {
            Algorithm::Symmetric => true,
            Algorithm::Auto => deal.shown_bytes(longest) >= if self.crowd { LARGE_CROWD } else { LARGE },
            Algorithm::Lines | Algorithm::Staged => false,
        }
    }

    /// Where this rank's arrays are, as far as others may read or write them. One that shows nothing stands in nobody's way.
    pub(super) fn offer(&self, turn: &Turn, deal: &Deal<'_>) -> Place {
        let mut place = Place::private(self.position);
        if deal.overwrites() || !deal.size.is_shared() && !self.offer_table(turn, deal) {
            return place;
        }
        place.address = self.offer_address(deal);
        let own = self.boards.offset_of(deal.own);
        place.input = match deal.show {
            Some(array) if !array.is_empty() => self.boards.offset_of(array),
            _ => Some(own.unwrap_or(0)),
        };
        place.output = match (&deal.take, deal.push) {
            (Take::Blocks { dst, .. }, Some(_)) => self.boards.offset_of(dst),
            (Take::Combined { dst, .. }, Some(_)) => own.and(self.boards.offset_of(dst)),
            _ => None,
        };
        place
    }

    /// After all have arrived; all come to the same answer.
    pub(super) fn way_in_place(&self, turn: &Turn, deal: &Deal<'_>, longest: usize) -> Option<InPlace> {
        if !self.is_large(turn, deal, longest) || longest == 0 {
            return None;
        }
        let pull = (0..self.world).all(|rank| self.place(turn, rank).input.is_some());
        let output = deal.push.and_then(|push| Some((push, self.place(turn, push.root()).output?)));
        match output {
            Some((push @ Push::Block { .. }, at)) => Some(InPlace::Push(push, at)),
            Some((push @ Push::Part { .. }, at)) if pull => Some(InPlace::Push(push, at)),
            _ => pull.then_some(InPlace::Pull),
        }
    }

    pub(super) fn deal_in_place(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        way: InPlace,
    ) -> Result<(), Stop> {
        match way {
            InPlace::Pull => self.take(turn, wait, deal, &Site::Arrays)?,
            InPlace::Push(Push::Block { at, .. }, output) => {
                self.put(self.boards.array(output + at, deal.own.len()), deal.own, deal.own.len());
            }
            InPlace::Push(Push::Part { reducer, .. }, output) => self.combine_part(turn, deal.own, reducer, output),
        }
        self.all_wrote(wait)
    }

    /// Root's output = everybody's input, as far as this rank's part goes.
    fn combine_part(&self, turn: &Turn, own: Bytes<'_>, reducer: Reducer, output: usize) {
        let part = own.len().div_ceil(self.world).next_multiple_of(64);
        let at = |rank: usize| own.len().min(rank * part);
        let span = at(self.me)..at(self.me + 1);
        let input = |rank| match self.place(turn, rank).input {
            Some(input) if rank != self.me => self.boards.array(input + span.start, span.len()),
            _ => &own[span.clone()],
        };
        let dst = self.boards.array(output + span.start, span.len());
        sources(0..self.world, input, |inputs| reducer.run(dst, inputs));
    }

    /// Where in the segment the block is that `rank` shows to this one.
    pub(super) fn block_at(&self, turn: &Turn, deal: &Deal<'_>, rank: usize) -> usize {
        let array = self.place(turn, rank).input.expect("every rank has offered its array");
        array + self.block_start(turn, deal, rank)
    }

    /// Where in what `rank` shows the block for this one starts.
    pub(super) fn block_start(&self, turn: &Turn, deal: &Deal<'_>, rank: usize) -> usize {
        match (deal.cut, deal.size.is_shared()) {
            (None, _) => 0,
            (Some(cut), true) => cut.of(self.me).start,
            (Some(_), false) => self.table_entry(turn, rank),
        }
    }

    /// Where blocks start that the others could not know: behind the head line, a word for each rank. Whether there is room.
    fn offer_table(&self, turn: &Turn, deal: &Deal<'_>) -> bool {
        let (Some(cut), true) = (deal.cut, self.world * WORD <= PAYLOAD) else { return false };
        let table = self.boards.payload(self.me, turn.sequence, PAYLOAD);
        for (rank, word) in table.chunks_exact(WORD).take(self.world).enumerate() {
            let start = (cut.of(rank).start as u64).to_ne_bytes();
            word.iter().zip(start).for_each(|(cell, byte)| cell.set(byte));
        }
        true
    }

    /// Where in `rank`'s array this rank's block starts.
    fn table_entry(&self, turn: &Turn, rank: usize) -> usize {
        let table = self.boards.payload(rank, turn.sequence, PAYLOAD);
        let mut start = [0; WORD];
        start.iter_mut().zip(&table[self.me * WORD..]).for_each(|(byte, cell)| *byte = cell.get());
        u64::from_ne_bytes(start) as usize
    }
}

/// Bytes of an entry.
const WORD: usize = size_of::<u64>();
