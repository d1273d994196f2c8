//! What can be wrong with the schedules of a collective.

use crate::schedule::{Rank, Span};

/// The first thing found. `step` counts the steps of `rank` from 0; `chunk` is one of the array unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("rank {rank} cuts the array into {chunks} chunks, and should cut it into {expected}")]
    Chunks { rank: Rank, chunks: u32, expected: u32 },
    #[error("rank {rank}, step {step}: there is no such span: {span:?}")]
    OutOfRange { rank: Rank, step: usize, span: Span },
    #[error("rank {rank}, step {step}: sends to or receives from {peer}, which is itself or no rank at all")]
    NoSuchPeer { rank: Rank, step: usize, peer: Rank },
    #[error("rank {rank}, step {step}: the operands of a local step have different lengths, or overlap in part")]
    Operands { rank: Rank, step: usize },
    #[error("rank {rank}, step {step}: what it sends to rank {peer} is never received")]
    NeverReceived { rank: Rank, step: usize, peer: Rank },
    #[error("rank {rank}, step {step}: what it awaits from rank {peer} is never sent")]
    NeverSent { rank: Rank, step: usize, peer: Rank },
    #[error("rank {rank}, step {step}: awaits {awaited} chunks of rank {peer}, which sends {sent} there")]
    Lengths { rank: Rank, step: usize, peer: Rank, awaited: u32, sent: u32 },
    #[error("deadlock: rank {rank} stands in step {step}, before chunk {chunk}, in which it deals with rank {peer}")]
    Deadlock { rank: Rank, step: usize, peer: Rank, chunk: u32 },
    #[error("rank {rank}, step {step}: reads chunk {chunk} of the {buffer}, where nothing has been written")]
    Unwritten { rank: Rank, step: usize, chunk: u32, buffer: &'static str },
    #[error("rank {rank}, step {step}: puts chunk {chunk} of the array where chunk {place} belongs")]
    Misplaced { rank: Rank, step: usize, chunk: u32, place: u32 },
    #[error(
        "rank {rank}, step {step}: puts chunk {chunk} into scratch that no local step combines, so its length is unknown"
    )]
    NoLength { rank: Rank, step: usize, chunk: u32 },
    #[error("rank {rank}, step {step}: what rank {whose} contributed to chunk {chunk} is combined a second time")]
    Twice { rank: Rank, step: usize, chunk: u32, whose: Rank },
    #[error("rank {rank}, step {step}: finishes chunk {chunk}, which lacks what rank {whose} contributes")]
    FinishedEarly { rank: Rank, step: usize, chunk: u32, whose: Rank },
    #[error("rank {rank}, step {step}: combines chunk {chunk}, which was finished before")]
    FinishedBefore { rank: Rank, step: usize, chunk: u32 },
    #[error("rank {rank}, step {step}: the chunk {chunk} that it gets is there already, or nobody will need it")]
    Redundant { rank: Rank, step: usize, chunk: u32 },
    #[error("rank {rank} ends without what rank {whose} contributes to chunk {chunk}")]
    Missing { rank: Rank, chunk: u32, whose: Rank },
    #[error("rank {rank} ends with a chunk {chunk} that was never finished")]
    Unfinished { rank: Rank, chunk: u32 },
    #[error(
        "rank {rank} ends with a chunk {chunk} that is not what the ranks up to it contribute, combined in their order"
    )]
    NotInOrder { rank: Rank, chunk: u32 },
    #[error("rank {rank} ends with a chunk {chunk} that was combined in another order than that of rank {other}")]
    NotIdentical { rank: Rank, chunk: u32, other: Rank },
}
