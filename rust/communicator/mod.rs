//! One rank's end of a group: numbers the calls, runs them on the direct path, and turns whatever goes wrong into an error
//! that names ranks and calls.
//!
//! ```text
//! open ──call, all agree──► open            a call in which ranks disagree, or one refuses, leaves the group open
//!   └──peer lost, time-out, interrupt──► closed for good: late data can never meet a later call
//! ```
//! `call` says what ranks must agree on, `blame` finds out whose fault a failure is. `&mut self` everywhere: one
//! collective at a time, by type.

mod blame;
mod call;
mod config;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::arena::heap::{Block, Heap};
use crate::arena::{Layout, Segment};
use crate::direct::words::AHEAD;
use crate::direct::{Boards, Control, Direct, PAYLOAD, Turn, Verdict};
use crate::error::{Error, Rank, Result};
use crate::health::{Alarm, Door, Roster, State, Watcher};
use crate::kernels::{Bytes, Reducer, copy};
use crate::machine;
use crate::rendezvous::{Job, LateDoor, Terms, join};
use crate::wait::{Host, Patience, Stop, Wait, raise};

pub use crate::direct::Algorithm;
pub use call::{Call, Collective, Element, tuple};
pub use config::Config;

/// A group as one rank sees it.
#[derive(Debug)]
pub struct Communicator {
    rank: Rank,
    world: u32,
    /// Calls begun so far.
    sequence: u64,
    /// Refused calls in a row that nobody has been waited for.
    refusals: u64,
    timeout: Duration,
    closed: Option<Error>,
    heap: Arc<Heap>,
    /// None in a world of one.
    link: Option<Link>,
}

/// What connects a rank with others.
#[derive(Debug)]
struct Link {
    direct: Direct,
    roster: Roster,
    spin: Duration,
    /// Dropped, and so joined, when the group is left.
    watcher: Option<Watcher>,
    /// Number of rank 0's socket, which the watcher holds.
    socket: Option<RawFd>,
}

const CONTROL: usize = size_of::<Control>();

impl Communicator {
    /// Meets the other ranks; returns when all of them are there.
    pub fn connect(config: &Config, host: &mut dyn Host) -> Result<Communicator> {
        config.check()?;
        check_descriptors(config.world)?;
        if config.world == 1 {
            let size = machine::memory().next_multiple_of(2 << 20);
            let segment = Arc::new(Segment::create(size)?.0);
            return Ok(Communicator::new(config, Heap::new(segment, 0, size, 0), None));
        }
        let world = config.world as usize;
        let control = CONTROL + Roster::bytes(world);
        let board = size_of::<crate::direct::Board>();
        let layout = Layout::new(world, control, board, config.ring(), machine::memory());
        let enter = |segment: &Arc<Segment>, layout: &Layout| {
            let roster = Roster::new(Arc::clone(segment), CONTROL, layout.world);
            roster.enter(config.rank, &machine::cpus(), machine::quota());
        };
        let job = Job {
            id: config.job_id.clone(),
            generation: config.generation,
            rank: config.rank,
            world: config.world,
            timeout: config.timeout,
        };
        let joined = join(&job, Terms { layout, settings: config.settings() }, &enter, host)?;
        let (layout, segment) = (joined.terms.layout, joined.segment);
        let roster = Roster::new(Arc::clone(&segment), CONTROL, world);
        let (tuning, cores) = config::told(joined.terms.settings);
        let crowd = world > cores.unwrap_or_else(|| roster.cores());
        let socket = joined.listener.as_ref().map(AsRawFd::as_raw_fd);
        let door = joined
            .listener
            .map(|listener| Box::new(LateDoor::new(listener, roster.clone(), config.job_id.clone())) as Box<dyn Door>);
        let alarm = Alarm { segment: Arc::clone(&segment), raise: raise_in };
        let watcher = Watcher::start(roster.clone(), config.rank, alarm, door).inspect_err(|_| {
            // The others already count on this rank.
            roster.leave(config.rank, State::Failed, &[]);
            raise_in(&segment);
        })?;
        let rank = config.rank as usize;
        let heap = Heap::new(Arc::clone(&segment), layout.heap_of(rank), layout.heap, rank);
        for (start, len) in (0..world).map(|rank| layout.ring_block(rank)) {
            segment.prefer_huge(start, len);
        }
        let boards = Boards::new(segment, layout);
        let link = Link {
            direct: Direct::new(boards, rank, crowd, tuning),
            roster,
            spin: config.spin(crowd),
            watcher: Some(watcher),
            socket,
        };
        Ok(Communicator::new(config, heap, Some(link)))
    }

    fn new(config: &Config, heap: Heap, link: Option<Link>) -> Communicator {
        Communicator {
            rank: config.rank,
            world: config.world,
            sequence: 0,
            refusals: 0,
            timeout: config.timeout,
            closed: None,
            heap: Arc::new(heap),
            link,
        }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    /// Number of the job's socket on rank 0: a forked child closes its copy, which would keep the job's name taken.
    pub fn socket(&self) -> Option<RawFd> {
        self.link.as_ref().and_then(|link| link.socket)
    }

    /// More ranks than cores.
    pub fn is_crowd(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.direct.is_crowd())
    }

    /// Memory for a symmetric array of `len` bytes, all zero.
    pub fn allocate(&self, len: usize) -> Result<Block> {
        // After a time-out a slow rank may still write into an array that has been freed since.
        self.ensure_open()?;
        self.heap.allocate(len).ok_or_else(|| {
            Error::NoMemory(format!("the shared heap of rank {} has no room for an array of {len} bytes", self.rank))
        })
    }

    /// `dst` = combination of everybody's `src`; `dst` may be `src`.
    pub fn all_reduce(
        &mut self,
        call: &Call<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
        host: &mut dyn Host,
    ) -> Result<()> {
        if self.link.is_none() {
            return self.alone_call(|| copy(dst, src));
        }
        let empty = src.is_empty();
        self.run(call, host, |direct, turn, wait| match empty {
            true => direct.barrier(turn, wait),
            false => direct.all_reduce(turn, wait, reducer, dst, src),
        })
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(&mut self, call: &Call<'_>, root: Rank, array: Bytes<'_>, host: &mut dyn Host) -> Result<()> {
        if self.link.is_none() {
            return self.alone_call(|| ());
        }
        self.run(call, host, |direct, turn, wait| match array.is_empty() {
            true => direct.barrier(turn, wait),
            false => direct.broadcast(turn, wait, root as usize, array),
        })
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, call: &Call<'_>, host: &mut dyn Host) -> Result<()> {
        if self.link.is_none() {
            return self.alone_call(|| ());
        }
        self.run(call, host, |direct, turn, wait| direct.barrier(turn, wait))
    }

    fn alone_call(&mut self, work: impl FnOnce()) -> Result<()> {
        self.ensure_open()?;
        work();
        Ok(())
    }

    fn ensure_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    #[inline]
    fn run(
        &mut self,
        call: &Call<'_>,
        host: &mut dyn Host,
        work: impl FnOnce(&mut Direct, &Turn, &mut Wait<'_>) -> std::result::Result<Verdict, Stop>,
    ) -> Result<()> {
        self.ensure_open()?;
        self.sequence += 1;
        self.refusals = 0;
        let Link { direct, roster, spin, .. } = self.link.as_mut().expect("a world of one does not come here");
        let turn = Turn { sequence: self.sequence, fingerprint: call.fingerprint(), algorithm: call.algorithm };
        let boards = direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| roster.broken(turn.sequence, self.rank),
            patience: Patience { spin: *spin, limit: call.timeout.unwrap_or(self.timeout) },
            host,
        };
        let outcome = match work(direct, &turn, &mut wait) {
            Ok(Verdict::Agreed) => Ok(Ok(())),
            Ok(Verdict::Differs) => blame::disagreement(direct, &turn, call, &mut wait).map(Err),
            Err(stop) => Err(stop),
        };
        match outcome {
            Ok(result) => {
                roster.complete(self.rank, turn.sequence);
                result.map_err(Error::Mismatch)
            }
            Err(stop) => Err(self.close_after(stop, &turn, call)),
        }
    }

    /// Takes part in the next call with nothing but a reason for not doing so, so that the other ranks raise instead of
    /// waiting. Returns at once: the caller's own mistake is not worth waiting for others.
    pub fn refuse(&mut self, reason: &str, host: &mut dyn Host) -> Result<()> {
        if self.closed.is_some() || self.link.is_none() {
            return Ok(());
        }
        if self.refusals >= AHEAD {
            // Arrivals have a few generations only: see that the others have come along.
            self.catch_up(host)?;
        }
        self.sequence += 1;
        self.refusals += 1;
        let Link { direct, roster, .. } = self.link.as_mut().expect("checked above");
        direct.refuse(self.sequence, reason);
        roster.complete(self.rank, self.sequence);
        Ok(())
    }

    /// Waits until everybody has arrived at the first of the calls that this rank refused.
    fn catch_up(&mut self, host: &mut dyn Host) -> Result<()> {
        let Link { direct, roster, spin, .. } = self.link.as_mut().expect("only with others");
        let sequence = self.sequence + 1 - self.refusals;
        let boards = direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| roster.broken(sequence, self.rank),
            patience: Patience { spin: *spin, limit: self.timeout },
            host,
        };
        let arrived = |rank: usize| boards.of(rank).arrival(sequence).head.arrived(sequence);
        let outcome = (0..self.world as usize).try_for_each(|rank| wait.until(|| arrived(rank)));
        match outcome {
            Ok(()) => {
                self.refusals -= 1;
                Ok(())
            }
            Err(stop) => {
                let turn = Turn { sequence, fingerprint: 0, algorithm: Algorithm::Auto };
                Err(self.close_after(stop, &turn, &Call::barrier(None)))
            }
        }
    }

    /// Leaves the group for good, tells the others why, and says so.
    fn close_after(&mut self, stop: Stop, turn: &Turn, call: &Call<'_>) -> Error {
        let link = self.link.as_ref().expect("only a wait stops");
        let limit = call.timeout.unwrap_or(self.timeout);
        let scene =
            blame::Scene { rank: self.rank, turn, call, boards: link.direct.boards(), roster: &link.roster, limit };
        let (state, error) = scene.explain(stop);
        let missing = match &error {
            Error::Timeout { missing, .. } => missing.as_slice(),
            _ => &[],
        };
        self.leave(state, missing);
        self.closed = Some(match &error {
            Error::Interrupted => Error::Aborted(format!(
                "the group is closed: this rank ({}) was interrupted in call #{} {}",
                self.rank,
                turn.sequence,
                call.describe()
            )),
            other => other.clone(),
        });
        error
    }

    fn leave(&mut self, state: State, missing: &[Rank]) {
        if let Some(link) = &self.link
            && link.roster.leave(self.rank, state, missing)
        {
            let control = link.direct.boards().control();
            raise(&control.alarm, &control.bell);
        }
    }

    /// Leaves the group, because the program wants to or because an exception makes it. Others who still need this rank
    /// are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        self.leave(if raised { State::Raised } else { State::Finished }, &[]);
        if let Some(link) = &mut self.link {
            link.watcher = None;
        }
        self.closed.get_or_insert_with(|| Error::Init("the group has been shut down".into()));
    }
}

/// Largest payload of the shortest path, in bytes: what `algo="lines"` can carry.
pub const LINES: usize = PAYLOAD;

/// Each rank holds one descriptor for every other; that it has so many is better known before the others wait for it.
fn check_descriptors(world: u32) -> Result<()> {
    const OWN: usize = 8;
    let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current else { return Ok(()) };
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    let need = open + world as usize + OWN;
    if need as u64 > limit {
        return Err(Error::Init(format!(
            "{world} ranks need {need} file descriptors in each process ({open} are open already), and the limit is \
             {limit}: raise it with `ulimit -n {}`",
            need.next_multiple_of(256)
        )));
    }
    Ok(())
}

fn raise_in(segment: &Segment) {
    let control: &Control = segment.at(0);
    raise(&control.alarm, &control.bell);
}
