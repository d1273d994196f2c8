//! Every rank sends each chunk straight to its owner, who combines them all at once: the bytes of the ring, one rounding per
//! element, and no step waits for another.

use super::exchange::{combine, gather, place};
use super::{Apply, Rank, Schedule, Span, Step};

/// Rank `r` ends with chunk `r` of `p`, combined over all ranks, in rank order (Thakur et al. 2005, pairwise exchange).
///
/// `p-1` steps of which none waits for another; each rank sends, receives and reduces `(p-1)/p` of the array, the least
/// possible; scratch: the same, `p-1` chunks.
/// ```text
/// step   rank 0             rank 1             rank 2
///    0   0       0 0 | - -  1 1       1 | - -  2 2 2       | - -
///    1   0       0 0 | - 2  1 1       1 | 0 -  2 2 2       | - 1
///    2   0       0 0 | 1 2  1 1       1 | 0 2  2 2 2       | 0 1
///    3   [0+1+2] 0 0 | 1 2  1 [0+1+2] 1 | 0 2  2 2 [0+1+2] | 0 1
/// ```
pub fn reduce_scatter(rank: Rank, world: u32) -> Schedule {
    let exchanges = (1..world).map(|k| {
        let (to, from) = ((rank + k) % world, (rank + world - k) % world);
        Step::exchange((to, Span::data(to)), (from, place(rank, from), Apply::Store))
    });
    let mut schedule = Schedule::new(world, exchanges);
    combine(&mut schedule, rank, world, Span::data(rank));
    schedule
}

/// Rank `r` starts with chunk `r` of `p`, everyone ends with all of them.
///
/// `p-1` steps of which none waits for another; each rank sends and receives `(p-1)/p` of the array, the least possible; no
/// scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 - -   - 1 -   - - 2
///    1   0 - 2   0 1 -   - 1 2
///    2   0 1 2   0 1 2   0 1 2
/// ```
pub fn all_gather(rank: Rank, world: u32) -> Schedule {
    Schedule::new(
        world,
        (1..world).map(|k| {
            let (to, from) = ((rank + k) % world, (rank + world - k) % world);
            Step::exchange((to, Span::data(rank)), (from, Span::data(from), Apply::Store))
        }),
    )
}

/// `2(p-1)` steps, of which one in all waits for others; each rank sends and receives `2(p-1)/p` of the array and reduces half
/// of that, the least possible; scratch: `p-1` chunks.
/// ```text
/// step   rank 0                         rank 1                         rank 2
///    0   0       0       0       | - -  1       1       1       | - -  2       2       2       | - -
///    1   0       0       0       | - 2  1       1       1       | 0 -  2       2       2       | - 1
///    2   0       0       0       | 1 2  1       1       1       | 0 2  2       2       2       | 0 1
///    3   [0+1+2] 0       0       | 1 2  1       [0+1+2] 1       | 0 2  2       2       [0+1+2] | 0 1
///    4   [0+1+2] 0       [0+1+2] | 1 2  [0+1+2] [0+1+2] 1       | 0 2  2       [0+1+2] [0+1+2] | 0 1
///    5   [0+1+2] [0+1+2] [0+1+2] | 1 2  [0+1+2] [0+1+2] [0+1+2] | 0 2  [0+1+2] [0+1+2] [0+1+2] | 0 1
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Combined as in `reduce_scatter`, after which everybody sends its chunk to the root.
///
/// `2(p-1)` steps of the root, which receives `2(p-1)/p` of the array, the others half of that; scratch: `p-1` chunks.
/// ```text
/// step   rank 0                         rank 1             rank 2
///    0   0       0       0       | - -  1 1       1 | - -  2 2 2       | - -
///    1   0       0       0       | - 2  1 1       1 | 0 -  2 2 2       | - 1
///    2   0       0       0       | 1 2  1 1       1 | 0 2  2 2 2       | 0 1
///    3   [0+1+2] 0       0       | 1 2  1 [0+1+2] 1 | 0 2  2 2 [0+1+2] | 0 1
///    4   [0+1+2] [0+1+2] 0       | 1 2  1 [0+1+2] 1 | 0 2  2 2 [0+1+2] | 0 1
///    5   [0+1+2] [0+1+2] [0+1+2] | 1 2  1 [0+1+2] 1 | 0 2  2 2 [0+1+2] | 0 1
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank) -> Schedule {
    reduce_scatter(rank, world).then(gather(rank, world, root))
}

/// Rank `f` starts with a chunk for each rank, chunk `t` for rank `t`, and each ends with a chunk from everybody, which has the
/// place `p + f`: what goes out stays as it is (Thakur et al. 2005, pairwise exchange).
///
/// `p-1` steps of which none waits for another; each rank sends and receives `p-1` of its `p` chunks, and copies its own; no
/// scratch. Nothing is sent on by others, so no byte travels twice, whatever the lengths; ways with fewer steps for small chunks
/// (Bruck et al. 1997) send every byte about `(log2 p)/2` times.
/// ```text
/// step   rank 0       rank 1       rank 2
///    0   0 0 0 - - -  1 1 1 - - -  2 2 2 - - -
///    1   0 0 0 0 - -  1 1 1 - 1 -  2 2 2 - - 2
///    2   0 0 0 0 - 2  1 1 1 0 1 -  2 2 2 - 1 2
///    3   0 0 0 0 1 2  1 1 1 0 1 2  2 2 2 0 1 2
/// ```
pub fn all_to_all(rank: Rank, world: u32) -> Schedule {
    let own = Step::Local { dst: Span::data(world + rank), srcs: vec![Span::data(rank)], finish: false };
    let exchanges = (1..world).map(|k| {
        let (to, from) = ((rank + k) % world, (rank + world - k) % world);
        Step::exchange((to, Span::data(to)), (from, Span::data(world + from), Apply::Store))
    });
    Schedule::new(2 * world, [own].into_iter().chain(exchanges))
}
