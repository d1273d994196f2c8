//! A group whose ranks are on several hosts: memory within a host, messages between them.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Network;
use crate::arena::heap::Heap;
use crate::direct::{Boards, Direct, Turn, Verdict};
use crate::engine::{Halt, Header};
use crate::error::{Error, Rank, Result};
use crate::health::{Control, Report, State};
use crate::hierarchy::{Hosts, Session, Way};
use crate::kernels::Bytes;
use crate::machine;
use crate::messages::Messages;
use crate::rendezvous::{Job, Meeting, Met, meet};
use crate::schedule;
use crate::transport::Broken;
use crate::wait::{Host, Patience, Stop, Wait, raise};

use super::algorithm::Algorithm;
use super::call::Call;
use super::config::{Across, Config};
use super::doors::Doors;
use super::local::{Fault, Outcome, Shared};

/// What connects a rank with others of which some are on other hosts.
#[derive(Debug)]
pub(super) struct Remote {
    hosts: Hosts,
    /// With the ranks of this host.
    direct: Direct,
    messages: Messages,
    control: Arc<Control>,
    /// For halves that travel as float32.
    wide: Vec<Cell<u8>>,
    spin: Duration,
    /// Of a call that names none.
    timeout: Duration,
}

impl Remote {
    /// Meets the other ranks; returns when all of them are there.
    pub fn connect(config: &Config, across: Across, host: &mut dyn Host) -> Result<(Remote, Heap)> {
        let job = Job {
            id: config.job_id.clone(),
            generation: config.generation,
            rank: config.rank,
            world: config.world,
            timeout: config.timeout,
        };
        let mut shared = None;
        let mut form = |members: &[Rank], host: &mut dyn Host| {
            let place = members.iter().position(|r| *r == config.rank).expect("this rank is a candidate");
            let job = Job {
                id: format!("{} from rank {}", config.job_id, members[0]),
                rank: place as Rank,
                world: members.len() as u32,
                ..job.clone()
            };
            shared = None;
            shared = Some(Shared::join(&job, config, host)?);
            Ok(())
        };
        let network = Network::parse(across.iface.as_deref(), across.ports.as_deref())?;
        let meeting = Meeting {
            job: job.clone(),
            master: across.master,
            secret: across.secret,
            network,
            apart: across.apart,
            settings: Vec::new(),
            listening: across.listening,
            silence: Duration::from_secs(5),
        };
        let Met { nodes, contacts, .. } = meet(meeting, &mut form, host)?;
        let shared = shared.expect("every rank has formed a node");
        let hosts = Hosts::new(nodes, config.rank);
        let pipes = shared.pipes(&hosts);
        let Shared { direct, heap, .. } = shared;
        let silence = contacts.silence;
        let here = &contacts.members[config.rank as usize].host;
        let neighbours = contacts.members.iter().filter(|member| member.host == *here).count();
        let crowd = neighbours > machine::cpus().len();
        let boards = direct.boards().clone();
        let control = Arc::new(Control::start(contacts, move || raise_in(&boards))?);
        let doors = Doors::new(config.rank, pipes, Arc::clone(&control), 1, silence);
        let remote = Remote {
            hosts,
            direct,
            messages: Messages::new(config.world as usize, Box::new(doors)),
            control,
            wide: Vec::new(),
            spin: config.spin(crowd),
            timeout: config.timeout,
        };
        Ok((remote, heap))
    }

    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub fn descriptors(&self) -> &[RawFd] {
        self.control.descriptors()
    }

    pub fn is_crowd(&self) -> bool {
        self.direct.is_crowd()
    }

    pub fn all_reduce(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        let way = match call.algorithm {
            Algorithm::Flat(algorithm) => Way::Flat(algorithm),
            Algorithm::Hierarchical(Some(algorithm)) => Way::Hierarchical(algorithm),
            _ => Way::Hierarchical(schedule::Algorithm::Exchange),
        };
        let empty = src.is_empty();
        self.run(sequence, call, host, |session| match empty {
            true => session.barrier(schedule::Algorithm::Exchange),
            false => session.all_reduce(way, call.reduction(), dst, src),
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
        self.run(sequence, call, host, |session| match array.is_empty() {
            true => session.barrier(schedule::Algorithm::Exchange),
            false => session.broadcast(schedule::Algorithm::Tree, root, array),
        })
    }

    pub fn barrier(&mut self, sequence: u64, call: &Call<'_>, host: &mut dyn Host) -> Outcome {
        self.run(sequence, call, host, |session| session.barrier(schedule::Algorithm::Exchange))
    }

    fn run(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        host: &mut dyn Host,
        work: impl FnOnce(&mut Session<'_, '_>) -> std::result::Result<Verdict, Halt>,
    ) -> Outcome {
        let control = Arc::clone(&self.control);
        if let Some(verdict) = control.verdict() {
            return Err(Fault::Closed(verdict.error()));
        }
        control.begun(sequence);
        let fingerprint = call.fingerprint();
        let boards = self.direct.boards().clone();
        let limit = call.timeout.unwrap_or(self.timeout);
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| {
                if control.asked(sequence) {
                    control.say(sequence, &call.describe());
                }
                control.broken(sequence)
            },
            patience: Patience { spin: self.spin, limit },
            host,
        };
        let mut session = Session {
            hosts: &self.hosts,
            direct: &mut self.direct,
            messages: &mut self.messages,
            wide: &mut self.wide,
            turn: Turn { sequence, fingerprint, algorithm: call.algorithm.direct() },
            header: Header { kind: 0, sequence, fingerprint, bytes: 0 },
            wait: &mut wait,
        };
        let trouble = match work(&mut session) {
            Ok(Verdict::Agreed) => {
                control.completed(sequence);
                return Ok(());
            }
            Ok(Verdict::Differs) => Trouble::Differs,
            Err(Halt::Differs { .. }) => Trouble::Differs,
            Err(Halt::Stop(stop)) => Trouble::Stop(stop),
            Err(Halt::Broken(broken)) => Trouble::Broken(broken),
        };
        Err(Fault::Closed(self.explain(trouble, sequence, call, host)))
    }

    /// What the caller raises, and everybody else: the verdict of rank 0.
    #[cold]
    fn explain(&self, trouble: Trouble, sequence: u64, call: &Call<'_>, host: &mut dyn Host) -> Error {
        let what = call.describe();
        let report = match trouble {
            Trouble::Stop(Stop::Interrupted) => {
                self.control.leave(State::Interrupted);
                return Error::Interrupted;
            }
            Trouble::Stop(Stop::Timeout) => {
                let waited = call.timeout.unwrap_or(self.timeout);
                Report::TimedOut { sequence, call: what, waited, awaited: Vec::new() }
            }
            Trouble::Stop(Stop::Gone) => Report::Stuck { sequence, call: what },
            Trouble::Differs => Report::Differs { sequence, call: what },
            Trouble::Broken(Broken { rank, why }) => Report::Broken { sequence, rank, why },
        };
        self.control.settle(report, host).map_or_else(|error| error, |verdict| verdict.error())
    }

    /// Tells everybody that this rank does not take part in call `sequence`, which closes the group.
    pub fn refuse(&self, sequence: u64, reason: &str) {
        self.control.report(Report::Refused { sequence, reason: reason.into() });
    }

    /// Leaves the group; others who still need this rank are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        self.control.leave(if raised { State::Raised } else { State::Finished });
    }
}

/// Why a call did not end well.
enum Trouble {
    Stop(Stop),
    /// Somebody came with another call.
    Differs,
    Broken(Broken),
}

/// Wakes the ranks of this host that sleep on the bell.
fn raise_in(boards: &Boards) {
    raise(&boards.control().alarm, &boards.control().bell);
}
