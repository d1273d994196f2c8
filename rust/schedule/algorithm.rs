//! Which algorithm serves which collective, and what it is called.

use std::fmt;
use std::str::FromStr;

use super::{Rank, Schedule, chain, double_tree, exchange, pairwise, recursive, relay, ring, tree};

/// What all ranks want together. Arrays that hold a share per rank are cut into `world` chunks, chunk `r` for rank `r`; that of an
/// all-to-all into twice as many, first those that go to each rank and then those that come from each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody ends with everybody's arrays combined.
    AllReduce,
    /// The same, rank `r` with chunk `r` only.
    ReduceScatter,
    /// Rank `r` starts with chunk `r`, everybody ends with all chunks.
    AllGather,
    /// Everybody ends with the array of one.
    Broadcast(Rank),
    /// One ends with everybody's arrays combined.
    Reduce(Rank),
    /// Rank `r` starts with chunk `r`, one ends with all chunks.
    Gather(Rank),
    /// One starts with all chunks, rank `r` ends with chunk `r`.
    Scatter(Rank),
    /// Chunk `t` of rank `f` becomes chunk `p + f` of rank `t`.
    AllToAll,
    /// Rank `r` ends with the arrays of ranks `0..=r` combined, in that order.
    Scan,
    /// The same of ranks `0..r`; rank 0 ends with nothing.
    Exscan,
}

impl Collective {
    /// 0 where no rank differs from the others.
    pub fn root(self) -> Rank {
        match self {
            Collective::Broadcast(root)
            | Collective::Reduce(root)
            | Collective::Gather(root)
            | Collective::Scatter(root) => root,
            _ => 0,
        }
    }

    /// Into how many chunks the array must be cut; None where the algorithm decides.
    pub fn chunks(self, world: u32) -> Option<u32> {
        match self {
            Collective::ReduceScatter | Collective::AllGather | Collective::Gather(_) | Collective::Scatter(_) => {
                Some(world)
            }
            Collective::AllToAll => Some(2 * world),
            _ => None,
        }
    }
}

/// A way to do it. The parameters are part of the name: `double_tree:16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    Ring,
    /// Halving and doubling.
    Recursive,
    /// Recursive doubling with the whole array.
    Doubling,
    /// All arrays to everybody by doubling, combined there.
    AllGatherReduce,
    /// All arrays to rank 0, the result down a binomial tree.
    ReduceBroadcast,
    /// The same in two stages.
    Relay,
    /// A binomial tree.
    Tree,
    /// A tree with `arity` children per rank, in pieces; `chain` for one child.
    KAry {
        arity: u32,
        pieces: u32,
    },
    /// Two binary trees, each with half of the array, in so many pieces.
    DoubleTree {
        pieces: u32,
    },
    Pairwise,
    /// One-step direct exchange.
    Exchange,
}

/// What `Algorithm::from_str` does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of the algorithms {known}", known = Algorithm::NAMES.join(", "))]
pub struct UnknownAlgorithm(pub String);

impl Algorithm {
    pub const CHAIN: Algorithm = Algorithm::KAry { arity: 1, pieces: 1 };

    /// What `from_str` understands; numbers after the name may be left out.
    pub const NAMES: [&'static str; 12] = [
        "ring",
        "recursive",
        "doubling",
        "all_gather_reduce",
        "reduce_broadcast",
        "relay",
        "tree",
        "chain",
        "k_ary:ARITY:PIECES",
        "double_tree:PIECES",
        "pairwise",
        "exchange",
    ];

    /// What `rank` does; None if the algorithm does not serve this collective.
    ///
    /// # Panics
    /// Unless `rank`, and the root if there is one, are below `world`.
    pub fn schedule(self, collective: Collective, rank: Rank, world: u32) -> Option<Schedule> {
        assert!(rank < world, "rank {rank} of {world}");
        assert!(collective.root() < world, "root {} of {world}", collective.root());
        match world {
            1 if collective != Collective::AllToAll => self.serves(collective).then(|| Schedule::new(1, [])),
            _ => self.among_several(collective, rank, world),
        }
    }

    pub fn serves(self, collective: Collective) -> bool {
        use Collective::*;
        let halves = matches!(collective, AllReduce | ReduceScatter | AllGather | Reduce(_));
        let whole = matches!(collective, AllReduce | Broadcast(_) | Reduce(_));
        match self {
            Algorithm::Ring => halves || matches!(collective, Broadcast(_)),
            Algorithm::Recursive => halves,
            Algorithm::Pairwise => halves || collective == AllToAll,
            Algorithm::Doubling | Algorithm::AllGatherReduce | Algorithm::ReduceBroadcast | Algorithm::Relay => {
                collective == AllReduce
            }
            Algorithm::Tree => whole || matches!(collective, Gather(_) | Scatter(_)),
            Algorithm::CHAIN => whole || matches!(collective, Scan | Exscan),
            Algorithm::KAry { .. } | Algorithm::DoubleTree { .. } => whole,
            Algorithm::Exchange => whole || matches!(collective, Gather(_) | Scatter(_) | Scan | Exscan),
        }
    }

    /// Whether every element is combined out of the raw contributions at once, with one rounding and no rounded partial result:
    /// what sums of halves need.
    pub fn rounds_once(self) -> bool {
        use Algorithm::{AllGatherReduce, Exchange, Pairwise, ReduceBroadcast};
        matches!(self, Pairwise | Exchange | AllGatherReduce | ReduceBroadcast)
    }

    /// Whether every element is combined in the order of ranks, with a rounding at each step or at the end.
    pub fn keeps_order(self) -> bool {
        self.rounds_once() || self == Algorithm::Relay
    }

    /// Chunks of temporary memory of the rank that needs most.
    pub fn scratch(self, collective: Collective, world: u32) -> u32 {
        use Collective::{AllReduce, Exscan, Reduce, ReduceScatter, Scan};
        match (self, collective) {
            (Algorithm::Exchange | Algorithm::AllGatherReduce | Algorithm::Relay, AllReduce) if world <= 2 => 0,
            (Algorithm::Relay, _) => world / 2,
            (Algorithm::AllGatherReduce, _) => world,
            (Algorithm::Exchange, AllReduce | Reduce(_) | Scan | Exscan)
            | (Algorithm::ReduceBroadcast, AllReduce)
            | (Algorithm::Pairwise, AllReduce | ReduceScatter | Reduce(_)) => world - 1,
            _ => 0,
        }
    }

    fn among_several(self, collective: Collective, rank: Rank, world: u32) -> Option<Schedule> {
        use Algorithm::*;
        use Collective::*;
        Some(match (self, collective) {
            (Ring, AllReduce) => ring::all_reduce(rank, world),
            (Ring, ReduceScatter) => ring::reduce_scatter(rank, world),
            (Ring, AllGather) => ring::all_gather(rank, world),
            (Ring, Broadcast(root)) => ring::broadcast(rank, world, root),
            (Ring, Reduce(root)) => ring::reduce(rank, world, root),
            (Recursive, AllReduce) => recursive::all_reduce(rank, world),
            (Recursive, ReduceScatter) => recursive::reduce_scatter(rank, world),
            (Recursive, AllGather) => recursive::all_gather(rank, world),
            (Recursive, Reduce(root)) => recursive::reduce(rank, world, root),
            (Doubling, AllReduce) => recursive::doubling(rank, world),
            (AllGatherReduce, AllReduce) => recursive::all_gather_reduce(rank, world),
            (ReduceBroadcast, AllReduce) => exchange::reduce_broadcast(rank, world),
            (Relay, AllReduce) => relay::all_reduce(rank, world),
            (Tree, AllReduce) => tree::all_reduce(rank, world),
            (Tree, Broadcast(root)) => tree::broadcast(rank, world, root),
            (Tree, Reduce(root)) => tree::reduce(rank, world, root),
            (Tree, Gather(root)) => tree::gather(rank, world, root),
            (Tree, Scatter(root)) => tree::scatter(rank, world, root),
            (Algorithm::CHAIN, Scan) => chain::scan(rank, world),
            (Algorithm::CHAIN, Exscan) => chain::exscan(rank, world),
            (KAry { arity, pieces }, AllReduce) => tree::k_ary_all_reduce(rank, world, (arity, pieces)),
            (KAry { arity, pieces }, Broadcast(root)) => tree::k_ary_broadcast(rank, world, root, (arity, pieces)),
            (KAry { arity, pieces }, Reduce(root)) => tree::k_ary_reduce(rank, world, root, (arity, pieces)),
            (DoubleTree { pieces }, AllReduce) => double_tree::all_reduce(rank, world, pieces),
            (DoubleTree { pieces }, Broadcast(root)) => double_tree::broadcast(rank, world, root, pieces),
            (DoubleTree { pieces }, Reduce(root)) => double_tree::reduce(rank, world, root, pieces),
            (Pairwise, AllReduce) => pairwise::all_reduce(rank, world),
            (Pairwise, ReduceScatter) => pairwise::reduce_scatter(rank, world),
            (Pairwise, AllGather) => pairwise::all_gather(rank, world),
            (Pairwise, Reduce(root)) => pairwise::reduce(rank, world, root),
            (Pairwise, AllToAll) => pairwise::all_to_all(rank, world),
            (Exchange, AllReduce) => exchange::all_reduce(rank, world),
            (Exchange, Broadcast(root)) => exchange::broadcast(rank, world, root),
            (Exchange, Reduce(root)) => exchange::reduce(rank, world, root),
            (Exchange, Gather(root)) => exchange::gather(rank, world, root),
            (Exchange, Scatter(root)) => exchange::scatter(rank, world, root),
            (Exchange, Scan) => exchange::scan(rank, world),
            (Exchange, Exscan) => exchange::exscan(rank, world),
            _ => return None,
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Algorithm::Ring => f.write_str("ring"),
            Algorithm::Recursive => f.write_str("recursive"),
            Algorithm::Doubling => f.write_str("doubling"),
            Algorithm::AllGatherReduce => f.write_str("all_gather_reduce"),
            Algorithm::ReduceBroadcast => f.write_str("reduce_broadcast"),
            Algorithm::Relay => f.write_str("relay"),
            Algorithm::Tree => f.write_str("tree"),
            Algorithm::CHAIN => f.write_str("chain"),
            Algorithm::KAry { arity, pieces } => write!(f, "k_ary:{arity}:{pieces}"),
            Algorithm::DoubleTree { pieces } => write!(f, "double_tree:{pieces}"),
            Algorithm::Pairwise => f.write_str("pairwise"),
            Algorithm::Exchange => f.write_str("exchange"),
        }
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let unknown = || UnknownAlgorithm(text.to_owned());
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let mut number = |default| match words.next() {
            None => Ok(default),
            Some(word) => word.parse().ok().filter(|&number| number > 0).ok_or_else(unknown),
        };
        let algorithm = match name {
            "ring" => Algorithm::Ring,
            "recursive" => Algorithm::Recursive,
            "doubling" => Algorithm::Doubling,
            "all_gather_reduce" => Algorithm::AllGatherReduce,
            "reduce_broadcast" => Algorithm::ReduceBroadcast,
            "relay" => Algorithm::Relay,
            "tree" => Algorithm::Tree,
            "chain" => Algorithm::CHAIN,
            "k_ary" => Algorithm::KAry { arity: number(2)?, pieces: number(16)? },
            "double_tree" => Algorithm::DoubleTree { pieces: number(16)? },
            "pairwise" => Algorithm::Pairwise,
            "exchange" => Algorithm::Exchange,
            _ => return Err(unknown()),
        };
        if words.next().is_some() { Err(unknown()) } else { Ok(algorithm) }
    }
}
