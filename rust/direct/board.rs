//! Where the words and bytes of all ranks lie in the segment, and the only accessors of that memory.
//!
//! Words are borrowed as they are (`words`). Bytes are handed out as plain memory: each accessor says which word has to be
//! waited for before they are read, and before they are written again.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::Arc;

use crate::arena::layout::SCRATCH;
use crate::arena::segment::Shared;
use crate::arena::{Layout, Segment};
use crate::kernels::Bytes;

use super::words::{Arrival, Board, Control, GENERATIONS, Head, INLINE, Meeting, PAYLOAD};

// SAFETY: made of atomics only.
unsafe impl Shared for Board {}
// SAFETY: made of atomics only.
unsafe impl Shared for Control {}

/// The boards, rings and arrays of a job, as one rank sees them.
#[derive(Debug, Clone)]
pub struct Boards {
    segment: Arc<Segment>,
    layout: Layout,
}

impl Boards {
    pub fn new(segment: Arc<Segment>, layout: Layout) -> Boards {
        Boards { segment, layout }
    }

    pub fn world(&self) -> usize {
        self.layout.world
    }

    #[inline]
    pub fn control(&self) -> &Control {
        self.segment.at(self.layout.base)
    }

    #[inline]
    pub fn of(&self, rank: usize) -> &Board {
        self.segment.at(self.layout.board_of(rank))
    }

    /// Payload of an arrival, `len` bytes. Written before `Head::post`, read after `Head::arrived`.
    #[inline]
    pub fn payload(&self, rank: usize, sequence: u64, len: usize) -> Bytes<'_> {
        let at = self.layout.board_of(rank) + (sequence % GENERATIONS) as usize * size_of::<Arrival>();
        self.segment.cells(at + payload_start(len), len)
    }

    /// Result of a meeting, `len` bytes. Written within `Meeting::enter`, read after `Meeting::done` says so.
    #[inline]
    pub fn result(&self, sequence: u64, len: usize) -> Bytes<'_> {
        let at = self.layout.base + offset_of!(Control, meetings);
        let at = at + (sequence % GENERATIONS) as usize * size_of::<Meeting>();
        self.segment.cells(at + offset_of!(Meeting, done) + payload_start(len), len)
    }

    /// `len` bytes of a rank's ring at `position` of the stream. Written when everybody `has_left` what was there before;
    /// read after `Progress::staged` or `reduced` (or the arrival's `Place`) has reached their end.
    #[inline]
    pub fn ring(&self, rank: usize, position: u64, len: usize) -> Bytes<'_> {
        let at = (position % self.layout.ring as u64) as usize;
        assert!(at + len <= self.layout.ring, "a piece of the ring never wraps");
        self.segment.cells(self.layout.ring_of(rank) + at, len)
    }

    pub fn ring_len(&self) -> usize {
        self.layout.ring
    }

    /// Has all rings mapped, and that of rank `me` made, before their bytes are touched.
    pub fn populate_rings(&self, me: usize) {
        self.segment.make_pages(self.layout.ring_of(me), self.layout.ring);
        for rank in (0..self.world()).filter(|rank| *rank != me) {
            self.segment.map_pages(self.layout.ring_of(rank), self.layout.ring);
        }
    }

    /// The first `len` bytes of a rank's scratch array.
    pub fn scratch(&self, rank: usize, len: usize) -> Bytes<'_> {
        assert!(len <= SCRATCH);
        self.segment.cells(self.layout.scratch_of(rank), len)
    }

    /// `len` bytes of a symmetric array of another rank, whose arrival said where it is. Neither side touches them after
    /// everybody's `Progress::wrote` has reached the call.
    #[inline]
    pub fn array(&self, offset: usize, len: usize) -> &[Cell<u8>] {
        self.segment.cells(offset, len)
    }

    /// Where `array` lies in the segment, if it is a symmetric one.
    #[inline]
    pub fn offset_of(&self, array: Bytes<'_>) -> Option<usize> {
        self.segment.offset_of(array)
    }
}

/// Within a head line and the payload behind it, where `len` bytes of payload start.
#[inline]
fn payload_start(len: usize) -> usize {
    debug_assert!(len <= PAYLOAD);
    if len <= INLINE { offset_of!(Head, body) } else { size_of::<Head>() }
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(offset_of!(Head, body) + INLINE == 64);
    assert!(offset_of!(Arrival, _payload) == 64);
    assert!(offset_of!(Meeting, _result) == offset_of!(Meeting, done) + 64);
    assert!(offset_of!(Board, arrivals) == 0);
};
