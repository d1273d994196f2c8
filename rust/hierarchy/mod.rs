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
//!
//! ```text
//! hosts       which ranks share which host, and the teams
//! here        all-reduce, reduce and broadcast of an array in shards; barrier
//! rows        which blocks which team carries, where an array is cut into a block per rank
//! moving      all-gather in rows; gather, scatter and all-to-all among all ranks by messages
//! combining   reduce-scatter in rows; scans along all ranks by messages, whose order is that of ranks
//! compressed  all-reduce with a codec between hosts
//! ```

mod combining;
mod compressed;
mod hosts;
mod moving;
mod rows;

use std::cell::Cell;

use crate::direct::{Direct, Parts, Shards, Turn, Verdict};
use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt, Header};
use crate::error::Rank;
use crate::kernels::{Bytes, Reducer, copy, narrow, widen};
use crate::messages::{Arrays, Messages, Request, Team, aligned};
use crate::schedule::{Algorithm, Collective};
use crate::wait::Wait;

pub use compressed::{Squeeze, Ways, Workspace};
pub use hosts::Hosts;
pub use moving::Announced;

/// How a collective is done.
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

/// For bytes that are moved, not combined: any reducer will do.
fn bytes() -> (usize, Arithmetic) {
    (1, arithmetic(DType::UInt8, ReduceOp::BOr, 1))
}

/// What is combined for whom: for all, or for one.
#[derive(Clone, Copy)]
struct Goal {
    way: Way,
    root: Option<Rank>,
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
        kind: (DType, ReduceOp),
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        self.combine(Goal { way, root: None }, kind, dst, src)
    }

    /// `dst` of `root` = combination of everybody's `src`; the others have none, and keep what they bring.
    pub fn reduce(
        &mut self,
        way: Way,
        root: Rank,
        kind: (DType, ReduceOp),
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        let goal = Goal { way, root: Some(root) };
        if self.hosts.rank() == root || self.travels_wide(way, kind) {
            return self.combine(goal, kind, dst, src);
        }
        let mut memory = std::mem::take(self.wide);
        let only_sends = way == Way::Hierarchical(Algorithm::Exchange) && self.hosts.is_flat();
        let array = if only_sends { src } else { aligned(&mut memory, src.len()) };
        let verdict = self.combine(goal, kind, array, src);
        *self.wide = memory;
        verdict
    }

    /// Whether halves are widened for what is to be combined.
    fn travels_wide(&self, way: Way, (dtype, op): (DType, ReduceOp)) -> bool {
        let world = self.hosts.everybody().size();
        let together = match way {
            Way::Hierarchical(algorithm) => self.hosts.is_flat() && brings_together(algorithm, world),
            Way::Flat(algorithm) => brings_together(algorithm, world),
        };
        is_rounded(dtype, op) && !together
    }

    fn combine(
        &mut self,
        goal: Goal,
        (dtype, op): (DType, ReduceOp),
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        let world = self.hosts.everybody().size() as usize;
        if !self.travels_wide(goal.way, (dtype, op)) {
            return self.combine_as(goal, dtype, arithmetic(dtype, op, world), dst, src);
        }
        let mut memory = std::mem::take(self.wide);
        let wide = aligned(&mut memory, 2 * src.len());
        widen(dtype, wide, src);
        let verdict = self.combine_as(goal, DType::Float32, arithmetic(DType::Float32, op, world), wide, wide);
        if verdict == Ok(Verdict::Agreed) && goal.root.is_none_or(|root| root == self.hosts.rank()) {
            narrow(dtype, dst, wide);
        }
        *self.wide = memory;
        verdict
    }

    fn combine_as(
        &mut self,
        Goal { way, root }: Goal,
        dtype: DType,
        arithmetic: Arithmetic,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Halt> {
        let elem = dtype.size();
        match way {
            Way::Hierarchical(algorithm) => {
                let shards = self.hosts.shards(src.len());
                if self.combine_here(&arithmetic, dst, src, &shards)? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                let host = root.map(|root| self.hosts.find(root).0);
                let collective = host.map_or(Collective::AllReduce, |host| Collective::Reduce(host as Rank));
                self.between_hosts(collective, algorithm, (elem, arithmetic), dst, &shards)?;
                if host.is_none_or(|host| host == self.hosts.mine().0) {
                    self.share(dst, &shards)?;
                }
            }
            Way::Flat(algorithm) => {
                if self.arrive()? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                copy(dst, src);
                let collective = root.map_or(Collective::AllReduce, Collective::Reduce);
                self.among_all(collective, algorithm, (elem, arithmetic), &Arrays::even(dst))?;
            }
        }
        Ok(Verdict::Agreed)
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(&mut self, algorithm: Algorithm, root: Rank, array: Bytes<'_>) -> Result<Verdict, Halt> {
        let (host, place) = self.hosts.find(root);
        let shards = self.hosts.shards(array.len());
        let here = self.hosts.mine().0 == host;
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
        self.between_hosts(Collective::Broadcast(host as Rank), algorithm, bytes(), array, &shards)?;
        if !here {
            self.share(array, &shards)?;
        }
        Ok(Verdict::Agreed)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, algorithm: Algorithm) -> Result<Verdict, Halt> {
        if self.arrive()? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let token = [Cell::new(0_u8)];
        self.between_hosts(Collective::AllReduce, algorithm, bytes(), &token, &Shards { len: 1, count: 1 })?;
        if !self.is_alone() {
            self.direct.regroup(self.wait).map_err(Halt::Stop)?;
        }
        Ok(Verdict::Agreed)
    }

    fn is_alone(&self) -> bool {
        self.hosts.mine().1.len() == 1
    }

    /// Not for the data: ranks of one host that are in different calls find it out before any of it moves.
    pub fn arrive(&mut self) -> Result<Verdict, Halt> {
        match self.is_alone() {
            true => Ok(Verdict::Agreed),
            false => self.direct.barrier(&self.turn, self.wait).map_err(Halt::Stop),
        }
    }

    /// Arrives. What this rank owns of `dst` = combination of what all ranks of this host bring.
    fn combine_here(
        &mut self,
        arithmetic: &Arithmetic,
        dst: Bytes<'_>,
        src: Bytes<'_>,
        parts: &impl Parts,
    ) -> Result<Verdict, Halt> {
        if self.is_alone() {
            copy(dst, src);
            return Ok(Verdict::Agreed);
        }
        let everybody_is_here = self.hosts.count() == 1;
        let Session { direct, turn, wait, .. } = self;
        let reducer = if everybody_is_here { &arithmetic.last } else { &arithmetic.partial };
        direct.reduce_scatter(turn, wait, reducer, (dst, src), parts).map_err(Halt::Stop)
    }

    /// All ranks of this host get what each of them owns of `array`.
    fn share(&mut self, array: Bytes<'_>, parts: &impl Parts) -> Result<(), Halt> {
        if self.is_alone() {
            return Ok(());
        }
        self.direct.all_gather(&self.turn, self.wait, array, parts).map_err(Halt::Stop)
    }

    /// This rank's shard, with those who hold the same one on other hosts.
    fn between_hosts(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        code: (usize, Arithmetic),
        array: Bytes<'_>,
        shards: &Shards,
    ) -> Result<(), Halt> {
        let place = self.hosts.place();
        if place >= shards.count {
            return Ok(());
        }
        let team = self.hosts.team(place).expect("the j-th rank of a host is in team j").clone();
        self.by_messages((collective, algorithm, team), code, &Arrays::even(&array[shards.of(place)]))
    }

    fn among_all(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        code: (usize, Arithmetic),
        arrays: &Arrays<'_>,
    ) -> Result<(), Halt> {
        self.by_messages((collective, algorithm, self.hosts.everybody().clone()), code, arrays)
    }

    fn by_messages(
        &mut self,
        (collective, algorithm, team): (Collective, Algorithm, Team),
        (elem, arithmetic): (usize, Arithmetic),
        arrays: &Arrays<'_>,
    ) -> Result<(), Halt> {
        let request = Request { collective, algorithm, team, elem };
        self.messages.run(&request, arrays, arithmetic, self.header, self.wait)
    }
}
