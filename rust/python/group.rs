//! `Group`: checks a call, runs it, returns.

use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use super::errand::Errand;
use super::host::{Attached, Detached, detach};
use super::memory::Block;
use super::message::Message;
use super::subgroups::{self, Kin};
use super::task::Task;
use super::work::Work;
use super::world;
use crate::communicator::{Algorithm, Communicator, Founder, Hosts};
use crate::error::Error;
use crate::progress::{Courier, Job, Progress, Waited};
use crate::wait::Host;

/// Above this many bytes the GIL is released for the whole call; below, only while waiting (a release costs 0.1 us).
pub const LONG: usize = 16 << 10;

/// Ranks that communicate. Made by `arx.init`, `arx.new_group` and `split`; a context manager that shuts the group down.
///
/// `rank`, roots and peers are numbers in the group; `ranks`, and every error, say the numbers in the world.
#[pyclass(frozen, weakref, module = "arx")]
pub struct Group {
    /// First to be dropped: it uses what the communicator holds.
    courier: Courier<Message>,
    progress: Progress<Errand>,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// `world::forks` when it was made.
    forks: u32,
    hosts: Hosts,
    /// To be closed in a forked child.
    descriptors: Vec<RawFd>,
    /// Of calls that name none.
    pub(super) algorithm: Algorithm,
    /// What makes other groups of its members, also during a call.
    pub(super) founder: Founder,
    pub(super) kin: Kin,
}

impl Group {
    pub fn new(communicator: Communicator, algorithm: Algorithm) -> Group {
        let (rank, size) = (communicator.rank(), communicator.world());
        let (hosts, descriptors) = (communicator.hosts().clone(), communicator.descriptors());
        Group {
            founder: communicator.founder().clone(),
            kin: Kin::default(),
            courier: Courier::new(Arc::clone(communicator.letters())),
            progress: Progress::new(communicator),
            rank,
            size,
            forks: world::forks(),
            hosts,
            descriptors,
            algorithm,
        }
    }

    pub fn descriptors(&self) -> Vec<RawFd> {
        self.descriptors.clone()
    }

    pub(super) fn hosts(&self) -> &Hosts {
        &self.hosts
    }
}

impl Group {
    /// Whether this process is a fork of the rank that made the group.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks != world::forks()
    }

    /// Leaves the group, with an exception or without. Without one, calls that were begun come to their end first.
    pub fn leave(&self, py: Python<'_>, raised: bool) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(()); // a forked child has nothing to leave
        }
        let waited = if raised { Ok(()) } else { self.drain(py).and_then(|()| self.flush(py)) };
        detach(py, || {
            self.courier.close(raised);
            self.progress.close(waited.is_err() || raised);
        });
        drop((self.courier.orphans(), self.progress.orphans()));
        waited?;
        let mut communicator = self.enter(py)?;
        detach(py, || communicator.shutdown(raised));
        Ok(())
    }

    /// Refuses to take part in the next call, for a reason found outside.
    pub fn refuse(&self, py: Python<'_>, reason: PyErr) -> PyErr {
        match self.enter(py) {
            Ok(mut communicator) => self.refusal(py, &mut communicator, reason),
            Err(error) => error,
        }
    }

    pub(super) fn refuse_heir(&self) -> PyResult<()> {
        if self.is_inherited() {
            return Err(Error::Init(format!(
                "process {} was forked from rank {} after arx.init: it may not communicate in that group. Start child \
                 processes with the 'spawn' method, or before arx.init",
                std::process::id(),
                self.rank
            ))
            .into());
        }
        Ok(())
    }

    /// What work of this group waits in.
    pub fn progress(&self) -> PyResult<&Progress<Errand>> {
        self.refuse_heir()?;
        Ok(&self.progress)
    }

    /// What messages that do not wait go on with.
    pub fn courier(&self) -> PyResult<&Courier<Message>> {
        self.refuse_heir()?;
        Ok(&self.courier)
    }

    /// Waits until all that is to be sent has been sent.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        if !self.courier.is_busy() {
            return Ok(());
        }
        let mut host = Detached::default();
        let waited = detach(py, || self.courier.flush(&mut host));
        end_of(waited, host)
    }

    /// The communicator, after all calls that were begun before.
    #[inline]
    pub fn enter(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Communicator>> {
        let progress = self.progress()?;
        match progress.enter() {
            Some(communicator) => Ok(communicator),
            None => self.enter_after_all(py, progress),
        }
    }

    /// Waits for all calls that were begun.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let mut host = Detached::default();
        let waited = detach(py, || self.progress.drain(&mut host));
        drop((self.courier.orphans(), self.progress.orphans()));
        end_of(waited, host)
    }

    #[cold]
    fn enter_after_all<'a>(
        &self,
        py: Python<'_>,
        progress: &'a Progress<Errand>,
    ) -> PyResult<MutexGuard<'a, Communicator>> {
        self.drain(py)?;
        progress.enter().ok_or_else(|| Error::busy(self.rank).into())
    }

    /// Runs `checks`; if they refuse, the other ranks are told, so that they raise too instead of waiting.
    #[inline]
    pub fn checked<T>(
        &self,
        py: Python<'_>,
        communicator: &mut Communicator,
        checks: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<T> {
        checks().map_err(|refusal| self.refusal(py, communicator, refusal))
    }

    #[cold]
    fn refusal(&self, py: Python<'_>, communicator: &mut Communicator, refusal: PyErr) -> PyErr {
        let kind = refusal.get_type(py).name().map_or_else(|_| "error".into(), |n| n.to_string());
        let reason = format!("{kind}: {}", refusal.value(py));
        let mut host = Attached { py, raised: None };
        match communicator.refuse(&reason, &mut host) {
            Ok(()) => refusal,
            Err(error) => host.raised.take().unwrap_or_else(|| {
                let error: PyErr = error.into();
                error.set_cause(py, Some(refusal));
                error
            }),
        }
    }

    /// Checks a call, and does it or begins it.
    #[inline]
    pub fn call(
        slf: &Bound<'_, Group>,
        later: bool,
        build: impl FnOnce(&Group) -> PyResult<Task>,
    ) -> PyResult<Py<PyAny>> {
        let (py, group) = (slf.py(), slf.get());
        if later {
            let progress = group.progress()?;
            let task = build(group).map_err(|refusal| group.refuse(py, refusal))?;
            drop(progress.orphans());
            let work = Work::new(slf.clone().unbind(), progress.push(Errand::Call(Box::new(task)))?);
            return Ok(Py::new(py, work)?.into_any());
        }
        let mut communicator = group.enter(py)?;
        let mut task = group.checked(py, &mut communicator, || build(group))?;
        perform(py, task.len() > LONG, |host| task.run(&mut communicator, host))?;
        drop(communicator);
        task.finish(py)
    }

    /// Of calls that name none.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether a collective of `len` bytes can be done in the way that was asked for.
    pub fn serves(&self, algorithm: Algorithm, len: usize) -> PyResult<()> {
        algorithm.check(&self.hosts, len).map_err(PyValueError::new_err)
    }
}

/// What a wait for all that was begun means for its caller.
fn end_of(waited: Waited, host: Detached) -> PyResult<()> {
    match (waited, host.raised) {
        (_, Some(exception)) => Err(exception),
        (Waited::Interrupted, None) => Err(Error::Interrupted.into()),
        _ => Ok(()),
    }
}

/// Runs `work` with the GIL held or, for a long call, released.
pub fn perform(py: Python<'_>, long: bool, work: impl FnOnce(&mut dyn Host) -> Result<(), Error>) -> PyResult<()> {
    let (result, raised) = if long {
        detach(py, || {
            let mut host = Detached::default();
            (work(&mut host), host.raised)
        })
    } else {
        let mut host = Attached { py, raised: None };
        (work(&mut host), host.raised)
    };
    match (result, raised) {
        (Ok(()), _) => Ok(()),
        (Err(Error::Interrupted), Some(exception)) => Err(exception),
        (Err(error), _) => Err(error.into()),
    }
}

#[pymethods]
impl Group {
    /// This process's number in the group, from 0.
    #[getter]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the group has.
    #[getter]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// This process's number among the members on its host, from 0.
    #[getter]
    fn local_rank(&self) -> usize {
        self.hosts.place()
    }

    /// How many members this host has.
    #[getter]
    fn local_size(&self) -> usize {
        self.hosts.mine().1.len()
    }

    /// The number of this host among those of the group, which are counted by their first members.
    #[getter]
    fn node_rank(&self) -> usize {
        self.hosts.mine().0
    }

    /// On how many hosts the members are.
    #[getter]
    fn num_nodes(&self) -> usize {
        self.hosts.count()
    }

    /// World ranks of the members, in group order.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.founder.roll().ranks())
    }

    /// What errors call the group.
    #[getter]
    fn name(&self) -> &str {
        self.founder.roll().name()
    }

    /// As the function `arx.new_group`, with ranks of this group.
    #[pyo3(signature = (ranks, *, name = None))]
    pub fn new_group<'py>(
        &self,
        ranks: Bound<'py, PyAny>,
        name: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, Group>>> {
        subgroups::new_group(self, ranks, name)
    }

    /// One group for each `color`, an integer, of the members that pass it, ordered by `key` and then by rank. All members
    /// call it; who passes None is in no group and gets None. It counts as one call.
    ///
    /// MPI: MPI_Comm_split (MPI 4.1, section 7.4.2).
    #[pyo3(signature = (color, key = None))]
    fn split<'py>(
        &self,
        py: Python<'py>,
        color: Option<Bound<'py, PyAny>>,
        key: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, Group>>> {
        subgroups::split(self, py, color, key)
    }

    /// The group of the members on this host. Made when it is first asked for, by all of them.
    #[getter]
    fn local<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Group>> {
        subgroups::local(self, py)
    }

    /// The group of the members that have the same `local_rank`, one on each host that has so many. Made when it is first
    /// asked for, by all of them.
    #[getter]
    fn cross<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Group>> {
        subgroups::cross(self, py)
    }

    /// Leaves the group; ranks that still need this one get `PeerLostError`. Harmless when called twice.
    fn shutdown(slf: &Bound<'_, Self>) -> PyResult<()> {
        world::leave(slf, false)
    }

    /// Measures the network between hosts anew; all ranks call it. Seconds: latency, cost of a message, per byte sent, per
    /// byte combined; and what messages cost by way of one rank, as a multiple. None on one host.
    fn _survey(&self, py: Python<'_>, rounds: usize) -> PyResult<Option<[f64; 5]>> {
        let mut communicator = self.enter(py)?;
        let mut found = None;
        perform(py, true, |host| {
            found = communicator.survey(rounds, host)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Tells the other ranks that this one cannot take part in the next call because of `error`. What is to be raised.
    fn _refuse<'py>(&self, py: Python<'py>, error: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        self.refuse(py, PyErr::from_value(error)).into_value(py).into_bound(py).into_any()
    }

    /// Memory of `nbytes` that the other ranks of this host can read, all zero.
    fn _allocate<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyMemoryView>> {
        let block = Block::new(self.enter(py)?.allocate(nbytes)?);
        PyMemoryView::from(Bound::new(py, block)?.as_any())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        world::leave(slf, kind.is_some())
    }

    fn __repr__(&self) -> String {
        format!("<arx.Group '{}': rank {} of {}>", self.name(), self.rank, self.size)
    }
}
