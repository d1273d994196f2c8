//! One collective call, checked: what ranks must agree on, the memory that it reads and writes, and what its caller gets.
//!
//! It owns all it needs, so that it can run at once or later, on the caller's thread or on the group's (`progress`).

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use super::arrays::{Kind, Packed};
use super::fresh::Fresh;
use super::group::LONG;
use super::held::{Held, Shape};
use crate::blocks::Blocks;
use crate::codec::Feedback;
use crate::communicator::{Algorithm, Call, Collective, Communicator, Compression, Cut, Element, tuple};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::Bytes;
use crate::progress::Job;
use crate::wait::Host;

/// What is called.
pub struct What {
    pub collective: Collective,
    pub kind: Kind,
    pub shape: Shape,
    /// Rows of the blocks of all ranks, if they agree on them.
    pub counts: Vec<usize>,
    pub algorithm: Algorithm,
    pub compression: Option<Compression>,
    pub name: Option<String>,
    pub timeout: Option<Duration>,
}

impl What {
    fn call(&self) -> Call<'_> {
        Call {
            collective: self.collective,
            element: self.kind.element(),
            shape: &self.shape,
            counts: &self.counts,
            algorithm: self.algorithm,
            compression: self.compression,
            name: self.name.as_deref(),
            timeout: self.timeout,
        }
    }
}

/// Blocks, owned.
pub enum Cutting {
    Even {
        len: usize,
        count: usize,
    },
    /// Edges, from 0.
    Cut(Vec<usize>),
}

impl Cutting {
    /// Of all bytes in one.
    pub fn whole(len: usize) -> Cutting {
        Cutting::Even { len, count: 1 }
    }

    /// Of blocks that are so long.
    pub fn of(lengths: impl IntoIterator<Item = usize>) -> Cutting {
        let mut edges = vec![0];
        edges.extend(lengths.into_iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        }));
        Cutting::Cut(edges)
    }

    pub fn get(&self) -> Blocks<'_> {
        match self {
            Cutting::Even { len, count } => Blocks::Even { len: *len, count: *count },
            Cutting::Cut(edges) => Blocks::Cut(edges),
        }
    }
}

/// Where the result goes.
pub enum Target {
    /// Into the array that is read, or, of a root, nowhere.
    InPlace,
    /// This rank gets nothing.
    Nowhere,
    Array(Held),
    /// The same, an array that was made for the call: if it turns out to be too small, another is made.
    Supposed(Held),
    /// The same, an array that does not fit if all blocks are as long as this rank's: whether they are is asked first.
    Unsure(Held),
    /// Into memory that is made when it is known how much is needed.
    Made,
}

/// What the caller gets.
pub enum Answer {
    Nothing,
    Object(Py<PyAny>),
    /// An array on `Task::made`.
    Made,
}

pub struct Task {
    pub what: What,
    /// What was left out of earlier calls, if it is kept.
    pub feedback: Option<Arc<Mutex<Feedback>>>,
    /// Bytes of an element.
    pub item: usize,
    pub give: Cutting,
    pub take: Cutting,
    pub src: Option<Held>,
    pub dst: Target,
    pub answer: Answer,
    /// Of an all-to-all with counts, the rows for each rank: what comes is asked for first.
    pub rows: Option<Box<Rows>>,
    /// How to make an array, and its axis that was cut.
    pub fresh: Option<Box<Fresh>>,
    /// Result of which the length was not known before.
    pub made: Option<Packed>,
}

/// Rows that go to each rank and, if the caller said so, come from each.
pub struct Rows {
    pub sent: Vec<usize>,
    pub expected: Option<Vec<usize>>,
}

impl Job for Task {
    fn run(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        if let Some(src) = &self.src {
            src.pack();
        }
        if let Some(rows) = self.rows.take() {
            self.learn(&rows, communicator, host)?;
        }
        if self.joins_empty_rows() {
            self.count(communicator, host)?;
        }
        if let Some(lengths) = self.once(communicator, host)? {
            self.fit(lengths, communicator, host)?;
            self.once(communicator, host)?;
        }
        match (&self.dst, &self.src) {
            (Target::Array(dst) | Target::Supposed(dst), _) | (Target::InPlace, Some(dst)) => dst.unpack(),
            (Target::Nowhere | Target::Unsure(_) | Target::Made | Target::InPlace, _) => {}
        }
        Ok(())
    }

    fn is_short(&self) -> bool {
        self.len() <= LONG
    }
}

impl Task {
    /// Bytes of the larger side.
    pub fn len(&self) -> usize {
        let dst = if let Target::Array(dst) | Target::Supposed(dst) = &self.dst { dst.len() } else { 0 };
        self.src.as_ref().map_or(0, Held::len).max(dst)
    }

    fn once(&self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<Option<Vec<usize>>> {
        let nothing: Bytes<'_> = &[];
        let src = self.src.as_ref().map_or(nothing, Held::bytes);
        let dst = match (&self.dst, &self.made) {
            (_, Some(made)) => made.bytes(),
            (Target::Array(dst) | Target::Supposed(dst), _) => dst.bytes(),
            (Target::InPlace, _) => src,
            (Target::Nowhere | Target::Unsure(_) | Target::Made, _) => nothing,
        };
        let call = self.what.call();
        match call.collective {
            Collective::AllReduce(_) if call.compression.is_some() => {
                let mut feedback = self.feedback.as_ref().map(|f| f.lock().unwrap_or_else(PoisonError::into_inner));
                let arrays = (dst, src);
                communicator.all_reduce_compressed(&call, feedback.as_deref_mut(), arrays, host).map(|()| None)
            }
            Collective::AllReduce(_) => communicator.all_reduce(&call, dst, src, host).map(|()| None),
            Collective::Broadcast { root } => communicator.broadcast(&call, root, src, host).map(|()| None),
            Collective::Barrier => communicator.barrier(&call, host).map(|()| None),
            _ => {
                let ask = matches!(self.dst, Target::Unsure(_));
                let cut = Cut { ask, ..Cut::new(self.give.get(), self.take.get()) };
                communicator.collect(&call, &cut, (dst, src), host)
            }
        }
    }

    /// Bytes of a row: of what lies at one index of the axis that is cut.
    fn row(&self) -> usize {
        self.item * self.what.shape.iter().skip(1).product::<usize>()
    }

    /// Blocks are so long: sees to it that there is room for all of them.
    fn fit(&mut self, lengths: Vec<usize>, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let row = self.row().max(1);
        self.what.counts = lengths.iter().map(|len| len / row).collect();
        self.take = Cutting::of(lengths);
        self.make_room(communicator, host)
    }

    fn make_room(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let total = self.take.get().total();
        let refusal = match &self.dst {
            Target::Array(out) | Target::Unsure(out) => self.misfit(out, communicator.rank() as usize),
            _ => None,
        };
        if let Some(text) = refusal {
            communicator.refuse(&format!("ValueError: {text}"), host)?;
            return Err(Error::Invalid(text));
        }
        match std::mem::replace(&mut self.dst, Target::Nowhere) {
            Target::Unsure(out) => self.dst = Target::Array(out),
            Target::Supposed(_) | Target::Made => {
                self.made = Some(Packed::new(total));
                self.dst = Target::Made;
                self.answer = Answer::Made;
            }
            fits => self.dst = fits,
        }
        Ok(())
    }

    /// What is wrong with `out`, now that it is known what goes there.
    fn misfit(&self, out: &Held, me: usize) -> Option<String> {
        let take = self.take.get();
        if out.len() != take.total() {
            return Some(misshaped(out, take.total() / self.row().max(1)));
        }
        let misplaced = self.src.as_ref().is_some_and(|src| src.is_misplaced(out, take.of(me).start));
        misplaced.then(|| "x lies in out, but not where this rank's block belongs".into())
    }

    /// Asks all ranks how many rows come from them.
    fn learn(&mut self, rows: &Rows, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let world = rows.sent.len();
        let (sent, came) = (packed(&rows.sent), Packed::new(8 * world));
        let call = Call {
            collective: Collective::AllToAll { counts: false },
            element: Element::Number(DType::UInt64),
            shape: &[world],
            counts: &[],
            name: Some("counts"),
            ..self.what.call()
        };
        let each = Blocks::Even { len: 8, count: world };
        communicator.collect(&call, &Cut::new(each, each), (came.bytes(), sent.bytes()), host)?;
        let found = unpacked(&came);
        if let Some(expected) = rows.expected.as_ref().filter(|expected| **expected != found) {
            let text = format!("recv_counts is {}, but the other ranks send {}", tuple(expected), tuple(&found));
            communicator.refuse(&format!("ValueError: {text}"), host)?;
            return Err(Error::Invalid(text));
        }
        let row = self.row();
        self.take = Cutting::of(found.iter().map(|rows| rows * row));
        self.what.counts.clone_from(&found);
        let made = self.make_room(communicator, host);
        self.what.counts.clear(); // every rank has its own
        made
    }

    /// Whether it joins blocks that have rows and no bytes: of lengths that are told in bytes nothing would be seen.
    fn joins_empty_rows(&self) -> bool {
        let joins = matches!(self.what.collective, Collective::AllGather { .. } | Collective::Gather { .. });
        joins && self.row() == 0 && !self.what.shape.is_empty()
    }

    /// Ranks tell each other how many rows they have.
    fn count(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let Cutting::Even { count: world, .. } = self.take else { unreachable!("nobody has said how long blocks are") };
        let (own, all) = (packed(&self.what.shape[..1]), Packed::new(8 * world));
        let gets = !matches!(self.dst, Target::Nowhere);
        let (each, dst) = (|count| Blocks::Even { len: 8, count }, if gets { all.bytes() } else { &[] });
        communicator.collect(&self.what.call(), &Cut::new(each(1), each(world)), (dst, own.bytes()), host)?;
        let total = unpacked(&all).iter().sum();
        match &self.dst {
            Target::Array(out) | Target::Unsure(out) if out.shape()[0] != total => {
                let text = misshaped(out, total);
                communicator.refuse(&format!("ValueError: {text}"), host)?;
                Err(Error::Invalid(text))
            }
            Target::Supposed(_) => {
                (self.what.shape[0], self.made, self.answer) = (total, Some(Packed::new(0)), Answer::Made);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What the caller gets, once it has run.
    #[inline]
    pub fn finish(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match (self.answer, self.made, self.fresh) {
            (Answer::Object(object), ..) => Ok(object),
            (Answer::Made, Some(made), Some(fresh)) => fresh.array(py, made, &self.what.shape),
            _ => Ok(py.None()),
        }
    }
}

fn misshaped(out: &Held, rows: usize) -> String {
    format!("out has shape {}, and the blocks of all ranks together have {rows} rows", tuple(out.shape()))
}

/// Numbers that ranks tell each other.
fn packed(numbers: &[usize]) -> Packed {
    let packed = Packed::new(8 * numbers.len());
    let bytes = numbers.iter().flat_map(|number| (*number as u64).to_ne_bytes());
    packed.bytes().iter().zip(bytes).for_each(|(cell, byte)| cell.set(byte));
    packed
}

fn unpacked(packed: &Packed) -> Vec<usize> {
    let number = |bytes: &[Cell<u8>; 8]| u64::from_ne_bytes(bytes.each_ref().map(Cell::get)) as usize;
    packed.bytes().as_chunks().0.iter().map(number).collect()
}
