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
//!     8 bytes by way of one of them              rooted: how much less that takes than these say
//! ```
//! The last steps are what decides between the ways to send little: only when all take part does it show what it costs that
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

/// For about so long the ways to send little take turns: at least two more after the first, and at most so many.
const TURNS: Duration = Duration::from_millis(15);
const MOST: usize = 8;

/// Of all-reduces of a few bytes.
const HEADER: Header = Header { kind: 0, sequence: 0, fingerprint: 0, bytes: PIECE as u64 };

/// Above this nobody sends to everybody.
const FEW: u32 = 16;

/// What the engine passes on while the rest still comes in.
pub(super) const SEGMENT: f64 = (32 << 10) as f64;

/// As the core's caches have it, where nothing is measured: a rank that has no partner.
const UNKNOWN: Model = Model { alpha: 0.0, overhead: 0.0, beta: 0.0, gamma: 0.0, segment: SEGMENT, rooted: 1.0 };

/// What stands for all ways by one rank.
const BY_ONE: Algorithm = Algorithm::ReduceBroadcast;

/// What a rank has found out.
pub(super) struct Found {
    pub model: Model,
    /// Seconds of an all-reduce of a few bytes by way of one rank, if that was tried.
    pub by_one: Option<f64>,
}

impl Found {
    /// The model, among so many hosts, of which the numbers are the largest that any rank has found.
    pub fn among(self, hosts: u32) -> Model {
        let rooted = self.by_one.map_or(self.model.rooted, |seconds| seconds / latency(&self.model, BY_ONE, hosts));
        Model { rooted, ..self.model }
    }
}

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
    pub fn run(&mut self) -> Result<Found, Halt> {
        let model = self.in_pairs()?;
        match self.team.clone() {
            Some(team) if (3..=FEW).contains(&team.size()) => self.together(&team, model),
            _ => Ok(Found { model, by_one: None }),
        }
    }

    /// What messages cost when all hosts send.
    fn together(&mut self, team: &Team, alone: Model) -> Result<Found, Halt> {
        let algorithms = [Algorithm::Exchange, Algorithm::Doubling, BY_ONE];
        let [exchange, doubling, by_one] = self.in_turn(team, algorithms)?;
        let model = explained(team.size(), (exchange, doubling), alone);
        Ok(Found { model, by_one: Some(by_one) })
    }

    /// The usual times of an all-reduce of a few bytes by algorithms that take turns: medians over rows.
    fn in_turn<const N: usize>(&mut self, team: &Team, algorithms: [Algorithm; N]) -> Result<[f64; N], Halt> {
        for algorithm in algorithms {
            self.row(team, algorithm)?; // opens connections
        }
        let mut times = [const { Vec::new() }; N];
        let (from, mut left) = (Instant::now(), 1);
        while left > 0 {
            for (algorithm, times) in algorithms.into_iter().zip(&mut times) {
                times.push(self.row(team, algorithm)?);
            }
            left -= 1;
            if times[0].len() == 1 {
                let slowest = self.largest(team, from.elapsed().as_secs_f64())?;
                left = self.rounds * ((TURNS.as_secs_f64() / slowest) as usize).clamp(2, MOST);
            }
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        }))
    }

    /// What a call takes of some in a row, since who is late in one is early in the next.
    fn row(&mut self, team: &Team, algorithm: Algorithm) -> Result<f64, Halt> {
        const CALLS: usize = 5;
        let word = [const { Cell::new(0_u8) }; PIECE];
        let request = Request { collective: Collective::AllReduce, algorithm, team: team.clone(), elem: 1 };
        let from = Instant::now();
        for _ in 0..CALLS {
            self.messages.run(&request, &Arrays::even(&word), bytes(), HEADER, self.wait)?;
        }
        Ok(from.elapsed().as_secs_f64() / CALLS as f64)
    }

    /// The largest of everybody's numbers.
    fn largest(&mut self, team: &Team, number: f64) -> Result<f64, Halt> {
        let mut memory = Vec::new();
        let word = aligned(&mut memory, PIECE);
        word.iter().zip(number.to_ne_bytes()).for_each(|(cell, byte)| cell.set(byte));
        let (collective, algorithm) = (Collective::AllReduce, Algorithm::Doubling);
        let request = Request { collective, algorithm, team: team.clone(), elem: PIECE };
        let max = arithmetic(DType::Float64, ReduceOp::Max, team.size() as usize);
        self.messages.run(&request, &Arrays::even(word), max, HEADER, self.wait)?;
        let all: Vec<u8> = word.iter().map(Cell::get).collect();
        Ok(f64::from_ne_bytes(all.try_into().expect("eight bytes")))
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
            rooted: 1.0,
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

/// `alone`, with latency and overhead as they are when all hosts send: the two numbers that explain both times.
fn explained(world: u32, (exchange, doubling): (f64, f64), alone: Model) -> Model {
    let [e, d] = [Algorithm::Exchange, Algorithm::Doubling].map(|algorithm| {
        let steps = |alpha, overhead| latency(&Model { alpha, overhead, ..UNKNOWN }, algorithm, world);
        (steps(1.0, 0.0), steps(0.0, 1.0))
    });
    // e.0 alpha + e.1 overhead = exchange, d.0 alpha + d.1 overhead = doubling
    let determinant = e.0 * d.1 - d.0 * e.1;
    let overhead = (e.0 * doubling - d.0 * exchange) / determinant;
    let alpha = (exchange * d.1 - doubling * e.1) / determinant;
    if determinant == 0.0 || !(overhead > 0.0 && alpha >= 0.0) {
        // No such numbers: whatever the reason, the faster of the two must look faster.
        let share = exchange.min(doubling) / (e.0 + e.1).min(d.0 + d.1);
        let (alpha, overhead) = if exchange < doubling { (share, 0.2 * share) } else { (0.2 * share, share) };
        return Model { alpha, overhead, ..alone };
    }
    Model { alpha, overhead, ..alone }
}

/// What an all-reduce of nothing would take.
pub(super) fn latency(model: &Model, algorithm: Algorithm, world: u32) -> f64 {
    let model = Model { beta: 0.0, gamma: 0.0, ..*model };
    model.predict(algorithm, Collective::AllReduce, world, PIECE as u64).expect("it serves all-reduce")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that a model predicts are explained by that model.
    #[test]
    fn what_is_measured_is_explained() {
        let network = Model { alpha: 30e-6, overhead: 4e-6, beta: 1e-9, gamma: 1e-10, ..UNKNOWN };
        let alone = Model { alpha: 1.0, overhead: 1.0, ..network };
        for world in [3, 4, 7, 8, FEW] {
            let time = |algorithm| latency(&network, algorithm, world);
            let model = explained(world, (time(Algorithm::Exchange), time(Algorithm::Doubling)), alone);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            assert!(close(model.alpha, network.alpha) && close(model.overhead, network.overhead), "{world}: {model:?}");
            assert_eq!((model.beta, model.gamma), (network.beta, network.gamma));
            let found = Found { model, by_one: Some(0.5 * time(BY_ONE)) }.among(world);
            assert!(close(found.rooted, 0.5) && close(latency(&found, BY_ONE, world), 0.5 * time(BY_ONE)), "{found:?}");
        }
    }

    /// A way that no latency explains is no reason to take the slower one.
    #[test]
    fn what_cannot_be_explained_does_not_turn_the_order_round() {
        for (exchange, doubling) in [(1e-5, 1.0), (1.0, 1e-5), (1e-4, 1e-4)] {
            let model = explained(4, (exchange, doubling), UNKNOWN);
            assert!(model.alpha >= 0.0 && model.overhead > 0.0, "{model:?}");
            let [e, d] = [Algorithm::Exchange, Algorithm::Doubling].map(|algorithm| latency(&model, algorithm, 4));
            assert!(exchange >= doubling || e < d, "{exchange} {doubling}: {e} {d}");
            assert!(exchange <= doubling || d < e, "{exchange} {doubling}: {e} {d}");
        }
    }
}
