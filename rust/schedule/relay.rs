//! In two stages: one rank combines the first half of the arrays, and passes that on to the next, which combines the rest. For a few
//! KiB where messages keep each other waiting, and three arrays in one port would too.

use super::{Apply, Rank, Schedule, Span, Step, exchange, tree};

/// The first half of the ranks send their arrays to the last of them, which combines these in rank order and passes the result on to
/// the rank after it. That one combines it, its own array and those of all after it, still in rank order, and sends the result down a
/// binomial tree. Two ranks exchange what they have.
///
/// `2(p-1)` messages in all, in `⌊p/2⌋ + ⌈log2 p⌉` steps of the second of the two; nobody receives the array more than `⌈p/2⌉` times,
/// reduces it more than `⌊p/2⌋` times or sends it more than `⌈log2 p⌉` times; scratch: `⌊p/2⌋` times the array.
/// ```text
/// step   rank 0   rank 1       rank 2
///    0   0        1       | -  2       | -
///    1   0        1       | 0  2       | 0+1
///    2   [0+1+2]  0+1     | 0  [0+1+2] | 0+1
///    3   [0+1+2]  0+1     | 0  [0+1+2] | 0+1
///    4   [0+1+2]  [0+1+2] | 0  [0+1+2] | 0+1
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    if world == 2 {
        return exchange::all_reduce(rank, world);
    }
    let (array, root) = (Span::data(0), world.div_ceil(2));
    let hub = root - 1;
    let steps: Vec<Step> = match rank {
        _ if rank < hub => vec![Step::send(hub, array)],
        _ if rank > root => vec![Step::send(root, array)],
        _ if rank == hub => {
            let srcs = (0..hub).map(Span::scratch).chain([array]).collect();
            let received = (0..hub).map(|from| Step::recv(from, Span::scratch(from), Apply::Store));
            let combined = [Step::Local { dst: array, srcs, finish: false }, Step::send(root, array)];
            received.chain(combined).collect()
        }
        _ => {
            // What the hub passes on comes last, and stands first.
            let place = |from: Rank| Span::scratch(from - root);
            let received = (root + 1..world).map(|from| Step::recv(from, place(from), Apply::Store));
            let passed_on = Step::recv(hub, Span::scratch(0), Apply::Store);
            let srcs = [Span::scratch(0), array].into_iter().chain((root + 1..world).map(place)).collect();
            received.chain([passed_on, Step::Local { dst: array, srcs, finish: true }]).collect()
        }
    };
    let mut schedule = Schedule::new(1, steps);
    schedule.scratch = if rank == hub {
        hub
    } else if rank == root {
        world - root
    } else {
        0
    };
    schedule.then(tree::broadcast(rank, world, root))
}
