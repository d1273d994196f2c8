//! How an array is cut into a block for each rank.

use std::ops::Range;

/// Added to a length that a rank announces: it wants to hear all lengths before anything moves, even if they are equal.
pub const ASK: usize = 1 << (usize::BITS - 1);

/// A block of bytes for each rank, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// All of the same length.
    Even { len: usize, count: usize },
    /// Block `r` is bytes `edges[r]..edges[r + 1]`; the first edge is 0.
    Cut(&'a [usize]),
}

impl Blocks<'_> {
    /// How many.
    #[inline]
    pub fn count(&self) -> usize {
        match *self {
            Blocks::Even { count, .. } => count,
            Blocks::Cut(edges) => edges.len() - 1,
        }
    }

    /// Where the block of `rank` lies.
    #[inline]
    pub fn of(&self, rank: usize) -> Range<usize> {
        match *self {
            Blocks::Even { len, count } => {
                debug_assert!(rank < count);
                rank * len..(rank + 1) * len
            }
            Blocks::Cut(edges) => edges[rank]..edges[rank + 1],
        }
    }

    /// Bytes of all blocks.
    #[inline]
    pub fn total(&self) -> usize {
        match *self {
            Blocks::Even { len, count } => len * count,
            Blocks::Cut(edges) => edges[edges.len() - 1],
        }
    }

    /// Bytes of the longest block.
    #[inline]
    pub fn longest(&self) -> usize {
        match *self {
            Blocks::Even { len, .. } => len,
            Blocks::Cut(edges) => edges.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other() {
        for blocks in [Blocks::Even { len: 6, count: 3 }, Blocks::Cut(&[0, 6, 12, 18])] {
            assert_eq!((blocks.count(), blocks.total(), blocks.longest()), (3, 18, 6));
            assert_eq!([0, 1, 2].map(|rank| blocks.of(rank)), [0..6, 6..12, 12..18]);
        }
        let uneven = Blocks::Cut(&[0, 0, 5, 7]);
        assert_eq!((uneven.count(), uneven.total(), uneven.longest()), (3, 7, 5));
        assert_eq!([0, 1, 2].map(|rank| uneven.of(rank)), [0..0, 0..5, 5..7]);
    }
}
