//! Measures the network when a group forms: latency, what a message costs besides its bytes, bandwidth, and the speed of
//! combining. A few tens of milliseconds; the slowest rank counts.
//!
//! ```text
//! in pairs of hosts, all pairs at the same time:
//!     one piece of 8 bytes, both ways            overhead + alpha
//!     16 pieces of 8 bytes                       16 overhead + alpha
//!     one piece as long as a few milliseconds    overhead + alpha + beta · bytes
//!     a kernel on memory in the cache            gamma
//! all hosts together, if there are more than two:
//!     8 bytes by exchange and by doubling        two equations for overhead and alpha
//! ```
//! The last step is what decides between the ways to send little: only when all take part does it show what it costs that
//! ranks share cores, or links a switch.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt, Header};
use crate::error::Rank;
use crate::hierarchy::arithmetic;
use crate::kernels::Bytes;
use crate::messages::{Arrays, Messages, Request, Team, aligned};
use crate::schedule::cost::Model;
use crate::schedule::{Algorithm, Apply, Collective, Schedule, Span, Step};
use crate::wait::Wait;

const PIECE: usize = 8;
const PIECES: u32 = 16;
/// A large message takes about so long, within these bounds.
const LONG: Duration = Duration::from_millis(8);
const LARGE: (usize, usize) = (64 << 10, 1 << 20);

/// Above this nobody sends to everybody.
const FEW: u32 = 16;

/// What the engine passes on while the rest still comes in.
pub(super) const SEGMENT: f64 = (32 << 10) as f64;

/// As the core's caches have it, where nothing is measured: a rank that has no partner.
const UNKNOWN: Model = Model { alpha: 0.0, overhead: 0.0, beta: 0.0, gamma: 0.0, segment: SEGMENT };

/// One rank's half of a probe, with a partner on another host that does the same.
pub(super) struct Probe<'a, 'w> {
    pub messages: &'a mut Messages,
    pub partner: Option<Rank>,
    /// The first ranks of all hosts, if this is one of them.
    pub team: Option<Team>,
    /// Times more measurements than at start-up.
    pub rounds: usize,
    pub wait: &'a mut Wait<'w>,
}

impl Probe<'_, '_> {
    pub fn run(&mut self) -> Result<Model, Halt> {
        let alone = self.in_pairs()?;
        match self.team.clone() {
            Some(team) if team.size() > 2 => self.together(&team, alone),
            _ => Ok(alone),
        }
    }

    /// Latency and overhead as they are when all hosts send: the two numbers that explain both times.
    fn together(&mut self, team: &Team, alone: Model) -> Result<Model, Halt> {
        let algorithms = [Algorithm::Exchange, Algorithm::Doubling];
        if team.size() > FEW {
            return Ok(alone);
        }
        let [exchange, doubling] = [self.usual(team, algorithms[0])?, self.usual(team, algorithms[1])?];
        let [e, d] = algorithms.map(|algorithm| {
            let steps = |alpha, overhead| {
                let model = Model { alpha, overhead, beta: 0.0, gamma: 0.0, segment: SEGMENT };
                model.predict(algorithm, Collective::AllReduce, team.size(), PIECE as u64).expect("both serve it")
            };
            (steps(1.0, 0.0), steps(0.0, 1.0))
        });
        // e.0 alpha + e.1 overhead = exchange, d.0 alpha + d.1 overhead = doubling
        let determinant = e.0 * d.1 - d.0 * e.1;
        let overhead = (e.0 * doubling - d.0 * exchange) / determinant;
        let alpha = (exchange * d.1 - doubling * e.1) / determinant;
        if determinant == 0.0 || !(overhead > 0.0 && alpha >= 0.0) {
            // No such numbers: whatever the reason, the faster of the two must look faster.
            let share = exchange.min(doubling) / (e.0 + e.1).min(d.0 + d.1);
            let latency = if exchange < doubling { (share, 0.2 * share) } else { (0.2 * share, share) };
            return Ok(Model { alpha: latency.0, overhead: latency.1, ..alone });
        }
        Ok(Model { alpha, overhead, ..alone })
    }

    /// The median time of an all-reduce of a few bytes.
    fn usual(&mut self, team: &Team, algorithm: Algorithm) -> Result<f64, Halt> {
        let word = [const { Cell::new(0_u8) }; PIECE];
        let request = Request { collective: Collective::AllReduce, algorithm, team: team.clone(), elem: 1 };
        let header = Header { kind: 0, sequence: 0, fingerprint: 0, bytes: PIECE as u64 };
        let mut times = Vec::new();
        for _ in 0..15 * self.rounds {
            let from = Instant::now();
            self.messages.run(&request, &Arrays::even(&word), bytes(), header, self.wait)?;
            times.push(from.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Each number as small as it was seen.
    fn in_pairs(&mut self) -> Result<Model, Halt> {
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
