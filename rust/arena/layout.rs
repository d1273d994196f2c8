//! What lies where in the segment: arithmetic only. A job's memory starts at its first byte; that of a group within the job
//! looks the same, without heaps, and lies in a block of one rank's heap.

/// Sizes that rank 0 decides and every rank shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where it starts in the segment.
    pub base: usize,
    pub world: usize,
    /// Bytes of what all ranks share (bell, alarm, roster, …).
    pub control: usize,
    /// Bytes of what one rank writes and the others look at.
    pub board: usize,
    /// Bytes of one rank's staging ring.
    pub ring: usize,
    /// Bytes of the pipe from one rank to another.
    pub pipe: usize,
    /// Bytes of one rank's heap.
    pub heap: usize,
}

/// Everything large starts on a boundary of a huge page.
const BLOCK: usize = 2 << 20;

/// Room for shifting each rank's ring by a different amount.
const SHIFTS: usize = 64 << 10;

/// Bytes of a rank's scratch array, on which ways of combining are timed.
pub const SCRATCH: usize = 128 << 10;

/// What a pipe's place and length are multiples of: cache lines are fetched in pairs.
const PAIR: usize = 128;

/// 46 bits: half of what a process can map on x86-64 and aarch64 with four-level page tables.
const ADDRESSES: usize = 1 << 46;

impl Layout {
    pub fn new(world: usize, control: usize, board: usize, ring: usize, pipe: usize, memory: usize) -> Layout {
        let heap = up(memory.min(ADDRESSES / world), BLOCK);
        let (control, board, pipe) = (up(control, BLOCK), up(board, 4096), up(pipe, PAIR));
        Layout { base: 0, world, control, board, ring, pipe, heap }
    }

    /// The memory of a group of `world` ranks, with rings and pipes as long as these.
    pub fn of_group(&self, world: usize, control: usize, board: usize) -> Layout {
        Layout::new(world, control, board, self.ring, self.pipe, 0)
    }

    pub fn at(self, base: usize) -> Layout {
        Layout { base, ..self }
    }

    fn region(&self) -> usize {
        self.heap_start() + self.heap
    }

    /// Where the ring starts within a region; the rest of the board's block is never touched.
    fn ring_start(&self) -> usize {
        up(self.board, BLOCK)
    }

    /// Where the pipes start within a region.
    fn pipes_start(&self) -> usize {
        up(self.ring_start() + self.ring + SHIFTS + SCRATCH, BLOCK)
    }

    /// Where the heap starts within a region.
    fn heap_start(&self) -> usize {
        up(self.pipes_start() + 2 * self.world * self.pipe, BLOCK)
    }

    /// Length of all of it.
    pub fn total(&self) -> usize {
        self.control + self.world * self.region()
    }

    pub fn board_of(&self, rank: usize) -> usize {
        self.base + self.control + rank * self.region()
    }

    /// Bases differ in their low bits from rank to rank: memory that is read and written in step would otherwise
    /// compete for the same cache sets (four times slower, measured).
    pub fn ring_of(&self, rank: usize) -> usize {
        self.ring_block(rank).0 + (rank % 128) * 7 * 64
    }

    /// Where a rank's scratch array starts.
    pub fn scratch_of(&self, rank: usize) -> usize {
        self.ring_of(rank) + self.ring
    }

    /// Offset and length of the whole blocks in which a rank's ring lies.
    pub fn ring_block(&self, rank: usize) -> (usize, usize) {
        (self.board_of(rank) + self.ring_start(), self.pipes_start() - self.ring_start())
    }

    /// Offset and length of the pipe from `writer` to `reader`, in the region of the latter. Memory is taken by those that are
    /// used, which are few: most algorithms have each rank talk to a handful of others. They follow each other without rounding to
    /// pages, so that their low address bits differ.
    pub fn pipe_of(&self, reader: usize, writer: usize) -> (usize, usize) {
        (self.board_of(reader) + self.pipes_start() + writer * self.pipe, self.pipe)
    }

    /// The same for what ranks send each other outside collectives, which may lie there for long.
    pub fn post_of(&self, reader: usize, writer: usize) -> (usize, usize) {
        self.pipe_of(reader, self.world + writer)
    }

    pub fn heap_of(&self, rank: usize) -> usize {
        self.board_of(rank) + self.heap_start()
    }
}

pub fn up(value: usize, to: usize) -> usize {
    value.div_ceil(to) * to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_without_overlap() {
        for world in [1, 2, 3, 9, 128, 1024] {
            let layout = Layout::new(world, 300_000, 9_000, 4 << 20, (1 << 20) + 200, 24 << 30);
            let mut end = layout.control;
            for rank in 0..world {
                assert_eq!(layout.board_of(rank), end);
                assert!(layout.ring_of(rank) >= layout.board_of(rank) + layout.board);
                let (block, len) = layout.ring_block(rank);
                assert!(block <= layout.ring_of(rank) && layout.scratch_of(rank) + SCRATCH <= block + len);
                let mut pipe = block + len;
                let pipes = (0..world).map(|writer| layout.pipe_of(rank, writer));
                let posts = (0..world).map(|writer| layout.post_of(rank, writer));
                for place in pipes.chain(posts) {
                    assert_eq!(place, (pipe, (1 << 20) + 256));
                    assert_eq!(pipe % PAIR, 0);
                    pipe += layout.pipe;
                }
                assert!(pipe <= layout.heap_of(rank));
                assert_eq!(layout.heap_of(rank) % BLOCK, 0);
                end = layout.heap_of(rank) + layout.heap;
            }
            assert_eq!(end, layout.total());
            assert!(layout.total() < 1 << 47);
            let group = layout.of_group(3, 5000, 9_000).at(layout.heap_of(0));
            assert_eq!(group.board_of(0), layout.heap_of(0) + BLOCK);
            assert_eq!(group.heap_of(2), layout.heap_of(0) + group.total(), "without heaps");
        }
    }
}
