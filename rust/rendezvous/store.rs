//! Rank 0 while a job forms over several hosts: admits, hands out the table, says go.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::admission::{Arrival, Channel, End, Framed, Key, Porch, socket};
use crate::error::{Error, Rank, Result, ranks, seconds};
use crate::health::{Contacts, Member};
use crate::transport::tcp;
use crate::wait::{Host, SLICE};

use super::frame::lost;
use super::hosts::{Form, Meeting, Met, grouped, numbered};
use super::listening::Listening;
use super::local::Clock;
use super::roll::{Failure, Hello, Note};

/// How long rank 0 still answers those who come to a job that has failed: start-up of ranks is seldom spread wider, and
/// the rank's own error must not come late.
const LINGER: Duration = Duration::from_millis(100);

/// A rank that is there.
struct Seat {
    line: Framed,
    hello: Hello,
    /// This host's address by which it came.
    by: SocketAddr,
    formed: Option<std::result::Result<(), String>>,
}

/// A rank that has proved itself, but not yet said what it knows.
struct Newcomer {
    rank: Rank,
    line: Framed,
    from: SocketAddr,
}

pub(super) struct Store<'a> {
    meeting: Meeting,
    key: Key,
    clock: Clock,
    porch: Porch,
    address: SocketAddr,
    /// One for each rank from 1.
    seats: Vec<Option<Seat>>,
    newcomers: Vec<Newcomer>,
    host: &'a mut dyn Host,
}

impl<'a> Store<'a> {
    pub fn open(mut meeting: Meeting, key: Key, clock: Clock, host: &'a mut dyn Host) -> Result<Store<'a>> {
        let listening = match meeting.listening.take() {
            Some(listening) => listening,
            None => {
                let until = clock.from + clock.limit;
                Listening::bind(&meeting.master, &meeting.network, key.is_secret(), until, host)?
            }
        };
        let world = meeting.job.world;
        let porch = Porch::new(listening.fd, key.clone(), 0, world);
        let seats = (1..world).map(|_| None).collect();
        Ok(Store { meeting, key, clock, porch, address: listening.address, seats, newcomers: Vec::new(), host })
    }

    pub fn form(mut self, form: Form<'_>) -> Result<Met> {
        let outcome = self.gather().and_then(|()| self.introduce(form));
        match outcome {
            Ok((members, settings)) => Ok(self.finish(members, settings)),
            Err(error) => {
                self.give_up(&error);
                Err(error)
            }
        }
    }

    /// Waits for every rank's hello.
    fn gather(&mut self) -> Result<()> {
        while self.missing().next().is_some() {
            self.listen()?;
            if self.clock.over() {
                return Err(self.too_late());
            }
        }
        Ok(())
    }

    fn missing(&self) -> impl Iterator<Item = Rank> + use<'_> {
        (1..).zip(&self.seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank)
    }

    fn too_late(&self) -> Error {
        let missing: Vec<Rank> = self.missing().collect();
        let strangers = match (self.porch.turned_away(), self.porch.last()) {
            (1, Some(last)) => format!(". One connection was turned away: {last}"),
            (n, Some(last)) => format!(". {n} connections were turned away, the last from {last}"),
            _ => String::new(),
        };
        Error::Rendezvous(format!(
            "rank 0 waited {} at {} for {} of {} (job '{}'): not started, still starting, gone, or unable to reach this \
             address{strangers}. Raise timeout= or ARX_TIMEOUT if start-up takes longer",
            seconds(self.clock.limit),
            self.address,
            ranks(&missing),
            self.meeting.job.world,
            self.meeting.job.id
        ))
    }

    /// Sleeps for a moment, and takes in whatever has come.
    fn listen(&mut self) -> Result<()> {
        let mut list = Vec::new();
        self.porch.watch(&mut list);
        list.extend(self.newcomers.iter().map(|n| n.line.interest()));
        list.extend(self.seats.iter().flatten().map(|seat| seat.line.interest()));
        socket::rest(&mut list, SLICE, self.host)?;
        for arrival in self.porch.advance(Instant::now()) {
            self.meet(arrival);
        }
        if self.porch.is_starved() {
            return Err(Error::Init(
                "rank 0 cannot accept another rank: it has no file descriptor left (`ulimit -n`)".into(),
            ));
        }
        self.hear_newcomers()?;
        self.hear_seated()
    }

    fn meet(&mut self, Arrival { claim, socket, from }: Arrival) {
        if claim.channel != Channel::Control {
            self.porch.turn_away(from, "it brought data before the job had formed");
        } else if tcp::heartbeat(&socket, self.meeting.silence).is_err() {
            self.porch.turn_away(from, "it left at once");
        } else {
            let line = Framed::new(socket, Note::limit(self.meeting.job.world));
            self.newcomers.push(Newcomer { rank: claim.from, line, from });
        }
    }

    fn hear_newcomers(&mut self) -> Result<()> {
        let mut newcomers = std::mem::take(&mut self.newcomers).into_iter();
        let outcome = newcomers.by_ref().try_for_each(|newcomer| self.hear_newcomer(newcomer));
        // If one of them ends it for all, the others must hear why.
        self.newcomers.extend(newcomers);
        outcome
    }

    fn hear_newcomer(&mut self, mut newcomer: Newcomer) -> Result<()> {
        match newcomer.line.receive() {
            Ok(None) => self.newcomers.push(newcomer),
            Ok(Some(note)) => match Note::decode(&note) {
                Some(Note::Hello(hello)) => self.seat(newcomer, hello)?,
                _ => self.porch.turn_away(newcomer.from, "it spoke out of turn"),
            },
            Err(_) => self.porch.turn_away(newcomer.from, "it left before it had said who it is"),
        }
        Ok(())
    }

    fn seat(&mut self, mut newcomer: Newcomer, hello: Hello) -> Result<()> {
        let (rank, id) = (newcomer.rank, &self.meeting.job.id);
        let world = self.meeting.job.world;
        if hello.world != world {
            let why = format!(
                "ranks disagree about the size of job '{id}': rank 0 was told {world}, rank {rank} was told {}",
                hello.world
            );
            newcomer.line.send(&Note::Failed(Failure::Missing(why.clone())).encode());
            return Err(Error::Rendezvous(why));
        }
        let seat = (rank as usize).checked_sub(1).and_then(|k| self.seats.get_mut(k));
        match (seat, socket::local(&newcomer.line)) {
            (Some(seat @ None), Ok(by)) => *seat = Some(Seat { line: newcomer.line, hello, by, formed: None }),
            (Some(Some(other)), _) => {
                let other = &other.hello;
                let why =
                    format!("rank {rank} of job '{id}' is already taken by process {} on {}", other.pid, other.host);
                newcomer.line.send(&Note::Refused(why).encode());
                self.porch.turn_away(newcomer.from, "its rank was taken already");
            }
            _ => {
                let why = format!("there is no rank {rank} in job '{id}', which has {world} ranks");
                newcomer.line.send(&Note::Refused(why).encode());
                self.porch.turn_away(newcomer.from, "there is no such rank");
            }
        }
        Ok(())
    }

    /// Takes what seated ranks say, and notices those whose connection has ended.
    fn hear_seated(&mut self) -> Result<()> {
        let mut gone = Vec::new();
        for (rank, seat) in (1..).zip(&mut self.seats).filter_map(|(rank, seat)| Some((rank, seat.as_mut()?))) {
            seat.line.flush();
            match seat.line.receive() {
                Ok(None) => {}
                Ok(Some(note)) => match Note::decode(&note) {
                    Some(Note::Formed(why)) => seat.formed = Some(why.map_or(Ok(()), Err)),
                    Some(Note::Failed(failure)) => return Err(failure.error()),
                    _ => gone.push((rank, End::Garbled)),
                },
                Err(end) => gone.push((rank, end)),
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let ranks: Vec<Rank> = gone.iter().map(|(rank, _)| *rank).collect();
        Err(Error::PeerLost { text: lost(&ranks, self.meeting.job.world), ranks })
    }

    /// Says who is who, lets everybody try to form nodes, and settles which there are.
    fn introduce(&mut self, form: Form<'_>) -> Result<(Vec<Member>, Vec<u64>)> {
        let mut members = self.members()?;
        self.tell_all(&Note::Table(members.clone()));
        let candidates = grouped(&members.iter().map(|m| m.node).collect::<Vec<_>>());
        let mine = candidates[0].clone();
        let formed = match form(&mine, self.host) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            outcome => outcome,
        };
        while self.seats.iter().flatten().any(|seat| seat.formed.is_none()) {
            self.listen()?;
            if self.clock.over() {
                return Err(self.unformed());
            }
        }
        self.check_alone(&candidates)?;
        let ok = |rank: &Rank| match rank.checked_sub(1) {
            None => formed.is_ok(),
            Some(k) => self.seats[k as usize].as_ref().is_some_and(|seat| seat.formed == Some(Ok(()))),
        };
        let split = |node: Vec<Rank>| match node.iter().all(ok) {
            true => vec![node],
            false => node.into_iter().map(|rank| vec![rank]).collect(),
        };
        let mut nodes: Vec<Vec<Rank>> = candidates.into_iter().flat_map(split).collect();
        nodes.sort();
        if nodes[0] != mine {
            form(&nodes[0], self.host)?;
        } else {
            formed?;
        }
        let nodes = numbered(&nodes, self.meeting.job.world);
        members.iter_mut().zip(&nodes).for_each(|(member, node)| member.node = *node);
        let settings = std::mem::take(&mut self.meeting.settings);
        self.tell_all(&Note::Go { nodes, settings: settings.clone() });
        Ok((members, settings))
    }

    /// Everybody, with the nodes that may be.
    fn members(&self) -> Result<Vec<Member>> {
        let own = self.meeting.hello(self.address)?;
        // An address by which this host is reached from others, for those of its ranks that came without leaving it.
        let outside = self.seats.iter().flatten().map(|seat| seat.by.ip()).find(|ip| !ip.is_loopback());
        let hellos = std::iter::once(&own).chain(self.seats.iter().flatten().map(|seat| &seat.hello));
        let mut known: BTreeMap<_, u32> = BTreeMap::new();
        let apart = hellos.clone().any(|hello| hello.apart);
        let members = (0..).zip(hellos).map(|(rank, hello)| {
            let node = if apart { rank } else { *known.entry(hello.identity).or_insert(rank) };
            let mut address = hello.address;
            if address.ip().is_unspecified() {
                address.set_ip(outside.unwrap_or_else(|| loopback(address)));
            }
            Member { address, node, pid: hello.pid, host: hello.host.clone() }
        });
        Ok(members.collect())
    }

    /// A rank that cannot form a node of its own cannot be in the job.
    fn check_alone(&self, candidates: &[Vec<Rank>]) -> Result<()> {
        for node in candidates.iter().filter(|node| node.len() == 1 && node[0] > 0) {
            let seat = self.seats[node[0] as usize - 1].as_ref();
            if let Some(Err(why)) = seat.and_then(|seat| seat.formed.as_ref()) {
                return Err(Error::Aborted(format!("rank {} could not get ready: {why}", node[0])));
            }
        }
        Ok(())
    }

    fn unformed(&self) -> Error {
        let slow = (1..).zip(self.seats.iter().flatten()).filter(|(_, seat)| seat.formed.is_none());
        let slow: Vec<Rank> = slow.map(|(rank, _)| rank).collect();
        Error::Rendezvous(format!(
            "rank 0 waited {} in all; {} connected but did not get ready",
            seconds(self.clock.limit),
            ranks(&slow)
        ))
    }

    fn tell_all(&mut self, note: &Note) {
        let note = note.encode();
        for seat in self.seats.iter_mut().flatten() {
            // A rank that cannot be told is dead, which is noticed where its answer is awaited.
            seat.line.send(&note);
        }
    }

    fn finish(mut self, members: Vec<Member>, settings: Vec<u64>) -> Met {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            let why = format!("all {} ranks of job '{}' are taken", self.meeting.job.world, self.meeting.job.id);
            newcomer.line.send(&Note::Refused(why).encode());
            self.porch.turn_away(newcomer.from, "its rank was taken already");
        }
        let nodes = grouped(&members.iter().map(|m| m.node).collect::<Vec<_>>());
        let lines = (1..).zip(self.seats.into_iter().flatten().map(|seat| seat.line)).collect();
        let Meeting { job, network, silence, .. } = self.meeting;
        let refuse = |why| Note::Refused(why).encode();
        let contacts =
            Contacts { me: 0, members, lines, porch: self.porch, key: self.key, network, job: job.id, silence, refuse };
        Met { nodes, settings, contacts }
    }

    /// Tells everybody, also those who come in this moment, that the group will not form.
    fn give_up(&mut self, error: &Error) {
        let note = Note::Failed(Failure::of(error)).encode();
        self.tell_all(&Note::Failed(Failure::of(error)));
        let until = Instant::now() + LINGER;
        let mut late = std::mem::take(&mut self.newcomers);
        let answer = |newcomer: &mut Newcomer| newcomer.line.send(&note);
        late.iter_mut().for_each(answer);
        while !matches!(error, Error::Interrupted) && self.missing().next().is_some() && Instant::now() < until {
            for arrival in self.porch.advance(Instant::now()) {
                self.meet(arrival);
            }
            // Kept open until the news has been read.
            self.newcomers.iter_mut().for_each(answer);
            late.append(&mut self.newcomers);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn loopback(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}
