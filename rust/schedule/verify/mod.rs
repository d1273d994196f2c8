//! Proves the schedules of a collective by running those of all ranks at once, in one process, on expressions instead of
//! numbers (MSCCL's idea, with expressions where it has sets).
//!
//! ```text
//! program      the two programs of a rank, in order, and what ties them together
//! machine      runs the programs of all ranks; a send is done only into its waiting receive, chunk by chunk
//! expression   what a chunk is: whose contributions, combined in which order
//! table        what everybody has after each step
//! ```
//! **Why one run stands for all.** A rank is two programs, each in order, that wait only for counters that never go back: bytes
//! that have arrived, space that is free, the other program's position. No step that has become possible can become impossible
//! by another, so all interleavings end in the same state (Kahn's argument for process networks), and more room in the links
//! or passing on a chunk before it is there in full only makes more steps possible. So a run with links that hold nothing, and
//! whole chunks, stands for every real run over links that hold at least one element.
//!
//! **What is proved:** spans and peers exist; every send meets a receive of the same length; no deadlock; nothing is read before
//! it is written; every contribution is in the result once; all ranks end with the same expression, thus the same bits, those of a
//! scan with the one that combines in rank order; every chunk is finished exactly once, when it is complete; nothing is received that is there already or that nobody needs.
//!
//! Not proved here, and tested elsewhere: that the engine and its plans do what a schedule says, and the kernels' commuting.

mod expression;
mod fault;
mod machine;
mod program;
mod table;

use super::{Collective, Rank, Schedule};
pub use fault::Fault;
use machine::Machine;
pub use table::table;

/// What the run of a proved schedule counted, for each rank. A chunk is `1 / chunks` of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub chunks: u32,
    /// Of the rank that has most of them, without local steps.
    pub steps: usize,
    pub sent: Vec<u64>,
    pub received: Vec<u64>,
    /// Chunks combined into another.
    pub reduced: Vec<u64>,
    /// Chunks of temporary memory of the rank that has most.
    pub scratch: u32,
}

/// Runs what `build` gives for every rank, and finds the first fault.
pub fn verify(goal: Collective, world: u32, build: impl Fn(Rank) -> Schedule) -> Result<Report, Fault> {
    let schedules: Vec<Schedule> = (0..world).map(build).collect();
    let machine = run(goal, &schedules, false)?;
    let counts = |count: fn(&machine::Counts) -> u64| machine.ranks.iter().map(|rank| count(&rank.counts)).collect();
    Ok(Report {
        chunks: schedules[0].chunks,
        steps: schedules.iter().map(Schedule::exchanges).max().unwrap_or(0),
        sent: counts(|counts| counts.sent),
        received: counts(|counts| counts.received),
        reduced: counts(|counts| counts.reduced),
        scratch: schedules.iter().map(|schedule| schedule.scratch).max().unwrap_or(0),
    })
}

fn run(goal: Collective, schedules: &[Schedule], remember: bool) -> Result<Machine, Fault> {
    let world = schedules.len() as u32;
    let chunks = goal.chunks(world).unwrap_or(schedules[0].chunks);
    for (rank, schedule) in (0..).zip(schedules) {
        if schedule.chunks != chunks {
            return Err(Fault::Chunks { rank, chunks: schedule.chunks, expected: chunks });
        }
        program::well_formed(rank, world, schedule)?;
    }
    program::matched(schedules)?;
    let mut machine = Machine::new(goal, schedules);
    machine.history = remember.then(|| machine.beginning());
    machine.run()?;
    match goal {
        Collective::Scan | Collective::Exscan => prefixes(goal, &mut machine, chunks)?,
        _ => reached(goal, &machine, chunks)?,
    }
    machine.wasted(|rank, chunk| wanted(goal, (rank, world), chunk)).map_or(Ok(()), Err)?;
    Ok(machine)
}

/// Whether rank `rank` shall end with chunk `chunk`.
fn wanted(goal: Collective, (rank, world): (Rank, u32), chunk: u32) -> bool {
    match goal {
        Collective::AllReduce | Collective::AllGather | Collective::Broadcast(_) | Collective::Scan => true,
        Collective::ReduceScatter | Collective::Scatter(_) => rank == chunk,
        Collective::Reduce(root) | Collective::Gather(root) => rank == root,
        Collective::AllToAll => chunk >= world,
        Collective::Exscan => rank > 0,
    }
}

/// Everybody has what it shall have.
fn reached(goal: Collective, machine: &Machine, chunks: u32) -> Result<(), Fault> {
    let world = machine.ranks.len() as u32;
    for chunk in 0..chunks {
        let mut first = None;
        for rank in (0..world).filter(|&rank| wanted(goal, (rank, world), chunk)) {
            let source = match goal {
                Collective::AllGather | Collective::Gather(_) => chunk,
                Collective::AllToAll => chunk - world,
                _ => goal.root(),
            };
            let Some(value) = machine.ranks[rank as usize].cells[chunk as usize] else {
                return Err(Fault::Missing { rank, chunk, whose: source });
            };
            if matches!(goal, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce(_)) {
                complete(machine, rank, chunk, value)?;
            }
            // Of an all-to-all everybody has something else; what may lie where is known by the chunk that a place stands for.
            let (other, expected) = *first.get_or_insert((rank, value));
            if value != expected && goal != Collective::AllToAll {
                return Err(Fault::NotIdentical { rank, chunk, other });
            }
        }
    }
    Ok(())
}

/// Everybody has what the ranks up to it, or before it, contribute, combined one after the other in that order.
fn prefixes(goal: Collective, machine: &mut Machine, chunks: u32) -> Result<(), Fault> {
    let world = machine.ranks.len() as u32;
    for chunk in 0..chunks {
        let mut before = None;
        for rank in 0..world {
            let own = machine.expressions.leaf(rank, chunk);
            let with_own = match before {
                None => own,
                Some(before) => {
                    machine.expressions.reduced(before, own).map_err(|_| Fault::NotInOrder { rank, chunk })?
                }
            };
            let expected = if goal == Collective::Scan { Some(with_own) } else { before };
            let value = machine.ranks[rank as usize].cells[chunk as usize];
            if value.is_none() && expected.is_some() {
                return Err(Fault::Missing { rank, chunk, whose: 0 });
            }
            if expected.is_some() && value != expected {
                return Err(Fault::NotInOrder { rank, chunk });
            }
            before = Some(with_own);
        }
    }
    Ok(())
}

fn complete(machine: &Machine, rank: Rank, chunk: u32, value: expression::Id) -> Result<(), Fault> {
    if let Some(whose) = machine.expressions.lacks(value) {
        return Err(Fault::Missing { rank, chunk, whose });
    }
    // What one rank alone contributes to needs no finish.
    if machine.ranks.len() > 1 && !machine.expressions.is_finished(value) {
        return Err(Fault::Unfinished { rank, chunk });
    }
    Ok(())
}
