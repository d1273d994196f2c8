//! Forming a job over several hosts: what both sides share. `store` is rank 0, `guest` every other rank.
//!
//! ```text
//! rank 0                                          rank r
//! listen at the master's address                  resolve it, dial it, again until rank 0 is there
//!              <────── mutual proof (admission/handshake) ──────>
//!                                                 listen at the address that this connection goes out from
//!                              <- Hello{p, identity, where I listen}
//! all p here:  Table{where everybody listens, who may share memory} ->
//! try it                                          try it: join a segment with ranks of the same identity
//!                              <- Formed{it worked, or why not}
//! all formed:  Go{nodes, settings} ->
//! ```
//! The connections stay: they become the control connections by which ranks learn of each other's death (`health`).
//!
//! Which ranks share a host is found by trying, since what looks like one host may be two (containers that show one boot
//! id), and the other way round: equal identity makes ranks candidates, and a candidate node in which any rank could not
//! really map the others' memory is taken apart into single ranks.
//!
//! Nobody waits without a deadline. A rank that dies meanwhile closes its connection, and rank 0 tells all the others; if
//! rank 0 dies they see that for themselves. Strangers neither get in nor keep anybody waiting (`admission/porch`).

use std::time::{Duration, Instant};

use crate::admission::address::Master;
use crate::admission::{Key, Network};
use crate::error::{Error, Rank, Result};
use crate::health::Contacts;
use crate::wait::Host;

use super::guest::Guest;
use super::identity::Identity;
use super::listening::Listening;
use super::local::{Clock, Job};
use super::roll::{Hello, SETTINGS};
use super::store::Store;

/// Where a job meets and by which rules.
#[derive(Debug)]
pub struct Meeting {
    pub job: Job,
    /// Rank 0's host and port.
    pub master: Master,
    /// Known to all ranks of the job and to nobody else. Without it nothing leaves the host.
    pub secret: Option<String>,
    pub network: Network,
    /// Share no memory with anybody: every rank is a node of its own.
    pub apart: bool,
    /// On rank 0: what it decides for all.
    pub settings: Vec<u64>,
    /// On rank 0: a socket that listens already, at an address that was published by other means.
    pub listening: Option<Listening>,
    pub silence: Duration,
}

/// A job that has formed.
#[derive(Debug)]
pub struct Met {
    /// Ranks that share memory, ascending; the nodes in the order of their first ranks.
    pub nodes: Vec<Vec<Rank>>,
    /// Rank 0's.
    pub settings: Vec<u64>,
    pub contacts: Contacts,
}

/// What the caller does to make a node of ranks that may share memory, itself among them. Called once with the candidates;
/// if the node comes to nothing because any of them failed, once more with this rank alone.
pub type Form<'a> = &'a mut dyn FnMut(&[Rank], &mut dyn Host) -> Result<()>;

/// Takes the place that `meeting` names, and returns when all ranks have.
pub fn meet(meeting: Meeting, form: Form<'_>, host: &mut dyn Host) -> Result<Met> {
    let Job { rank, world, .. } = meeting.job;
    if rank >= world {
        return Err(Error::Init(format!("rank {rank} of a world of {world}: ranks go from 0")));
    }
    if meeting.settings.len() > SETTINGS {
        return Err(Error::Init(format!("{} settings; at most {SETTINGS} travel", meeting.settings.len())));
    }
    let clock = Clock { from: Instant::now(), limit: meeting.job.timeout };
    let key = Key::new(meeting.secret.as_deref(), &meeting.job.id, meeting.job.generation);
    match rank {
        0 => Store::open(meeting, key, clock, host)?.form(form),
        _ => Guest::new(meeting, key, clock, host).join(form),
    }
}

impl Meeting {
    /// What this rank says of itself; where it listens is filled in later.
    pub(super) fn hello(&self, address: std::net::SocketAddr) -> Result<Hello> {
        let host = rustix::system::uname();
        Ok(Hello {
            world: self.job.world,
            identity: Identity::mine()?,
            apart: self.apart,
            address,
            pid: std::process::id(),
            host: host.nodename().to_string_lossy().chars().take(64).collect(),
        })
    }
}

/// Ranks by the node that each is in.
pub(super) fn grouped(nodes: &[u32]) -> Vec<Vec<Rank>> {
    let mut groups: Vec<(u32, Vec<Rank>)> = Vec::new();
    for (rank, node) in (0..).zip(nodes) {
        match groups.iter_mut().find(|(n, _)| n == node) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((*node, vec![rank])),
        }
    }
    groups.into_iter().map(|(_, ranks)| ranks).collect()
}

/// The same, numbered from 0 in the order of the first ranks.
pub(super) fn numbered(groups: &[Vec<Rank>], world: u32) -> Vec<u32> {
    let mut nodes = vec![0; world as usize];
    for (node, ranks) in (0..).zip(groups) {
        ranks.iter().for_each(|r| nodes[*r as usize] = node);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_ranks() {
        let groups = grouped(&[7, 3, 7, 9, 3]);
        assert_eq!(groups, [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!(numbered(&groups, 5), [0, 1, 0, 2, 1]);
    }
}
