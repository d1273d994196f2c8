//! A group whose ranks are all on this host: the direct path, messages through pipes where a call asks for them, and what
//! failures mean.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crate::direct::words::AHEAD;
use crate::direct::{self, Deal, Dealt, Direct, Seat, Turn, Verdict};
use crate::engine::{Halt, Header};
use crate::error::{Error, Rank, Result};
use crate::health::{Door, Roster, State, Watcher};
use crate::hierarchy::{Hosts, Session, Way};
use crate::kernels::{Bytes, Reducer};
use crate::messages::Messages;
use crate::rendezvous::{Job, LateDoor};
use crate::schedule;
use crate::wait::{Host, Patience, Stop, Wait, raise};

use super::algorithm::Algorithm;
use super::blame;
use super::call::{Call, Collective, Cut};
use super::commons::{Commons, Lease};
use super::config::{Config, Manner};
use super::founder::Share;
use super::mail::{self, Mail};
use super::pipes::Pipes;
use super::roll::Roll;
use super::shared::Shared;

/// What connects a rank with the others of its host.
#[derive(Debug)]
pub(super) struct Local {
    rank: Rank,
    roll: Roll,
    paths: Paths,
    roster: Roster,
    manner: Manner,
    /// Refused calls in a row that nobody has been waited for.
    refusals: u64,
    /// For what is sent outside collectives.
    pipes: Pipes,
    /// Of the group of all: dropped, and so joined, when the group is left.
    watcher: Option<Watcher>,
    /// Number of rank 0's socket, which the watcher holds.
    socket: Option<RawFd>,
    /// Of any other group; the last to be dropped, since it gives the memory back.
    _lease: Option<Lease>,
}

/// What moves data.
#[derive(Debug)]
struct Paths {
    direct: Direct,
    /// For calls that name an algorithm of the message path.
    messages: Messages,
    hosts: Hosts,
    /// For halves that travel as float32.
    wide: Vec<Cell<u8>>,
}

impl Local {
    /// Meets the other ranks; returns when all of them are there.
    pub fn connect(config: &Config, hosts: &Hosts, host: &mut dyn Host) -> Result<(Local, Arc<Commons>)> {
        let job = Job {
            id: config.job_id.clone(),
            generation: config.generation,
            rank: config.rank,
            world: config.world,
            timeout: config.timeout,
        };
        let shared = Shared::join(&job, config, host)?;
        let pipes = shared.pipes(hosts);
        let messages = Messages::new(config.world as usize, Box::new(pipes.clone()));
        let Shared { node, direct, heap, listener } = shared;
        let roster = node.roster.clone();
        let socket = listener.as_ref().map(AsRawFd::as_raw_fd);
        let door = listener
            .map(|listener| Box::new(LateDoor::new(listener, roster.clone(), config.job_id.clone())) as Box<dyn Door>);
        let alarms = Arc::clone(&node.alarms);
        let watcher =
            Watcher::start(roster.clone(), config.rank, Box::new(move || alarms.raise()), door).inspect_err(|_| {
                // The others already count on this rank.
                roster.leave(config.rank, State::Failed, &[]);
                node.alarms.raise();
            })?;
        let local = Local {
            rank: config.rank,
            roll: Roll::job(config.world),
            paths: Paths { direct, messages, hosts: hosts.clone(), wide: Vec::new() },
            roster,
            manner: node.manner,
            refusals: 0,
            pipes,
            watcher: Some(watcher),
            socket,
            _lease: None,
        };
        Ok((local, Commons::new(config.rank, hosts.clone(), heap, Some(node), None)))
    }

    /// A group within the job.
    pub fn of_group(share: Share, (rank, roll): (Rank, &Roll), hosts: &Hosts, manner: Manner) -> Local {
        let Share { roster, direct, pipes, lease } = share;
        let messages = Messages::new(hosts.mine().1.len(), Box::new(pipes.clone()));
        Local {
            rank,
            roll: roll.clone(),
            paths: Paths { direct, messages, hosts: hosts.clone(), wide: Vec::new() },
            roster,
            manner,
            refusals: 0,
            pipes,
            watcher: None,
            socket: None,
            _lease: Some(lease),
        }
    }

    pub fn socket(&self) -> Option<RawFd> {
        self.socket
    }

    pub fn direct(&self) -> &Direct {
        &self.paths.direct
    }

    pub fn is_crowd(&self) -> bool {
        self.paths.direct.is_crowd()
    }

    #[inline]
    pub fn all_reduce(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        if let Algorithm::Flat(algorithm) = call.algorithm {
            return self.all_reduce_by_messages(algorithm, sequence, call, (dst, src), host);
        }
        let (dtype, op) = call.reduction();
        let reducer = Reducer::of(dtype, op).expect("checked where the call came in");
        let empty = src.is_empty();
        self.run(sequence, call, host, |Paths { direct, .. }, turn, wait| match empty {
            true => direct.barrier(turn, wait),
            false => direct.all_reduce(turn, wait, reducer, dst, src),
        })
    }

    #[inline(never)]
    fn all_reduce_by_messages(
        &mut self,
        algorithm: schedule::Algorithm,
        sequence: u64,
        call: &Call<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        self.run(sequence, call, host, |paths, turn, wait| {
            let Paths { direct, messages, hosts, wide } = paths;
            if src.is_empty() {
                return direct.barrier(turn, wait).map_err(Halt::Stop);
            }
            let Turn { sequence, fingerprint, .. } = *turn;
            let header = Header { kind: 0, sequence, fingerprint, bytes: 0 };
            let mut session = Session { hosts, direct, messages, wide, turn: *turn, header, wait };
            session.all_reduce(Way::Flat(algorithm), call.reduction(), dst, src)
        })
    }

    pub fn broadcast(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        root: Rank,
        array: Bytes<'_>,
        host: &mut dyn Host,
    ) -> Outcome {
        self.run(sequence, call, host, |Paths { direct, .. }, turn, wait| match array.is_empty() {
            true => direct.barrier(turn, wait),
            false => direct.broadcast(turn, wait, root as usize, array),
        })
    }

    /// Any other collective; if blocks are not as long as was supposed, their lengths.
    pub fn collect(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        cut: &Cut<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> std::result::Result<Option<Vec<usize>>, Fault> {
        let seat = Seat { me: self.rank as usize, world: self.paths.direct.boards().world() };
        let deal = deal(seat, call, cut, (dst, src));
        let mut lengths = None;
        self.run(sequence, call, host, |Paths { direct, .. }, turn, wait| {
            Ok::<_, Stop>(match direct.deal(turn, wait, &deal)? {
                Dealt::Done => Verdict::Agreed,
                Dealt::Differs => Verdict::Differs,
                Dealt::Uneven(all) => {
                    lengths = Some(all);
                    Verdict::Agreed
                }
            })
        })?;
        Ok(lengths)
    }

    pub fn barrier(&mut self, sequence: u64, call: &Call<'_>, host: &mut dyn Host) -> Outcome {
        self.run(sequence, call, host, |paths, turn, wait| paths.direct.barrier(turn, wait))
    }

    #[inline]
    fn run<E: Into<Halt>>(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        host: &mut dyn Host,
        work: impl FnOnce(&mut Paths, &Turn, &mut Wait<'_>) -> std::result::Result<Verdict, E>,
    ) -> Outcome {
        self.refusals = 0;
        let Local { paths, roster, manner, rank, roll, .. } = self;
        let turn = Turn { sequence, fingerprint: call.fingerprint(), algorithm: call.algorithm.direct() };
        let boards = paths.direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| roster.broken(turn.sequence, *rank),
            patience: Patience::of(host, manner.spin, call.timeout.unwrap_or(manner.timeout)),
            host,
        };
        let outcome = match work(paths, &turn, &mut wait) {
            Ok(Verdict::Agreed) => Ok(Ok(())),
            Ok(Verdict::Differs) => {
                blame::disagreement(roll, &paths.direct, &turn, call, &mut wait).map(Err).map_err(Halt::Stop)
            }
            Err(halt) => Err(halt.into()),
        };
        match outcome {
            Ok(result) => {
                roster.complete(self.rank, turn.sequence);
                result.map_err(|text| Fault::Refused(Error::Mismatch(text)))
            }
            Err(halt) => Err(Fault::Closed(self.close_after(halt, &turn, call))),
        }
    }

    /// Takes part in call `sequence` with nothing but a reason for not doing so. Before it does, `catch_up` is due from time
    /// to time.
    pub fn refuse(&mut self, sequence: u64, reason: &str) {
        self.refusals += 1;
        self.paths.direct.refuse(sequence, reason);
        self.roster.complete(self.rank, sequence);
    }

    /// Arrivals have a few generations only: waits, if it must be, until everybody has arrived at the first of the calls
    /// that this rank refused. `sequence` is the last of them.
    pub fn catch_up(&mut self, sequence: u64, host: &mut dyn Host) -> Outcome {
        if self.refusals < AHEAD {
            return Ok(());
        }
        let sequence = sequence + 1 - self.refusals;
        let Local { paths, roster, manner, rank, .. } = self;
        let boards = paths.direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| roster.broken(sequence, *rank),
            patience: Patience { spin: manner.spin, limit: manner.timeout },
            host,
        };
        let arrived = |rank: usize| boards.of(rank).arrival(sequence).head.arrived(sequence);
        match (0..boards.world()).try_for_each(|rank| wait.until(|| arrived(rank))) {
            Ok(()) => {
                self.refusals -= 1;
                Ok(())
            }
            Err(stop) => {
                let turn = Turn { sequence, fingerprint: 0, algorithm: direct::Algorithm::Auto };
                Err(Fault::Closed(self.close_after(Halt::Stop(stop), &turn, &Call::barrier(None))))
            }
        }
    }

    /// Leaves the group for good, tells the others why, and says so.
    #[cold]
    fn close_after(&mut self, halt: Halt, turn: &Turn, call: &Call<'_>) -> Error {
        let limit = call.timeout.unwrap_or(self.manner.timeout);
        let boards = self.paths.direct.boards();
        let scene = blame::Scene { rank: self.rank, roll: &self.roll, turn, call, boards, roster: &self.roster, limit };
        let (state, missing, error) = scene.explain(halt);
        self.leave(state, &missing);
        error
    }

    /// What sends and receives outside collectives.
    pub fn mail(&self) -> Mail {
        let reach = mail::Reach::Host(self.roster.clone());
        Mail::new((self.rank, &self.roll), &self.paths.direct, &self.pipes, self.manner, reach)
    }

    pub fn leave(&mut self, state: State, missing: &[Rank]) {
        if self.roster.leave(self.rank, state, missing) {
            let control = self.paths.direct.boards().control();
            raise(&control.alarm, &control.bell);
        }
    }

    /// Leaves the group; others who still need this rank are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        self.leave(if raised { State::Raised } else { State::Finished }, &[]);
        self.watcher = None;
    }
}

/// How a call ended.
pub(super) type Outcome = std::result::Result<(), Fault>;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The group stays open.
    Refused(Error),
    /// The group is closed for good.
    Closed(Error),
}

/// What a rank does in `call` on the direct path.
fn deal<'a>(seat: Seat, call: &Call<'_>, cut: &Cut<'a>, arrays: (Bytes<'a>, Bytes<'a>)) -> Deal<'a> {
    let (me, Cut { give, take, ask }) = (seat.me, *cut);
    let certain = !call.counts.is_empty();
    let reducer = || {
        let (dtype, op) = call.reduction();
        Reducer::of(dtype, op).expect("checked where the call came in")
    };
    match call.collective {
        Collective::Reduce { root, .. } => Deal::reduce(seat, root as usize, reducer(), arrays),
        Collective::AllGather { .. } => Deal::all_gather(take, certain, arrays).asking(ask),
        Collective::Gather { root, .. } => Deal::gather(me, root as usize, take, certain, arrays).asking(ask),
        Collective::Scatter { root } => Deal::scatter(me, root as usize, give, arrays),
        Collective::ReduceScatter(_) => Deal::reduce_scatter(me, reducer(), give, arrays),
        Collective::AllToAll { counts } => Deal::all_to_all(me, (give, take), !counts, arrays),
        Collective::Scan(_) => Deal::scan(seat, reducer(), arrays),
        Collective::Exscan(_) => Deal::exscan(seat, reducer(), call.reduction(), arrays),
        Collective::AllReduce(_) | Collective::Broadcast { .. } | Collective::Barrier => {
            unreachable!("{} has a way of its own", call.describe())
        }
    }
}
