//! From which size on is it better to combine symmetric arrays in place than to stage them?
//!
//! In place, half as many bytes cross between cores, but each line that crosses is dirty in somebody's cache. Whether that is
//! faster depends on how cores hand lines to each other, which differs by a factor of four between machines, and on a
//! virtual one from day to day. So it is measured, once in the life of a group, on the first arrays for which it matters:
//! some milliseconds on a scratch array that each rank fills anew before every run, as an application would.
//!
//! Ranks take turns in nothing here: all run both ways at the same time, and rank 0's clock decides for all.

use std::time::{Duration, Instant};

use crate::arena::layout::SCRATCH;
use crate::dtype::{DType, ReduceOp};
use crate::kernels::{Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::{Direct, PAYLOAD, Turn};

/// Runs of each way; the median counts.
const RUNS: usize = 9;

/// What is tried, smallest first, and from which size on a win there is believed.
const TRIALS: [(usize, usize); 2] = [(16 << 10, PAYLOAD + 1), (SCRATCH, 64 << 10)];

/// Of a question that rank 0 answers for all.
pub(super) const ANSWERS: u64 = 8;

/// If in-place combining wins neither: where it needs less memory traffic whatever the caches do.
const BEYOND: usize = 4 << 20;

impl Direct {
    /// After the arrivals of a call. Returns the size, the same on every rank.
    pub(super) fn calibrate(&mut self, turn: &Turn, wait: &mut Wait<'_>) -> Result<usize, Stop> {
        for (len, from) in TRIALS {
            if self.in_place_wins(turn, wait, len)? {
                return Ok(from);
            }
        }
        Ok(BEYOND)
    }

    fn in_place_wins(&mut self, turn: &Turn, wait: &mut Wait<'_>, len: usize) -> Result<bool, Stop> {
        let reducer = Reducer::of(DType::Float32, ReduceOp::Max).expect("floats have a maximum");
        let boards = self.boards.clone();
        let mine = boards.scratch(self.me, len);
        let arrays: Vec<(Bytes<'_>, Bytes<'_>)> =
            (0..self.world).map(|rank| boards.scratch(rank, len)).map(|scratch| (scratch, scratch)).collect();
        let mut staged = [Duration::ZERO; RUNS];
        let mut in_place = [Duration::ZERO; RUNS];
        for run in 0..RUNS {
            self.dirty(mine, wait)?;
            let from = Instant::now();
            let _agreed = self.all_reduce_staged_rest(turn, wait, reducer, mine, mine, None)?;
            staged[run] = from.elapsed();
            self.dirty(mine, wait)?;
            let from = Instant::now();
            self.combine_in_place(&arrays, wait, reducer)?;
            in_place[run] = from.elapsed();
        }
        staged.sort_unstable();
        in_place.sort_unstable();
        let wins = in_place[RUNS / 2] < staged[RUNS / 2];
        Ok(self.vote(u64::from(wins), wait)? == 1)
    }

    /// Fills the scratch array, and waits until everybody has.
    fn dirty(&mut self, scratch: Bytes<'_>, wait: &mut Wait<'_>) -> Result<(), Stop> {
        scratch.iter().for_each(|byte| byte.set(self.me as u8 & 0x3f));
        self.all_wrote(wait)
    }

    /// Rank 0's answer, less than `ANSWERS`, on every rank.
    pub(super) fn vote(&mut self, answer: u64, wait: &mut Wait<'_>) -> Result<u64, Stop> {
        self.votes += ANSWERS;
        if self.me == 0 {
            self.advance(|p| &p.vote, self.votes + answer);
            return Ok(answer);
        }
        let vote = &self.boards.of(0).progress.vote;
        wait.until(|| vote.reached(self.votes))?;
        Ok(vote.position() % ANSWERS)
    }
}
