//! Algorithms as data. A schedule says what one rank does in one collective: which chunks it sends to whom, which it receives
//! and combines. It holds chunk numbers, never addresses, lengths or dtypes, so that `(collective, algorithm, rank, world)` is
//! its whole key. Pure: no I/O, no clock, no unsafe; the same arguments give the same value on every rank.
//!
//! ```text
//! ring · recursive · tree · double_tree · pairwise · exchange · relay · chain    each: (rank, world) ─► Schedule, index arithmetic only
//! algorithm   which of these serves which collective, under which name
//! verify      runs the schedules of all ranks at once, symbolically, and proves them
//! cost        predicts the time of a schedule from latency, bandwidth and the speed of reduction
//! ```
//! What runs a schedule (`plan`, `engine`) names no algorithm.
//!
//! **Order.** The sends of a schedule are done in the order of its steps, and so are its receives and local steps, but the two
//! run on their own: a send waits only for earlier steps that write what it reads, a receive or local step only for sends,
//! of earlier steps or of its own, that read what it writes. So in a ring a chunk leaves while it is still arriving.

mod algorithm;
pub mod chain;
pub mod cost;
pub mod double_tree;
pub mod exchange;
pub mod pairwise;
pub mod recursive;
pub mod relay;
pub mod ring;
pub mod tree;
pub mod verify;

use std::collections::BTreeSet;

pub use algorithm::{Algorithm, Collective, UnknownAlgorithm};

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

impl Span {
    /// One chunk of the array.
    pub fn data(chunk: u32) -> Span {
        Span::run(chunk, chunk + 1)
    }

    /// Chunks `lo..hi` of the array.
    pub fn run(lo: u32, hi: u32) -> Span {
        Span { buf: Buf::Data, lo, hi }
    }

    /// One chunk of temporary memory.
    pub fn scratch(chunk: u32) -> Span {
        Span { buf: Buf::Scratch, lo: chunk, hi: chunk + 1 }
    }

    /// `len` of the `chunks` chunks of the array, from `first` on, as if they lay on a circle: one span, or two where the
    /// end of the array lies among them.
    pub fn arc(first: u32, len: u32, chunks: u32) -> Vec<Span> {
        let first = first % chunks;
        match first + len {
            end if end <= chunks => vec![Span::run(first, end)],
            end => vec![Span::run(first, chunks), Span::run(0, end - chunks)],
        }
    }

    /// How many chunks.
    pub fn len(self) -> u32 {
        self.hi - self.lo
    }

    pub fn is_empty(self) -> bool {
        self.hi == self.lo
    }

    pub fn overlaps(self, other: Span) -> bool {
        self.buf == other.buf && self.lo < other.hi && other.lo < self.hi
    }
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

impl Step {
    pub fn exchange(send: (Rank, Span), recv: (Rank, Span, Apply)) -> Step {
        Step::Exchange { send: Some(send), recv: Some(recv) }
    }

    pub fn send(to: Rank, span: Span) -> Step {
        Step::Exchange { send: Some((to, span)), recv: None }
    }

    pub fn recv(from: Rank, span: Span, apply: Apply) -> Step {
        Step::Exchange { send: None, recv: Some((from, span, apply)) }
    }
}

/// What one rank does in one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub chunks: u32,
    /// Chunks of temporary memory. A chunk of it has room for the longest chunk of the array; `stands_for` says how long what
    /// lies in it is.
    pub scratch: u32,
    pub steps: Vec<Step>,
}

impl Schedule {
    /// Without temporary memory.
    pub fn new(chunks: u32, steps: impl IntoIterator<Item = Step>) -> Schedule {
        Schedule { chunks, scratch: 0, steps: steps.into_iter().collect() }
    }

    /// This schedule, and then `next` on the same chunks.
    pub fn then(mut self, next: Schedule) -> Schedule {
        assert_eq!(self.chunks, next.chunks, "schedules that follow each other cut the array in the same way");
        self.scratch = self.scratch.max(next.scratch);
        self.steps.extend(next.steps);
        self
    }

    /// The same among some ranks of a larger world: `ranks[r]` takes the part of rank `r`.
    pub fn on(mut self, ranks: &[Rank]) -> Schedule {
        for step in &mut self.steps {
            if let Step::Exchange { send, recv } = step {
                send.iter_mut().for_each(|(to, _)| *to = ranks[*to as usize]);
                recv.iter_mut().for_each(|(from, ..)| *from = ranks[*from as usize]);
            }
        }
        self
    }

    /// The same with every chunk cut into `parts`, which follow each other.
    pub fn in_parts(mut self, parts: u32) -> Schedule {
        let cut = |span: &mut Span| (span.lo, span.hi) = (span.lo * parts, span.hi * parts);
        for step in &mut self.steps {
            match step {
                Step::Exchange { send, recv } => {
                    send.iter_mut().for_each(|(_, span)| cut(span));
                    recv.iter_mut().for_each(|(_, span, _)| cut(span));
                }
                Step::Local { dst, srcs, .. } => srcs.iter_mut().chain([dst]).for_each(cut),
            }
        }
        Schedule { chunks: self.chunks * parts, scratch: self.scratch * parts, steps: self.steps }
    }

    /// Whom this rank talks to: the links to open.
    pub fn peers(&self) -> BTreeSet<Rank> {
        let mut peers = BTreeSet::new();
        for step in &self.steps {
            if let Step::Exchange { send, recv } = step {
                peers.extend(send.map(|(to, _)| to));
                peers.extend(recv.map(|(from, ..)| from));
            }
        }
        peers
    }

    /// How many steps are not local.
    pub fn exchanges(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Exchange { .. })).count()
    }

    /// For each chunk of temporary memory the chunk of the array whose length it has: the one that a local step combines it
    /// into. `verify` proves that nothing else is ever put there. None: never combined.
    pub fn stands_for(&self) -> Vec<Option<u32>> {
        let mut chunks = vec![None; self.scratch as usize];
        for step in &self.steps {
            let Step::Local { dst, srcs, .. } = step else { continue };
            for src in srcs.iter().filter(|src| src.buf == Buf::Scratch && dst.buf == Buf::Data) {
                (0..dst.len()).for_each(|i| chunks[(src.lo + i) as usize] = Some(dst.lo + i));
            }
        }
        chunks
    }
}
