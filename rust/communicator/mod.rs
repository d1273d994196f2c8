//! One rank's end of a group: numbers the calls, runs them, and turns whatever goes wrong into an error that names ranks and
//! calls.
//!
//! ```text
//! open ──call, all agree──► open            a call in which ranks disagree, or one refuses, leaves the group open
//!   └──peer lost, time-out, interrupt──► closed for good: late data can never meet a later call
//! ```
//! `call` says what ranks must agree on, `local` is a group on one host, `blame` finds out whose fault a failure is. `&mut self`
//! everywhere: one collective at a time, by type.
//!
//! The group of all is made by meeting (`connect`); `founder` makes others out of its members, each a `Communicator` of its own
//! with its own sequence of calls, on what the job has in `commons`. Their ranks are those of the group, `roll` says who they are.

mod algorithm;
mod blame;
mod call;
mod commons;
mod compression;
mod config;
mod doors;
mod drive;
mod explain;
mod founder;
mod letters;
mod local;
mod mail;
mod neighbours;
mod network;
mod outstanding;
mod pipes;
mod probe;
mod remote;
mod roll;
mod shared;
mod tried;
mod undelivered;

use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::arena::Segment;
use crate::arena::heap::{Block, Heap};
use crate::error::{Error, Rank, Result};
use crate::kernels::{Bytes, copy, fill_identity};
use crate::machine;
use crate::wait::Host;

pub use crate::admission::Network;
pub use crate::admission::address::Master;
pub use crate::hierarchy::Hosts;
pub use crate::post::{Status, Tag};
pub use crate::rendezvous::Listening;
pub use algorithm::Algorithm;
pub use call::{Call, Collective, Compression, Cut, Element, tuple};
pub use config::{Across, Config};
pub use explain::{Explanation, span};
pub use founder::Founder;
pub use letters::{Letters, Waited};
pub use mail::{Exchange, Give, Take};
pub use outstanding::Parcel;
pub use roll::Roll;

use commons::Commons;
use config::Manner;
use local::{Fault, Local, Outcome};
use mail::Mail;
use remote::Remote;

/// A group as one rank sees it.
#[derive(Debug)]
pub struct Communicator {
    rank: Rank,
    world: u32,
    /// Calls begun so far.
    sequence: u64,
    /// Why no further call is possible. Letters may find that out meanwhile.
    closed: Arc<OnceLock<Error>>,
    hosts: Hosts,
    /// What sends and receives outside collectives; it uses what `reach` holds.
    letters: Arc<Letters>,
    reach: Reach,
    founder: Founder,
    process: u32,
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a fork of the rank: its pipes and its place in the group are the parent's, and stay open.
            std::mem::forget((Arc::clone(&self.letters), std::mem::replace(&mut self.reach, Reach::Alone)));
            return;
        }
        // First: the memory of its ways is given back with what `reach` holds.
        self.letters.close();
    }
}

/// Of a rank that waits for nobody.
const ALONE: Manner = Manner { spin: Duration::ZERO, timeout: Duration::MAX };

/// Where the other ranks are.
#[derive(Debug)]
enum Reach {
    /// There are none.
    Alone,
    Host(Box<Local>),
    Hosts(Box<Remote>),
}

impl Communicator {
    /// Meets the other ranks; returns when all of them are there.
    pub fn connect(mut config: Config, host: &mut dyn Host) -> Result<Communicator> {
        config.check()?;
        let across = config.across.take();
        let all_here = || Hosts::new(vec![(0..config.world).collect()], config.rank);
        let (reach, commons) = if config.world == 1 {
            let size = machine::memory().next_multiple_of(2 << 20);
            let segment = Arc::new(Segment::create(size)?.0);
            let heap = Arc::new(Heap::new(segment, 0, size, 0));
            (Reach::Alone, Commons::new(0, all_here(), heap, None, None))
        } else if let Some(across) = across {
            let (remote, commons) = Remote::connect(&config, across, host)?;
            (Reach::Hosts(Box::new(remote)), commons)
        } else {
            let (local, commons) = Local::connect(&config, &all_here(), host)?;
            (Reach::Host(Box::new(local)), commons)
        };
        let hosts = commons.hosts.clone();
        Ok(Communicator::new(config.rank, hosts, reach, Founder::new(commons, 0, Roll::job(config.world))))
    }

    fn new(rank: Rank, hosts: Hosts, reach: Reach, founder: Founder) -> Communicator {
        let world = founder.roll().ranks().len() as u32;
        let process = std::process::id();
        let mail = match &reach {
            Reach::Alone => Mail::alone((rank, founder.roll()), ALONE),
            Reach::Host(local) => local.mail(),
            Reach::Hosts(remote) => remote.mail(),
        };
        let closed = Arc::clone(&mail.closed);
        let letters = Arc::new(Letters::new(mail, Arc::clone(founder.commons())));
        Communicator { rank, world, sequence: 0, closed, hosts, letters, reach, founder, process }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    /// Who the members are.
    pub fn roll(&self) -> &Roll {
        self.founder.roll()
    }

    /// What makes other groups out of the members of this one.
    pub fn founder(&self) -> &Founder {
        &self.founder
    }

    /// Which ranks share which host.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Descriptors that a forked child must close: held open there, they would keep the job's name taken, or hide this
    /// rank's death.
    pub fn descriptors(&self) -> Vec<RawFd> {
        match &self.reach {
            Reach::Host(local) => local.socket().into_iter().collect(),
            Reach::Hosts(remote) => remote.descriptors().to_vec(),
            Reach::Alone => Vec::new(),
        }
    }

    /// More ranks than cores.
    pub fn is_crowd(&self) -> bool {
        match &self.reach {
            Reach::Host(local) => local.is_crowd(),
            Reach::Hosts(remote) => remote.is_crowd(),
            Reach::Alone => false,
        }
    }

    /// Measures the network between hosts anew, so many times as carefully as at the start; all ranks call it. What was found:
    /// latency, what a message costs besides its bytes, seconds per byte sent, and per byte combined; and what messages cost by way of
    /// one rank, as a multiple. None on one host.
    pub fn survey(&mut self, rounds: usize, host: &mut dyn Host) -> Result<Option<[f64; 5]>> {
        self.ensure_open()?;
        let Reach::Hosts(remote) = &mut self.reach else { return Ok(None) };
        self.sequence += 1;
        let outcome = remote.survey(self.sequence, None, rounds, host).map_err(Fault::Closed);
        let found = network::words(remote.network().model());
        self.end(&Call::barrier(None), outcome)?;
        Ok(Some(found))
    }

    /// Which way `call` would take on `array`, and why. Nobody else is asked.
    pub fn explain(&self, call: &Call<'_>, array: Bytes<'_>) -> Explanation {
        match &self.reach {
            Reach::Alone => Explanation::alone(),
            Reach::Host(local) => Explanation::on_one_host(local.direct(), call, array),
            Reach::Hosts(remote) => Explanation::over_hosts(remote.network(), &self.hosts, call, array.len()),
        }
    }

    /// Memory for a symmetric array of `len` bytes, all zero.
    pub fn allocate(&self, len: usize) -> Result<Block> {
        // After a time-out a slow rank may still write into an array that has been freed since.
        self.ensure_open()?;
        self.founder.commons().heap.allocate(len).ok_or_else(|| {
            Error::NoMemory(format!("the shared heap of rank {} has no room for an array of {len} bytes", self.rank))
        })
    }

    /// `dst` = combination of everybody's `src`; `dst` may be `src`.
    pub fn all_reduce(&mut self, call: &Call<'_>, dst: Bytes<'_>, src: Bytes<'_>, host: &mut dyn Host) -> Result<()> {
        self.ensure_open()?;
        self.sequence += 1;
        let outcome = match &mut self.reach {
            Reach::Alone => {
                copy(dst, src);
                Ok(())
            }
            Reach::Host(local) => local.all_reduce(self.sequence, call, (dst, src), host),
            Reach::Hosts(remote) => remote.all_reduce(self.sequence, call, (dst, src), host),
        };
        let outcome = self.agreed(outcome, call, host);
        self.end(call, outcome)
    }

    /// After an all-reduce, which may have been the last that was to be timed before ranks decide which way is the fastest.
    fn agreed(&mut self, outcome: Outcome, call: &Call<'_>, host: &mut dyn Host) -> Outcome {
        match &mut self.reach {
            Reach::Hosts(remote) if outcome.is_ok() && remote.is_undecided() => {
                self.sequence += 1;
                remote.agree(self.sequence, call.timeout, host)
            }
            _ => outcome,
        }
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(&mut self, call: &Call<'_>, root: Rank, array: Bytes<'_>, host: &mut dyn Host) -> Result<()> {
        self.ensure_open()?;
        self.sequence += 1;
        let outcome = match &mut self.reach {
            Reach::Alone => Ok(()),
            Reach::Host(local) => local.broadcast(self.sequence, call, root, array, host),
            Reach::Hosts(remote) => remote.broadcast(self.sequence, call, root, array, host),
        };
        self.end(call, outcome)
    }

    /// Any other collective: `dst` becomes what `call` says of everybody's `src`, cut into blocks as `cut` says.
    ///
    /// Who gathers may not know how long the blocks of others are: without `Call::counts` it supposes that they are as long
    /// as its own. If they are not, nothing has moved, and all ranks are told all lengths in bytes, to call again with them.
    pub fn collect(
        &mut self,
        call: &Call<'_>,
        cut: &Cut<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Result<Option<Vec<usize>>> {
        self.ensure_open()?;
        self.sequence += 1;
        let mut lengths = None;
        let outcome = match &mut self.reach {
            Reach::Alone => {
                alone(call, dst, src);
                Ok(())
            }
            Reach::Host(local) => {
                local.collect(self.sequence, call, cut, (dst, src), host).map(|found| lengths = found)
            }
            Reach::Hosts(remote) => {
                remote.collect(self.sequence, call, cut, (dst, src), host).map(|found| lengths = found)
            }
        };
        self.end(call, outcome).map(|()| lengths)
    }

    /// Sends, receives, or both: between two ranks, while the others do what they like.
    pub fn exchange(&mut self, call: &Exchange<'_>, host: &mut dyn Host) -> Result<Option<Status>> {
        self.ensure_open()?;
        self.letters.exchange(call, host)
    }

    /// The same for calls that do not wait, whatever the group does otherwise.
    pub fn letters(&self) -> &Arc<Letters> {
        &self.letters
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, call: &Call<'_>, host: &mut dyn Host) -> Result<()> {
        self.ensure_open()?;
        self.sequence += 1;
        let outcome = match &mut self.reach {
            Reach::Alone => Ok(()),
            Reach::Host(local) => local.barrier(self.sequence, call, host),
            Reach::Hosts(remote) => remote.barrier(self.sequence, call, host),
        };
        self.end(call, outcome)
    }

    /// Takes part in the next call with nothing but a reason for not doing so, so that the other ranks raise instead of
    /// waiting. Returns at once: the caller's own mistake is not worth waiting for others.
    pub fn refuse(&mut self, reason: &str, host: &mut dyn Host) -> Result<()> {
        if self.closed.get().is_some() {
            return Ok(());
        }
        let outcome = match &mut self.reach {
            Reach::Alone => Ok(()),
            Reach::Host(local) => local.catch_up(self.sequence, host).map(|()| {
                self.sequence += 1;
                local.refuse(self.sequence, reason);
            }),
            Reach::Hosts(remote) => {
                self.sequence += 1;
                // At once, not when the verdict has come back: the next call must not depend on who is faster.
                self.closed.get_or_init(|| remote.refuse(self.sequence, reason));
                Ok(())
            }
        };
        self.end(&Call::barrier(None), outcome)
    }

    #[inline]
    fn end(&mut self, call: &Call<'_>, outcome: Outcome) -> Result<()> {
        outcome.map_err(|fault| match fault {
            Fault::Refused(error) => error,
            Fault::Closed(error) => self.close(call, error),
        })
    }

    /// Remembers why no further call is possible.
    #[cold]
    fn close(&mut self, call: &Call<'_>, error: Error) -> Error {
        self.closed.get_or_init(|| match &error {
            Error::Interrupted => Error::Aborted(format!(
                "the group is closed: this rank ({}) was interrupted in call #{}{} {}",
                self.roll().of(self.rank),
                self.sequence,
                self.roll().of_group(),
                call.describe()
            )),
            other => other.clone(),
        });
        error
    }

    fn ensure_open(&self) -> Result<()> {
        match self.closed.get() {
            Some(why) => Err(why.clone()),
            None => self.founder.commons().ensure_open(),
        }
    }

    /// Leaves the group, because the program wants to or because an exception makes it. Others who still need this rank
    /// are told at once.
    pub fn shutdown(&mut self, raised: bool) {
        match &mut self.reach {
            Reach::Alone => {}
            Reach::Host(local) => local.shutdown(raised),
            Reach::Hosts(remote) => remote.shutdown(raised),
        }
        self.closed.get_or_init(|| Error::Init("the group has been shut down".into()));
        self.letters.close();
        // Links close, and the memory of a group within the job is given back.
        self.reach = Reach::Alone;
        if self.roll().is_job() {
            self.founder.commons().shut();
        }
    }
}

/// A collective of one rank.
fn alone(call: &Call<'_>, dst: Bytes<'_>, src: Bytes<'_>) {
    match call.collective {
        Collective::Exscan(_) => {
            let (dtype, op) = call.reduction();
            fill_identity(dtype, op, dst);
        }
        _ => copy(dst, src),
    }
}
