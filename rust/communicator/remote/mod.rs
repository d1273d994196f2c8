//! A group whose ranks are on several hosts: memory within a host, messages between them.

mod collect;
mod compressed;
mod survey;

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission::{self, GroupId};
use crate::direct::{Direct, Turn, Verdict};
use crate::engine::{Halt, Header};
use crate::error::{Error, Rank, Result};
use crate::health::{Contacts, Control, Group, Report, State};
use crate::hierarchy::{Hosts, Session, Way, Workspace};
use crate::kernels::Bytes;
use crate::machine;
use crate::messages::Messages;
use crate::rendezvous::{Job, Meeting, Met, meet};
use crate::transport::Broken;
use crate::wait::{Host, Patience, Stop, Wait};

use super::algorithm::Algorithm;
use super::call::Call;
use super::commons::{Commons, Lease, Node, Plane};
use super::compression::Rates;
use super::config::{Across, Config, Manner};
use super::doors::Doors;
use super::founder::Share;
use super::local::{Fault, Outcome};
use super::mail::{self, Mail};
use super::network::{self, Network};
use super::pipes::Pipes;
use super::roll::Roll;
use super::shared::Shared;
use survey::Terms;

/// How long ranks of a host may take to share memory: all of them are there already.
const NODE: Duration = Duration::from_secs(10);

/// After which rank 0 compares what the ranks are in: they may wait for each other in different calls.
const LONG: Duration = Duration::from_secs(1);

/// What connects a rank with others of which some are on other hosts.
#[derive(Debug)]
pub(super) struct Remote {
    roll: Roll,
    hosts: Hosts,
    /// With the ranks of this host.
    direct: Direct,
    messages: Messages,
    control: Arc<Control>,
    network: Network,
    /// All ways that come into question for a size have been tried, and which is best has not been said.
    undecided: bool,
    /// For halves that travel as float32.
    wide: Vec<Cell<u8>>,
    /// For codecs.
    work: Workspace,
    manner: Manner,
    /// For what is sent outside collectives, to ranks of this host.
    pipes: Pipes,
    me: Rank,
    /// Of a group within the job; the last to be dropped, since it gives the memory back.
    _lease: Option<Lease>,
}

impl Remote {
    /// Meets the other ranks; returns when all of them are there and know how the network is.
    pub fn connect(config: &Config, across: Across, host: &mut dyn Host) -> Result<(Remote, Arc<Commons>)> {
        let place = format!("{} {} {}", across.master, config.world, across.apart);
        let (streams, told) = (config.streams(), config.network());
        let terms = Terms { streams, told: told.is_some(), known: told.or_else(|| network::seen(&place)) };
        let mut shared = None;
        let mut form = |members: &[Rank], host: &mut dyn Host| {
            shared = None; // of an attempt that came to nothing
            shared = Some(Shared::join(&node_job(config, members), config, host)?);
            Ok(())
        };
        let Met { nodes, contacts, settings } = meet(meeting(config, across, &terms)?, &mut form, host)?;
        let Terms { streams, known, told } = Terms::decode(&settings)?;
        let shared = shared.expect("every rank has formed a node");
        let hosts = Hosts::new(nodes, config.rank);
        let pipes = shared.pipes(&hosts);
        let Shared { mut node, direct, heap, .. } = shared;
        node.manner = config.manner(is_crowd(&contacts));
        let control = Arc::new(Control::start(contacts, watch(&node, hosts.mine().1))?);
        let roll = Roll::job(config.world);
        let doors = Doors::new(config.rank, roll.clone(), pipes.clone(), Arc::clone(&control), streams);
        let mut remote = Remote {
            roll,
            undecided: false,
            network: Network::new(network::of_words([0.0; 5]), Rates::default(), &hosts, told),
            hosts: hosts.clone(),
            direct,
            messages: Messages::new(config.world as usize, Box::new(doors)),
            control: Arc::clone(&control),
            wide: Vec::new(),
            work: Workspace::default(),
            manner: node.manner,
            pipes,
            me: config.rank,
            _lease: None,
        };
        remote.survey(0, known, 1, host)?;
        let (model, rates) = (*remote.network.model(), remote.network.rates());
        network::remember(place, model);
        let plane = Plane { control, model, told, rates, streams };
        Ok((remote, Commons::new(config.rank, hosts, heap, Some(node), Some(plane))))
    }

    /// A group within the job. What was found out about the network holds for it, too.
    pub fn of_group(share: Share, commons: &Commons, (id, me, roll): (GroupId, Rank, &Roll), hosts: &Hosts) -> Remote {
        let Share { direct, pipes, lease, .. } = share;
        let plane = commons.plane.as_ref().expect("ranks on several hosts have a control plane");
        let group = Group { id, ranks: roll.ranks().into(), name: roll.name().into() };
        let control = Arc::new(plane.control.of_group(&group));
        let doors = Doors::new(me, roll.clone(), pipes.clone(), Arc::clone(&control), plane.streams);
        Remote {
            roll: roll.clone(),
            undecided: false,
            network: Network::new(plane.model, plane.rates, hosts, plane.told),
            hosts: hosts.clone(),
            direct,
            messages: Messages::new(roll.ranks().len(), Box::new(doors)),
            control,
            wide: Vec::new(),
            work: Workspace::default(),
            manner: commons.node().manner,
            pipes,
            me,
            _lease: Some(lease),
        }
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
        let (way, timed) = asked_for(call).map_or_else(
            || {
                let (algorithm, timed) = self.network.all_reduce(call, src.len(), &self.hosts);
                (Way::Hierarchical(algorithm), timed)
            },
            |way| (way, false),
        );
        self.timed(timed, |remote| {
            remote.run(sequence, call, host, |session| session.all_reduce(way, call.reduction(), dst, src))
        })
    }

    /// A call whose time is noted, if it is `timed`.
    fn timed(&mut self, timed: bool, run: impl FnOnce(&mut Remote) -> Outcome) -> Outcome {
        let from = timed.then(Instant::now);
        run(self)?;
        if let (Some(from), Some(tried)) = (from, self.network.tried()) {
            self.undecided = tried.note(from.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Whether ranks have to `agree` before the next call.
    pub fn is_undecided(&self) -> bool {
        self.undecided
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
            patience: Patience::of(host, self.manner.spin, call.timeout.unwrap_or(self.manner.timeout)),
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
                let waited = call.timeout.unwrap_or(self.manner.timeout);
                Report::TimedOut { sequence, call: what, waited, awaited: Vec::new() }
            }
            Trouble::Stop(Stop::Gone) => Report::Stuck { sequence, call: what },
            Trouble::Differs => Report::Differs { sequence, call: what },
            Trouble::Broken(Broken { rank, why }) => Report::Broken { sequence, rank: self.roll.of(rank), why },
        };
        self.control.settle(report, host).map_or_else(|error| error, |verdict| verdict.error())
    }

    /// Tells everybody that this rank does not take part in call `sequence`, which closes the group. Why no later call is
    /// possible.
    pub fn refuse(&self, sequence: u64, reason: &str) -> Error {
        self.control.report(Report::Refused { sequence, reason: reason.into() });
        let of = self.roll.of_group();
        Error::Mismatch(format!(
            "this rank could not take part in call #{sequence}{of} ({reason}). The group is closed"
        ))
    }

    /// What sends and receives outside collectives.
    pub fn mail(&self) -> Mail {
        let reach = mail::Reach::Hosts(Arc::clone(&self.control));
        Mail::new((self.me, &self.roll), &self.direct, &self.pipes, self.manner, reach)
    }

    pub fn leave(&self, state: State) {
        self.control.leave(state);
    }

    /// Leaves the group; others who still need this rank are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        self.leave(if raised { State::Raised } else { State::Finished });
    }
}

/// The way that `algo=` names.
fn asked_for(call: &Call<'_>) -> Option<Way> {
    match call.algorithm {
        Algorithm::Flat(algorithm) => Some(Way::Flat(algorithm)),
        Algorithm::Hierarchical(algorithm) => algorithm.map(Way::Hierarchical),
        _ => None,
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

/// What the control thread does when calls must look up: wakes those of this process that sleep on bells. It also takes the
/// place of the watcher for groups whose members are all on this host, the ranks `here`.
fn watch(node: &Node, here: &[Rank]) -> impl Fn(&[(Rank, State)]) + Send + Sync + 'static {
    let (roster, alarms, here) = (node.roster.clone(), Arc::clone(&node.alarms), here.to_vec());
    move |departed| {
        for (rank, state) in departed {
            match here.iter().position(|r| r == rank) {
                Some(place) if *state == State::Dead => drop(roster.bury(place as Rank)),
                Some(place) => drop(roster.leave(place as Rank, *state, &[])),
                None => {}
            }
        }
        alarms.raise();
    }
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
