//! Private arrays: through the staging rings, chunk by chunk.
//!
//! ```text
//! two ranks, one shot:     stage chunk k+1 | dst[k] = rank 0's chunk k (+) rank 1's chunk k, one of them out of the peer's ring
//! three and more, parts:   stage the parts of round k that others own
//!                          reduce the part I own out of everybody's ring, put the result into my array and my ring
//!                          copy the other parts of round k-1 out of the owners' rings
//! ```
//! Bytes touched per byte of the array: one shot 3 read + 2 written, parts 3 - 2/p read + 2 written (the movement-avoiding
//! scheme of YHCCL, SC'23). Of these only one read and one write leave the caches, since a chunk is combined while the
//! copy that staged it is still warm.

use std::ops::Range;

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::ring::{Piece, place};
use super::words::Place;
use super::{Direct, Turn, Verdict};

/// Bytes that stay in the first-level cache between being computed and being copied on.
const TILE: usize = 8 << 10;

impl Direct {
    pub(super) fn all_reduce_staged(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        let first = self.stage_first(src, wait)?;
        self.arrive(turn, Place::private(first));
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        self.all_reduce_staged_rest(turn, wait, reducer, dst, src, Some(first))
    }

    /// After the arrivals. `staged`: how far this rank has staged its input already.
    pub(super) fn all_reduce_staged_rest(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
        staged: Option<u64>,
    ) -> Result<Verdict, Stop> {
        if staged.is_none() {
            let end = self.stage_first(src, wait)?;
            self.advance(|p| &p.staged, end);
        }
        let position = if self.world == 2 {
            self.one_shot(turn, wait, reducer, dst, src)?
        } else {
            self.parts(turn, wait, reducer, dst, src)?
        };
        self.leave_ring(position);
        Ok(Verdict::Agreed)
    }

    /// Stages the first piece, which costs no waiting for others; returns where it ends.
    fn stage_first(&mut self, src: Bytes<'_>, wait: &mut Wait<'_>) -> Result<u64, Stop> {
        if self.world == 2 {
            let Some(piece) = self.piece(0, self.position, src.len(), self.tuning.chunk) else {
                return Ok(self.position);
            };
            self.stage(&piece, src, wait)?;
            Ok(piece.end)
        } else {
            let Some(round) = self.round(0, self.position, src.len()) else { return Ok(self.position) };
            self.stage_round(&round, src, wait)?;
            Ok(round.piece.end)
        }
    }

    fn one_shot(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<u64, Stop> {
        let (peer, chunk) = (1 - self.me, self.tuning.chunk);
        let mut position = self.position;
        let mut staged = self.piece(0, position, src.len(), chunk);
        while let Some(piece) = staged {
            position = piece.end;
            staged = self.piece(piece.span.end, position, src.len(), chunk);
            if let Some(next) = &staged {
                self.stage(next, src, wait)?;
                self.advance(|p| &p.staged, next.end);
            }
            self.await_staged(turn, peer, piece.end, wait)?;
            let theirs = self.boards.ring(peer, piece.start, piece.span.len());
            let mine = &src[piece.span.clone()];
            let sources = if self.me == 0 { [mine, theirs] } else { [theirs, mine] };
            reducer.run(&dst[piece.span.clone()], &sources);
            self.advance(|p| &p.read, piece.end);
        }
        Ok(position)
    }

    fn parts(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<u64, Stop> {
        let mut position = self.position;
        let mut staged = self.round(0, position, src.len());
        let mut reduced: Option<Round> = None;
        while staged.is_some() || reduced.is_some() {
            let current = staged.take();
            if let Some(round) = &current {
                self.reduce_part(turn, round, wait, reducer, dst, src)?;
                position = round.piece.end;
                staged = self.round(round.piece.span.end, position, src.len());
                if let Some(next) = &staged {
                    self.stage_round(next, src, wait)?;
                    self.advance(|p| &p.staged, next.piece.end);
                }
            }
            if let Some(round) = reduced.take() {
                self.collect_parts(&round, wait, dst)?;
                self.advance(|p| &p.read, round.piece.end);
            }
            reduced = current;
        }
        Ok(position)
    }

    fn round(&self, at: usize, position: u64, len: usize) -> Option<Round> {
        let span = at..len.min(at + self.tuning.round);
        let part = span.len().div_ceil(self.world).next_multiple_of(64);
        let (start, end) = place(position, (self.world + 1) * part, self.boards.ring_len());
        (at < len).then_some(Round { piece: Piece { span, start, end }, part })
    }

    fn stage_round(&mut self, round: &Round, src: Bytes<'_>, wait: &mut Wait<'_>) -> Result<(), Stop> {
        self.make_room(round.piece.end, wait)?;
        for rank in self.others() {
            let span = round.span(rank);
            kernels::copy(self.boards.ring(self.me, round.input(rank), span.len()), &src[span]);
        }
        Ok(())
    }

    /// Combines the part of the round that this rank owns.
    fn reduce_part(
        &mut self,
        turn: &Turn,
        round: &Round,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<(), Stop> {
        for rank in self.others() {
            self.await_staged(turn, rank, round.piece.end, wait)?;
        }
        let own = round.span(self.me);
        let result = self.boards.ring(self.me, round.output(self.world), own.len());
        for tile in tiles(own.len()) {
            let (at, len) = (tile.start as u64, tile.len());
            let span = own.start + tile.start..own.start + tile.end;
            let source = |rank| match rank == self.me {
                true => &src[span.clone()],
                false => self.boards.ring(rank, round.input(self.me) + at, len),
            };
            self.sources(source, |sources| reducer.run(&dst[span.clone()], sources));
            kernels::copy(&result[tile], &dst[span]);
        }
        self.advance(|p| &p.reduced, round.piece.end);
        Ok(())
    }

    /// Copies the parts that others own into the array.
    fn collect_parts(&mut self, round: &Round, wait: &mut Wait<'_>, dst: Bytes<'_>) -> Result<(), Stop> {
        for rank in self.others() {
            let reduced = &self.boards.of(rank).progress.reduced;
            wait.until(|| reduced.reached(round.piece.end))?;
            let span = round.span(rank);
            kernels::copy(&dst[span.clone()], self.boards.ring(rank, round.output(self.world), span.len()));
        }
        Ok(())
    }
}

/// A run of bytes of the array that all ranks work on at the same time. In each ring: one part for each rank, then the
/// result of the part that the ring's rank owns.
struct Round {
    piece: Piece,
    /// Bytes of a part; the last ones may be shorter or empty.
    part: usize,
}

impl Round {
    /// Bytes of the array that `rank` owns.
    fn span(&self, rank: usize) -> Range<usize> {
        let Range { start, end } = self.piece.span;
        end.min(start + rank * self.part)..end.min(start + (rank + 1) * self.part)
    }

    /// Position of the part that `rank` owns.
    fn input(&self, rank: usize) -> u64 {
        self.piece.start + (rank * self.part) as u64
    }

    fn output(&self, world: usize) -> u64 {
        self.input(world)
    }
}

/// Runs of at most `TILE` bytes.
pub(super) fn tiles(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(TILE).map(move |at| at..len.min(at + TILE))
}
