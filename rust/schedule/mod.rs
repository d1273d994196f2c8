//! Algorithms as data. A schedule says what one rank does in one collective: which chunks it sends to whom, which it receives
//! and combines. It holds chunk numbers, never addresses, lengths or dtypes, so that `(collective, algorithm, rank, world)` is
//! its whole key. Pure: no I/O, no clock, no unsafe; the same arguments give the same value on every rank.
//!
//! ```text
//! ring · recursive · tree · pairwise · exchange      each: (rank, world) ─► Schedule, ten to sixty lines of index arithmetic
//! verify      runs the schedules of all ranks at once, symbolically, and proves them
//! cost        predicts the time of a schedule from latency, bandwidth and the speed of reduction
//! ```
//! What runs a schedule (`plan`, `engine`) names no algorithm.

/// Number of a process among those that a schedule is for.
pub type Rank = u32;

/// Which memory of a rank a span lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buf {
    /// The array.
    Data,
    /// As many chunks of temporary memory as `Schedule::scratch` says.
    Scratch,
}

/// Chunks `lo..hi` of a buffer. The array is cut into `Schedule::chunks` chunks whose lengths differ by one element at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub buf: Buf,
    pub lo: u32,
    pub hi: u32,
}

/// What happens with what is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Apply {
    Store,
    /// Combined into what is there.
    Reduce,
    /// The same with the last contribution that was missing: an average is divided here, once, by the number of ranks.
    Finish,
}

/// One step of one rank. The two halves of an exchange progress together: the one-port, full-duplex model in which Thakur
/// et al. (2005) state costs, and the reason why no schedule needs an even/odd trick against deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Exchange {
        send: Option<(Rank, Span)>,
        recv: Option<(Rank, Span, Apply)>,
    },
    /// `dst` = all of `srcs`, combined in the order given; a single source is a copy. All have as many chunks as `dst`, which
    /// may be one of them. `finish`: no contribution is missing any more.
    Local {
        dst: Span,
        srcs: Vec<Span>,
        finish: bool,
    },
}

/// What one rank does in one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub chunks: u32,
    /// Chunks of temporary memory. A chunk of it is as long as the longest chunk of the array.
    pub scratch: u32,
    pub steps: Vec<Step>,
}
