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
