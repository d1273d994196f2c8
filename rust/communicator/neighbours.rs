//! The other ranks of this host, as letters reach them: through pipes, or by being read where they lie.
//!
//! A pipe is two copies, by two ranks at the same time; reading by the kernel (`direct::Peers`) is one, by the reader, who has to find
//! each page first. On Zen 5, in us:
//!
//! ```text
//!                                                       1 MiB        2 MiB        4 MiB         16 MiB    64 MiB
//! 2 ranks, 2 cores, one way        by a pipe               22           42           87            553     3,076
//!                                  by the kernel           97          172          121            932     3,761
//! 4 ranks, 2 cores, in two pairs   by a pipe                   93 or 4,009                1,800 or 7,700
//!                                  by the kernel                       228                       1,480
//! 4 ranks, 2 cores, to the next    by a pipe                   850 … 1,700  1,700 … 5,600  3,100 or 14,000
//!                                  by the kernel                       490          800          3,300
//! ```
//! So where each rank has a core the pipe is taken. Where ranks share cores, one that is full costs a change of process or, as the
//! system has placed them, a time slice: there the kernel reads what no pipe holds. What fits is sent without waiting for the
//! receiver, who may come later.

use crate::direct::{Direct, MEASURE, NEVER, Peers};
use crate::error::Rank;
use crate::kernels::Bytes;
use crate::post::Sight;
use crate::transport::Link;

use super::pipes::Pipes;

/// Those of one rank.
#[derive(Debug)]
pub(super) struct Neighbours {
    pipes: Pipes,
    peers: Peers,
    /// Bytes of a letter that is to be read where it lies.
    least: usize,
}

impl Neighbours {
    pub fn new(direct: &Direct, pipes: &Pipes) -> Neighbours {
        let least = match direct.tuning().kernel {
            MEASURE if direct.is_crowd() => pipes.capacity(),
            MEASURE => NEVER,
            told => told,
        };
        Neighbours { pipes: pipes.clone(), peers: direct.peers().clone(), least }
    }

    /// What there is between this rank and `peer`, to be made once; None if that is on another host. No sight where nobody looks:
    /// ranks agree on how long a letter must be.
    pub fn meet(&self, peer: Rank) -> Option<(Link, Option<Box<dyn Sight>>)> {
        let (peers, least) = (self.peers.of(&[self.pipes.place_of(peer)?]), self.least);
        let sight = || Box::new(Neighbour { peers, least }) as Box<dyn Sight>;
        Some((self.pipes.post(peer)?, (least != NEVER).then(sight)))
    }
}

struct Neighbour {
    /// Of this one alone.
    peers: Peers,
    least: usize,
}

impl Sight for Neighbour {
    /// Who can read the other one can mostly be read by it, too.
    fn place(&self, array: Bytes<'_>) -> Option<u64> {
        (array.len() >= self.least && self.peers.are_readable()).then_some(array.as_ptr() as usize as u64)
    }

    fn read(&mut self, place: u64, at: usize, dst: Bytes<'_>) -> bool {
        self.peers.read(0, (place as usize).wrapping_add(at), dst)
    }
}
