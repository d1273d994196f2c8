//! Where a ring lies in the shared segment, and the only accessors of its memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::words::Words;
use crate::arena::Segment;
use crate::arena::segment::Shared;
use crate::kernels::Bytes;
use crate::wait::Bell;

// SAFETY: made of atomics only.
unsafe impl Shared for Words {}
// SAFETY: made of atomics only.
unsafe impl Shared for Bell {}

/// One direction between two ranks: words, then bytes. All zeros is an empty ring.
#[derive(Clone, Debug)]
pub struct Ring {
    segment: Arc<Segment>,
    offset: usize,
    capacity: usize,
    bell: usize,
}

impl Ring {
    /// What an offset of a ring must be a multiple of.
    pub const ALIGN: usize = align_of::<Words>();

    /// Bytes that a ring for `capacity` bytes takes up.
    pub fn size(capacity: usize) -> usize {
        size_of::<Words>() + capacity
    }

    /// The ring at `offset`, both of whose sides wait at the bell at offset `bell`.
    ///
    /// # Panics
    /// Unless `capacity` is a positive multiple of 64, which keeps every element in one piece, and `offset` one of `ALIGN`.
    pub fn new(segment: Arc<Segment>, offset: usize, capacity: usize, bell: usize) -> Ring {
        assert!(capacity > 0 && capacity.is_multiple_of(64), "a ring of {capacity} bytes");
        assert!(offset.is_multiple_of(Ring::ALIGN), "a ring at {offset}");
        Ring { segment, offset, capacity, bell }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    pub fn words(&self) -> &Words {
        self.segment.at(self.offset)
    }

    #[inline]
    pub fn bell(&self) -> &Bell {
        self.segment.at(self.bell)
    }

    /// Up to `len` bytes from `position` of the stream on, as far as the ring goes. The writer has them between `Producer::room` and
    /// `publish`, the reader between `Consumer::arrived` and `consume`.
    #[inline]
    pub fn bytes(&self, position: u64, len: usize) -> Bytes<'_> {
        let at = (position % self.capacity as u64) as usize;
        self.segment.cells(self.offset + size_of::<Words>() + at, len.min(self.capacity - at))
    }
}

const _: () = assert!(size_of::<Words>().is_multiple_of(64));
