//! Gradients that are averaged while the backward pass still computes others: the part that runs beside it.
//!
//! ```text
//! round, on the group's thread:                               until all buckets are done
//!   wait until a bucket is ready here that was not offered yet
//!   ranks combine what each has ready (a bit per bucket, "and")
//!   of those that are ready everywhere, the one that is needed first is averaged
//! ```
//! Ranks may mark in any order: nothing begins before all of them have agreed on it, so nobody waits for a bucket that
//! another rank does not have. Who has all ready need not wait for news of its own: of three ranks, one may have all and the
//! others nothing in common. Python (`arx._bucketer`) decides what is in a bucket; here they are arrays, in the order of their
//! priority.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use super::arguments::{self, reducible, writeable};
use super::arrays::{Array, Kind, Packed};
use super::compression::{PyCodec, PyFeedback};
use super::errand::Errand;
use super::group::Group;
use super::held::Held;
use super::host::{Detached, detach};
use super::work::Work;
use crate::codec::Feedback;
use crate::communicator::{Algorithm, Call, Collective, Communicator, Compression, Element};
use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Result};
use crate::progress::Job;
use crate::wait::{Host, SLICE};

/// What is known of the buckets of a round.
#[derive(Debug, Default)]
struct Marks {
    ready: Vec<bool>,
    done: Vec<bool>,
    /// The round has ended, well or not.
    over: bool,
}

#[derive(Debug, Default)]
struct Board {
    marks: Mutex<Marks>,
    changed: Condvar,
}

impl Board {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, marks: MutexGuard<'a, Marks>) -> MutexGuard<'a, Marks> {
        self.changed.wait_timeout(marks, SLICE).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Arrays of one round.
struct Bucket {
    memory: Held,
    kind: Kind,
    compression: Option<Compression>,
    feedback: Option<Arc<Mutex<Feedback>>>,
}

/// All buckets, once.
pub struct Round {
    buckets: Arc<Mutex<Vec<Bucket>>>,
    board: Arc<Board>,
    op: ReduceOp,
}

impl Job for Round {
    fn run(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.reduce_all(&buckets, communicator, host);
        drop(buckets);
        self.board.marks().over = true;
        self.board.changed.notify_all();
        outcome
    }
}

impl Round {
    fn reduce_all(&self, buckets: &[Bucket], communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        let count = buckets.len();
        let mut offered = vec![false; count];
        for _ in 0..count {
            let next = loop {
                offered = self.news(&offered, host)?;
                if let Some(next) = agree(&offered, communicator, host)? {
                    break next;
                }
            };
            self.reduce(next, &buckets[next], communicator, host)?;
            self.board.marks().done[next] = true;
            self.board.changed.notify_all();
            // Others may be ready everywhere already, so all of them are news.
            offered.fill(false);
        }
        Ok(())
    }

    /// Waits until more is ready than was offered, or all is and only others can have news; what is.
    fn news(&self, offered: &[bool], host: &mut dyn Host) -> Result<Vec<bool>> {
        let mut marks = self.board.marks();
        loop {
            let open: Vec<bool> = marks.ready.iter().zip(&marks.done).map(|(ready, done)| *ready && !*done).collect();
            let more = open.iter().zip(offered).any(|(open, offered)| *open && !*offered);
            if more || marks.ready.iter().all(|ready| *ready) {
                return Ok(open);
            }
            marks = self.board.sleep(marks);
            if host.interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }

    fn reduce(
        &self,
        number: usize,
        Bucket { memory, kind, compression, feedback }: &Bucket,
        communicator: &mut Communicator,
        host: &mut dyn Host,
    ) -> Result<()> {
        let name = format!("bucket {number}");
        let call = call(Collective::AllReduce(self.op), kind.element(), memory.shape(), &name);
        let mut feedback = feedback.as_ref().map(|f| f.lock().unwrap_or_else(PoisonError::into_inner));
        let (call, both) = (Call { compression: *compression, ..call }, (memory.bytes(), memory.bytes()));
        communicator.all_reduce_compressed(&call, feedback.as_deref_mut(), both, host)
    }
}

fn call<'a>(collective: Collective, element: Element<'a>, shape: &'a [usize], name: &'a str) -> Call<'a> {
    let (counts, algorithm) = (&[] as &[usize], Algorithm::Auto);
    Call { collective, element, shape, counts, algorithm, compression: None, name: Some(name), timeout: None }
}

/// The first bucket that all ranks have ready.
fn agree(ready: &[bool], communicator: &mut Communicator, host: &mut dyn Host) -> Result<Option<usize>> {
    let mask = Packed::new(ready.len().div_ceil(8));
    for (cell, bits) in mask.bytes().iter().zip(ready.chunks(8)) {
        cell.set(bits.iter().enumerate().fold(0, |byte, (k, bit)| byte | u8::from(*bit) << k));
    }
    let shape = [mask.bytes().len()];
    let call = call(Collective::AllReduce(ReduceOp::BAnd), Element::Number(DType::UInt8), &shape, "buckets ready");
    communicator.all_reduce(&call, mask.bytes(), mask.bytes(), host)?;
    Ok((0..ready.len()).find(|k| mask.bytes()[k / 8].get() >> (k % 8) & 1 == 1))
}

type Coding<'py> = (PyRef<'py, PyCodec>, Option<PyRef<'py, PyFeedback>>);

/// Arrays that are averaged as they become ready. For `arx.GradientBucketer`.
#[pyclass(frozen, module = "arx._arx", name = "_Buckets")]
pub struct Buckets {
    group: Py<Group>,
    count: usize,
    /// Locked by the round that works on them.
    buckets: Arc<Mutex<Vec<Bucket>>>,
    board: Arc<Board>,
    op: ReduceOp,
}

#[pymethods]
impl Buckets {
    /// `arrays` are contiguous, the one that is needed first is the first. `codecs`: one for each, and what it keeps.
    #[new]
    #[pyo3(signature = (group, arrays, op, codecs = None))]
    fn new(
        group: Py<Group>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &Bound<'_, PyAny>,
        codecs: Option<Vec<Coding<'_>>>,
    ) -> PyResult<Buckets> {
        let op = arguments::operation(op)?;
        let bucket = |(number, x): (usize, &Bound<'_, PyAny>)| {
            let array = Array::of(x)?;
            reducible(&array, op)?;
            writeable(&array, "the array")?;
            let coding = codecs.as_ref().and_then(|codecs| codecs.get(number));
            if coding.is_some() {
                arguments::compressible(&array, op)?;
            }
            let compression = coding.map(|(codec, _)| codec.0);
            let feedback = coding.and_then(|(_, feedback)| Some(feedback.as_ref()?.share()));
            let kind = array.kind.clone();
            Ok(Bucket { memory: array.hold(), kind, compression, feedback })
        };
        let buckets: Vec<Bucket> = arrays.iter().enumerate().map(bucket).collect::<PyResult<_>>()?;
        let count = buckets.len();
        Ok(Buckets { group, count, buckets: Arc::new(Mutex::new(buckets)), board: Arc::default(), op })
    }

    /// Begins a round: no bucket is ready.
    fn begin(&self, py: Python<'_>) -> PyResult<Work> {
        let count = self.count;
        *self.board.marks() = Marks { ready: vec![false; count], done: vec![false; count], over: false };
        let (buckets, board) = (Arc::clone(&self.buckets), Arc::clone(&self.board));
        let round = Round { buckets, board, op: self.op };
        let ticket = self.group.get().progress()?.push(Errand::Round(round))?;
        Ok(Work::new(self.group.clone_ref(py), ticket))
    }

    /// Nothing more is written into bucket `number`.
    fn ready(&self, number: usize) -> PyResult<()> {
        let mut marks = self.board.marks();
        *marks.ready.get_mut(number).ok_or_else(|| PyIndexError::new_err("no such bucket"))? = true;
        drop(marks);
        self.board.changed.notify_all();
        Ok(())
    }

    /// Waits until bucket `number` is averaged. False if the round has ended without it.
    fn wait(&self, py: Python<'_>, number: usize) -> PyResult<bool> {
        let mut host = Detached::default();
        let done = detach(py, || {
            let mut marks = self.board.marks();
            loop {
                match marks.done.get(number) {
                    Some(true) => return Some(true),
                    Some(false) if !marks.over => {}
                    _ => return Some(false),
                }
                marks = self.board.sleep(marks);
                if host.interrupted() {
                    return None;
                }
            }
        });
        done.ok_or_else(|| host.raised.unwrap_or_else(|| Error::Interrupted.into()))
    }
}
