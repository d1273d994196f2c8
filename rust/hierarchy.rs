//! Collectives of ranks on several hosts: inside a host by shared memory, between hosts by messages.
//!
//! ```text
//!            host 0                 host 1
//!       rank 0    rank 2       rank 1    rank 3
//!       ┌──────────────┐       ┌──────────────┐
//!       │ reduce_scatter into shards, directly │
//!       └──┬────────┬──┘       └──┬────────┬──┘
//!          shard 0 ═╪═════════════╡        │           teams: the j-th rank of every host combines shard j,
//!                   shard 1 ══════╪════════╡           a stream each, so that a host sends and receives n bytes
//!       ┌──┴────────┴──┐       ┌──┴────────┴──┐
//!       │          all_gather, directly        │
//!       └──────────────┘       └──────────────┘
//! ```
//! As many shards as the smallest host has ranks, at most; small arrays are one shard. Every element is combined by the same
//! expression for all ranks: in rank order within a host, as the schedule of the teams says between them.
//!
//! Halves: what a host has combined is no single value any more, and would be rounded once by each host if it travelled as a
//! half. So the array is widened to float32 first and rounded at the end, unless every host has one rank and the algorithm
//! brings the values themselves together.

use std::cell::Cell;

use crate::direct::{Direct, Shards, Turn, Verdict};
use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt, Header};
use crate::error::Rank;
use crate::kernels::{Bytes, Reducer, copy, narrow, widen};
use crate::messages::{Messages, Request, Team, aligned};
use crate::schedule::{Algorithm, Collective};
use crate::wait::Wait;

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

    fn find(&self, rank: Rank) -> (usize, usize) {
        let host = self.members.iter().position(|ranks| ranks.contains(&rank)).expect("every rank is on a host");
        (host, self.members[host].iter().position(|r| *r == rank).expect("found above"))
    }
}

/// How an all-reduce is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Within hosts and between them; the algorithm is that of the teams.
    Hierarchical(Algorithm),
    /// All ranks by messages, wherever they are.
    Flat(Algorithm),
}

/// Element-wise code for what is combined in parts.
pub fn arithmetic(dtype: DType, op: ReduceOp, count: usize) -> Arithmetic {
    let partial = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    let of = |op| Reducer::of(dtype, op).expect("checked where the call came in");
    Arithmetic { partial: of(partial), last: of(op), count }
}

/// Whether partial results of `op` are less exact than its operands.
pub fn is_rounded(dtype: DType, op: ReduceOp) -> bool {
    matches!(dtype, DType::Float16 | DType::BFloat16) && matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg)
}

/// Whether the result of `op` depends on the order of its operands, by rounding.
pub fn has_order(dtype: DType, op: ReduceOp) -> bool {
    (dtype.is_float() || dtype.is_complex()) && matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg)
}

/// Whether all values of an element come together in one place before anything is combined.
fn brings_together(algorithm: Algorithm, world: u32) -> bool {
    algorithm.rounds_once() || world <= 2
}

/// One call's means.
pub struct Session<'a, 'w> {
    pub hosts: &'a Hosts,
    pub direct: &'a mut Direct,
    pub messages: &'a mut Messages,
    /// Memory for widened halves.
    pub wide: &'a mut Vec<Cell<u8>>,
    pub turn: Turn,
    pub header: Header,
    pub wait: &'a mut Wait<'w>,
}

impl Session<'_, '_> {
    /// `dst` = combination of everybody's `src`.
    pub fn all_reduce(
        &mut self,
        way: Way,
        (dtype, op): (DType, ReduceOp),
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        let world = self.hosts.everybody.size();
        let exact = match way {
            Way::Hierarchical(algorithm) => self.hosts.is_flat() && brings_together(algorithm, world),
            Way::Flat(algorithm) => brings_together(algorithm, world),
        };
        if exact || !is_rounded(dtype, op) {
            return self.reduce(way, dtype, arithmetic(dtype, op, world as usize), dst, src);
        }
        let mut memory = std::mem::take(self.wide);
        let wide = aligned(&mut memory, 2 * src.len());
        widen(dtype, wide, src);
        let verdict = self.reduce(way, DType::Float32, arithmetic(DType::Float32, op, world as usize), wide, wide);
        if verdict == Ok(Verdict::Agreed) {
            narrow(dtype, dst, wide);
        }
        *self.wide = memory;
        verdict
    }

    fn reduce(
        &mut self,
        way: Way,
        dtype: DType,
        arithmetic: Arithmetic,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        let elem = dtype.size();
        match way {
            Way::Hierarchical(algorithm) => {
                let shards = self.hosts.shards(src.len());
                if self.reduce_scatter(&arithmetic, dst, src, &shards)? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                let collective = Collective::AllReduce;
                self.between_hosts(collective, algorithm, (elem, arithmetic), dst, &shards)?;
                self.all_gather(dst, &shards)?;
            }
            Way::Flat(algorithm) => {
                // Not for the data: ranks of one host that are in different calls find it out before any of it moves.
                if !self.is_alone() && self.arrive()? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                copy(dst, src);
                let team = self.hosts.everybody.clone();
                let request = Request { collective: Collective::AllReduce, algorithm, team, elem };
                self.messages.run(&request, dst, arithmetic, self.header, self.wait)?;
            }
        }
        Ok(Verdict::Agreed)
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(&mut self, algorithm: Algorithm, root: Rank, array: Bytes<'_>) -> Result<Verdict, Halt> {
        let (host, place) = self.hosts.find(root);
        let shards = self.hosts.shards(array.len());
        let here = self.hosts.host == host;
        if self.is_alone() {
            // Nobody to tell.
        } else if here {
            let verdict = self.direct.broadcast(&self.turn, self.wait, place, array).map_err(Halt::Stop)?;
            if verdict == Verdict::Differs {
                return Ok(Verdict::Differs);
            }
        } else if self.arrive()? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        // Bytes are moved, not combined: any reducer will do.
        let code = (1, arithmetic(DType::UInt8, ReduceOp::BOr, 1));
        self.between_hosts(Collective::Broadcast(host as Rank), algorithm, code, array, &shards)?;
        if !here {
            self.all_gather(array, &shards)?;
        }
        Ok(Verdict::Agreed)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, algorithm: Algorithm) -> Result<Verdict, Halt> {
        if !self.is_alone() && self.arrive()? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let token = [Cell::new(0_u8)];
        let code = (1, arithmetic(DType::UInt8, ReduceOp::BOr, 1));
        self.between_hosts(Collective::AllReduce, algorithm, code, &token, &Shards { len: 1, count: 1 })?;
        if !self.is_alone() {
            self.direct.regroup(self.wait).map_err(Halt::Stop)?;
        }
        Ok(Verdict::Agreed)
    }

    fn is_alone(&self) -> bool {
        self.hosts.mine().1.len() == 1
    }

    fn arrive(&mut self) -> Result<Verdict, Halt> {
        self.direct.barrier(&self.turn, self.wait).map_err(Halt::Stop)
    }

    fn reduce_scatter(
        &mut self,
        arithmetic: &Arithmetic,
        dst: Bytes<'_>,
        src: Bytes<'_>,
        shards: &Shards,
    ) -> Result<Verdict, Halt> {
        if self.is_alone() {
            copy(dst, src);
            return Ok(Verdict::Agreed);
        }
        let Session { direct, turn, wait, .. } = self;
        direct.reduce_scatter(turn, wait, &arithmetic.partial, (dst, src), shards).map_err(Halt::Stop)
    }

    fn all_gather(&mut self, array: Bytes<'_>, shards: &Shards) -> Result<(), Halt> {
        if self.is_alone() {
            return Ok(());
        }
        self.direct.all_gather(&self.turn, self.wait, array, shards).map_err(Halt::Stop)
    }

    /// This rank's shard, with those who hold the same one on other hosts.
    fn between_hosts(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        (elem, arithmetic): (usize, Arithmetic),
        array: Bytes<'_>,
        shards: &Shards,
    ) -> Result<(), Halt> {
        let place = self.hosts.place;
        if place >= shards.count {
            return Ok(());
        }
        let team = self.hosts.teams[place].clone().expect("the j-th rank of a host is in team j");
        let request = Request { collective, algorithm, team, elem };
        self.messages.run(&request, &array[shards.of(place)], arithmetic, self.header, self.wait)
    }
}
