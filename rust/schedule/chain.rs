//! Prefixes along a chain of all ranks in their order: what rank `r` has combined goes to rank `r + 1`, and leaves while it still
//! comes in. The fewest bytes, and as many steps one after the other as there are ranks.
//!
//! Trees take fewer steps (Sanders and Träff 2006, "Parallel prefix (scan) algorithms for MPI"), but group what they combine
//! otherwise: a sum of floats would have other bits than the same sum on another number of ranks, or by `exchange`.

use super::{Apply, Rank, Schedule, Span, Step};

const ARRAY: Span = Span { buf: super::Buf::Data, lo: 0, hi: 1 };

/// `p-1` steps one after the other; each rank receives, reduces and sends the array once; no scratch.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0       1       2
///    1   0       0+1     0+1+2
///    2   0       0+1     0+1+2
/// ```
pub fn scan(rank: Rank, world: u32) -> Schedule {
    let receive = rank.checked_sub(1).map(|before| Step::recv(before, ARRAY, Apply::Reduce));
    let send = (rank + 1 < world).then(|| Step::send(rank + 1, ARRAY));
    Schedule::new(1, receive.into_iter().chain(send))
}

/// Everybody hands its array to the next rank; what they hold then is combined along the chain of ranks `1..p`.
///
/// `p-1` steps one after the other; each rank receives and sends the array twice at most and reduces it once; no scratch: what a
/// rank must pass on is not what it keeps, and the second time the array travels is what it costs not to hold both.
/// ```text
/// step   rank 0  rank 1  rank 2
///    0   0       1       2
///    1   0       0       1
///    2   0       0       0+1
/// ```
pub fn exscan(rank: Rank, world: u32) -> Schedule {
    let next = Some(rank + 1).filter(|&next| next < world);
    let shift = Step::Exchange {
        send: next.map(|next| (next, ARRAY)),
        recv: rank.checked_sub(1).map(|before| (before, ARRAY, Apply::Store)),
    };
    let receive = (rank > 1).then(|| Step::recv(rank - 1, ARRAY, Apply::Reduce));
    let send = next.filter(|_| rank > 0).map(|next| Step::send(next, ARRAY));
    Schedule::new(1, [shift].into_iter().chain(receive).chain(send))
}
