//! A group whose ranks are on several hosts: memory within a host, messages between them.

mod collect;

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission;
use crate::arena::heap::Heap;
use crate::direct::{Boards, Direct, Turn, Verdict};
use crate::dtype::{DType, ReduceOp};
use crate::engine::{Halt, Header};
use crate::error::{Error, Rank, Result};
use crate::health::{Contacts, Control, Report, State};
use crate::hierarchy::{Hosts, Session, Way};
use crate::kernels::Bytes;
use crate::machine;
use crate::messages::{Messages, aligned};
use crate::rendezvous::{Job, Meeting, Met, meet};
use crate::schedule;
use crate::schedule::cost::Model;
use crate::transport::Broken;
use crate::wait::{Host, Patience, Stop, Wait, raise};

use super::algorithm::Algorithm;
use super::call::Call;
use super::config::{Across, Config, STREAMS};
use super::doors::Doors;
use super::local::{Fault, Outcome, Shared};
use super::network::{self, Network};
use super::probe::Probe;

/// How long ranks of a host may take to share memory: all of them are there already.
const NODE: Duration = Duration::from_secs(10);

/// After which rank 0 compares what the ranks are in: they may wait for each other in different calls.
const LONG: Duration = Duration::from_secs(1);

/// What connects a rank with others of which some are on other hosts.
#[derive(Debug)]
pub(super) struct Remote {
    hosts: Hosts,
    /// With the ranks of this host.
    direct: Direct,
    messages: Messages,
    control: Arc<Control>,
    network: Network,
    /// For halves that travel as float32.
    wide: Vec<Cell<u8>>,
    spin: Duration,
    /// Of a call that names none.
    timeout: Duration,
}

impl Remote {
    /// Meets the other ranks; returns when all of them are there and know how the network is.
    pub fn connect(config: &Config, across: Across, host: &mut dyn Host) -> Result<(Remote, Heap)> {
        let place = format!("{} {} {}", across.master, config.world, across.apart);
        let terms = Terms { streams: config.streams(), told: config.network().or_else(|| network::seen(&place)) };
        let mut shared = None;
        let mut form = |members: &[Rank], host: &mut dyn Host| {
            shared = None; // of an attempt that came to nothing
            shared = Some(Shared::join(&node_job(config, members), config, host)?);
            Ok(())
        };
        let Met { nodes, contacts, settings } = meet(meeting(config, across, &terms)?, &mut form, host)?;
        let Terms { streams, told } = Terms::decode(&settings)?;
        let shared = shared.expect("every rank has formed a node");
        let hosts = Hosts::new(nodes, config.rank);
        let pipes = shared.pipes(&hosts);
        let Shared { direct, heap, .. } = shared;
        let crowd = is_crowd(&contacts);
        let boards = direct.boards().clone();
        let control = Arc::new(Control::start(contacts, move || raise_in(&boards))?);
        let doors = Doors::new(config.rank, pipes, Arc::clone(&control), streams);
        let mut remote = Remote {
            network: Network::new(network::of_words([0.0; 4]), &hosts),
            hosts,
            direct,
            messages: Messages::new(config.world as usize, Box::new(doors)),
            control,
            wide: Vec::new(),
            spin: config.spin(crowd),
            timeout: config.timeout,
        };
        remote.survey(0, told, 1, host)?;
        network::remember(place, *remote.network.model());
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
        if src.is_empty() {
            return self.barrier(sequence, call, host);
        }
        let way = match call.algorithm {
            Algorithm::Flat(algorithm) => Way::Flat(algorithm),
            Algorithm::Hierarchical(Some(algorithm)) => Way::Hierarchical(algorithm),
            _ => Way::Hierarchical(self.network.algorithm(call, src.len(), &self.hosts)),
        };
        self.run(sequence, call, host, |session| session.all_reduce(way, call.reduction(), dst, src))
    }

    pub fn broadcast(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        root: Rank,
        array: Bytes<'_>,
        host: &mut dyn Host,
    ) -> Outcome {
        if array.is_empty() {
            return self.barrier(sequence, call, host);
        }
        let best = self.network.algorithm(call, array.len(), &self.hosts);
        self.run(sequence, call, host, |session| session.broadcast(best, root, array))
    }

    pub fn barrier(&mut self, sequence: u64, call: &Call<'_>, host: &mut dyn Host) -> Outcome {
        let best = self.network.barrier();
        self.run(sequence, call, host, |session| session.barrier(best))
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Finds out how the network is, unless that is `told`, and sees to it that all ranks know the same of it.
    pub fn survey(&mut self, sequence: u64, told: Option<Model>, rounds: usize, host: &mut dyn Host) -> Result<()> {
        let mut memory = Vec::new();
        let words = aligned(&mut memory, 4 * size_of::<f64>());
        let (partner, team) = (self.hosts.partner(), self.hosts.first_ranks());
        let call = Call::barrier(None);
        let outcome = self.session(sequence, &call, host, |session| {
            let model = match told {
                Some(model) => model,
                None => Probe { messages: session.messages, partner, team, rounds, wait: session.wait }.run()?,
            };
            let bytes = network::words(&model).map(f64::to_ne_bytes);
            words.iter().zip(bytes.as_flattened()).for_each(|(cell, byte)| cell.set(*byte));
            let way = Way::Hierarchical(schedule::Algorithm::Doubling);
            session.all_reduce(way, (DType::Float64, ReduceOp::Max), words, words)
        });
        outcome.map_err(|trouble| self.explain(trouble, sequence, &call, host))?;
        let bytes: Vec<u8> = words.iter().map(Cell::get).collect();
        let number = |k: usize| f64::from_ne_bytes(bytes[8 * k..8 * k + 8].try_into().expect("eight bytes"));
        self.network = Network::new(network::of_words([0, 1, 2, 3].map(number)), &self.hosts);
        Ok(())
    }

    fn run(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        host: &mut dyn Host,
        work: impl FnOnce(&mut Session<'_, '_>) -> std::result::Result<Verdict, Halt>,
    ) -> Outcome {
        if let Some(verdict) = self.control.verdict() {
            return Err(Fault::Closed(verdict.error()));
        }
        self.control.begun(sequence);
        match self.session(sequence, call, host, work) {
            Ok(()) => {
                self.control.completed(sequence);
                Ok(())
            }
            Err(trouble) => Err(Fault::Closed(self.explain(trouble, sequence, call, host))),
        }
    }

    fn session(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        host: &mut dyn Host,
        work: impl FnOnce(&mut Session<'_, '_>) -> std::result::Result<Verdict, Halt>,
    ) -> std::result::Result<(), Trouble> {
        let control = &self.control;
        let fingerprint = call.fingerprint();
        let boards = self.direct.boards().clone();
        let watch = Cell::new(None);
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| {
                if lingers(&watch) {
                    control.lingers(sequence, fingerprint);
                }
                if control.asked(sequence) {
                    control.say(sequence, &call.describe());
                }
                control.broken(sequence)
            },
            patience: Patience::of(host, self.spin, call.timeout.unwrap_or(self.timeout)),
            host,
        };
        let mut session = Session {
            hosts: &self.hosts,
            direct: &mut self.direct,
            messages: &mut self.messages,
            wide: &mut self.wide,
            // Boards count from 1, and the survey comes before the first call.
            turn: Turn { sequence: sequence + 1, fingerprint, algorithm: call.algorithm.direct() },
            header: Header { kind: 0, sequence, fingerprint, bytes: 0 },
            wait: &mut wait,
        };
        match work(&mut session) {
            Ok(Verdict::Agreed) => Ok(()),
            Ok(Verdict::Differs) | Err(Halt::Differs { .. }) => Err(Trouble::Differs),
            Err(Halt::Stop(stop)) => Err(Trouble::Stop(stop)),
            Err(Halt::Broken(broken)) => Err(Trouble::Broken(broken)),
        }
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

    /// Tells everybody that this rank does not take part in call `sequence`, which closes the group. Why no later call is
    /// possible.
    pub fn refuse(&self, sequence: u64, reason: &str) -> Error {
        self.control.report(Report::Refused { sequence, reason: reason.into() });
        Error::Mismatch(format!("this rank could not take part in call #{sequence} ({reason}). The group is closed"))
    }

    /// Leaves the group; others who still need this rank are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        self.control.leave(if raised { State::Raised } else { State::Finished });
    }
}

/// What rank 0 decides for all.
struct Terms {
    /// Connections that a link is made of.
    streams: u16,
    /// How the network is, if that is known already.
    told: Option<Model>,
}

impl Terms {
    fn encode(&self) -> Vec<u64> {
        let numbers = self.told.iter().flat_map(network::words).map(f64::to_bits);
        std::iter::once(u64::from(self.streams)).chain(numbers).collect()
    }

    fn decode(words: &[u64]) -> Result<Terms> {
        let wrong = || Error::Init("rank 0 sent settings that cannot be; does it run another arx?".into());
        let (streams, numbers) = words.split_first().ok_or_else(wrong)?;
        let streams = u16::try_from(*streams).ok().filter(|streams| STREAMS.contains(streams)).ok_or_else(wrong)?;
        let told = match numbers {
            [] => None,
            numbers => {
                let numbers: [u64; 4] = numbers.try_into().map_err(|_| wrong())?;
                Some(network::of_words(numbers.map(f64::from_bits)))
            }
        };
        Ok(Terms { streams, told })
    }
}

/// How ranks that may share memory are to meet, this one among them.
fn node_job(config: &Config, members: &[Rank]) -> Job {
    let place = members.iter().position(|r| *r == config.rank).expect("this rank is a candidate");
    let id = format!("{} from rank {}", config.job_id, members[0]);
    let timeout = config.timeout.min(NODE);
    Job { id, generation: config.generation, rank: place as Rank, world: members.len() as u32, timeout }
}

fn meeting(config: &Config, across: Across, terms: &Terms) -> Result<Meeting> {
    Ok(Meeting {
        job: Job {
            id: config.job_id.clone(),
            generation: config.generation,
            rank: config.rank,
            world: config.world,
            timeout: config.timeout,
        },
        master: across.master,
        secret: across.secret,
        network: admission::Network::parse(across.iface.as_deref(), across.ports.as_deref())?,
        apart: across.apart,
        settings: terms.encode(),
        listening: across.listening,
        silence: across.silence,
    })
}

/// Whether ranks outnumber the cores: all that run on this machine count, whether or not they share memory.
fn is_crowd(contacts: &Contacts) -> bool {
    let here = &contacts.members[contacts.me as usize].host;
    contacts.members.iter().filter(|member| member.host == *here).count() > machine::cpus().len()
}

/// Whether a call takes so long that rank 0 should know of it; true once. `watch` begins with nothing in it.
fn lingers(watch: &Cell<Option<Instant>>) -> bool {
    let due = watch.get().unwrap_or_else(|| Instant::now() + LONG);
    let over = Instant::now() >= due;
    // A call that takes a century more is not told of again.
    watch.set(Some(if over { due + LONG * (1 << 31) } else { due }));
    over
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
