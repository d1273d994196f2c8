//! What the groups of one job have in common on this rank: the memory of its host, the thread that notices deaths, the
//! control plane. A group within the job adds memory of its own to that, and nothing else: no descriptor, no thread.
//!
//! ```text
//! shared segment:  | job: control, boards, rings, pipes | heap: arrays … | group: control, boards, rings, pipes | … |
//!                                                          the first member on a host sets it aside, the others are invited;
//!                                                          it is given back when all of them have let go of it
//! ```
//! What a call is, and who the members of which group are, is not known here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::heap::{Block, Heap};
use crate::arena::invitations::Invitations;
use crate::arena::{Layout, Segment};
use crate::direct::{Board, Control, Peers, Tuning};
use crate::error::{Error, Rank, Result};
use crate::health::{self, Roster, State};
use crate::hierarchy::Hosts;
use crate::schedule::cost::Model;
use crate::sync::{AtomicU32, Ordering};
use crate::wait::raise;

use super::compression::Rates;
use super::config::Manner;

pub(super) const CONTROL: usize = size_of::<Control>();

/// What one rank shows the others of its host, and where it invites them.
pub(super) const REGION: usize = size_of::<Board>() + Invitations::BYTES;

/// What every group of the job builds on.
#[derive(Debug)]
pub(super) struct Commons {
    /// This rank's number in the job.
    pub rank: Rank,
    /// Of all ranks of the job.
    pub hosts: Hosts,
    pub heap: Arc<Heap>,
    /// None for a job of one rank.
    pub node: Option<Node>,
    /// If ranks are on several hosts.
    pub plane: Option<Plane>,
    shut: AtomicU32,
}

/// What reaches other hosts.
#[derive(Debug)]
pub(super) struct Plane {
    /// Of the group of all.
    pub control: Arc<health::Control>,
    /// How the network was when the job formed: what all ranks know of it.
    pub model: Model,
    /// Whether that was told, not measured.
    pub told: bool,
    /// And how fast the codecs are.
    pub rates: Rates,
    /// Connections that a link is made of.
    pub streams: u16,
}

/// The ranks of this host.
#[derive(Debug)]
pub(super) struct Node {
    pub segment: Arc<Segment>,
    pub layout: Layout,
    /// Of the job, by place on this host.
    pub roster: Roster,
    pub tuning: Tuning,
    pub crowd: bool,
    pub manner: Manner,
    /// By place on this host: those whose own memory this rank can read.
    pub peers: Peers,
    pub alarms: Arc<Alarms>,
    /// This rank's table.
    invitations: Invitations,
    /// Memory of groups that this rank has set aside.
    aside: Mutex<Vec<Aside>>,
}

#[derive(Debug)]
struct Aside {
    key: u64,
    roster: Roster,
    block: Block,
}

/// The controls of this process's groups: where waits must look up when somebody has left.
#[derive(Debug)]
pub(super) struct Alarms {
    segment: Arc<Segment>,
    controls: Mutex<Vec<usize>>,
}

impl Alarms {
    /// Of a job whose control is at the start of the segment.
    pub fn new(segment: Arc<Segment>) -> Alarms {
        Alarms { segment, controls: Mutex::new(vec![0]) }
    }

    fn controls(&self) -> MutexGuard<'_, Vec<usize>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn raise(&self) {
        self.controls().iter().for_each(|at| self.raise_at(*at));
    }

    fn raise_at(&self, at: usize) {
        let control: &Control = self.segment.at(at);
        raise(&control.alarm, &control.bell);
    }
}

impl Commons {
    pub fn new(rank: Rank, hosts: Hosts, heap: Arc<Heap>, node: Option<Node>, plane: Option<Plane>) -> Arc<Commons> {
        Arc::new(Commons { rank, hosts, heap, node, plane, shut: AtomicU32::new(0) })
    }

    /// No group of the job can be used on this rank any more.
    pub fn shut(&self) {
        self.shut.store(1, Ordering::Release);
        if let Some(plane) = &self.plane {
            plane.control.close();
        }
    }

    pub fn ensure_open(&self) -> Result<()> {
        match self.shut.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::Init("arx has been shut down, and all its groups with it".into())),
        }
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("a job of several ranks has memory that they share")
    }
}

impl Node {
    pub fn new(
        segment: Arc<Segment>,
        layout: Layout,
        (roster, place): (Roster, usize),
        (tuning, crowd): (Tuning, bool),
        peers: Peers,
        manner: Manner,
    ) -> Node {
        let alarms = Arc::new(Alarms::new(Arc::clone(&segment)));
        let invitations = Invitations::new(Arc::clone(&segment), layout.board_of(place) + size_of::<Board>());
        Node { segment, layout, roster, tuning, crowd, manner, peers, alarms, invitations, aside: Mutex::default() }
    }

    pub fn control(&self) -> &Control {
        self.segment.at(0)
    }

    /// Sets memory aside for the group of those who have these places on this host, and invites all but the first, which is
    /// this rank. Where it lies.
    pub fn set_aside(&self, heap: &Arc<Heap>, key: u64, places: &[usize]) -> Result<usize> {
        self.sweep();
        let block = heap.reserve(self.plan(places.len()).total()).ok_or_else(|| {
            Error::NoMemory("the shared heap has no room for another group: shut down those that are not needed".into())
        })?;
        let at = block.offset();
        let guests = places.len() - 1;
        // In the list first: a guest may come and go at once.
        self.aside().push(Aside { key, roster: self.roster_at(at, places), block });
        if guests > 0 && !self.invitations.invite(key, at, guests) {
            self.aside().retain(|aside| aside.key != key);
            return Err(Error::NoMemory(
                "too many groups wait for members that have not made them: do all members of a group make it?".into(),
            ));
        }
        self.control().bell.ring();
        Ok(at)
    }

    /// Where the memory lies to which the rank at `host`, a place on this host, has invited this one, once.
    pub fn accept(&self, host: usize, key: u64) -> Option<usize> {
        let table = self.layout.board_of(host) + size_of::<Board>();
        Invitations::new(Arc::clone(&self.segment), table).accept(key)
    }

    /// The memory of a group of so many ranks of this host.
    pub fn plan(&self, ranks: usize) -> Layout {
        self.layout.of_group(ranks, CONTROL + Roster::bytes(ranks), size_of::<Board>())
    }

    /// The roster of the group whose memory lies at `at`.
    pub fn roster_at(&self, at: usize, places: &[usize]) -> Roster {
        self.roster.of_group(at + CONTROL, places.to_vec())
    }

    fn aside(&self) -> MutexGuard<'_, Vec<Aside>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what nobody uses any more.
    fn sweep(&self) {
        self.aside().retain(|aside| {
            let kept = !aside.roster.is_abandoned();
            if !kept {
                self.invitations.withdraw(aside.key);
            }
            kept
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Who leaves the job before the other members of a group must not take away the memory in which they still call.
        self.sweep();
        self.aside().drain(..).for_each(|aside| aside.block.abandon());
    }
}

/// A member's hold on the memory of its group. Who drops it has left the group.
#[derive(Debug)]
pub(super) struct Lease {
    commons: Arc<Commons>,
    roster: Roster,
    place: Rank,
    at: usize,
}

impl Lease {
    /// Takes the place of this rank in the group whose memory lies at `at`.
    pub fn new(commons: &Arc<Commons>, roster: Roster, place: usize, at: usize) -> Lease {
        let place = place as Rank;
        roster.join(place);
        commons.node().alarms.controls().push(at);
        Lease { commons: Arc::clone(commons), roster, place, at }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let node = self.commons.node();
        if self.roster.leave(self.place, State::Finished, &[]) {
            node.alarms.raise_at(self.at);
        }
        node.alarms.controls().retain(|at| *at != self.at);
        self.roster.let_go(self.place);
        node.sweep();
    }
}
