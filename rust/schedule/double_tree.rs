//! Two binary trees, half of the array on each. Every rank is a leaf of one of them, except rank 0 if `p` is odd, which has a
//! single child in each; so while one tree keeps its inner ranks busy, the other uses the links of its leaves (Sanders, Speck
//! and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"). The trees are those of NCCL
//! (`ncclGetDtree`): in the first, ranks that have `k` zero bits at the end stand `k` above the leaves; the second is the first
//! mirrored, or shifted by one if `p` is odd.
//!
//! ```text
//! p = 6     0            5                  p = 5     0            1
//!           └─ 4         └─ 1                         └─ 4         └─ 0
//!              ├─ 2         ├─ 3                         └─ 2         └─ 3
//!              │  ├─ 1      │  ├─ 4                         ├─ 1         ├─ 2
//!              │  └─ 3      │  └─ 2                         └─ 3         └─ 4
//!              └─ 5         └─ 0
//! ```
//! Each half is cut into pieces that follow each other. What stands in one global order, of which every rank follows its part,
//! cannot deadlock: the first transfer of all that is not done is the next one at both its ends. That order is by time, if
//! pieces start one unit of time after each other and need `LAG` units for a level; so a rank attends to both trees in turn.

use super::{Apply, Rank, Schedule, Span, Step};

/// Half of the array goes up to rank 0 and back down, the other half to the last rank, or to rank 1 if `p` is odd.
///
/// About `2(pieces + ⌈log2 p⌉)` units of time. A rank sends, receives and reduces at most `2`, `2` and `1` times the array,
/// hardly more than with a ring, for a number of steps that grows with `log p`; no scratch.
/// ```text
/// step   rank 0           rank 1           rank 2
///    0   0       0        1       1        2       2
///    1   0       0+2      1       1        1+2     2
///    2   [0+1+2] 0+2      1       [0+1+2]  1+2     2
///    3   [0+1+2] 0+2      1       [0+1+2]  1+2     2
///    4   [0+1+2] 0+2      [0+1+2] [0+1+2]  [0+1+2] 2
///    5   [0+1+2] [0+1+2]  [0+1+2] [0+1+2]  [0+1+2] 2
///    6   [0+1+2] [0+1+2]  [0+1+2] [0+1+2]  [0+1+2] [0+1+2]
/// ```
pub fn all_reduce(rank: Rank, world: u32, pieces: u32) -> Schedule {
    let trees = [0, 1].map(|tree| Node::of(tree, rank, world, |u| u));
    up(rank, &trees, pieces).then(down(rank, &trees, pieces))
}

/// The root gives half of the array to each of two trees among the others.
///
/// About `2·pieces + ⌈log2 p⌉` units of time; everybody receives the array once and sends it once at most; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 0     - -     - -
///    1   0 0     0 -     - 0
///    2   0 0     0 -     0 0
///    3   0 0     0 0     0 0
/// ```
pub fn broadcast(rank: Rank, world: u32, root: Rank, pieces: u32) -> Schedule {
    down(rank, &below_root(rank, world, root), pieces)
}

/// The same the other way round, combining.
/// ```text
/// step   rank 0           rank 1  rank 2
///    0   0       0        1   1   2 2
///    1   [0+1+2] 0        1+2 1   2 2
///    2   [0+1+2] [0+1+2]  1+2 1   2 1+2
///    3   [0+1+2] [0+1+2]  1+2 1   2 1+2
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank, pieces: u32) -> Schedule {
    up(rank, &below_root(rank, world, root), pieces)
}

/// A rank's place in one of the trees; neighbours come with their heights.
struct Node {
    height: u32,
    parent: Option<(Rank, u32)>,
    children: Vec<(Rank, u32)>,
}

impl Node {
    /// Of the first tree, or of the second, whose shape is the same: the ranks in it have other names.
    fn of(tree: u32, rank: Rank, world: u32, name: impl Fn(Rank) -> Rank) -> Node {
        let outer = |v| name(twist(tree, v, world));
        let v = untwist(tree, rank, world);
        let with_height = |v| (outer(v), height(v, world));
        Node {
            height: height(v, world),
            parent: parent(v, world).map(with_height),
            children: children(v, world).into_iter().map(with_height).collect(),
        }
    }
}

/// Both trees among the ranks after the root, which stands above them.
fn below_root(rank: Rank, world: u32, root: Rank) -> [Node; 2] {
    let others = world - 1;
    let name = |u| (root + 1 + u) % world;
    let top = height(0, others);
    [0, 1].map(|tree| {
        if rank == root {
            return Node { height: top + 1, parent: None, children: vec![(name(twist(tree, 0, others)), top)] };
        }
        let mut node = Node::of(tree, (rank + world - root - 1) % world, others, name);
        node.parent.get_or_insert((root, top + 1));
        node
    })
}

/// Who stands in the second tree where `v` stands in the first.
fn twist(tree: u32, v: Rank, world: u32) -> Rank {
    match tree {
        0 => v,
        _ if world.is_multiple_of(2) => world - 1 - v,
        _ => (v + 1) % world,
    }
}

fn untwist(tree: u32, rank: Rank, world: u32) -> Rank {
    match tree {
        0 => rank,
        _ if world.is_multiple_of(2) => world - 1 - rank,
        _ => (rank + world - 1) % world,
    }
}

fn height(v: Rank, world: u32) -> u32 {
    if v == 0 { world.next_power_of_two().ilog2() } else { v.trailing_zeros() }
}

/// `..01000` and `..11000` stand below `..10000`, or, if there is no such rank, below `..00000`.
fn parent(v: Rank, world: u32) -> Option<Rank> {
    let bit = v & v.wrapping_neg();
    let near = (v ^ bit) | (bit << 1);
    (v != 0).then_some(if near < world { near } else { v ^ bit })
}

fn children(v: Rank, world: u32) -> Vec<Rank> {
    let candidates = (0..height(v, world)).rev().flat_map(|k| [v.checked_sub(1 << k), v.checked_add(1 << k)]);
    candidates.flatten().filter(|&child| child < world && parent(child, world) == Some(v)).collect()
}

/// How many pieces of one tree pass a rank before what is a level further away in the other tree is expected: about the latency
/// of a link, in pieces. If it is really larger, the trees wait for each other, and a piece takes `2 / (2 LAG + 1)` of it.
pub(super) const LAG: u32 = 2;

/// When a rank does what: the time, the tree, who receives, and which of its children from.
type Turn = (u32, usize, Rank, usize);

fn in_turn(chunks: u32, mut steps: Vec<(Turn, Step)>) -> Schedule {
    steps.sort_by_key(|&(turn, _)| turn);
    Schedule::new(chunks, steps.into_iter().map(|(_, step)| step))
}

/// Each rank combines the pieces of its children with its own and passes them to its parent.
fn up(rank: Rank, trees: &[Node; 2], pieces: u32) -> Schedule {
    let mut steps = Vec::new();
    for (tree, node) in trees.iter().enumerate() {
        for piece in 0..pieces {
            let chunk = Span::data(tree as u32 * pieces + piece);
            for (i, &(child, _)) in node.children.iter().enumerate() {
                let last = node.parent.is_none() && i + 1 == node.children.len();
                let apply = if last { Apply::Finish } else { Apply::Reduce };
                steps.push(((piece + LAG * node.height, tree, rank, i), Step::recv(child, chunk, apply)));
            }
            if let Some((parent, height)) = node.parent {
                steps.push(((piece + LAG * height, tree, parent, 0), Step::send(parent, chunk)));
            }
        }
    }
    in_turn(2 * pieces, steps)
}

/// Each rank passes on to its children what comes from its parent.
fn down(rank: Rank, trees: &[Node; 2], pieces: u32) -> Schedule {
    const TOP: u32 = u32::BITS + 1;
    let mut steps = Vec::new();
    for (tree, node) in trees.iter().enumerate() {
        for piece in 0..pieces {
            let chunk = Span::data(tree as u32 * pieces + piece);
            if let Some((parent, _)) = node.parent {
                let turn = (piece + LAG * (TOP - node.height), tree, rank, 0);
                steps.push((turn, Step::recv(parent, chunk, Apply::Store)));
            }
            for &(child, height) in &node.children {
                steps.push(((piece + LAG * (TOP - height), tree, child, 0), Step::send(child, chunk)));
            }
        }
    }
    in_turn(2 * pieces, steps)
}
