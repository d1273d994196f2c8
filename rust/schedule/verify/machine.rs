//! Runs the programs of all ranks on expressions, with links that hold nothing.

use super::Fault;
use super::expression::{Expressions, Id, Refusal};
use super::program::{Cell, Program, Send, What, Write};
use crate::schedule::{Apply, Collective, Rank, Schedule};

pub(super) struct Machine {
    chunks: u32,
    pub expressions: Expressions,
    pub ranks: Vec<State>,
    /// For each rank, what lies in its memory at first and after each step; only if somebody wants to look at it.
    pub history: Option<Vec<Vec<Vec<Option<Id>>>>>,
}

/// One rank.
pub(super) struct State {
    program: Program,
    /// How many chunks of either program are done.
    out: usize,
    inn: usize,
    pub cells: Vec<Option<Id>>,
    /// How often each cell was sent and written.
    sent: Vec<u32>,
    written: Vec<u32>,
    /// In which step a cell got what nobody has read yet.
    unread: Vec<Option<usize>>,
    /// Which chunk of the array a cell has the length of.
    stands_for: Vec<Option<u32>>,
    pub counts: Counts,
}

/// Chunks that passed through a rank.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub sent: u64,
    pub received: u64,
    pub reduced: u64,
}

impl Machine {
    pub fn new(goal: Collective, schedules: &[Schedule]) -> Machine {
        let chunks = schedules[0].chunks;
        let mut expressions = Expressions::new(schedules.len() as u32);
        let world = schedules.len() as u32;
        // Of an all-to-all, chunks of different ranks are as different as those of one.
        let name = |rank: Rank, chunk: u32| match goal {
            Collective::AllToAll if chunk < world => rank * world + chunk,
            Collective::AllToAll => (chunk - world) * world + rank,
            _ => chunk,
        };
        let mut brings = |rank: Rank, chunk: u32| match goal {
            Collective::AllGather | Collective::Gather(_) if rank != chunk => None,
            Collective::Broadcast(root) | Collective::Scatter(root) if rank != root => None,
            Collective::AllToAll if chunk >= world => None,
            _ => Some(expressions.leaf(rank, name(rank, chunk))),
        };
        let ranks = (0..)
            .zip(schedules)
            .map(|(rank, schedule)| {
                let cells = (0..chunks).map(|chunk| brings(rank, chunk)).collect();
                let names = (0..chunks).map(|chunk| name(rank, chunk)).collect();
                State::new(schedule, cells, names)
            })
            .collect();
        Machine { chunks, expressions, ranks, history: None }
    }

    /// A history that holds what everybody starts with, and how far that is unchanged.
    pub fn beginning(&self) -> Vec<Vec<Vec<Option<Id>>>> {
        let start = |state: &State| {
            let first = state.next_write().map_or(state.program.steps, |write| write.step);
            vec![state.cells.clone(); first + 1]
        };
        self.ranks.iter().map(start).collect()
    }

    /// Until all programs are done. Which rank goes first makes no difference: no step that has become possible can become
    /// impossible again.
    pub fn run(&mut self) -> Result<(), Fault> {
        loop {
            let mut moved = false;
            for rank in 0..self.ranks.len() {
                while self.local(rank)? || self.transfer(rank)? {
                    moved = true;
                }
            }
            if !moved {
                return self.stuck().map_or(Ok(()), Err);
            }
        }
    }

    /// The inbound program's next chunk, if it is a local step's and may be written.
    fn local(&mut self, rank: usize) -> Result<bool, Fault> {
        let state = &self.ranks[rank];
        let Some(write) = state.next_write() else { return Ok(false) };
        let What::Local { srcs, finish } = &write.what else { return Ok(false) };
        if state.sent[write.cell] < write.sent {
            return Ok(false);
        }
        let (write, srcs, finish) = (write.clone(), srcs.clone(), *finish);
        let mut value = self.read(rank, write.step, srcs[0])?;
        for &src in &srcs[1..] {
            let next = self.read(rank, write.step, src)?;
            value = self.combine(rank, &write, value, next)?;
        }
        if finish {
            value = self.expressions.finished(value).map_err(|why| self.refused(rank, &write, value, why))?;
        }
        self.ranks[rank].counts.reduced += srcs.len() as u64 - 1;
        self.write(rank, &write, value)?;
        Ok(true)
    }

    /// The outbound program's next chunk, if its receiver waits for it, together with all others that must go with it.
    ///
    /// A chunk may have to leave its receiver before it can be overwritten there, and that receiver may be sending it to
    /// somebody in the same situation, all around to the first: two ranks that exchange their arrays in place. The halves of
    /// an exchange progress together, so all of these go at once. A link needs room for one element for that, no more.
    fn transfer(&mut self, rank: usize) -> Result<bool, Fault> {
        let mut together = vec![rank];
        loop {
            let sender = together[together.len() - 1];
            let state = &self.ranks[sender];
            let Some(send) = state.next_send() else { return Ok(false) };
            let to = send.to as usize;
            let Some(write) = self.ranks[to].next_write() else { return Ok(false) };
            let meets = matches!(write.what, What::Recv { from, .. } if from as usize == sender);
            if !meets || state.written[send.cell] < send.written {
                return Ok(false);
            }
            let missing = write.sent.saturating_sub(self.ranks[to].sent[write.cell]);
            let leaving = self.ranks[to].next_send().is_some_and(|send| send.cell == write.cell);
            if missing > 1 || (missing == 1 && !leaving) {
                return Ok(false);
            }
            if missing == 0 || to == rank {
                break;
            }
            if together.contains(&to) {
                return Ok(false); // a circle further on; its ranks will go round it in their turn
            }
            together.push(to);
        }
        self.deliver(&together)?;
        Ok(true)
    }

    /// All are read before any is written.
    fn deliver(&mut self, senders: &[usize]) -> Result<(), Fault> {
        let mut values = Vec::with_capacity(senders.len());
        for &sender in senders {
            let send = *self.ranks[sender].next_send().expect("looked at by `transfer`");
            values.push((send.to as usize, self.read(sender, send.step, send.cell)?));
            let state = &mut self.ranks[sender];
            state.out += 1;
            state.sent[send.cell] += 1;
            state.counts.sent += 1;
        }
        for (receiver, value) in values {
            self.receive(receiver, value)?;
        }
        Ok(())
    }

    fn receive(&mut self, rank: usize, arrived: Id) -> Result<(), Fault> {
        let write = self.ranks[rank].next_write().expect("looked at by `transfer`").clone();
        let What::Recv { apply, .. } = write.what else { unreachable!("looked at by `transfer`") };
        let value = match apply {
            Apply::Store => arrived,
            Apply::Reduce | Apply::Finish => {
                let own = self.read(rank, write.step, write.cell)?;
                self.combine(rank, &write, own, arrived)?
            }
        };
        let value = match apply {
            Apply::Finish => self.expressions.finished(value).map_err(|why| self.refused(rank, &write, value, why))?,
            Apply::Store | Apply::Reduce => value,
        };
        let counts = &mut self.ranks[rank].counts;
        counts.received += 1;
        counts.reduced += u64::from(apply != Apply::Store);
        self.write(rank, &write, value)
    }

    fn read(&mut self, rank: usize, step: usize, cell: Cell) -> Result<Id, Fault> {
        let state = &mut self.ranks[rank];
        state.unread[cell] = None;
        state.cells[cell].ok_or_else(|| {
            let (buffer, start) = if cell < self.chunks as usize { ("array", 0) } else { ("scratch", self.chunks) };
            Fault::Unwritten { rank: rank as Rank, step, chunk: cell as u32 - start, buffer }
        })
    }

    fn combine(&mut self, rank: usize, write: &Write, a: Id, b: Id) -> Result<Id, Fault> {
        self.expressions.reduced(a, b).map_err(|why| self.refused(rank, write, a, why))
    }

    fn write(&mut self, rank: usize, write: &Write, value: Id) -> Result<(), Fault> {
        let (step, chunk) = (write.step, self.expressions.chunk(value));
        let state = &mut self.ranks[rank];
        match state.stands_for[write.cell] {
            Some(place) if place == chunk => {}
            Some(place) => return Err(Fault::Misplaced { rank: rank as Rank, step, chunk, place }),
            None => return Err(Fault::NoLength { rank: rank as Rank, step, chunk }),
        }
        if state.cells[write.cell] == Some(value) {
            return Err(Fault::Redundant { rank: rank as Rank, step, chunk });
        }
        if let Some(step) = state.unread[write.cell] {
            let chunk = state.cells[write.cell].map_or(chunk, |lost| self.expressions.chunk(lost));
            return Err(Fault::Redundant { rank: rank as Rank, step, chunk });
        }
        state.cells[write.cell] = Some(value);
        state.unread[write.cell] = Some(step);
        state.written[write.cell] += 1;
        state.inn += 1;
        self.remember(rank, step);
        Ok(())
    }

    /// After the last chunk of a step, what lies in the memory; steps that only send leave it as it is.
    fn remember(&mut self, rank: usize, step: usize) {
        let Some(history) = &mut self.history else { return };
        let state = &self.ranks[rank];
        let next = state.next_write().map_or(state.program.steps, |write| write.step);
        if next > step {
            history[rank].resize(next + 1, state.cells.clone());
        }
    }

    fn refused(&self, rank: usize, write: &Write, value: Id, why: Refusal) -> Fault {
        let (rank, step, chunk) = (rank as Rank, write.step, self.expressions.chunk(value));
        match why {
            Refusal::OtherChunk(other) => Fault::Misplaced { rank, step, chunk: other, place: chunk },
            Refusal::FinishedBefore => Fault::FinishedBefore { rank, step, chunk },
            Refusal::Twice(whose) => Fault::Twice { rank, step, chunk, whose },
            Refusal::Lacks(whose) => Fault::FinishedEarly { rank, step, chunk, whose },
        }
    }

    fn stuck(&self) -> Option<Fault> {
        (0..).zip(&self.ranks).find_map(|(rank, state)| {
            let chunk = |cell: Cell| state.stands_for[cell].unwrap_or(cell as u32);
            if let Some(&Send { step, to: peer, cell, .. }) = state.next_send() {
                return Some(Fault::Deadlock { rank, step, peer, chunk: chunk(cell) });
            }
            // A rank that only has local steps left waits for its own sends, and was found above.
            match state.next_write()? {
                &Write { step, cell, what: What::Recv { from: peer, .. }, .. } => {
                    Some(Fault::Deadlock { rank, step, peer, chunk: chunk(cell) })
                }
                Write { what: What::Local { .. }, .. } => None,
            }
        })
    }

    /// A chunk that somebody received or combined for nothing: it was never read, and is no part of the result.
    pub fn wasted(&self, wanted: impl Fn(Rank, u32) -> bool) -> Option<Fault> {
        (0..).zip(&self.ranks).find_map(|(rank, state)| {
            (0..).zip(&state.unread).find_map(|(cell, &unread)| {
                let step = unread.filter(|_| cell >= self.chunks || !wanted(rank, cell))?;
                let chunk = self.expressions.chunk(state.cells[cell as usize]?);
                Some(Fault::Redundant { rank, step, chunk })
            })
        })
    }
}

impl State {
    /// `names`: which chunk lies in each place of the array.
    fn new(schedule: &Schedule, mut cells: Vec<Option<Id>>, names: Vec<u32>) -> State {
        let twins = schedule.stands_for().into_iter().map(|twin| twin.map(|chunk| names[chunk as usize]));
        let stands_for: Vec<Option<u32>> = names.iter().copied().map(Some).chain(twins).collect();
        let len = stands_for.len();
        cells.resize(len, None);
        State {
            program: Program::of(schedule),
            out: 0,
            inn: 0,
            cells,
            sent: vec![0; len],
            written: vec![0; len],
            unread: vec![None; len],
            stands_for,
            counts: Counts::default(),
        }
    }

    fn next_send(&self) -> Option<&Send> {
        self.program.outbound.get(self.out)
    }

    fn next_write(&self) -> Option<&Write> {
        self.program.inbound.get(self.inn)
    }
}
