//! Where bytes wait that have been received and are not consumed.

use std::cell::Cell;

use crate::kernels::Bytes;

/// Twice what one call brings: what is left of one burst stays where it is while the next arrives behind it. Pages that are
/// never reached are never backed by memory.
const SIZE: usize = 2 * super::BURST;

/// The buffer starts at a page, so that offset and address agree modulo `ALIGN`.
const PAGE: usize = 4096;

/// A cache line: copies by the kernel and kernels of ours are faster where they need not straddle any.
const ALIGN: usize = 64;

/// Fewer bytes than these move to the front whenever more is wanted: that is cheaper than to leave memory that is in the cache.
const FEW: usize = 256;

/// One run of bytes, `start..end`. `end` is the position of the stream up to which has been received, modulo `ALIGN`.
pub(super) struct Staging {
    memory: Box<[u8]>,
    page: usize,
    start: usize,
    end: usize,
}

impl Staging {
    pub(super) fn new() -> Staging {
        let memory = vec![0; SIZE + PAGE].into_boxed_slice();
        let page = memory.as_ptr().align_offset(PAGE);
        Staging { memory, page, start: 0, end: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// What has arrived.
    pub(super) fn bytes(&mut self) -> Bytes<'_> {
        let (start, end) = (self.start, self.end);
        &self.cells()[start..end]
    }

    /// Makes room until `enough` bytes can lie here, or as many of them as fit, and lends it. To be followed by `arrived`.
    pub(super) fn room(&mut self, enough: usize) -> Bytes<'_> {
        let enough = enough.min(SIZE - ALIGN);
        if self.len() <= FEW || self.start + enough > SIZE {
            self.compact();
        }
        let room = self.end..self.start + enough;
        &self.cells()[room]
    }

    /// Counts bytes that have been put into the room.
    pub(super) fn arrived(&mut self, n: usize) {
        self.end += n;
    }

    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.len(), "consumed more than has arrived");
        self.start += n;
    }

    /// Starts anew at `position` of the stream. Nothing is here.
    pub(super) fn restart(&mut self, position: u64) {
        self.start = position as usize % ALIGN;
        self.end = self.start;
    }

    fn compact(&mut self) {
        let to = self.start % ALIGN;
        if to != self.start {
            let from = self.page + self.start..self.page + self.end;
            self.memory.copy_within(from, self.page + to);
            (self.start, self.end) = (to, to + self.len());
        }
    }

    fn cells(&mut self) -> Bytes<'_> {
        Cell::from_mut(&mut self.memory[self.page..][..SIZE]).as_slice_of_cells()
    }
}
