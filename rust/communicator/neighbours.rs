//! The other ranks of this host, as letters reach them: through pipes, or by being read where they lie.
//!
//! A pipe is two copies, by two ranks at the same time; reading by the kernel (`direct::Peers`) is one, by the reader, who has to find
//! each page first. Where ranks have cores of their own the pipe is faster at every size: on Zen 5, us for one way between two ranks,
//!
//! ```text
//!                            1 MiB   4 MiB   16 MiB   64 MiB
//! a core each: pipe             22      87      553     3076
//!              by the kernel    97     121      932     3761
//! 4 ranks on 2 cores: pipe      58   3,899    7,936   17,487
//!              by the kernel   106     140      984    4,133
//! ```
//! Where ranks share cores a pipe that is full costs a change of process, or a time slice. So it is done there, for letters that
//! no pipe holds: what fits is sent without waiting for the receiver, who may come later.

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
