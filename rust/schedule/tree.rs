//! Trees with one root: binomial, the fewest steps for small arrays; k-ary, in pieces that follow each other; and the scatter
//! and gather along a binomial tree that larger collectives begin or end with.
//!
//! Ranks count from the root: `v = (rank - root) mod p`.

use super::{Apply, Rank, Schedule, Span, Step};

/// A rank's place in a tree.
pub(super) struct Node {
    pub parent: Option<Rank>,
    /// In the order in which an array goes up.
    pub children: Vec<Rank>,
}

impl Node {
    /// Child `v` of `v - 2^k`, its lowest bit. Children stand in rising order, the one with the largest subtree last.
    fn binomial(v: Rank, world: u32) -> Node {
        let below = (0..32).map(|k| 1 << k).take_while(|&bit: &u32| v & bit == 0 && bit < world - v);
        Node { parent: (v > 0).then(|| v & (v - 1)), children: below.map(|bit| v + bit).collect() }
    }

    /// Children `kv+1 ..= kv+k`. With `k = 1` it is a chain.
    fn k_ary(v: Rank, world: u32, arity: u32) -> Node {
        let first = u64::from(v) * u64::from(arity) + 1;
        let children = (first..first + u64::from(arity)).take_while(|&child| child < u64::from(world));
        Node { parent: (v > 0).then(|| (v - 1) / arity), children: children.map(|child| child as Rank).collect() }
    }

    /// Takes a chunk from the children, each of which has combined its subtree's, and passes it on.
    fn up(&self, chunk: Span) -> impl Iterator<Item = Step> {
        let last = self.children.len().wrapping_sub(usize::from(self.parent.is_none()));
        let receives =
            self.children.iter().enumerate().map(move |(i, &child)| {
                Step::recv(child, chunk, if i == last { Apply::Finish } else { Apply::Reduce })
            });
        receives.chain(self.parent.map(|parent| Step::send(parent, chunk)))
    }

    /// Takes a chunk from the parent and passes it on to the children, the last one first.
    fn down(&self, chunk: Span) -> impl Iterator<Item = Step> {
        let receive = self.parent.map(|parent| Step::recv(parent, chunk, Apply::Store));
        receive.into_iter().chain(self.children.iter().rev().map(move |&child| Step::send(child, chunk)))
    }
}

/// Along a binomial tree, to the children with the largest subtree first.
///
/// `⌈log2 p⌉` steps of the root, which sends `⌈log2 p⌉` times the array; the others receive it once; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0       -       -
///    1   0       0       0
///    2   0       0       0
/// ```
pub fn broadcast(rank: Rank, world: u32, root: Rank) -> Schedule {
    from_root(rank, world, root, |v| Schedule::new(1, Node::binomial(v, world).down(Span::data(0))))
}

/// The same the other way round, combining.
///
/// `⌈log2 p⌉` steps of the root, which receives and reduces `⌈log2 p⌉` times the array; the others send it once; no scratch.
/// ```text
/// step   rank 0   rank 1  rank 2
///    0   0        1       2
///    1   0+1      1       2
///    2   [0+1+2]  1       2
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank) -> Schedule {
    from_root(rank, world, root, |v| Schedule::new(1, Node::binomial(v, world).up(Span::data(0))))
}

/// To rank 0 and back. `2⌈log2 p⌉` steps of rank 0, which sends, receives and reduces `⌈log2 p⌉` times the array; no scratch.
/// ```text
/// step   rank 0   rank 1   rank 2
///    0   0        1        2
///    1   0+1      1        2
///    2   [0+1+2]  [0+1+2]  [0+1+2]
///    3   [0+1+2]  [0+1+2]  [0+1+2]
///    4   [0+1+2]  [0+1+2]  [0+1+2]
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    reduce(rank, world, 0).then(broadcast(rank, world, 0))
}

/// Along a k-ary tree, piece after piece; a piece goes on while the next arrives.
///
/// `k` steps for each piece at a rank with `k` children, which sends `k` times the array; everybody receives it once; no
/// scratch. A chain (`k = 1`) needs no pieces: with a single child everything that arrives is passed on at once.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 0     - -     - -
///    1   0 0     0 -     0 -
///    2   0 0     0 0     0 0
///    3   0 0     0 0     0 0
///    4   0 0     0 0     0 0
/// ```
pub fn k_ary_broadcast(rank: Rank, world: u32, root: Rank, (arity, pieces): (u32, u32)) -> Schedule {
    from_root(rank, world, root, |v| {
        let node = Node::k_ary(v, world, arity);
        Schedule::new(pieces, (0..pieces).flat_map(|piece| node.down(Span::data(piece)).collect::<Vec<_>>()))
    })
}

/// The same the other way round, combining.
/// ```text
/// step   rank 0           rank 1  rank 2
///    0   0       0        1 1     2 2
///    1   0+1     0        1 1     2 2
///    2   [0+1+2] 0        1 1     2 2
///    3   [0+1+2] 0+1      1 1     2 2
///    4   [0+1+2] [0+1+2]  1 1     2 2
/// ```
pub fn k_ary_reduce(rank: Rank, world: u32, root: Rank, (arity, pieces): (u32, u32)) -> Schedule {
    from_root(rank, world, root, |v| {
        let node = Node::k_ary(v, world, arity);
        Schedule::new(pieces, (0..pieces).flat_map(|piece| node.up(Span::data(piece)).collect::<Vec<_>>()))
    })
}

/// To rank 0 and back.
pub fn k_ary_all_reduce(rank: Rank, world: u32, shape: (u32, u32)) -> Schedule {
    k_ary_reduce(rank, world, 0, shape).then(k_ary_broadcast(rank, world, 0, shape))
}

/// Rank `r` starts with chunk `r`, the root ends with all of them, along a binomial tree: each rank sends those of its subtree.
///
/// `⌈log2 p⌉` rounds of one step, or two where the run of chunks passes the end of the array. The root receives `(p-1)/p` of the
/// array, the others what is below them; no scratch, but room for that.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 - -   - 1 -   - - 2
///    1   0 1 -   - 1 -   - - 2
///    2   0 1 2   - 1 -   - - 2
/// ```
pub fn gather(rank: Rank, world: u32, root: Rank) -> Schedule {
    let subtree = |v| Span::arc(v + root, below(v, world), world);
    from_root(rank, world, root, |v| {
        let node = Node::binomial(v, world);
        let receives = node
            .children
            .iter()
            .flat_map(|&child| subtree(child).into_iter().map(move |span| Step::recv(child, span, Apply::Store)));
        let sends =
            node.parent.into_iter().flat_map(|parent| subtree(v).into_iter().map(move |span| Step::send(parent, span)));
        Schedule::new(world, receives.chain(sends))
    })
}

/// The root starts with all chunks, rank `r` ends with chunk `r`: the same the other way round.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 0 0   - - -   - - -
///    1   0 0 0   - 0 -   - - 0
///    2   0 0 0   - 0 -   - - 0
/// ```
pub fn scatter(rank: Rank, world: u32, root: Rank) -> Schedule {
    scattered(rank, world, root, |v| Span::arc(v + root, below(v, world), world))
}

/// Chunk `v` goes to the `v`-th rank from the root.
pub(super) fn spread(rank: Rank, world: u32, root: Rank) -> Schedule {
    scattered(rank, world, root, |v| vec![Span::run(v, v + below(v, world))])
}

/// Along a binomial tree, each rank gets the chunks of its subtree.
fn scattered(rank: Rank, world: u32, root: Rank, subtree: impl Fn(Rank) -> Vec<Span>) -> Schedule {
    from_root(rank, world, root, |v| {
        let node = Node::binomial(v, world);
        let receives = node
            .parent
            .into_iter()
            .flat_map(|parent| subtree(v).into_iter().map(move |span| Step::recv(parent, span, Apply::Store)));
        let sends = node.children.iter().rev();
        let sends = sends.flat_map(|&child| subtree(child).into_iter().map(move |span| Step::send(child, span)));
        Schedule::new(world, receives.chain(sends))
    })
}

/// How many ranks the binomial subtree of `v` has.
pub(super) fn below(v: Rank, world: u32) -> u32 {
    if v == 0 { world } else { (1 << v.trailing_zeros()).min(world - v) }
}

/// The schedule of the rank `v` places after the root, with the names that the ranks really have.
pub(super) fn from_root(rank: Rank, world: u32, root: Rank, schedule: impl Fn(Rank) -> Schedule) -> Schedule {
    let names: Vec<Rank> = (0..world).map(|v| (v + root) % world).collect();
    schedule((rank + world - root) % world).on(&names)
}
