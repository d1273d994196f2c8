//! The memory of symmetric arrays, and of groups within a job: an allocator of ranges of one rank's heap. It hands out
//! offsets, touches nothing and is used by its owner only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::layout::up;
use super::segment::{HUGE, Segment};

/// Free ranges by start; neighbours are always merged.
#[derive(Debug)]
struct Free(BTreeMap<usize, usize>);

impl Free {
    /// Smallest range that fits: large ones stay whole for large arrays.
    fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let fits = |(&start, &size): (&usize, &usize)| {
            let at = up(start, align);
            (at + len <= start + size).then_some((size, start, at))
        };
        let (size, start, at) = self.0.iter().filter_map(fits).min()?;
        self.0.remove(&start);
        if at > start {
            self.0.insert(start, at - start);
        }
        if at + len < start + size {
            self.0.insert(at + len, start + size - at - len);
        }
        Some(at)
    }

    fn give(&mut self, mut at: usize, mut len: usize) {
        if let Some((&before, &size)) = self.0.range(..at).next_back()
            && before + size == at
        {
            self.0.remove(&before);
            (at, len) = (before, len + size);
        }
        if let Some(size) = self.0.remove(&(at + len)) {
            len += size;
        }
        self.0.insert(at, len);
    }
}

/// One rank's heap.
#[derive(Debug)]
pub struct Heap {
    segment: Arc<Segment>,
    free: Mutex<Free>,
    /// Added to the start of every block; differs from rank to rank, so that the same array of two ranks does not share
    /// the low bits of its address.
    shift: usize,
    /// Process that gives blocks back. In a fork of it the arrays are only looked at: their pages are the parent's.
    owner: u32,
}

impl Heap {
    pub fn new(segment: Arc<Segment>, start: usize, len: usize, rank: usize) -> Heap {
        Heap {
            segment,
            free: Mutex::new(Free(BTreeMap::from([(start, len)]))),
            shift: (rank % 16) * 5 * 64,
            owner: std::process::id(),
        }
    }

    /// Room for `len` bytes, aligned to 64; `None` when the heap is full. Fresh memory reads as zero.
    pub fn allocate(self: &Arc<Heap>, len: usize) -> Option<Block> {
        let whole = up(self.shift.checked_add(len)?.max(1), 4096);
        let align = if whole >= HUGE { HUGE } else { 4096 };
        let start = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(whole, align)?;
        if whole >= HUGE {
            self.segment.prefer_huge(start, whole / HUGE * HUGE);
        }
        Some(Block { heap: Arc::clone(self), start, whole, shift: self.shift, len })
    }

    /// Room for `len` bytes of which few are ever touched, aligned to a huge page where they are as many.
    pub fn reserve(self: &Arc<Heap>, len: usize) -> Option<Block> {
        let whole = up(len.max(1), 4096);
        let align = if whole >= HUGE { HUGE } else { 4096 };
        let start = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(whole, align)?;
        Some(Block { heap: Arc::clone(self), start, whole, shift: 0, len })
    }
}

/// A piece of a heap. Dropping it gives the pages back to the system.
#[derive(Debug)]
pub struct Block {
    heap: Arc<Heap>,
    start: usize,
    whole: usize,
    shift: usize,
    len: usize,
}

impl Block {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte; valid as long as the block lives.
    pub fn address(&self) -> *mut u8 {
        self.heap.segment.address(self.offset(), self.len)
    }

    /// Where in the segment that is.
    pub fn offset(&self) -> usize {
        self.start + self.shift
    }

    /// Lets go of it without giving the pages back, as long as anybody maps the segment: others use them still.
    pub fn abandon(mut self) {
        self.whole = 0;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.whole == 0 || self.heap.owner != std::process::id() {
            return;
        }
        self.heap.segment.punch(self.start, self.whole);
        self.heap.free.lock().unwrap_or_else(PoisonError::into_inner).give(self.start, self.whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_again() {
        let mut free = Free(BTreeMap::from([(0, 1 << 20)]));
        let taken: Vec<usize> = (0..16).map(|_| free.take(4096, 4096).expect("room")).collect();
        assert_eq!(taken, (0..16).map(|k| k * 4096).collect::<Vec<_>>());
        for at in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
            free.give(*at, 4096);
        }
        assert_eq!(free.0, BTreeMap::from([(0, 1 << 20)]));
    }

    #[test]
    fn alignment_leaves_the_gap_usable() {
        let mut free = Free(BTreeMap::from([(4096, 8 << 20)]));
        assert_eq!(free.take(HUGE, HUGE), Some(HUGE));
        assert_eq!(free.take(4096, 4096), Some(4096), "smallest range that fits");
        assert_eq!(free.take(16 << 20, 4096), None);
    }

    #[test]
    fn freed_memory_reads_as_zero_again() {
        let (segment, _fd) = Segment::create(8 << 20).expect("memfd");
        let segment = Arc::new(segment);
        let heap = Arc::new(Heap::new(Arc::clone(&segment), 0, 8 << 20, 3));
        let block = heap.allocate(3 << 20).expect("room");
        let at = block.offset();
        assert_eq!(block.address(), segment.address(at, 3 << 20));
        segment.cells(at, 1)[0].set(7);
        drop(block);
        assert_eq!(segment.cells(at, 1)[0].get(), 0);
        let block = heap.allocate(4096).expect("room");
        let at = block.offset();
        segment.cells(at, 1)[0].set(8);
        block.abandon();
        assert_eq!(segment.cells(at, 1)[0].get(), 8, "somebody else needs it");
        assert!(heap.allocate(9 << 20).is_none());
        assert_eq!(heap.reserve(HUGE + 1).expect("room").offset() % HUGE, 0, "whatever the rank");
    }
}
