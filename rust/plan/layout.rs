//! Where the chunks of a schedule lie: of the array, tile by tile, and of the scratch memory.

use super::{Area, Chunk, Home, Place};
use crate::schedule::{Buf, Schedule, Span, Step};

/// Scratch chunks start at multiples of this, for the kernels' sake.
const LINE: usize = 64;

/// Where chunks lie.
pub(super) struct Layout {
    elem: usize,
    pub(super) chunks: usize,
    array: Array,
    tiles: usize,
    /// For each scratch chunk, the chunk of the array that is as long.
    stands_for: Vec<Option<u32>>,
    /// Bytes from one scratch chunk to the next.
    stride: usize,
    /// Bytes of chunks that only pass through this rank, after the scratch chunks.
    passing: usize,
}

/// How the array is cut.
enum Array {
    /// Each tile, of so many elements but for the last, into chunks of the same length.
    Even { elements: usize, per_tile: usize },
    /// Each chunk lies where it lies; a tile is a slice of so many bytes of every one.
    Cut { chunks: Vec<(Place, usize)>, slice: usize },
}

/// One chunk of one tile.
pub(super) struct Piece {
    pub(super) place: Place,
    pub(super) len: usize,
    /// Number of the memory, for `Touched`.
    pub(super) cell: usize,
}

impl Layout {
    /// Of `elements` elements, `tile` bytes of them to a tile.
    pub(super) fn even(schedule: &Schedule, elements: usize, elem: usize, tile: usize) -> Layout {
        let chunks = schedule.chunks as usize;
        let per_tile = (tile / elem).clamp(1, elements.max(1));
        Layout {
            elem,
            chunks,
            array: Array::Even { elements, per_tile },
            tiles: elements.div_ceil(per_tile).max(1),
            stands_for: schedule.stands_for(),
            stride: stride(schedule, per_tile.div_ceil(chunks) * elem),
            passing: 0,
        }
    }

    /// Of these chunks, `tile` bytes of each to a tile.
    pub(super) fn cut(schedule: &Schedule, chunks: &[Chunk], elem: usize, tile: usize) -> Layout {
        let longest = chunks.iter().map(|chunk| chunk.len).max().unwrap_or(0);
        let slice = (tile / elem).clamp(1, (longest / elem).max(1)) * elem;
        let mut layout = Layout {
            elem,
            chunks: chunks.len(),
            array: Array::Cut { chunks: Vec::new(), slice },
            tiles: longest.div_ceil(slice).max(1),
            stands_for: schedule.stands_for(),
            stride: stride(schedule, slice),
            passing: 0,
        };
        let (base, used) = (layout.scratch(), touched(schedule));
        let mut place = |k: usize, chunk: &Chunk| match chunk.home {
            Home::Array(at) => Place { area: Area::Array, at },
            Home::Source(at) => Place { area: Area::Source, at },
            Home::Passing => {
                let at = base + layout.passing;
                layout.passing += if used[k] { chunk.len } else { 0 };
                Place { area: Area::Scratch, at }
            }
        };
        let places = chunks.iter().enumerate().map(|(k, chunk)| (place(k, chunk), chunk.len)).collect();
        layout.array = Array::Cut { chunks: places, slice };
        layout
    }

    pub(super) fn tiles(&self) -> usize {
        self.tiles
    }

    pub(super) fn slots(&self) -> usize {
        self.stands_for.len()
    }

    /// Tiles take turns with two halves of the scratch memory.
    pub(super) fn halves(&self) -> usize {
        self.tiles.min(2)
    }

    pub(super) fn scratch(&self) -> usize {
        self.halves() * self.slots() * self.stride + self.passing
    }

    /// Where a chunk of the array lies, within its tile, and how long it is.
    fn chunk(&self, tile: usize, k: usize) -> (Place, usize) {
        match &self.array {
            Array::Even { elements, per_tile } => {
                let elements = (elements - tile * per_tile).min(*per_tile);
                let (short, longer) = (elements / self.chunks, elements % self.chunks);
                let first = tile * per_tile + k * short + k.min(longer);
                let place = Place { area: Area::Array, at: first * self.elem };
                (place, (short + usize::from(k < longer)) * self.elem)
            }
            Array::Cut { chunks, slice } => {
                let (Place { area, at }, len) = chunks[k];
                let done = len.min(tile * slice);
                (Place { area, at: at + done }, (len - done).min(*slice))
            }
        }
    }

    pub(super) fn piece(&self, tile: usize, buf: Buf, k: usize) -> Piece {
        match buf {
            Buf::Data => {
                let (place, len) = self.chunk(tile, k);
                Piece { place, len, cell: k }
            }
            Buf::Scratch => {
                let twin = self.stands_for[k].unwrap_or_else(|| panic!("no step shows how long scratch chunk {k} is"));
                let slot = tile % self.halves() * self.slots() + k;
                let (_, len) = self.chunk(tile, twin as usize);
                Piece { place: Place { area: Area::Scratch, at: slot * self.stride }, len, cell: self.chunks + slot }
            }
        }
    }

    pub(super) fn pieces(&self, tile: usize, span: Span) -> impl Iterator<Item = Piece> {
        (span.lo..span.hi).map(move |k| self.piece(tile, span.buf, k as usize))
    }
}

/// From one scratch chunk of `len` bytes to the next. Those of which several are sent at once follow each other without a gap, so
/// that they go in one call of the system, which costs more than what the kernels lose.
fn stride(schedule: &Schedule, len: usize) -> usize {
    let several = |step: &Step| match step {
        Step::Exchange { send: Some((_, span)), .. } => span.buf == Buf::Scratch && span.len() > 1,
        _ => false,
    };
    if schedule.steps.iter().any(several) { len } else { len.next_multiple_of(LINE) }
}

/// Which chunks of the array a schedule sends, receives or combines.
fn touched(schedule: &Schedule) -> Vec<bool> {
    let mut used = vec![false; schedule.chunks as usize];
    let mut touch = |span: &Span| {
        if span.buf == Buf::Data {
            used[span.lo as usize..span.hi as usize].fill(true);
        }
    };
    for step in &schedule.steps {
        match step {
            Step::Exchange { send, recv } => {
                send.iter().for_each(|(_, span)| touch(span));
                recv.iter().for_each(|(_, span, _)| touch(span));
            }
            Step::Local { dst, srcs, .. } => srcs.iter().chain([dst]).for_each(&mut touch),
        }
    }
    used
}
