//! A deal among arrays that lie in the ranks' own memory: whoever takes a block has the kernel copy it (`peers`).
//!
//! ```text
//! arrive, with the address of what this rank shows        only who can read all others does; if one does not, rounds
//! read every block that is due straight to where it belongs
//! say so, and whether a read was refused;  wait until all have
//! a read was refused anywhere: all deal again, in rounds  (nothing that anybody shows has been touched)
//! ```
//! One read and one write for each byte, as in place, but by the kernel, which first has to find each page: what is in the
//! caches comes at half the speed of a copy here, or less. So the first calls find out whether it pays (`trials`). For moving alone:
//! what is combined would have to be copied first, which its owner does as well, at the same time as others combine.

use crate::kernels::Bytes;
use crate::wait::{Stop, Wait};

use super::deal::{Deal, Take};
use super::{Direct, Turn};

/// Bytes between two looks at whether the others are still there.
const PIECE: usize = 4 << 20;

impl Direct {
    /// Address of what this rank shows, for the others to read.
    pub(super) fn offer_address(&self, deal: &Deal<'_>) -> Option<usize> {
        let address = deal.show.map_or(0, |array| array.as_ptr() as usize);
        (deal.moves && self.peers.are_readable()).then_some(address)
    }

    /// After all have arrived, and said that they can read each other. Through the rings after all if a read is refused.
    pub(super) fn deal_by_kernel(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        longest: usize,
    ) -> Result<(), Stop> {
        if !self.read_all(turn, wait, deal)? {
            self.boards.of(self.me).progress.refused.advance(self.writes + 1);
        }
        self.all_wrote(wait)?;
        // Nobody comes to the next such call before this rank has arrived there.
        let refused = |rank| self.boards.of(rank).progress.refused.reached(self.writes);
        match (0..self.world).any(refused) {
            true => self.deal_in_rounds(turn, wait, deal, longest),
            false => Ok(()),
        }
    }

    /// Takes all that this rank is due. Whether the kernel let it.
    fn read_all(&mut self, turn: &Turn, wait: &mut Wait<'_>, deal: &Deal<'_>) -> Result<bool, Stop> {
        match &deal.take {
            Take::Nothing => Ok(true),
            Take::Identity { dst, dtype, op } => {
                self.put_identity((*dtype, *op), dst, dst.len());
                Ok(true)
            }
            Take::Combined { dst, from, .. } => {
                debug_assert_eq!(from.len(), 1, "what is only moved has one source");
                self.read_block(turn, wait, deal, from.start, dst)
            }
            Take::Blocks { dst, blocks, from } => {
                // Each rank begins with another, so that not all read the same array at the same time.
                for rank in (self.me..self.world).chain(0..self.me).filter(|rank| from.contains(rank)) {
                    let block = &dst[blocks.of(rank - from.start)];
                    if rank == self.me {
                        self.put(block, deal.own, dst.len());
                    } else if !self.read_block(turn, wait, deal, rank, block)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Reads the block that `rank` shows to this one.
    fn read_block(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        rank: usize,
        block: Bytes<'_>,
    ) -> Result<bool, Stop> {
        let array = self.place(turn, rank).address.expect("every rank has offered its array");
        let mut address = array.wrapping_add(self.block_start(turn, deal, rank));
        for piece in block.chunks(PIECE) {
            wait.check()?;
            if !self.peers.read(rank, address, piece) {
                return Ok(false);
            }
            address = address.wrapping_add(piece.len());
        }
        Ok(true)
    }
}
