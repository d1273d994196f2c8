//! Every rank sends to the next and receives from the one before. The fewest bytes, the most steps.

use super::{Apply, Rank, Schedule, Span, Step, exchange, tree};

/// Rank `r` ends with chunk `r` of `p`, combined over all ranks (Patarasuk and Yuan 2009).
///
/// `p-1` steps; each rank sends, receives and reduces `(p-1)/p` of the array, which is the least possible; no scratch.
/// ```text
/// step   rank 0         rank 1         rank 2
///    0   0       0   0  1 1       1    2   2 2
///    1   0       0+2 0  1 1       0+1  1+2 2 2
///    2   [0+1+2] 0+2 0  1 [0+1+2] 0+1  1+2 2 [0+1+2]
/// ```
pub fn reduce_scatter(rank: Rank, world: u32) -> Schedule {
    let apply = |k| if k == world - 1 { Apply::Finish } else { Apply::Reduce };
    Schedule::new(world, (1..world).map(|k| hop(rank, world, k, apply(k))))
}

/// Rank `r` starts with chunk `r` of `p`, everyone ends with all of them.
///
/// `p-1` steps; each rank sends and receives `(p-1)/p` of the array, which is the least possible; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 - -   - 1 -   - - 2
///    1   0 - 2   0 1 -   - 1 2
///    2   0 1 2   0 1 2   0 1 2
/// ```
pub fn all_gather(rank: Rank, world: u32) -> Schedule {
    Schedule::new(world, (1..world).map(|k| hop(rank, world, k - 1, Apply::Store)))
}

/// `2(p-1)` steps; each rank sends and receives `2(p-1)/p` of the array and reduces half of that, which is the least possible
/// (Patarasuk and Yuan 2009); no scratch.
/// ```text
/// step   rank 0                   rank 1                   rank 2
///    0   0       0       0        1       1       1        2       2       2
///    1   0       0+2     0        1       1       0+1      1+2     2       2
///    2   [0+1+2] 0+2     0        1       [0+1+2] 0+1      1+2     2       [0+1+2]
///    3   [0+1+2] 0+2     [0+1+2]  [0+1+2] [0+1+2] 0+1      1+2     [0+1+2] [0+1+2]
///    4   [0+1+2] [0+1+2] [0+1+2]  [0+1+2] [0+1+2] [0+1+2]  [0+1+2] [0+1+2] [0+1+2]
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Sends on the chunk `back` places behind this rank, and takes the one behind it.
fn hop(rank: Rank, world: u32, back: u32, apply: Apply) -> Step {
    let behind = |places| Span::data((rank + world - places) % world);
    Step::exchange(((rank + 1) % world, behind(back)), ((rank + world - 1) % world, behind((back + 1) % world), apply))
}

/// The root's chunks are scattered along a binomial tree, after which everybody passes on what the next does not have yet
/// (van de Geijn; Thakur et al. 2005; without the redundant ones of these, Zhou et al. 2015).
///
/// `⌈log2 p⌉ + p-1` steps at most; the root sends `2(p-1)/p` of the array at most, the others receive it once; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 0 0   - - -   - - -
///    1   0 0 0   - 0 -   - - 0
///    2   0 0 0   0 0 -   - 0 0
///    3   0 0 0   0 0 0   0 0 0
///    4   0 0 0   0 0 0   0 0 0
/// ```
pub fn broadcast(rank: Rank, world: u32, root: Rank) -> Schedule {
    let missing = |v: Rank, chunk: u32| !(v..v + tree::below(v, world)).contains(&chunk);
    let pass_on = |v: Rank| {
        let (next, before) = ((v + 1) % world, (v + world - 1) % world);
        let hops = (0..world - 1).map(|k| {
            let (sent, received) = ((v + world - k) % world, (before + world - k) % world);
            Step::Exchange {
                send: missing(next, sent).then_some((next, Span::data(sent))),
                recv: missing(v, received).then_some((before, Span::data(received), Apply::Store)),
            }
        });
        Schedule::new(world, hops.filter(|hop| *hop != Step::Exchange { send: None, recv: None }))
    };
    tree::spread(rank, world, root).then(tree::from_root(rank, world, root, pass_on))
}

/// Combined as in `reduce_scatter`, after which everybody sends its chunk to the root.
///
/// `2(p-1)` steps of the root, which receives `2(p-1)/p` of the array, the others half of that; no scratch.
/// ```text
/// step   rank 0                   rank 1         rank 2
///    0   0       0       0        1 1       1    2   2 2
///    1   0       0+2     0        1 1       0+1  1+2 2 2
///    2   [0+1+2] 0+2     0        1 [0+1+2] 0+1  1+2 2 [0+1+2]
///    3   [0+1+2] [0+1+2] 0        1 [0+1+2] 0+1  1+2 2 [0+1+2]
///    4   [0+1+2] [0+1+2] [0+1+2]  1 [0+1+2] 0+1  1+2 2 [0+1+2]
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank) -> Schedule {
    reduce_scatter(rank, world).then(exchange::gather(rank, world, root))
}
