//! Which ranks share which host, and the teams that follow from it.

use super::Shards;
use crate::error::Rank;
use crate::messages::Team;

/// A shard that is smaller does not pay for a stream of its own.
const SHARD: usize = 32 << 10;

/// Which ranks share which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Ranks of each host, ascending; hosts by their first rank.
    members: Vec<Vec<Rank>>,
    /// This rank's host, and its place there.
    host: usize,
    place: usize,
    /// For each shard, the ranks that combine it.
    teams: Vec<Option<Team>>,
    everybody: Team,
}

impl Hosts {
    /// # Panics
    /// Unless `rank` is on one of the hosts.
    pub fn new(members: Vec<Vec<Rank>>, rank: Rank) -> Hosts {
        let find = |ranks: &Vec<Rank>| ranks.iter().position(|r| *r == rank);
        let (host, place) = members
            .iter()
            .enumerate()
            .find_map(|(host, ranks)| find(ranks).map(|place| (host, place)))
            .expect("this rank is on a host");
        let shards = members.iter().map(Vec::len).min().expect("there is a host");
        let team = |shard: usize| Team::new(members.iter().map(|ranks| ranks[shard]).collect(), rank);
        let world: usize = members.iter().map(Vec::len).sum();
        let everybody = Team::new((0..world as Rank).collect(), rank).expect("this rank is one of all");
        let teams = (0..shards).map(team).collect();
        Hosts { host, place, teams, everybody, members }
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Number of this rank's host, and of the ranks on it.
    pub fn mine(&self) -> (usize, &[Rank]) {
        (self.host, &self.members[self.host])
    }

    pub fn all(&self) -> &[Vec<Rank>] {
        &self.members
    }

    /// This rank's number among those of its host.
    pub fn place(&self) -> usize {
        self.place
    }

    /// How many there are on all hosts.
    pub fn ranks(&self) -> u32 {
        self.everybody.size()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.members[self.host][self.place]
    }

    /// The first rank of the neighbouring host, for the first rank of each host: hosts in pairs.
    pub fn partner(&self) -> Option<Rank> {
        self.members.get(self.host ^ 1).filter(|_| self.place == 0).map(|ranks| ranks[0])
    }

    /// The first ranks of all hosts, if this rank is one of them.
    pub fn first_ranks(&self) -> Option<Team> {
        self.teams[0].clone().filter(|_| self.place == 0)
    }

    /// Whether every host has one rank.
    pub fn is_flat(&self) -> bool {
        self.members.iter().all(|ranks| ranks.len() == 1)
    }

    /// Into how many shards an array of so many bytes is cut.
    pub fn shards(&self, len: usize) -> Shards {
        Shards { len, count: (len / SHARD).clamp(1, self.teams.len()) }
    }

    /// Everybody, in the order of ranks.
    pub(super) fn everybody(&self) -> &Team {
        &self.everybody
    }

    /// For each shard, the ranks that hold it, one on every host; None if this rank is not among them.
    pub(super) fn team(&self, shard: usize) -> Option<&Team> {
        self.teams.get(shard)?.as_ref()
    }

    /// How many teams there are: as many as the smallest host has ranks.
    pub(super) fn teams(&self) -> usize {
        self.teams.len()
    }

    /// The host of a rank, and its place there.
    pub(super) fn find(&self, rank: Rank) -> (usize, usize) {
        let host = self.members.iter().position(|ranks| ranks.contains(&rank)).expect("every rank is on a host");
        (host, self.members[host].iter().position(|r| *r == rank).expect("found above"))
    }
}
