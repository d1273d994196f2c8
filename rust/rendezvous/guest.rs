//! A rank other than 0 while a job forms over several hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::admission::address::{no_secret, resolve};
use crate::admission::{Channel, Claim, Dial, Framed, Key, Missed, Porch, Refusal, dial, socket};
use crate::error::{Error, Rank, Result, seconds};
use crate::health::{Contacts, Member};
use crate::transport::tcp;
use crate::wait::{Host, SLICE};

use super::frame::lost;
use super::hosts::{Form, Meeting, Met, grouped};
use super::listening::unresolved;
use super::local::Clock;
use super::roll::{Failure, Note};

/// For one of several addresses, before the next is tried.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Longest pause between attempts.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Guest<'a> {
    meeting: Meeting,
    key: Key,
    clock: Clock,
    host: &'a mut dyn Host,
}

/// What the last attempt to reach rank 0 came to.
enum Tried {
    Nothing,
    Unresolved(String),
    Missed(SocketAddr, Missed),
}

impl<'a> Guest<'a> {
    pub fn new(meeting: Meeting, key: Key, clock: Clock, host: &'a mut dyn Host) -> Guest<'a> {
        Guest { meeting, key, clock, host }
    }

    pub fn join(mut self, form: Form<'_>) -> Result<Met> {
        let (mut line, at) = self.knock()?;
        let joined = self.take_seat(&mut line, at, form);
        if matches!(joined, Err(Error::Interrupted)) {
            let why = format!("rank {} was interrupted while the group was forming", self.meeting.job.rank);
            line.send(&Note::Failed(Failure::Aborted(why)).encode());
        }
        let (nodes, settings, members, porch) = joined?;
        let Meeting { job, network, silence, .. } = self.meeting;
        let (lines, me) = (vec![(0, line)], job.rank);
        let refuse = |why| Note::Refused(why).encode();
        let contacts = Contacts { me, members, lines, porch, key: self.key, network, job: job.id, silence, refuse };
        Ok(Met { nodes, settings, contacts })
    }

    /// A proved connection to rank 0, as soon as it listens, and the address at which it was found.
    fn knock(&mut self) -> Result<(Framed, SocketAddr)> {
        let until = self.clock.from + self.clock.limit;
        let mut pause = Duration::from_millis(1);
        let mut tried = Tried::Nothing;
        loop {
            match resolve(&self.meeting.master, until, self.host)? {
                Err(why) => tried = Tried::Unresolved(why),
                Ok(all) => {
                    let mut at: Vec<SocketAddr> = all.clone();
                    at.retain(|at| self.key.is_secret() || at.ip().is_loopback());
                    if at.is_empty() {
                        return Err(no_secret(all[0]));
                    }
                    for address in &at {
                        match self.call(*address, at.len() > 1, until)? {
                            Ok(line) => return Ok((line, *address)),
                            // That the time was over says less than what was seen before.
                            Err(Missed::Late) if matches!(tried, Tried::Missed(..)) => {}
                            Err(missed) => tried = Tried::Missed(*address, missed),
                        }
                    }
                }
            }
            if self.clock.over() {
                return Err(self.unreached(&tried));
            }
            socket::rest(&mut [], pause, self.host)?;
            pause = (pause * 2).min(PAUSE);
        }
    }

    fn call(&mut self, to: SocketAddr, others: bool, until: Instant) -> Result<std::result::Result<Framed, Missed>> {
        let claim = Claim { from: self.meeting.job.rank, to: 0, channel: Channel::Control };
        let until = if others { until.min(Instant::now() + ATTEMPT) } else { until };
        let call = Dial { key: &self.key, claim, network: &self.meeting.network, until, stop: &|| false };
        match dial(&call, to, self.host)? {
            Ok(socket) => {
                tcp::heartbeat(&socket, self.meeting.silence)?;
                Ok(Ok(Framed::new(socket, Note::limit(self.meeting.job.world))))
            }
            Err(Missed::Refused(refusal @ (Refusal::WrongProof | Refusal::OtherVersion))) => {
                Err(self.refused(to, refusal))
            }
            Err(missed) => Ok(Err(missed)),
        }
    }

    /// What no further attempt would change.
    fn refused(&self, to: SocketAddr, refusal: Refusal) -> Error {
        let (rank, master) = (self.meeting.job.rank, &self.meeting.master);
        match refusal {
            Refusal::WrongProof => Error::Auth(format!(
                "rank {rank} and rank 0 at {to} ({master}) do not have the same secret: ARX_SECRET must be the same text on \
                 all hosts"
            )),
            _ => Error::Init(format!("rank 0 at {to} ({master}) runs another version of arx than rank {rank}")),
        }
    }

    fn unreached(&self, tried: &Tried) -> Error {
        let job = &self.meeting.job;
        let last = match tried {
            Tried::Unresolved(why) => return unresolved(&self.meeting.master, why),
            Tried::Missed(at, missed) => format!(" The last attempt went to {at}: {missed}."),
            Tried::Nothing => String::new(),
        };
        Error::Rendezvous(format!(
            "rank {} of {} waited {} for rank 0 of job '{}' at {}.{last} Is rank 0 running there, with the same ARX_MASTER and \
             ARX_JOB_ID, and may this host connect to that port?",
            job.rank,
            job.world,
            seconds(self.clock.limit),
            job.id,
            self.meeting.master
        ))
    }

    fn take_seat(&mut self, line: &mut Framed, at: SocketAddr, form: Form<'_>) -> Result<Seated> {
        let porch = self.listen(line)?;
        let address = porch.address().map_err(|e| Error::os("cannot tell where this rank listens", e))?;
        line.send(&Note::Hello(self.meeting.hello(address)?).encode());
        let Note::Table(mut members) = self.hear(line)? else { return Err(self.garbled()) };
        let (me, world) = (self.meeting.job.rank, self.meeting.job.world as usize);
        if members.len() != world {
            return Err(self.garbled());
        }
        // Rank 0 is wherever this rank has found it, and an address that is good on its link alone needs the link's name.
        members[0].address = at;
        let scope = scope_of(socket::local(&*line).ok());
        members.iter_mut().for_each(|member| enter_scope(&mut member.address, scope));
        let candidates = grouped(&members.iter().map(|m| m.node).collect::<Vec<_>>());
        let mine = node_of(me, &candidates);
        let formed = match form(&mine, self.host) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            outcome => outcome,
        };
        line.send(&Note::Formed(formed.as_ref().err().map(Error::to_string)).encode());
        let Note::Go { nodes, settings } = self.hear(line)? else { return Err(self.garbled()) };
        if nodes.len() != world {
            return Err(self.garbled());
        }
        members.iter_mut().zip(&nodes).for_each(|(member, node)| member.node = *node);
        let nodes = grouped(&nodes);
        let settled = node_of(me, &nodes);
        if settled == mine {
            formed?
        } else {
            form(&settled, self.host)?
        }
        Ok((nodes, settings, members, porch))
    }

    /// Opens this rank's own door: at the address that leads to rank 0, which so is one that the others can reach. If that
    /// way does not leave the host although others may come from outside, at all of them; rank 0 then knows which is meant.
    fn listen(&mut self, line: &Framed) -> Result<Porch> {
        let job = &self.meeting.job;
        let mut at = socket::local(line).map_err(|e| Error::os("cannot tell the way to rank 0", e))?;
        if at.ip().is_loopback() && self.key.is_secret() && !self.meeting.master.is_loopback() {
            let any: IpAddr = if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            at.set_ip(self.meeting.network.source(at.is_ipv4()).unwrap_or(any));
        }
        let (listener, _) = self.meeting.network.listen(at, job.rank)?;
        Ok(Porch::new(listener, self.key.clone(), job.rank, job.world))
    }

    /// Rank 0's next note.
    fn hear(&mut self, line: &mut Framed) -> Result<Note> {
        // Rank 0 gives up at its own time-out and says whom it missed, which is worth waiting a little longer for.
        while self.clock.from.elapsed() < self.clock.limit + Duration::from_secs(1) {
            line.flush();
            let note = match line.receive() {
                Ok(Some(note)) => Note::decode(&note),
                Ok(None) => {
                    socket::rest(&mut [line.interest()], SLICE, self.host)?;
                    continue;
                }
                Err(_) => return Err(Error::PeerLost { ranks: vec![0], text: lost(&[0], self.meeting.job.world) }),
            };
            return match note {
                None => Err(self.garbled()),
                Some(Note::Refused(why)) => Err(Error::Init(why)),
                Some(Note::Failed(failure)) => Err(failure.error()),
                Some(note) => Ok(note),
            };
        }
        let job = &self.meeting.job;
        Err(Error::Rendezvous(format!(
            "rank {} of {} reached rank 0 of job '{}' at {} but waited {} in vain for the group to form",
            job.rank,
            job.world,
            job.id,
            self.meeting.master,
            seconds(self.clock.limit)
        )))
    }

    fn garbled(&self) -> Error {
        Error::Init(format!(
            "rank 0 at {} said something that cannot be; does it run another arx?",
            self.meeting.master
        ))
    }
}

type Seated = (Vec<Vec<Rank>>, Vec<u64>, Vec<Member>, Porch);

fn node_of(rank: Rank, nodes: &[Vec<Rank>]) -> Vec<Rank> {
    nodes.iter().find(|node| node.contains(&rank)).cloned().expect("every rank is in a node")
}

fn scope_of(local: Option<SocketAddr>) -> u32 {
    match local {
        Some(SocketAddr::V6(local)) => local.scope_id(),
        _ => 0,
    }
}

fn enter_scope(address: &mut SocketAddr, scope: u32) {
    if let SocketAddr::V6(address) = address
        && address.ip().is_unicast_link_local()
        && address.scope_id() == 0
    {
        address.set_scope_id(scope);
    }
}
