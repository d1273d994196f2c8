//! Links to the ranks of this host: pipes in the memory that they share. Both ends of one are made without a word between them,
//! since all zeros is an empty pipe.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::arena::{Layout, Segment};
use crate::direct::Control;
use crate::engine::Halt;
use crate::error::Rank;
use crate::hierarchy::Hosts;
use crate::messages::Opener;
use crate::transport::Link;
use crate::transport::shm::ring::Ring;
use crate::transport::shm::{Reader, Writer};
use crate::wait::Wait;

/// The pipes of one rank.
#[derive(Clone, Debug)]
pub(super) struct Pipes {
    segment: Arc<Segment>,
    layout: Layout,
    /// Ranks of this host, in the order in which their memory lies in the segment.
    ranks: Vec<Rank>,
    place: usize,
}

impl Pipes {
    pub fn new(segment: Arc<Segment>, layout: Layout, hosts: &Hosts) -> Pipes {
        Pipes { segment, layout, ranks: hosts.mine().1.to_vec(), place: hosts.place() }
    }

    /// A link to `peer`, to be made once; None if it shares no memory with this rank.
    pub fn link(&self, peer: Rank) -> Option<Link> {
        self.by(peer, Layout::pipe_of)
    }

    /// Bytes that each of them holds.
    pub fn capacity(&self) -> usize {
        self.layout.pipe - Ring::size(0)
    }

    /// Place of a rank of this host among them.
    pub fn place_of(&self, peer: Rank) -> Option<usize> {
        self.ranks.iter().position(|rank| *rank == peer)
    }

    /// Another one, for what is sent outside collectives.
    pub fn post(&self, peer: Rank) -> Option<Link> {
        self.by(peer, Layout::post_of)
    }

    fn by(&self, peer: Rank, place: fn(&Layout, usize, usize) -> (usize, usize)) -> Option<Link> {
        let other = self.place_of(peer)?;
        let ring = |reader, writer| {
            let (offset, len) = place(&self.layout, reader, writer);
            let bell = self.layout.base + offset_of!(Control, bell);
            Ring::new(Arc::clone(&self.segment), offset, len - Ring::size(0), bell)
        };
        Some(Link {
            tx: Box::new(Writer::new(ring(other, self.place), peer)),
            rx: Box::new(Reader::new(ring(self.place, other), peer)),
        })
    }
}

impl Opener for Pipes {
    fn open(&mut self, peer: Rank, _wait: &mut Wait<'_>) -> Result<Link, Halt> {
        Ok(self.link(peer).expect("all ranks of the group are on this host"))
    }

    /// Everything here rings the bell.
    fn alert(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
