//! Collectives by messages, among any ranks of a group: opens the links that a schedule needs, keeps the plans that were made,
//! and has the engine run them.
//!
//! ```text
//! (collective, algorithm, team) ─► schedule ─► plan for so many bytes or these chunks (kept)
//!                                     ─► engine, over links (opened on first use)
//! ```
//! Which algorithm is best is `select`'s business, how a link is opened that of whoever made this (`Opener`).

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::engine::{self, Arithmetic, Halt, Header, Memory};
use crate::error::Rank;
use crate::kernels::Bytes;
use crate::plan::{Chunk, Plan, compile, compile_cut};
use crate::schedule::{Algorithm, Collective, Schedule};
use crate::transport::Link;
use crate::wait::Wait;

/// Bytes of temporary memory that a tile of a call may fill: half of the usual second-level cache.
const TILE: usize = 512 << 10;

/// Bytes of a chunk of a tile, at least: below this, calls of the system are what a chunk costs.
const CHUNK: usize = 16 << 10;

/// Plans that are kept; a training loop has one per shape of its arrays.
const KEPT: usize = 64;

/// Makes links to other ranks.
pub trait Opener: Send {
    /// A link to `peer`, which opens one to this rank at the same time: it runs the same schedule.
    fn open(&mut self, peer: Rank, wait: &mut Wait<'_>) -> Result<Link, Halt>;

    /// What becomes readable when a wait should look around.
    fn alert(&self) -> Option<BorrowedFd<'_>>;
}

/// Ranks that run a schedule together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// Ranks of the group, in the order in which the schedule counts them.
    ranks: Arc<[Rank]>,
    /// This rank's place among them.
    me: u32,
}

impl Team {
    /// None if `rank` is not one of `ranks`.
    pub fn new(ranks: Vec<Rank>, rank: Rank) -> Option<Team> {
        let me = ranks.iter().position(|r| *r == rank)? as u32;
        Some(Team { ranks: ranks.into(), me })
    }

    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Ranks of the group, in the order of the team.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// This rank's place among them.
    pub fn place(&self) -> u32 {
        self.me
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub collective: Collective,
    pub algorithm: Algorithm,
    pub team: Team,
    /// Bytes of an element.
    pub elem: usize,
}

/// The memory that a request works on.
#[derive(Clone, Copy, Debug)]
pub struct Arrays<'a> {
    pub array: Bytes<'a>,
    /// What is only read, if it is not in the array.
    pub source: Bytes<'a>,
    pub cut: Cut<'a>,
}

/// How an array is cut into the chunks of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut<'a> {
    Even,
    /// Where each chunk lies; if these are a multiple of the schedule's, so many of them make up one of those.
    Chunks(&'a [Chunk]),
}

impl<'a> Arrays<'a> {
    /// An array that is cut evenly.
    pub fn even(array: Bytes<'a>) -> Arrays<'a> {
        Arrays { array, source: &[], cut: Cut::Even }
    }

    /// All that its plan depends on.
    fn fits(&self, kept: &Kept) -> bool {
        match self.cut {
            Cut::Even => kept.chunks.is_none() && kept.bytes == self.array.len(),
            Cut::Chunks(chunks) => kept.chunks.as_deref() == Some(chunks),
        }
    }
}

/// A request for arrays that are cut in one way, and what follows from it.
struct Kept {
    request: Request,
    bytes: usize,
    /// None where it is cut evenly.
    chunks: Option<Box<[Chunk]>>,
    plan: Arc<Plan>,
    peers: Arc<[Rank]>,
}

/// This rank's links and plans.
pub struct Messages {
    links: Vec<Option<Link>>,
    opener: Box<dyn Opener>,
    /// The last one used is the last here.
    plans: Vec<Kept>,
    scratch: Vec<Cell<u8>>,
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.links.iter().filter(|link| link.is_some()).count();
        f.debug_struct("Messages").field("open", &open).field("plans", &self.plans.len()).finish()
    }
}

impl Messages {
    /// In a group of `world` ranks.
    pub fn new(world: usize, opener: Box<dyn Opener>) -> Messages {
        Messages { links: (0..world).map(|_| None).collect(), opener, plans: Vec::new(), scratch: Vec::new() }
    }

    /// Runs `request` on these arrays.
    ///
    /// # Panics
    /// When its algorithm does not serve its collective.
    pub fn run(
        &mut self,
        request: &Request,
        arrays: &Arrays<'_>,
        arithmetic: Arithmetic,
        header: Header,
        wait: &mut Wait<'_>,
    ) -> Result<(), Halt> {
        let (plan, peers) = self.plan(request, arrays);
        self.carry_out(&plan, &peers, arrays, (arithmetic, header), wait)
    }

    /// The same for lengths that will hardly come again: the plan is not kept.
    ///
    /// # Panics
    /// As `run`.
    pub fn run_once(
        &mut self,
        request: &Request,
        arrays: &Arrays<'_>,
        arithmetic: Arithmetic,
        header: Header,
        wait: &mut Wait<'_>,
    ) -> Result<(), Halt> {
        let Kept { plan, peers, .. } = Kept::new(request, arrays);
        self.carry_out(&plan, &peers, arrays, (arithmetic, header), wait)
    }

    /// Runs a schedule that counts ranks as the group does, once: nothing of it is kept.
    pub fn follow(
        &mut self,
        schedule: &Schedule,
        data: Bytes<'_>,
        arithmetic: Arithmetic,
        header: Header,
        wait: &mut Wait<'_>,
    ) -> Result<(), Halt> {
        let plan = compile(schedule, data.len(), arithmetic.last.elem(), usize::MAX);
        let peers: Vec<Rank> = plan.peers().into_iter().collect();
        self.carry_out(&plan, &peers, &Arrays::even(data), (arithmetic, header), wait)
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        peers: &[Rank],
        arrays: &Arrays<'_>,
        (arithmetic, header): (Arithmetic, Header),
        wait: &mut Wait<'_>,
    ) -> Result<(), Halt> {
        for peer in peers {
            let link = &mut self.links[*peer as usize];
            if link.is_none() {
                *link = Some(self.opener.open(*peer, wait)?);
            }
        }
        let Arrays { array, source, .. } = *arrays;
        let memory = Memory { array, source, scratch: aligned(&mut self.scratch, plan.scratch) };
        let call = engine::Call { plan, memory, arithmetic, header };
        engine::run(&call, &mut self.links, self.opener.alert(), wait)
    }

    fn plan(&mut self, request: &Request, arrays: &Arrays<'_>) -> (Arc<Plan>, Arc<[Rank]>) {
        match self.plans.iter().rposition(|kept| kept.request == *request && arrays.fits(kept)) {
            Some(at) => {
                let last = self.plans.len() - 1;
                self.plans.swap(at, last);
            }
            None => {
                if self.plans.len() == KEPT {
                    self.plans.remove(0);
                }
                self.plans.push(Kept::new(request, arrays));
            }
        }
        let kept = self.plans.last().expect("just put there");
        (Arc::clone(&kept.plan), Arc::clone(&kept.peers))
    }
}

impl Kept {
    fn new(request: &Request, arrays: &Arrays<'_>) -> Kept {
        let Request { collective, algorithm, team, elem } = request;
        let schedule = algorithm
            .schedule(*collective, team.me, team.size())
            .unwrap_or_else(|| panic!("{algorithm} does not serve {collective:?}"))
            .on(&team.ranks);
        // How long a chunk of a tile may be; the same on all ranks, or they would wait for each other in different tiles.
        let chunk = |parts: usize| match parts * algorithm.scratch(*collective, team.size()) as usize {
            0 => usize::MAX,
            scratch => (TILE / scratch).max(CHUNK),
        };
        let (plan, chunks) = match arrays.cut {
            Cut::Even => {
                let tile = chunk(1).saturating_mul(schedule.chunks as usize);
                (compile(&schedule, arrays.array.len(), *elem, tile), None)
            }
            Cut::Chunks(chunks) => {
                let parts = chunks.len() / schedule.chunks as usize;
                let plan = compile_cut(&schedule.in_parts(parts as u32), chunks, *elem, chunk(parts));
                (plan, Some(chunks.into()))
            }
        };
        let (request, bytes) = (request.clone(), arrays.array.len());
        let peers = plan.peers().into_iter().collect();
        Kept { request, bytes, chunks, plan: Arc::new(plan), peers }
    }
}

/// `len` bytes of `memory`, aligned to a cache line.
pub fn aligned(memory: &mut Vec<Cell<u8>>, len: usize) -> Bytes<'_> {
    const LINE: usize = 64;
    if memory.len() < len + LINE {
        memory.resize(len + LINE, Cell::new(0));
    }
    let skip = memory.as_ptr().align_offset(LINE);
    &memory[skip..skip + len]
}
