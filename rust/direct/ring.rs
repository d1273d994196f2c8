//! The staging rings as one stream of bytes.
//!
//! Every rank has a ring; the position in it is the same on all ranks and never goes back. A piece never wraps: where it
//! would, the rest of the ring is skipped.
//!
//! How long the ring is matters, both ways. Shorter than the second-level cache ("slot 0 again") each write takes the line
//! out of the reader's cache and each read pulls it dirty out of the writer's: two to four times slower on Zen 4 (1 MiB of
//! second-level cache). Twice as long as that cache, staged bytes leave for the third level or for memory before they are
//! written again, and compete with the array for it: a fifth slower on Sapphire Rapids (2 MiB). So it is as long as the
//! cache (`communicator/config.rs`), and pieces are an eighth of it at most.

use std::ops::Range;

use crate::kernels;
use crate::kernels::Bytes;
use crate::wait::{Stop, Wait};

pub(super) use super::words::place;
use super::{Direct, Turn};

/// A part of the array and its place in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the array.
    pub span: Range<usize>,
    /// Position in the stream; the piece ends at `end`.
    pub start: u64,
    pub end: u64,
}

impl Direct {
    /// Waits until `[.., end)` of my ring may be written.
    pub(super) fn make_room(&mut self, end: u64, wait: &mut Wait<'_>) -> Result<(), Stop> {
        if end <= self.free_until {
            return Ok(());
        }
        let ring = self.boards.ring_len() as u64;
        let mut least = u64::MAX;
        for rank in self.others() {
            let progress = &self.boards.of(rank).progress;
            wait.until(|| progress.has_left(end, ring))?;
            least = least.min(progress.read.position());
        }
        self.free_until = least + ring;
        Ok(())
    }

    /// Whether `[.., end)` of my ring may be written already.
    pub(super) fn has_room(&self, end: u64) -> bool {
        let ring = self.boards.ring_len() as u64;
        end <= self.free_until || self.others().all(|rank| self.boards.of(rank).progress.has_left(end, ring))
    }

    /// Waits until `rank` has staged its input up to `end`; the first piece may have come with its arrival.
    #[inline]
    pub(super) fn await_staged(&self, turn: &Turn, rank: usize, end: u64, wait: &mut Wait<'_>) -> Result<(), Stop> {
        if self.place(turn, rank).staged >= end {
            return Ok(());
        }
        let staged = &self.boards.of(rank).progress.staged;
        wait.until(|| staged.reached(end))
    }

    /// Copies a piece of `src` into my ring, without announcing it.
    pub(super) fn stage(&mut self, piece: &Piece, src: Bytes<'_>, wait: &mut Wait<'_>) -> Result<(), Stop> {
        self.make_room(piece.end, wait)?;
        kernels::copy(self.boards.ring(self.me, piece.start, piece.span.len()), &src[piece.span.clone()]);
        Ok(())
    }

    /// The piece of an array of `len` bytes that follows `at` bytes, `chunk` bytes long at most.
    pub(super) fn piece(&self, at: usize, position: u64, len: usize, chunk: usize) -> Option<Piece> {
        let span = at..len.min(at + chunk);
        let (start, end) = place(position, span.len(), self.boards.ring_len());
        (at < len).then_some(Piece { span, start, end })
    }

    /// The call is over: the stream stands at `position` on every rank, and this one has read all of it.
    pub(super) fn leave_ring(&mut self, position: u64) {
        self.advance(|p| &p.read, position);
        self.leave_rings(position);
    }

    /// The same when this rank has said already that it has read all.
    pub(super) fn leave_rings(&mut self, position: u64) {
        self.position = position;
        // Nobody waits for it. But it tells who has come how far in a later call that takes too long, and the first piece of
        // this one may have been announced by the arrival alone.
        self.boards.of(self.me).progress.staged.advance(position);
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn pieces_never_wrap_and_never_go_back() {
        let ring = 4096;
        let mut position = 0;
        for size in [1, 64, 65, 4096, 100, 4095, 3000, 2000, 1, 4096] {
            let (start, end) = place(position, size, ring);
            assert!(start >= position && end >= start + size as u64);
            assert!(start as usize % ring + size <= ring, "{size} at {start} wraps");
            assert_eq!(end % 64, 0);
            position = end;
        }
    }
}
