//! The distance doubles or halves with every step, so that there are about `log2 p` of them.
//!
//! For a power of two the partners are those of a hypercube (Rabenseifner 2004; Thakur et al. 2005). The textbook ways to other
//! worlds, folding the ranks beyond the power of two into others before and unfolding them after, or eliminating them by threes
//! (3-2 elimination, Rabenseifner and Träff 2004), cost some ranks more rounds and more bytes than the others. Instead, these
//! worlds use circulant graphs (Träff 2024, "Optimal, non-pipelined reduce-scatter and allreduce algorithms"): in a round with
//! distance `s` every rank sends what it holds for the ranks `s` and more places ahead, and receives from `s` places behind.
//! That is `⌈log2 p⌉` rounds and not one byte more than the ring, for every `p`. Powers of two stay with the hypercube because
//! it has half as many links.

use super::{Apply, Rank, Schedule, Span, Step};

/// Rank `r` ends with chunk `r` of `p`, combined over all ranks.
///
/// `⌈log2 p⌉` rounds; each rank sends, receives and reduces `(p-1)/p` of the array, the least possible; no scratch. A round is
/// one step, or two where its run of chunks passes the end of the array.
/// ```text
/// step   rank 0       rank 1       rank 2
///    0   0       0 0  1 1       1  2 2 2
///    1   0+1     0 0  1 1+2     1  2 2 0+2
///    2   [0+1+2] 0 0  1 [0+1+2] 1  2 2 [0+1+2]
/// ```
pub fn reduce_scatter(rank: Rank, world: u32) -> Schedule {
    let rounds = distances(world).into_iter().rev();
    Schedule::new(
        world,
        rounds.flat_map(|(near, far)| {
            let apply = if near == 1 { Apply::Finish } else { Apply::Reduce };
            let round = Round::of(rank, world, near, far);
            steps(round.ahead, round.far, round.behind, round.near, apply)
        }),
    )
}

/// Rank `r` starts with chunk `r` of `p`, everyone ends with all of them: the same the other way round.
///
/// `⌈log2 p⌉` rounds; each rank sends and receives `(p-1)/p` of the array, the least possible; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0 - -   - 1 -   - - 2
///    1   0 1 -   - 1 2   0 - 2
///    2   0 1 2   0 1 2   0 1 2
/// ```
pub fn all_gather(rank: Rank, world: u32) -> Schedule {
    Schedule::new(
        world,
        distances(world).into_iter().flat_map(|(near, far)| {
            let round = Round::of(rank, world, near, far);
            steps(round.behind, round.near, round.ahead, round.far, Apply::Store)
        }),
    )
}

/// `2⌈log2 p⌉` rounds; each rank sends and receives `2(p-1)/p` of the array and reduces half of that, the least possible; no
/// scratch.
/// ```text
/// step   rank 0                   rank 1                   rank 2
///    0   0       0       0        1       1       1        2       2       2
///    1   0+1     0       0        1       1+2     1        2       2       0+2
///    2   [0+1+2] 0       0        1       [0+1+2] 1        2       2       [0+1+2]
///    3   [0+1+2] [0+1+2] 0        1       [0+1+2] [0+1+2]  [0+1+2] 2       [0+1+2]
///    4   [0+1+2] [0+1+2] [0+1+2]  [0+1+2] [0+1+2] [0+1+2]  [0+1+2] [0+1+2] [0+1+2]
/// ```
pub fn all_reduce(rank: Rank, world: u32) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Combined as in `reduce_scatter`, then gathered along a binomial tree (Rabenseifner 2004).
///
/// `2⌈log2 p⌉` rounds; the root receives `2(p-1)/p` of the array; no scratch.
/// ```text
/// step   rank 0                   rank 1       rank 2
///    0   0       0       0        1 1       1  2 2 2
///    1   0+1     0       0        1 1+2     1  2 2 0+2
///    2   [0+1+2] 0       0        1 [0+1+2] 1  2 2 [0+1+2]
///    3   [0+1+2] [0+1+2] 0        1 [0+1+2] 1  2 2 [0+1+2]
///    4   [0+1+2] [0+1+2] [0+1+2]  1 [0+1+2] 1  2 2 [0+1+2]
/// ```
pub fn reduce(rank: Rank, world: u32, root: Rank) -> Schedule {
    reduce_scatter(rank, world).then(super::tree::gather(rank, world, root))
}

/// Recursive doubling: everybody exchanges all it has with a partner at distance 1, 2, 4, ... For small arrays. The `x` ranks
/// beyond the power of two first give their array to one within, and get the result in the end.
///
/// `log2 p` steps for a power of two, of a rank within and with such a guest `⌊log2 p⌋ + 2`; it sends, receives and reduces
/// `⌊log2 p⌋` times the array, and once more for its guest; no scratch.
/// ```text
/// step   rank 0   rank 1   rank 2
///    0   0        1        2
///    1   0+2      [0+1+2]  2
///    2   [0+1+2]  [0+1+2]  [0+1+2]
///    3   [0+1+2]  [0+1+2]  [0+1+2]
/// ```
pub fn doubling(rank: Rank, world: u32) -> Schedule {
    let array = Span::data(0);
    let within = 1 << world.ilog2();
    if rank >= within {
        let host = rank - within;
        return Schedule::new(1, [Step::send(host, array), Step::recv(host, array, Apply::Store)]);
    }
    let guest = Some(rank + within).filter(|&guest| guest < world);
    let doubled = (0..within.ilog2()).map(|k| {
        let apply = if 2 << k == within { Apply::Finish } else { Apply::Reduce };
        Step::exchange((rank ^ 1 << k, array), (rank ^ 1 << k, array, apply))
    });
    let first = guest.map(|guest| Step::recv(guest, array, Apply::Reduce));
    Schedule::new(1, first.into_iter().chain(doubled).chain(guest.map(|guest| Step::send(guest, array))))
}

/// Everybody's array comes to everybody, as in an all-gather, and each rank combines all of them at once, in rank order: the
/// result of `exchange` in fewer messages, of more bytes. For small arrays whose order matters (Open MPI: `allgather_reduce`).
///
/// `⌈log2 p⌉` steps, as many messages of each rank; it sends, receives and reduces `p-1` times the array; scratch: `p` times
/// the array, none for two ranks.
/// ```text
/// step   rank 0           rank 1           rank 2
///    0   0       | - - -  1       | - - -  2       | - - -
///    1   0       | - 1 -  1       | - 2 -  2       | - 0 -
///    2   0       | 0 1 -  1       | 1 2 -  2       | 2 0 -
///    3   0       | 0 1 2  1       | 1 2 0  2       | 2 0 1
///    4   [0+1+2] | 0 1 2  [0+1+2] | 1 2 0  [0+1+2] | 2 0 1
/// ```
pub fn all_gather_reduce(rank: Rank, world: u32) -> Schedule {
    if world == 2 {
        return super::exchange::all_reduce(rank, world);
    }
    let (array, hypercube) = (Span::data(0), world.is_power_of_two());
    let own = if hypercube { rank } else { 0 };
    let mut schedule = Schedule { scratch: world, ..Schedule::new(1, []) };
    for (near, far) in distances(world) {
        let scratch = |lo: u32, len: u32| Span { hi: lo + len, ..Span::scratch(lo) };
        let len = far - near;
        let (to, first, from, into) = if hypercube {
            let (partner, held) = (rank ^ near, rank & !(near - 1));
            (partner, held, partner, held ^ near)
        } else {
            ((rank + world - near) % world, own, (rank + near) % world, near)
        };
        // Alone the own array goes from where it is, before anything has arrived.
        let out = if len == 1 { array } else { scratch(first, len) };
        schedule.steps.push(Step::exchange((to, out), (from, scratch(into, len), Apply::Store)));
        if near == 1 {
            schedule.steps.push(Step::Local { dst: Span::scratch(own), srcs: vec![array], finish: false });
        }
    }
    let place = |whose| if hypercube { whose } else { (whose + world - rank) % world };
    let srcs = (0..world).map(|whose| Span::scratch(place(whose))).collect();
    schedule.steps.push(Step::Local { dst: array, srcs, finish: true });
    schedule
}

/// The rounds of an all-gather: a rank that holds `near` consecutive chunks comes to hold `far`.
fn distances(world: u32) -> Vec<(u32, u32)> {
    let mut rounds = Vec::new();
    let mut far = world;
    while far > 1 {
        rounds.push((far.div_ceil(2), far));
        far = far.div_ceil(2);
    }
    rounds.reverse();
    rounds
}

/// One round, as the all-gather sees it: to `behind` goes `near`, from `ahead` comes `far`.
struct Round {
    behind: Rank,
    ahead: Rank,
    near: Vec<Span>,
    far: Vec<Span>,
}

impl Round {
    fn of(rank: Rank, world: u32, near: u32, far: u32) -> Round {
        if world.is_power_of_two() {
            let (partner, own) = (rank ^ near, rank & !(near - 1));
            let half = |first| vec![Span::run(first, first + near)];
            return Round { behind: partner, ahead: partner, near: half(own), far: half(own ^ near) };
        }
        Round {
            behind: (rank + world - near) % world,
            ahead: (rank + near) % world,
            near: Span::arc(rank, far - near, world),
            far: Span::arc(rank + near, far - near, world),
        }
    }
}

/// Sends all of `out` to one rank while all of `into` comes from another.
fn steps(to: Rank, out: Vec<Span>, from: Rank, into: Vec<Span>, apply: Apply) -> impl Iterator<Item = Step> {
    let steps = out.len().max(into.len());
    (0..steps).map(move |i| Step::Exchange {
        send: out.get(i).map(|&span| (to, span)),
        recv: into.get(i).map(|&span| (from, span, apply)),
    })
}
