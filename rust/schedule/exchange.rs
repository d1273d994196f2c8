//! Everybody sends all it has to everybody who needs it: one step's latency, and bytes that grow with the world. For two ranks,
//! and for small arrays on few.

use super::{Apply, Rank, Schedule, Span, Step};

/// Two ranks send each other their arrays and combine what arrives, in one step. More of them receive into temporary memory
/// and combine everything at once, in rank order, so that there is one rounding per element whatever the world.
///
/// `p-1` steps of which none waits for another; each rank sends, receives and reduces `p-1` times the array; scratch: `p-1`
/// times the array, none for two ranks.
/// ```text
/// step   rank 0         rank 1         rank 2
///    0   0       | - -  1       | - -  2       | - -
///    1   0       | - 2  1       | 0 -  2       | - 1
///    2   0       | 1 2  1       | 0 2  2       | 0 1
///    3   [0+1+2] | 1 2  [0+1+2] | 0 2  [0+1+2] | 0 1
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    let array = Span::data(0);
    if world == 2 {
        return Schedule::new(1, [Step::exchange((1 - rank, array), (1 - rank, array, Apply::Finish))]);
    }
    let everybody = (1..world).map(|k| {
        let (to, from) = ((rank + k) % world, (rank + world - k) % world);
        Step::exchange((to, array), (from, place(rank, from), Apply::Store))
    });
    let mut schedule = Schedule::new(1, everybody);
    combine(&mut schedule, rank, world, array);
    schedule
}

/// The root sends its array to everybody. `p-1` steps of the root, which sends `p-1` times the array; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0       -       -
///    1   0       0       0
///    2   0       0       0
/// ```
pub fn broadcast(rank: Rank, world: u32, root: Rank) -> Schedule {
    if rank != root {
        return Schedule::new(1, [Step::recv(root, Span::data(0), Apply::Store)]);
    }
    Schedule::new(1, (1..world).map(|k| Step::send((root + k) % world, Span::data(0))))
}

/// Everybody sends its array to the root, which combines them at once, in rank order. `p-1` steps of the root, which receives
/// and reduces `p-1` times the array; scratch: the same, at the root.
/// ```text
/// step   rank 0         rank 1  rank 2
///    0   0       | - -  1       2
///    1   0       | 1 -  1       2
///    2   0       | 1 2  1       2
///    3   [0+1+2] | 1 2  1       2
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank) -> Schedule {
    let array = Span::data(0);
    if rank != root {
        return Schedule::new(1, [Step::send(root, array)]);
    }
    let receives = (1..world).map(|k| (root + k) % world).map(|from| Step::recv(from, place(root, from), Apply::Store));
    let mut schedule = Schedule::new(1, receives);
    combine(&mut schedule, root, world, array);
    schedule
}

/// Everybody sends its array to rank 0, which combines them at once, in rank order, and passes the result down a binomial tree. For
/// small arrays where messages keep each other waiting, since no other way needs fewer (Intel MPI: `Reduce + Bcast`).
///
/// `2(p-1)` messages in all; rank 0 receives and reduces `p-1` times the array in as many steps, and sends it in `⌈log2 p⌉`
/// more; scratch: `p-1` times the array, at rank 0.
/// ```text
/// step   rank 0         rank 1   rank 2
///    0   0       | - -  1        2
///    1   0       | 1 -  1        2
///    2   0       | 1 2  [0+1+2]  [0+1+2]
///    3   [0+1+2] | 1 2  [0+1+2]  [0+1+2]
///    4   [0+1+2] | 1 2  [0+1+2]  [0+1+2]
///    5   [0+1+2] | 1 2  [0+1+2]  [0+1+2]
/// ```
pub fn reduce_broadcast(rank: Rank, world: u32) -> Schedule {
    reduce(rank, world, 0).then(super::tree::broadcast(rank, world, 0))
}

/// Everybody sends its chunk to the root, in the order in which they follow it.
///
/// `p-1` steps of the root, of which none waits for another; it receives `(p-1)/p` of the array, the others send their share; no
/// scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 - -   - 1 -   - - 2
///    1   0 1 -   - 1 -   - - 2
///    2   0 1 2   - 1 -   - - 2
/// ```
pub fn gather(rank: Rank, world: u32, root: Rank) -> Schedule {
    if rank != root {
        return Schedule::new(world, [Step::send(root, Span::data(rank))]);
    }
    let others = (1..world).map(|k| (root + k) % world);
    Schedule::new(world, others.map(|from| Step::recv(from, Span::data(from), Apply::Store)))
}

/// The root sends everybody its chunk: the same the other way round.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 0 0   - - -   - - -
///    1   0 0 0   - 0 -   - - 0
///    2   0 0 0   - 0 -   - - 0
/// ```
pub fn scatter(rank: Rank, world: u32, root: Rank) -> Schedule {
    if rank != root {
        return Schedule::new(world, [Step::recv(root, Span::data(rank), Apply::Store)]);
    }
    let others = (1..world).map(|k| (root + k) % world);
    Schedule::new(world, others.map(|to| Step::send(to, Span::data(to))))
}

/// Everybody sends its array to all ranks after it, and combines what those before it sent, in rank order, with its own.
///
/// `p-1` steps, of which none waits for another; rank 0 sends, and the last rank receives and reduces, `p-1` times the array;
/// scratch: `r` times the array on rank `r`.
/// ```text
/// step   rank 0  rank 1   rank 2
///    0   0       1   | -  2     | - -
///    1   0       1   | 0  2     | - 1
///    2   0       0+1 | 0  2     | 0 1
///    3   0       0+1 | 0  0+1+2 | 0 1
/// ```
pub fn scan(rank: Rank, world: u32) -> Schedule {
    prefix(rank, world, rank + 1)
}

/// The same without this rank's own array. Rank 0 only sends.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0       1 | -   2   | - -
///    1   0       1 | 0   2   | - 1
///    2   0       0 | 0   2   | 0 1
///    3   0       0 | 0   0+1 | 0 1
/// ```
pub fn exscan(rank: Rank, world: u32) -> Schedule {
    prefix(rank, world, rank)
}

/// Combines the arrays of the first `operands` ranks, which are this one and those before it at most.
fn prefix(rank: Rank, world: u32, operands: u32) -> Schedule {
    let array = Span::data(0);
    let exchanges = (1..world).filter_map(|k| {
        let (to, from) = (Some(rank + k).filter(|&to| to < world), rank.checked_sub(k));
        (to.is_some() || from.is_some()).then(|| Step::Exchange {
            send: to.map(|to| (to, array)),
            recv: from.map(|from| (from, place(rank, from), Apply::Store)),
        })
    });
    let mut schedule = Schedule::new(1, exchanges);
    if rank > 0 {
        let srcs = (0..operands).map(|from| if from == rank { array } else { place(rank, from) }).collect();
        schedule.scratch = rank;
        schedule.steps.push(Step::Local { dst: array, srcs, finish: false });
    }
    schedule
}

/// Where rank `rank` keeps what `from` sends: a chunk of scratch each, in rank order, and the array for its own.
pub(super) fn place(rank: Rank, from: Rank) -> Span {
    Span::scratch(if from < rank { from } else { from - 1 })
}

/// Adds the step that combines a chunk of this rank with what all others sent of it.
pub(super) fn combine(schedule: &mut Schedule, rank: Rank, world: u32, chunk: Span) {
    if world == 1 {
        return;
    }
    let srcs = (0..world).map(|from| if from == rank { chunk } else { place(rank, from) }).collect();
    schedule.scratch = world - 1;
    schedule.steps.push(Step::Local { dst: chunk, srcs, finish: true });
}
