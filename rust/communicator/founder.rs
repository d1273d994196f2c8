//! Makes groups within a job, out of members of a group that exists. Only those who are to be in it take part, and nobody else
//! notices.
//!
//! ```text
//! key = hash(parent, ranks in order, how many times this very list has been founded in it)
//!       on every member the same, whatever else each of them has done before
//!
//! on each host:  the first member sets memory aside and invites the others under the key   (returns at once)
//!                the others wait for the invitation                                        (deadline, death check)
//! ```
//! Between hosts not a word is said: links are opened when a call needs them, and carry the key, so that those of different
//! groups are never taken for each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::admission::GroupId;
use crate::direct::{Boards, Direct};
use crate::error::{Error, Rank, Result, list, seconds};
use crate::health::Roster;
use crate::hierarchy::Hosts;
use crate::wait::{Host, Patience, Stop, Wait};

use super::call::{mix, tuple};
use super::commons::{Commons, Lease};
use super::local::Local;
use super::pipes::Pipes;
use super::remote::Remote;
use super::roll::Roll;
use super::{Communicator, Reach};

/// What it takes to make groups of a group's members. It does not disturb the group's calls, and may be used during one.
#[derive(Clone, Debug)]
pub struct Founder {
    commons: Arc<Commons>,
    parent: u64,
    roll: Roll,
    /// How many groups have been founded of each list of ranks, by the hash of the list.
    founded: Arc<Mutex<BTreeMap<u64, u64>>>,
}

/// What a member has of the memory of its group.
pub(super) struct Share {
    pub roster: Roster,
    pub direct: Direct,
    pub pipes: Pipes,
    pub lease: Lease,
}

/// A group that is being made.
struct Plan<'a> {
    key: u64,
    roll: &'a Roll,
    hosts: &'a Hosts,
}

impl Founder {
    pub(super) fn new(commons: Arc<Commons>, parent: u64, roll: Roll) -> Founder {
        Founder { commons, parent, roll, founded: Arc::default() }
    }

    pub(super) fn commons(&self) -> &Arc<Commons> {
        &self.commons
    }

    pub fn roll(&self) -> &Roll {
        &self.roll
    }

    /// The group of `members`, which are ranks of this group; they keep the order in which they are given. None if this rank
    /// is not one of them. Without a name it is called by its ranks in the job.
    pub fn found(&self, members: &[Rank], name: Option<&str>, host: &mut dyn Host) -> Result<Option<Communicator>> {
        self.commons.ensure_open()?;
        self.check(members)?;
        let ranks = self.roll.all_of(members);
        let Some(me) = ranks.iter().position(|rank| *rank == self.commons.rank) else { return Ok(None) };
        let hash = ranks.iter().fold(mix(self.parent, ranks.len() as u64), |hash, rank| mix(hash, u64::from(*rank)));
        let name = name.map_or_else(|| tuple(&ranks), str::to_owned);
        let number = self.next(hash);
        let id = GroupId { list: hash, number };
        let made = self.make(id, Roll::group(&name, ranks), me as Rank, host);
        if made.is_err() {
            self.give_back(hash, number);
        }
        made.map(Some)
    }

    fn check(&self, members: &[Rank]) -> Result<()> {
        let size = self.roll.ranks().len();
        if members.is_empty() {
            return Err(Error::Invalid("a group needs at least one rank".into()));
        }
        if let Some(rank) = members.iter().find(|rank| **rank as usize >= size) {
            let text =
                format!("rank {rank} is not in group '{}', whose ranks go from 0 to {}", self.roll.name(), size - 1);
            return Err(Error::Invalid(text));
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(Error::Invalid(format!("rank {} is named twice in {}", twice[0], tuple(members)))),
            None => Ok(()),
        }
    }

    fn founded(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.founded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many times the list has been founded.
    fn next(&self, hash: u64) -> u64 {
        let mut founded = self.founded();
        let count = founded.entry(hash).or_default();
        *count += 1;
        *count - 1
    }

    /// It came to nothing here: the next attempt meets the others where this one should have.
    fn give_back(&self, hash: u64, number: u64) {
        if let Some(count) = self.founded().get_mut(&hash).filter(|count| **count == number + 1) {
            *count = number;
        }
    }

    fn make(&self, id: GroupId, roll: Roll, me: Rank, host: &mut dyn Host) -> Result<Communicator> {
        let commons = &self.commons;
        let key = mix(id.list, id.number).max(1);
        let hosts = hosts_of(&commons.hosts, &roll, me);
        let plan = Plan { key, roll: &roll, hosts: &hosts };
        let reach = match roll.ranks().len() {
            1 => Reach::Alone,
            _ if hosts.count() == 1 => {
                let share = self.share(&plan, host)?;
                Reach::Host(Box::new(Local::of_group(share, (me, &roll), &hosts, commons.node().manner)))
            }
            _ => {
                let share = self.share(&plan, host)?;
                Reach::Hosts(Box::new(Remote::of_group(share, commons, (id, me, &roll), &hosts)))
            }
        };
        Ok(Communicator::new(me, hosts, reach, Founder::new(Arc::clone(commons), key, roll)))
    }

    /// Memory with the members on this host.
    fn share(&self, plan: &Plan<'_>, host: &mut dyn Host) -> Result<Share> {
        let Founder { commons, .. } = self;
        let node = commons.node();
        let place_on_host = |member: &Rank| {
            let here = commons.hosts.mine().1;
            here.iter().position(|rank| *rank == plan.roll.of(*member)).expect("members of this host")
        };
        let places: Vec<usize> = plan.hosts.mine().1.iter().map(place_on_host).collect();
        let at = match plan.hosts.place() {
            0 => node.set_aside(&commons.heap, plan.key, &places)?,
            _ => self.await_invitation(plan, places[0], host)?,
        };
        let (layout, roster) = (node.plan(places.len()).at(at), node.roster_at(at, &places));
        for (start, len) in (0..places.len()).map(|rank| layout.ring_block(rank)) {
            node.segment.prefer_huge(start, len);
        }
        let boards = Boards::new(Arc::clone(&node.segment), layout);
        let direct = Direct::new(boards, plan.hosts.place(), node.crowd, node.tuning).reading(node.peers.of(&places));
        let pipes = Pipes::new(Arc::clone(&node.segment), layout, plan.hosts);
        let lease = Lease::new(commons, roster.clone(), plan.hosts.place(), at);
        Ok(Share { roster, direct, pipes, lease })
    }

    /// Waits until the first member on this host, whose place there is `first`, has set memory aside.
    fn await_invitation(&self, plan: &Plan<'_>, first: usize, host: &mut dyn Host) -> Result<usize> {
        let node = self.commons.node();
        let control = node.control();
        let limit = node.manner.timeout;
        let mut found = None;
        let mut wait = Wait {
            bell: &control.bell,
            alarm: &control.alarm,
            gone: &|| node.roster.has_departed(first as Rank),
            patience: Patience { spin: node.manner.spin, limit },
            host,
        };
        let outcome = wait.until(|| {
            found = found.or_else(|| node.accept(first, plan.key));
            found.is_some()
        });
        let whom = self.commons.hosts.mine().1[first];
        outcome.map_err(|stop| self.not_invited(stop, plan, whom, limit))?;
        Ok(found.expect("the wait ends when it is there"))
    }

    #[cold]
    fn not_invited(&self, stop: Stop, plan: &Plan<'_>, whom: Rank, limit: std::time::Duration) -> Error {
        let me = self.commons.rank;
        let group = format!("group '{}' of ranks {}", plan.roll.name(), list(plan.roll.ranks()));
        match stop {
            Stop::Interrupted => Error::Interrupted,
            Stop::Gone => {
                let text = format!("rank {whom} is gone, which rank {me} needs to make {group}");
                Error::PeerLost { ranks: vec![whom], text }
            }
            Stop::Timeout => {
                let text = format!(
                    "rank {me} waited {} for rank {whom} to make {group}. Do all of its members make it, and with the ranks in \
                     the same order?",
                    seconds(limit)
                );
                Error::Timeout { missing: vec![whom], text }
            }
        }
    }
}

/// Where the members of a group are, counted by their places in it.
fn hosts_of(job: &Hosts, roll: &Roll, me: Rank) -> Hosts {
    let on = |host: &Vec<Rank>| -> Vec<Rank> {
        (0..).zip(roll.ranks()).filter(|(_, rank)| host.contains(rank)).map(|(member, _)| member).collect()
    };
    let mut members: Vec<Vec<Rank>> = job.all().iter().map(on).filter(|members| !members.is_empty()).collect();
    members.sort_by_key(|members| members[0]);
    Hosts::new(members, me)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_group_are_counted_by_its_members() {
        let job = Hosts::new(vec![vec![0, 2, 4], vec![1, 3], vec![5]], 3);
        let hosts = hosts_of(&job, &Roll::group("odd", vec![3, 4, 1, 0]), 0);
        assert_eq!(hosts.all(), &[vec![0, 2], vec![1, 3]]);
        assert_eq!((hosts.mine(), hosts.place()), ((0, &[0, 2][..]), 0));
    }
}
