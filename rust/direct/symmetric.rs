//! Large arrays in shared memory: every rank combines its part straight out of, and into, everybody's array.
//!
//! ```text
//! for each tile of my part:  own array = everybody's tile, combined;  copy it into the others' arrays
//! wait until everybody has written
//! ```
//! Two bytes touched per byte of the array and rank, one read and one written, which is the lower bound when every rank
//! ends with its own copy; nothing is staged.

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::staged::tiles;
use super::{Direct, Turn, Verdict};

impl Direct {
    /// After the arrivals, all of which named a symmetric input and output.
    pub(super) fn all_reduce_symmetric(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        let len = src.len();
        let boards = self.boards.clone();
        let arrays: Vec<(Bytes<'_>, Bytes<'_>)> = (0..self.world)
            .map(|rank| match self.place(turn, rank).symmetric() {
                Some((input, output)) if rank != self.me => (boards.array(input, len), boards.array(output, len)),
                _ => (src, dst),
            })
            .collect();
        self.combine_in_place(&arrays, wait, reducer)?;
        Ok(Verdict::Agreed)
    }

    /// Every rank's output = all inputs combined; `arrays` holds each rank's input and output.
    pub(super) fn combine_in_place(
        &mut self,
        arrays: &[(Bytes<'_>, Bytes<'_>)],
        wait: &mut Wait<'_>,
        reducer: Reducer,
    ) -> Result<(), Stop> {
        let dst = arrays[self.me].1;
        let part = dst.len().div_ceil(self.world).next_multiple_of(64);
        let (start, end) = (dst.len().min(self.me * part), dst.len().min((self.me + 1) * part));
        for tile in tiles(end - start) {
            let span = start + tile.start..start + tile.end;
            self.sources(|rank| &arrays[rank].0[span.clone()], |sources| reducer.run(&dst[span.clone()], sources));
            for rank in self.others() {
                kernels::copy(&arrays[rank].1[span.clone()], &dst[span.clone()]);
            }
        }
        self.all_wrote(wait)
    }

    /// Says that this rank no longer touches the others' arrays, and waits until the same is true of its own.
    ///
    /// All of them may have said so, and one of them nevertheless have given up on the call since, tired of waiting for another
    /// or interrupted: then it has its array back, and what was read there, or written from it, may be anything.
    pub(super) fn all_wrote(&mut self, wait: &mut Wait<'_>) -> Result<(), Stop> {
        self.writes += 1;
        self.advance(|p| &p.wrote, self.writes);
        for rank in self.others() {
            let wrote = &self.boards.of(rank).progress.wrote;
            wait.until(|| wrote.reached(self.writes))?;
        }
        wait.check_alarm()
    }
}
