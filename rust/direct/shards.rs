//! This host's part in a collective that spans hosts: reduce into shards, and gather them again.
//!
//! ```text
//! reduce_scatter   owner j ends with shard j of all arrays of the host, combined in rank order
//!                  (owners of the same shard on different hosts combine theirs, by messages)
//! all_gather       everybody copies all shards from their owners
//! ```
//! Both go through the staging rings, as any other deal (`rounds`). There may be fewer shards than ranks; a rank without one
//! lends its array and takes the result.

use std::ops::Range;

use crate::blocks::Blocks;
use crate::kernels::{Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::deal::Deal;
use super::{Algorithm, Dealt, Direct, Turn, Verdict};

/// How an array of `len` bytes is dealt out to the first `count` ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    pub len: usize,
    pub count: usize,
}

impl Shards {
    /// Bytes that `owner` owns: whole cache lines, but for the end of the array; none for ranks without a shard.
    pub fn of(&self, owner: usize) -> Range<usize> {
        self.edge(owner)..self.edge(owner + 1)
    }

    fn edge(&self, k: usize) -> usize {
        let part = self.len.div_ceil(self.count).next_multiple_of(64);
        if k >= self.count { self.len } else { self.len.min(k * part) }
    }

    /// A block for each of `world` ranks.
    fn edges(&self, world: usize) -> Vec<usize> {
        (0..=world).map(|k| self.edge(k)).collect()
    }
}

impl Direct {
    /// Arrives. If all agree, this rank's shard of `dst` = combination of all `src`; the rest of `dst` is not touched.
    pub fn reduce_scatter(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: &Reducer,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        shards: &Shards,
    ) -> Result<Verdict, Stop> {
        // `all_gather` looks at where the arrival says that inputs are, so that there must be no payload.
        let turn = Turn { algorithm: Algorithm::Staged, ..*turn };
        let edges = shards.edges(self.world);
        let shard = &dst[shards.of(self.me)];
        let deal = Deal::reduce_scatter(self.me, *reducer, Blocks::Cut(&edges), (shard, src));
        match self.deal(&turn, wait, &deal)? {
            Dealt::Done => Ok(Verdict::Agreed),
            Dealt::Differs => Ok(Verdict::Differs),
            Dealt::Uneven(_) => unreachable!("all ranks know the lengths of all shards"),
        }
    }

    /// In a call in which all have arrived: `array` = everybody's shards.
    pub fn all_gather(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        array: Bytes<'_>,
        shards: &Shards,
    ) -> Result<(), Stop> {
        let edges = shards.edges(self.world);
        let deal = Deal::all_gather(Blocks::Cut(&edges), true, (array, &array[shards.of(self.me)]));
        self.deal_in_rounds(turn, wait, &deal, deal.size.bytes())
    }

    /// In a call in which all have arrived: waits until everybody has come here.
    pub fn regroup(&mut self, wait: &mut Wait<'_>) -> Result<(), Stop> {
        self.all_wrote(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_the_array_once() {
        for len in [0, 1, 63, 64, 65, 1000, 4096, 12345] {
            for count in 1..6 {
                let shards = Shards { len, count };
                let mut end = 0;
                for owner in 0..count + 2 {
                    let Range { start, end: next } = shards.of(owner);
                    assert_eq!(start, end, "owner {owner} of {shards:?}");
                    assert!(start % 64 == 0 || start == len, "owner {owner} of {shards:?}");
                    end = next;
                }
                assert_eq!(end, len);
            }
        }
    }
}
