//! What the ranks of a host share, whether they are the whole group or a part of one that spans hosts: how they meet, and the
//! memory that they then have in common.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::arena::heap::Heap;
use crate::arena::{Layout, Segment};
use crate::direct::{Boards, Direct, Known, NEVER, Peers};
use crate::error::{Error, Rank, Result};
use crate::health::{Roster, State};
use crate::hierarchy::Hosts;
use crate::machine;
use crate::rendezvous::{Job, Terms, join};
use crate::transport::shm::ring::Ring;
use crate::wait::Host;

use super::commons::{Alarms, CONTROL, Node, REGION};
use super::config::{self, Config};
use super::pipes::Pipes;

/// The memory that the ranks of a host share, as one of them sees it.
#[derive(Debug)]
pub(super) struct Shared {
    pub node: Node,
    pub direct: Direct,
    pub heap: Arc<Heap>,
    pub listener: Option<OwnedFd>,
}

impl Shared {
    /// Meets the other ranks of `job`, which are all on this host.
    pub fn join(job: &Job, config: &Config, host: &mut dyn Host) -> Result<Shared> {
        let world = job.world as usize;
        let (control, pipe) = (CONTROL + Roster::bytes(world), Ring::size(config.pipe(world)));
        let layout = Layout::new(world, control, REGION, config.ring(), pipe, machine::memory());
        let known = Known::new();
        let entered = RefCell::new(None);
        let enter = |segment: &Arc<Segment>, layout: &Layout| {
            if let Some(known) = &known {
                known.show(&Boards::new(Arc::clone(segment), *layout), job.rank as usize);
            }
            let roster = Roster::new(Arc::clone(segment), CONTROL, layout.world);
            roster.enter(job.rank, &machine::cpus(), machine::quota());
            entered.replace(Some((roster, Alarms::new(Arc::clone(segment)))));
        };
        let joined = join(job, Terms { layout, settings: config.settings() }, &enter, host).inspect_err(|error| {
            if let Some((roster, alarms)) = entered.take() {
                withdraw(job.rank, error, &roster, &alarms);
            }
        })?;
        let (layout, segment) = (joined.terms.layout, Arc::clone(&joined.segment));
        let roster = Roster::new(Arc::clone(&segment), CONTROL, world);
        let (tuning, cores) = config::told(joined.terms.settings);
        let crowd = world > cores.unwrap_or_else(|| roster.cores());
        let rank = job.rank as usize;
        let heap = Heap::new(Arc::clone(&segment), layout.heap_of(rank), layout.heap, rank);
        for (start, len) in (0..world).map(|rank| layout.ring_block(rank)) {
            segment.prefer_huge(start, len);
        }
        let boards = Boards::new(Arc::clone(&segment), layout);
        let peers = if tuning.kernel == NEVER { Peers::none(world) } else { Peers::find(&boards, known) };
        let direct = Direct::new(boards, rank, crowd, tuning).reading(peers.clone());
        let node = Node::new(segment, layout, (roster, rank), (tuning, crowd), peers, config.manner(crowd));
        Ok(Shared { node, direct, heap: Arc::new(heap), listener: joined.listener })
    }

    /// Between the ranks of this host, of which `hosts` says who they are.
    pub fn pipes(&self, hosts: &Hosts) -> Pipes {
        Pipes::new(Arc::clone(&self.node.segment), self.node.layout, hosts)
    }
}

/// This rank is not in the group after all, but others may be, and count on it.
fn withdraw(rank: Rank, error: &Error, roster: &Roster, alarms: &Alarms) {
    let state = if matches!(error, Error::Interrupted) { State::Interrupted } else { State::Failed };
    roster.leave(rank, state, &[]);
    // Of a death they hear by themselves, and then name the dead instead of those who saw it first.
    if !matches!(error, Error::PeerLost { .. }) {
        alarms.raise();
    }
}
