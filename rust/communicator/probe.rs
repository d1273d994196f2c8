//! Measures the network when a group forms: latency, what a message costs besides its bytes, bandwidth, and the speed of
//! combining. A few tens of milliseconds; hosts are probed in pairs, all pairs at the same time, and the slowest counts.
//!
//! ```text
//! one piece of 8 bytes, both ways            overhead + alpha
//! 16 pieces of 8 bytes                       16 overhead + alpha
//! one piece as long as a few milliseconds    overhead + alpha + beta · bytes
//! a kernel on memory in the cache            gamma
//! ```

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt, Header};
use crate::error::Rank;
use crate::hierarchy::arithmetic;
use crate::kernels::Bytes;
use crate::messages::{Messages, aligned};
use crate::schedule::cost::Model;
use crate::schedule::{Apply, Schedule, Span, Step};
use crate::wait::Wait;

const PIECE: usize = 8;
const PIECES: u32 = 16;
/// A large message takes about so long, within these bounds.
const LONG: Duration = Duration::from_millis(8);
const LARGE: (usize, usize) = (64 << 10, 1 << 20);

/// What the engine passes on while the rest still comes in.
pub(super) const SEGMENT: f64 = (32 << 10) as f64;

/// As the core's caches have it, where nothing is measured: a rank that has no partner.
const UNKNOWN: Model = Model { alpha: 0.0, overhead: 0.0, beta: 0.0, gamma: 0.0, segment: SEGMENT };

/// One rank's half of a probe, with a partner on another host that does the same.
pub(super) struct Probe<'a, 'w> {
    pub messages: &'a mut Messages,
    pub partner: Option<Rank>,
    /// Times more measurements than at start-up.
    pub rounds: usize,
    pub wait: &'a mut Wait<'w>,
}

impl Probe<'_, '_> {
    /// Each number as small as it was seen.
    pub fn run(&mut self) -> Result<Model, Halt> {
        let Some(partner) = self.partner else { return Ok(UNKNOWN) };
        let mut memory: Vec<Cell<u8>> = Vec::new();
        let array = aligned(&mut memory, LARGE.1);
        let (one, many) = (both_ways(partner, 1), both_ways(partner, PIECES));
        let small = &array[..PIECE];
        self.best(&one, small, 3)?;
        let one_piece = self.best(&one, small, 10 * self.rounds)?;
        let pieces = self.best(&many, &array[..PIECE * PIECES as usize], 5 * self.rounds)?;
        let overhead = ((pieces - one_piece) / f64::from(PIECES - 1)).max(one_piece / 100.0);
        // A shaped link lets the first bytes pass at once: the last measurement is the one that tells.
        let first = self.last(&one, &array[..LARGE.0], 2)?;
        let large = ((LARGE.0 as f64 * LONG.as_secs_f64() / first) as usize).clamp(LARGE.0, LARGE.1);
        // Both sides must send as much, whatever they measured.
        let large = self.agree(&one, array, large)?;
        let long = self.last(&one, &array[..large], 2 * self.rounds)?;
        Ok(Model {
            alpha: (one_piece - overhead).max(0.0),
            overhead,
            beta: ((long - one_piece) / large as f64).max(0.0),
            gamma: combining(array),
            segment: SEGMENT,
        })
    }

    /// Seconds of the fastest of so many.
    fn best(&mut self, schedule: &Schedule, array: Bytes<'_>, times: usize) -> Result<f64, Halt> {
        let mut best = f64::INFINITY;
        for _ in 0..times {
            best = self.once(schedule, array)?.min(best);
        }
        Ok(best)
    }

    /// Seconds of the last of so many.
    fn last(&mut self, schedule: &Schedule, array: Bytes<'_>, times: usize) -> Result<f64, Halt> {
        let mut last = 0.0;
        for _ in 0..times {
            last = self.once(schedule, array)?;
        }
        Ok(last)
    }

    fn once(&mut self, schedule: &Schedule, array: Bytes<'_>) -> Result<f64, Halt> {
        let header = Header { kind: 0, sequence: 0, fingerprint: 0, bytes: array.len() as u64 };
        let from = Instant::now();
        self.messages.follow(schedule, array, bytes(), header, self.wait)?;
        Ok(from.elapsed().as_secs_f64())
    }

    /// The smaller of both sides' numbers.
    fn agree(&mut self, schedule: &Schedule, array: Bytes<'_>, number: usize) -> Result<usize, Halt> {
        let word = &array[..PIECE];
        let write = |number: u64| word.iter().zip(number.to_le_bytes()).for_each(|(cell, byte)| cell.set(byte));
        write(number as u64);
        self.once(schedule, word)?;
        let theirs: Vec<u8> = word.iter().map(Cell::get).collect();
        let theirs = u64::from_le_bytes(theirs.try_into().expect("eight bytes"));
        Ok(number.min((theirs as usize).clamp(LARGE.0, LARGE.1)))
    }
}

/// Two ranks send each other so many pieces, one after the other.
fn both_ways(partner: Rank, pieces: u32) -> Schedule {
    let step = |k| Step::exchange((partner, Span::data(k)), (partner, Span::data(k), Apply::Store));
    Schedule::new(pieces, (0..pieces).map(step))
}

/// Bytes are moved, not combined.
fn bytes() -> Arithmetic {
    arithmetic(DType::UInt8, ReduceOp::BOr, 1)
}

/// Seconds for each byte that is combined with another.
fn combining(array: Bytes<'_>) -> f64 {
    const HALF: usize = 128 << 10;
    let (dst, src) = array.split_at(HALF);
    let kernel = arithmetic(DType::Float32, ReduceOp::Max, 2).last;
    let once = || {
        let from = Instant::now();
        kernel.run(dst, &[dst, &src[..HALF]]);
        from.elapsed().as_secs_f64()
    };
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min) / HALF as f64
}
