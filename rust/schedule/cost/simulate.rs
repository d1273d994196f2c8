//! Time by simulation: the programs of all ranks, segment by segment, on a clock instead of on values.

use std::collections::VecDeque;

use super::Model;
use crate::schedule::{Apply, Buf, Schedule, Span, Step};

/// When the last rank has done all that its schedule says, in seconds; all begin at 0. The schedules are right (`verify`).
///
/// A chunk is `bytes / chunks` long here, though it may be no whole number of elements.
pub fn simulate(model: &Model, bytes: u64, schedules: &[Schedule]) -> f64 {
    let chunk = bytes as f64 / f64::from(schedules[0].chunks);
    let mut ranks: Vec<Clock> = schedules.iter().map(|schedule| Clock::new(schedule, chunk)).collect();
    let world = ranks.len();
    // Arrivals of segments, by sender and receiver, in order.
    let mut links = vec![VecDeque::new(); world * world];
    loop {
        let mut moved = false;
        for rank in 0..world {
            while ranks[rank].send(model, |to, time| links[rank * world + to].push_back(time))
                || ranks[rank].write(model, |from| links[from * world + rank].pop_front())
            {
                moved = true;
            }
        }
        if !moved {
            assert!(ranks.iter().all(Clock::is_done), "schedules that verify refuses");
            return ranks.iter().map(|clock| clock.out.free.max(clock.inn.free)).fold(0.0, f64::max);
        }
    }
}

/// A span that is sent or written.
struct Move {
    what: What,
    /// Bytes.
    len: f64,
    chunk: f64,
    /// For each chunk the move of the other program that must have passed, if there is one, and where in it the chunk starts.
    after: Vec<Option<(usize, f64)>>,
    /// When the segments done so far were done.
    done: Vec<f64>,
}

enum What {
    Send {
        to: usize,
    },
    Recv {
        from: usize,
        reduce: bool,
    },
    /// Combines so many operands.
    Local {
        operands: usize,
    },
}

/// One program of a rank.
struct Program {
    moves: Vec<Move>,
    next: usize,
    /// Since when its port is idle.
    free: f64,
}

struct Clock {
    out: Program,
    inn: Program,
}

impl Clock {
    fn new(schedule: &Schedule, chunk: f64) -> Clock {
        let cells = (schedule.chunks + schedule.scratch) as usize;
        let (mut sent, mut written) = (vec![None; cells], vec![None; cells]);
        let (mut out, mut inn) = (Vec::new(), Vec::new());
        let at = |span: Span| {
            let start = if span.buf == Buf::Scratch { schedule.chunks } else { 0 };
            (start + span.lo) as usize..(start + span.hi) as usize
        };
        let add =
            |moves: &mut Vec<Move>, what, span, after: &[Option<(usize, f64)>], here: &mut [Option<(usize, f64)>]| {
                let cells = at(span);
                for (i, cell) in cells.clone().enumerate() {
                    here[cell] = Some((moves.len(), i as f64 * chunk));
                }
                let len = f64::from(span.len()) * chunk;
                moves.push(Move { what, len, chunk, after: after[cells].to_vec(), done: Vec::new() });
            };
        for step in &schedule.steps {
            match step {
                Step::Exchange { send, recv } => {
                    if let &Some((to, span)) = send {
                        add(&mut out, What::Send { to: to as usize }, span, &written, &mut sent);
                    }
                    if let &Some((from, span, apply)) = recv {
                        let what = What::Recv { from: from as usize, reduce: apply != Apply::Store };
                        add(&mut inn, what, span, &sent, &mut written);
                    }
                }
                Step::Local { dst, srcs, .. } => {
                    add(&mut inn, What::Local { operands: srcs.len() }, *dst, &sent, &mut written);
                }
            }
        }
        let program = |moves| Program { moves, next: 0, free: 0.0 };
        Clock { out: program(out), inn: program(inn) }
    }

    fn is_done(&self) -> bool {
        [&self.out, &self.inn].iter().all(|program| program.next == program.moves.len())
    }

    /// The next segment of the outbound program, if what it reads has been written.
    fn send(&mut self, model: &Model, mut arrives: impl FnMut(usize, f64)) -> bool {
        let Some((segment, first)) = self.out.segment(model) else { return false };
        let Some(ready) = self.out.ready(segment, &self.inn, model) else { return false };
        let What::Send { to } = self.out.moves[self.out.next].what else { unreachable!("outbound") };
        let end = self.out.free.max(ready) + model.occupied(first, segment.1 - segment.0);
        arrives(to, end + model.alpha);
        self.out.pass(segment, end);
        true
    }

    /// The next segment of the inbound program, if it has arrived and what it overwrites has been sent.
    fn write(&mut self, model: &Model, arrived: impl FnOnce(usize) -> Option<f64>) -> bool {
        let Some((segment, first)) = self.inn.segment(model) else { return false };
        let Some(ready) = self.inn.ready(segment, &self.out, model) else { return false };
        let (free, len) = (self.inn.free, segment.1 - segment.0);
        let end = match self.inn.moves[self.inn.next].what {
            What::Recv { from, reduce } => {
                let Some(arrival) = arrived(from) else { return false };
                let there = arrival.max(free + model.occupied(first, len)).max(ready);
                there + if reduce { model.gamma * len } else { 0.0 }
            }
            What::Local { operands } => free.max(ready) + model.gamma * len * (operands - 1).max(1) as f64,
            What::Send { .. } => unreachable!("inbound"),
        };
        self.inn.pass(segment, end);
        true
    }
}

impl Program {
    /// The next segment, from byte to byte of its move, and whether it is the first.
    fn segment(&self, model: &Model) -> Option<((f64, f64), bool)> {
        let next = self.moves.get(self.next)?;
        let start = next.done.len() as f64 * model.segment;
        Some(((start, next.len.min(start + model.segment)), next.done.is_empty()))
    }

    /// When the other program has passed all that the segment must follow; None if it has not yet.
    fn ready(&self, (start, end): (f64, f64), other: &Program, model: &Model) -> Option<f64> {
        let next = &self.moves[self.next];
        // Rounded down and up: a chunk too many does no harm, since programs are in order. NaN, of an empty array, becomes 0.
        let (lo, hi) = ((start / next.chunk) as usize, (end / next.chunk).ceil().max(1.0) as usize);
        let mut time = 0.0_f64;
        for (i, after) in next.after.iter().enumerate().take(hi).skip(lo) {
            let Some((before, offset)) = *after else { continue };
            let position = offset + (end - i as f64 * next.chunk).min(next.chunk);
            let segment = ((position / model.segment - 1e-9).ceil() as usize).max(1) - 1;
            time = time.max(*other.moves[before].done.get(segment)?);
        }
        Some(time)
    }

    fn pass(&mut self, (_, end): (f64, f64), time: f64) {
        let next = &mut self.moves[self.next];
        next.done.push(time);
        self.free = time;
        if end >= next.len {
            self.next += 1;
        }
    }
}
