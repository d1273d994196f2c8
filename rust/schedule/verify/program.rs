//! A schedule as the engine sees it, cut into chunks: two programs that run on their own, each in order, and what a chunk of one
//! must wait for in the other.

use std::collections::{BTreeMap, VecDeque};

use super::Fault;
use crate::schedule::{Apply, Buf, Rank, Schedule, Span, Step};

/// Place of a chunk in a rank's memory: the array, then scratch.
pub(super) type Cell = usize;

/// One chunk that is sent.
#[derive(Clone, Copy)]
pub(super) struct Send {
    pub step: usize,
    pub to: Rank,
    pub cell: Cell,
    /// It waits until its cell has been written so many times: by all steps before its own.
    pub written: u32,
}

/// One chunk that is written.
#[derive(Clone)]
pub(super) struct Write {
    pub step: usize,
    pub cell: Cell,
    /// It waits until its cell has been sent so many times: by all steps up to its own.
    pub sent: u32,
    pub what: What,
}

#[derive(Clone)]
pub(super) enum What {
    Recv { from: Rank, apply: Apply },
    Local { srcs: Vec<Cell>, finish: bool },
}

pub(super) struct Program {
    pub steps: usize,
    pub outbound: Vec<Send>,
    pub inbound: Vec<Write>,
}

impl Program {
    /// `schedule` is well formed.
    pub fn of(schedule: &Schedule) -> Program {
        let cells = (schedule.chunks + schedule.scratch) as usize;
        let (mut sent, mut written) = (vec![0; cells], vec![0; cells]);
        let mut program = Program { steps: schedule.steps.len(), outbound: Vec::new(), inbound: Vec::new() };
        let cells = |span: Span| {
            let start = if span.buf == Buf::Scratch { schedule.chunks } else { 0 };
            (start + span.lo) as usize..(start + span.hi) as usize
        };
        for (step, what) in schedule.steps.iter().enumerate() {
            // All that this step sends it sends before what it receives is applied.
            if let Step::Exchange { send: Some((to, span)), .. } = *what {
                for cell in cells(span) {
                    program.outbound.push(Send { step, to, cell, written: written[cell] });
                    sent[cell] += 1;
                }
            }
            let (dst, what): (Span, Box<dyn Fn(usize) -> What>) = match what {
                &Step::Exchange { recv: Some((from, span, apply)), .. } => {
                    (span, Box::new(move |_| What::Recv { from, apply }))
                }
                Step::Exchange { .. } => continue,
                Step::Local { dst, srcs, finish } => (
                    *dst,
                    Box::new(|i| What::Local {
                        srcs: srcs.iter().map(|&src| cells(src).start + i).collect(),
                        finish: *finish,
                    }),
                ),
            };
            for (i, cell) in cells(dst).enumerate() {
                program.inbound.push(Write { step, cell, sent: sent[cell], what: what(i) });
                written[cell] += 1;
            }
        }
        program
    }
}

/// Spans within their buffers, peers that exist, local steps that make sense.
pub(super) fn well_formed(rank: Rank, world: u32, schedule: &Schedule) -> Result<(), Fault> {
    for (step, what) in schedule.steps.iter().enumerate() {
        let spans: Vec<Span> = match what {
            Step::Exchange { send, recv } => {
                let (to, from) = (send.map(|(to, _)| to), recv.map(|(from, ..)| from));
                if let Some(peer) = to.into_iter().chain(from).find(|&peer| peer == rank || peer >= world) {
                    return Err(Fault::NoSuchPeer { rank, step, peer });
                }
                send.map(|(_, span)| span).into_iter().chain(recv.map(|(_, span, _)| span)).collect()
            }
            Step::Local { dst, srcs, .. } => srcs.iter().chain([dst]).copied().collect(),
        };
        let room = |span: Span| if span.buf == Buf::Data { schedule.chunks } else { schedule.scratch };
        if let Some(&span) = spans.iter().find(|&&span| span.lo >= span.hi || span.hi > room(span)) {
            return Err(Fault::OutOfRange { rank, step, span });
        }
        if let Step::Local { dst, srcs, .. } = what
            && (srcs.is_empty() || srcs.iter().any(|src| src.len() != dst.len() || (src.overlaps(*dst) && src != dst)))
        {
            return Err(Fault::Operands { rank, step });
        }
    }
    Ok(())
}

/// Every send has its receive, in the order of each pair of ranks, and both are as long.
pub(super) fn matched(schedules: &[Schedule]) -> Result<(), Fault> {
    let mut under_way: BTreeMap<(Rank, Rank), VecDeque<(usize, u32)>> = BTreeMap::new();
    let steps = || {
        let ranks = (0..).zip(schedules);
        ranks.flat_map(|(rank, schedule)| schedule.steps.iter().enumerate().map(move |(i, step)| (rank, i, step)))
    };
    for (rank, step, what) in steps() {
        if let &Step::Exchange { send: Some((to, span)), .. } = what {
            under_way.entry((rank, to)).or_default().push_back((step, span.len()));
        }
    }
    for (rank, step, what) in steps() {
        if let &Step::Exchange { recv: Some((peer, span, _)), .. } = what {
            match under_way.get_mut(&(peer, rank)).and_then(VecDeque::pop_front) {
                None => return Err(Fault::NeverSent { rank, step, peer }),
                Some((_, sent)) if sent != span.len() => {
                    return Err(Fault::Lengths { rank, step, peer, awaited: span.len(), sent });
                }
                Some(_) => {}
            }
        }
    }
    match under_way.iter().find_map(|(&pair, sends)| Some((pair, sends.front()?))) {
        Some(((rank, peer), &(step, _))) => Err(Fault::NeverReceived { rank, step, peer }),
        None => Ok(()),
    }
}
