//! Where the chunks of a schedule lie: of the array, tile by tile, and of the scratch memory.

use super::Place;
use crate::schedule::{Buf, Schedule, Span};

/// Scratch chunks start at multiples of this, for the kernels' sake.
const LINE: usize = 64;

/// Where chunks lie.
pub(super) struct Layout {
    elem: usize,
    elements: usize,
    /// Elements of a tile, but for the last.
    per_tile: usize,
    pub(super) chunks: usize,
    /// For each scratch chunk, the chunk of the array that is as long.
    stands_for: Vec<Option<u32>>,
    /// Bytes from one scratch chunk to the next.
    stride: usize,
}

/// One chunk of one tile.
pub(super) struct Piece {
    pub(super) place: Place,
    pub(super) len: usize,
    /// Number of the memory, for `Touched`.
    pub(super) cell: usize,
}

impl Layout {
    pub(super) fn new(schedule: &Schedule, elements: usize, elem: usize, tile: usize) -> Layout {
        let chunks = schedule.chunks as usize;
        let per_tile = (tile / elem).clamp(1, elements.max(1));
        let stride = (per_tile.div_ceil(chunks) * elem).next_multiple_of(LINE);
        Layout { elem, elements, per_tile, chunks, stands_for: schedule.stands_for(), stride }
    }

    pub(super) fn tiles(&self) -> usize {
        self.elements.div_ceil(self.per_tile).max(1)
    }

    pub(super) fn slots(&self) -> usize {
        self.stands_for.len()
    }

    /// Tiles take turns with two halves of the scratch memory.
    pub(super) fn halves(&self) -> usize {
        self.tiles().min(2)
    }

    pub(super) fn scratch(&self) -> usize {
        self.halves() * self.slots() * self.stride
    }

    /// First element and number of elements of a chunk of the array, within its tile.
    fn chunk(&self, tile: usize, k: usize) -> (usize, usize) {
        let elements = (self.elements - tile * self.per_tile).min(self.per_tile);
        let (short, longer) = (elements / self.chunks, elements % self.chunks);
        (k * short + k.min(longer), short + usize::from(k < longer))
    }

    pub(super) fn piece(&self, tile: usize, buf: Buf, k: usize) -> Piece {
        match buf {
            Buf::Data => {
                let (first, elements) = self.chunk(tile, k);
                let at = (tile * self.per_tile + first) * self.elem;
                Piece { place: Place { buf, at }, len: elements * self.elem, cell: k }
            }
            Buf::Scratch => {
                let twin = self.stands_for[k].unwrap_or_else(|| panic!("no step shows how long scratch chunk {k} is"));
                let slot = tile % self.halves() * self.slots() + k;
                let (_, elements) = self.chunk(tile, twin as usize);
                Piece {
                    place: Place { buf, at: slot * self.stride },
                    len: elements * self.elem,
                    cell: self.chunks + slot,
                }
            }
        }
    }

    pub(super) fn pieces(&self, tile: usize, span: Span) -> impl Iterator<Item = Piece> {
        (span.lo..span.hi).map(move |k| self.piece(tile, span.buf, k as usize))
    }
}
