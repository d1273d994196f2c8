//! This host's part in a collective that spans hosts: reduce into shards, and gather them again.
//!
//! ```text
//! reduce_scatter   owner j ends with shard j of all arrays of the host, combined in rank order
//!                  (owners of the same shard on different hosts combine theirs, by messages)
//! all_gather       everybody copies all shards from their owners
//! ```
//! In rounds, through the staging rings as in `staged`: round k holds the k-th slice of every shard, so that shards are
//! contiguous although all of them are worked on at the same time. There may be fewer shards than ranks; a rank without one
//! lends its array and takes the result. What is dealt out may as well be any ranges of the array (`Pieces`), such as blocks.

use std::ops::Range;

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::ring::place;
use super::words::Place;
use super::{Direct, Turn, Verdict};

/// What each rank of a host owns of an array.
pub trait Parts {
    /// Owners are the first so many ranks.
    fn owners(&self) -> usize;

    /// How many bytes are `owner`'s.
    fn bytes(&self, owner: usize) -> usize;

    /// Where bytes `span` of those that are `owner`'s lie in the array.
    fn pieces(&self, owner: usize, span: Range<usize>) -> impl Iterator<Item = Range<usize>>;
}

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
}

impl Parts for Shards {
    fn owners(&self) -> usize {
        self.count
    }

    fn bytes(&self, owner: usize) -> usize {
        self.of(owner).len()
    }

    fn pieces(&self, owner: usize, span: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let start = self.of(owner).start;
        std::iter::once(start + span.start..start + span.end)
    }
}

/// Any ranges of an array, for each owner his.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces(pub Vec<Vec<Range<usize>>>);

impl Parts for Pieces {
    fn owners(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self, owner: usize) -> usize {
        self.0.get(owner).map_or(0, |ranges| ranges.iter().map(Range::len).sum())
    }

    fn pieces(&self, owner: usize, span: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut before = 0;
        let within = move |range: &Range<usize>| {
            let (from, len) = (before, range.len());
            before += len;
            let (lo, hi) = (span.start.clamp(from, from + len), span.end.clamp(from, from + len));
            (lo < hi).then(|| range.start + lo - from..range.start + hi - from)
        };
        self.0.get(owner).into_iter().flatten().filter_map(within)
    }
}

/// The slices of what all own that are worked on at the same time.
struct Round {
    number: usize,
    /// Bytes of a slice; the last ones may be shorter or empty.
    slice: usize,
    start: u64,
    end: u64,
}

impl Round {
    /// Bytes of what `owner` owns.
    fn span(&self, parts: &impl Parts, owner: usize) -> Range<usize> {
        let bytes = parts.bytes(owner);
        let at = |k: usize| bytes.min(k * self.slice);
        at(self.number)..at(self.number + 1)
    }

    /// Where in the rings the slice of `owner` stands.
    fn position(&self, owner: usize) -> u64 {
        self.start + (owner * self.slice) as u64
    }

    /// The pieces of the slice of `owner`: where each stands in the rings, and where in the array.
    fn pieces(&self, parts: &impl Parts, owner: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let mut position = self.position(owner);
        parts.pieces(owner, self.span(parts, owner)).map(move |piece| {
            let at = position;
            position += piece.len() as u64;
            (at, piece)
        })
    }
}

impl Direct {
    /// Arrives. If all agree, what this rank owns of `dst` = combination of all `src`; the rest of `dst` is not touched.
    pub fn reduce_scatter(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: &Reducer,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        parts: &impl Parts,
    ) -> Result<Verdict, Stop> {
        let mut staged = self.parted(0, self.position, parts);
        if let Some(first) = &staged {
            self.stage_parts(first, parts, src, wait)?;
        }
        self.arrive(turn, Place::private(staged.as_ref().map_or(self.position, |r| r.end)));
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let mut position = self.position;
        while let Some(round) = staged.take() {
            position = round.end;
            staged = self.parted(round.number + 1, position, parts);
            if let Some(next) = &staged {
                self.stage_parts(next, parts, src, wait)?;
                self.advance(|p| &p.staged, next.end);
            }
            self.reduce_slice(turn, &round, wait, reducer, (dst, src), parts)?;
            self.advance(|p| &p.read, position);
        }
        self.position = position;
        Ok(Verdict::Agreed)
    }

    /// In a call in which all have arrived: `array` = what everybody owns of it.
    pub fn all_gather(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        array: Bytes<'_>,
        parts: &impl Parts,
    ) -> Result<(), Stop> {
        let mut staged = self.parted(0, self.position, parts);
        if let Some(first) = &staged {
            self.stage_owned(first, parts, array, wait)?;
        }
        let mut position = self.position;
        while let Some(round) = staged.take() {
            position = round.end;
            staged = self.parted(round.number + 1, position, parts);
            if let Some(next) = &staged {
                self.stage_owned(next, parts, array, wait)?;
            }
            for owner in self.others() {
                if round.span(parts, owner).is_empty() {
                    continue;
                }
                self.await_staged(turn, owner, position, wait)?;
                for (at, piece) in round.pieces(parts, owner) {
                    kernels::copy(&array[piece.clone()], self.boards.ring(owner, at, piece.len()));
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

    fn parted(&self, number: usize, position: u64, parts: &impl Parts) -> Option<Round> {
        let longest = (0..parts.owners()).map(|owner| parts.bytes(owner)).max().unwrap_or(0);
        let slice = (self.tuning.round / self.world).next_multiple_of(64).min(longest.next_multiple_of(64));
        let (start, end) = place(position, parts.owners() * slice, self.boards.ring_len());
        (number * slice < longest).then_some(Round { number, slice, start, end })
    }

    /// Copies what other ranks own into this rank's ring, without announcing it.
    fn stage_parts(
        &mut self,
        round: &Round,
        parts: &impl Parts,
        src: Bytes<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        self.make_room(round.end, wait)?;
        for owner in self.others() {
            for (at, piece) in round.pieces(parts, owner) {
                kernels::copy(self.boards.ring(self.me, at, piece.len()), &src[piece]);
            }
        }
        Ok(())
    }

    /// Copies what this rank owns into its ring, and says so.
    fn stage_owned(
        &mut self,
        round: &Round,
        parts: &impl Parts,
        array: Bytes<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        self.make_room(round.end, wait)?;
        for (at, piece) in round.pieces(parts, self.me) {
            kernels::copy(self.boards.ring(self.me, at, piece.len()), &array[piece]);
        }
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
        parts: &impl Parts,
    ) -> Result<(), Stop> {
        if round.span(parts, self.me).is_empty() {
            return Ok(());
        }
        for rank in self.others() {
            self.await_staged(turn, rank, round.end, wait)?;
        }
        for (at, piece) in round.pieces(parts, self.me) {
            let source = |rank| match rank == self.me {
                true => &src[piece.clone()],
                false => self.boards.ring(rank, at, piece.len()),
            };
            self.sources(source, |sources| reducer.run(&dst[piece.clone()], sources));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_wherever_they_lie() {
        let pieces = Pieces(vec![vec![4..6, 0..0, 9..10, 0..3], vec![]]);
        assert_eq!((pieces.owners(), pieces.bytes(0), pieces.bytes(1), pieces.bytes(7)), (2, 6, 0, 0));
        let found = |span: Range<usize>| pieces.pieces(0, span).collect::<Vec<_>>();
        assert_eq!(found(0..6), [4..6, 9..10, 0..3]);
        assert_eq!(found(1..4), [5..6, 9..10, 0..1]);
        assert_eq!(found(3..3), []);
        assert_eq!(pieces.pieces(1, 0..0).count(), 0);
    }

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
