//! This host's part in a collective that spans hosts: reduce into shards, and gather them again.
//!
//! ```text
//! reduce_scatter   owner j ends with shard j of all arrays of the host, combined in rank order
//!                  (owners of the same shard on different hosts combine theirs, by messages)
//! all_gather       everybody copies all shards from their owners
//! ```
//! In rounds, through the staging rings as in `staged`: round k holds the k-th slice of every shard, so that shards are
//! contiguous although all of them are worked on at the same time. There may be fewer shards than ranks; a rank without one
//! lends its array and takes the result.

use std::ops::Range;

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::ring::place;
use super::words::Place;
use super::{Direct, Turn, Verdict};

/// How an array of `len` bytes is dealt out to the first `count` ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    pub len: usize,
    pub count: usize,
}

impl Shards {
    /// Bytes that `owner` owns: whole cache lines, but for the end of the array; none for ranks without a shard.
    pub fn of(&self, owner: usize) -> Range<usize> {
        let part = self.len.div_ceil(self.count).next_multiple_of(64);
        let edge = |k: usize| if k >= self.count { self.len } else { self.len.min(k * part) };
        edge(owner)..edge(owner + 1)
    }

    fn longest(&self) -> usize {
        self.of(0).len()
    }
}

/// The slices of all shards that are worked on at the same time.
struct Round {
    number: usize,
    /// Bytes of a slice; the last ones may be shorter or empty.
    slice: usize,
    start: u64,
    end: u64,
}

impl Round {
    /// Bytes of the array.
    fn span(&self, shards: &Shards, owner: usize) -> Range<usize> {
        let shard = shards.of(owner);
        let at = |k: usize| shard.end.min(shard.start + k * self.slice);
        at(self.number)..at(self.number + 1)
    }

    /// Where in the rings the slice of `owner`'s shard stands.
    fn position(&self, owner: usize) -> u64 {
        self.start + (owner * self.slice) as u64
    }
}

impl Direct {
    /// Arrives. If all agree, this rank's shard of `dst` = combination of all `src`; the rest of `dst` is not touched.
    pub fn reduce_scatter(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: &Reducer,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        shards: &Shards,
    ) -> Result<Verdict, Stop> {
        let mut staged = self.slices(0, self.position, shards);
        if let Some(first) = &staged {
            self.stage_slices(first, shards, src, wait)?;
        }
        self.arrive(turn, Place { symmetric: None, staged: staged.as_ref().map_or(self.position, |r| r.end) });
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let mut position = self.position;
        while let Some(round) = staged.take() {
            position = round.end;
            staged = self.slices(round.number + 1, position, shards);
            if let Some(next) = &staged {
                self.stage_slices(next, shards, src, wait)?;
                self.advance(|p| &p.staged, next.end);
            }
            self.reduce_slice(turn, &round, wait, reducer, (dst, src), shards)?;
            self.advance(|p| &p.read, position);
        }
        self.position = position;
        Ok(Verdict::Agreed)
    }

    /// In a call in which all have arrived: `array` = everybody's shards.
    pub fn all_gather(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        array: Bytes<'_>,
        shards: &Shards,
    ) -> Result<(), Stop> {
        let mut staged = self.slices(0, self.position, shards);
        if let Some(first) = &staged {
            self.stage_shard(first, shards, array, wait)?;
        }
        let mut position = self.position;
        while let Some(round) = staged.take() {
            position = round.end;
            staged = self.slices(round.number + 1, position, shards);
            if let Some(next) = &staged {
                self.stage_shard(next, shards, array, wait)?;
            }
            for owner in self.others() {
                let span = round.span(shards, owner);
                if !span.is_empty() {
                    self.await_staged(turn, owner, position, wait)?;
                    kernels::copy(&array[span.clone()], self.boards.ring(owner, round.position(owner), span.len()));
                }
            }
            self.advance(|p| &p.read, position);
        }
        self.position = position;
        Ok(())
    }

    /// In a call in which all have arrived: waits until everybody has come here.
    pub fn regroup(&mut self, wait: &mut Wait<'_>) -> Result<(), Stop> {
        self.all_wrote(wait)
    }

    fn slices(&self, number: usize, position: u64, shards: &Shards) -> Option<Round> {
        let slice = (self.tuning.round / self.world).next_multiple_of(64).min(shards.longest().next_multiple_of(64));
        let (start, end) = place(position, shards.count * slice, self.boards.ring_len());
        (number * slice < shards.longest()).then_some(Round { number, slice, start, end })
    }

    /// Copies what other ranks own into this rank's ring, without announcing it.
    fn stage_slices(
        &mut self,
        round: &Round,
        shards: &Shards,
        src: Bytes<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        self.make_room(round.end, wait)?;
        for owner in self.others() {
            let span = round.span(shards, owner);
            kernels::copy(self.boards.ring(self.me, round.position(owner), span.len()), &src[span]);
        }
        Ok(())
    }

    /// Copies what this rank owns into its ring, and says so.
    fn stage_shard(
        &mut self,
        round: &Round,
        shards: &Shards,
        array: Bytes<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        self.make_room(round.end, wait)?;
        let span = round.span(shards, self.me);
        kernels::copy(self.boards.ring(self.me, round.position(self.me), span.len()), &array[span]);
        self.advance(|p| &p.staged, round.end);
        Ok(())
    }

    fn reduce_slice(
        &mut self,
        turn: &Turn,
        round: &Round,
        wait: &mut Wait<'_>,
        reducer: &Reducer,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        shards: &Shards,
    ) -> Result<(), Stop> {
        let span = round.span(shards, self.me);
        if span.is_empty() {
            return Ok(());
        }
        for rank in self.others() {
            self.await_staged(turn, rank, round.end, wait)?;
        }
        let source = |rank| match rank == self.me {
            true => &src[span.clone()],
            false => self.boards.ring(rank, round.position(self.me), span.len()),
        };
        self.sources(source, |sources| reducer.run(&dst[span.clone()], sources));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_the_array_once() {
        for len in [0, 1, 63, 64, 65, 1000, 4096, 12345] {
            for count in 1..6 {
                let shards = Shards { len, count };
                let mut end = 0;
                for owner in 0..count + 2 {
                    let Range { start, end: next } = shards.of(owner);
                    assert_eq!(start, end, "owner {owner} of {shards:?}");
                    assert!(start % 64 == 0 || start == len, "owner {owner} of {shards:?}");
                    end = next;
                }
                assert_eq!(end, len);
            }
        }
    }
}
