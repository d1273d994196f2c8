//! Collectives that move blocks and combine nothing.
//!
//! ```text
//! all_gather    own blocks shared within the host, if some are carried by others
//!               teams gather the blocks of their rows                               each block once into every host
//!               what the teams have brought, shared within the host
//! the others    every block goes straight from the rank that has it to the one that gets it, or along a tree
//! ```
//! All of these come after the ranks of this host have arrived (`Session::arrive`).

use std::cell::Cell;

use super::rows::Rows;
use super::{Session, Way, bytes};
use crate::blocks::{ASK, Blocks};
use crate::engine::Halt;
use crate::error::Rank;
use crate::kernels::{Bytes, copy};
use crate::messages::{Arrays, Cut};
use crate::plan::{Chunk, Home};
use crate::schedule::{Algorithm, Collective};

/// What a rank announces: how long its block is, and the block, if there is room. A cache line, so that it costs little where
/// blocks are long, and few bytes need not travel after it.
const SLOT: usize = 64;
const WORD: usize = size_of::<u64>();

/// What all ranks have announced.
#[derive(Debug)]
pub struct Announced(Vec<Cell<u8>>);

impl Announced {
    /// Of each rank.
    pub const BYTES: usize = SLOT;
    /// Bytes of the longest block that travels with its length.
    pub const SHORT: usize = SLOT - WORD;

    /// Bytes of each rank's block, with `ASK` of those that ask.
    pub fn lengths(&self) -> Vec<usize> {
        let number = |slot: &[Cell<u8>]| u64::from_le_bytes(std::array::from_fn(|i| slot[i].get())) as usize;
        self.0.chunks_exact(SLOT).map(number).collect()
    }

    /// Copies everybody's block to `dst`, one after the other, if all are as long as this rank's and short.
    pub fn deliver(&self, len: usize, dst: Bytes<'_>) {
        for (block, slot) in dst.chunks_exact(len.max(1)).zip(self.0.chunks_exact(SLOT)) {
            copy(block, &slot[WORD..WORD + len]);
        }
    }
}

impl Session<'_, '_> {
    /// `dst` = everybody's block; `src` is this rank's, and may lie there already.
    pub fn all_gather(
        &mut self,
        way: Way,
        blocks: &Blocks<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let hosts = self.hosts;
        let rows = Rows::new(hosts, blocks, 1);
        put(&dst[rows.block(hosts.rank())], src);
        let algorithm = match way {
            Way::Hierarchical(algorithm) => algorithm,
            Way::Flat(algorithm) => {
                let chunks = chunks(blocks, |_, at| Home::Array(at));
                return self.move_blocks(Collective::AllGather, algorithm, &chunks, (dst, &[]));
            }
        };
        if rows.some_are_carried() {
            self.share(dst, &rows.own())?;
        }
        if let Some(team) = hosts.team(hosts.place()) {
            let chunks = rows.chunks(hosts.place());
            let arrays = Arrays { array: dst, source: &[], cut: Cut::Chunks(&chunks) };
            self.by_messages((Collective::AllGather, algorithm, team.clone()), bytes(), &arrays)?;
        }
        let (here, all) = (hosts.mine().0, !rows.some_are_carried());
        self.share(dst, &rows.carried(|host| all || host != here))
    }

    /// Tells everybody how long this rank's block is, and what is in it if it is short.
    pub fn announce(&mut self, way: Way, src: Bytes<'_>, ask: bool) -> Result<Announced, Halt> {
        let count = self.hosts.ranks() as usize;
        let slots = vec![Cell::new(0_u8); SLOT * count];
        let own = [const { Cell::new(0_u8) }; SLOT];
        let word = (src.len() | if ask { ASK } else { 0 }) as u64;
        own.iter().zip(word.to_le_bytes()).for_each(|(cell, byte)| cell.set(byte));
        if src.len() <= Announced::SHORT {
            copy(&own[WORD..WORD + src.len()], src);
        }
        self.all_gather(way, &Blocks::Even { len: SLOT, count }, (&slots, &own))?;
        Ok(Announced(slots))
    }

    /// `dst` of `root` = everybody's block; the others have none. `src` is this rank's block.
    pub fn gather(
        &mut self,
        algorithm: Algorithm,
        root: Rank,
        blocks: &Blocks<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let me = self.hosts.rank();
        if me == root {
            put(&dst[blocks.of(me as usize)], src);
        }
        let chunks = chunks(blocks, |rank, at| match (me == root, rank == me) {
            (true, _) => Home::Array(at),
            (false, true) => Home::Source(0),
            (false, false) => Home::Passing,
        });
        self.move_blocks(Collective::Gather(root), algorithm, &chunks, (dst, src))
    }

    /// `dst` = this rank's block of what `root` brings; the others bring nothing.
    pub fn scatter(
        &mut self,
        algorithm: Algorithm,
        root: Rank,
        blocks: &Blocks<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let me = self.hosts.rank();
        let chunks = chunks(blocks, |rank, at| match (me == root, rank == me) {
            (true, _) => Home::Source(at),
            (false, true) => Home::Array(0),
            (false, false) => Home::Passing,
        });
        self.move_blocks(Collective::Scatter(root), algorithm, &chunks, (dst, src))?;
        if me == root {
            put(dst, &src[blocks.of(me as usize)]);
        }
        Ok(())
    }

    /// What everybody brings for this rank; `give` says where in `src` that for each rank lies, `take` where in `dst` what
    /// comes from each.
    pub fn all_to_all(
        &mut self,
        algorithm: Algorithm,
        (give, take): (&Blocks<'_>, &Blocks<'_>),
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let mut all = chunks(give, |_, at| Home::Source(at));
        all.extend(chunks(take, |_, at| Home::Array(at)));
        self.move_blocks(Collective::AllToAll, algorithm, &all, (dst, src))
    }

    fn move_blocks(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        chunks: &[Chunk],
        (array, source): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        self.among_all(collective, algorithm, bytes(), &Arrays { array, source, cut: Cut::Chunks(chunks) })
    }
}

/// A chunk for each rank's block; `home` says where that of a rank lies, which starts at a certain byte of the array.
pub(super) fn chunks(blocks: &Blocks<'_>, home: impl Fn(Rank, usize) -> Home) -> Vec<Chunk> {
    let chunk = |rank: usize| {
        let block = blocks.of(rank);
        Chunk { home: home(rank as Rank, block.start), len: block.len() }
    };
    (0..blocks.count()).map(chunk).collect()
}

/// Copies a block, unless it is there already.
pub(super) fn put(dst: Bytes<'_>, src: Bytes<'_>) {
    if dst.as_ptr() != src.as_ptr() {
        copy(dst, src);
    }
}
