//! `Group`: checks a call, runs it, returns.

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use super::arguments;
use super::arrays::{Array, Packed};
use super::explanation::Explanation;
use super::host::{Attached, Detached, detach};
use super::memory::Block;
use super::post::{self, Incoming, Outgoing};
use super::subgroups::{self, Kin};
use super::world;
use crate::communicator::{Algorithm, Call, Collective, Communicator, Founder, Hosts};
use crate::dtype::ReduceOp;
use crate::error::Error;
use crate::wait::Host;

/// Above this many bytes the GIL is released for the whole call; below, only while waiting (a release costs 0.1 us).
pub(super) const LONG: usize = 16 << 10;

/// Ranks that communicate. Made by `arx.init`, `arx.new_group` and `split`; a context manager that shuts the group down.
///
/// `rank`, roots and peers are numbers in the group; `ranks`, and every error, say the numbers in the world.
#[pyclass(frozen, module = "arx")]
pub struct Group {
    pub(super) communicator: Mutex<Communicator>,
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
            communicator: Mutex::new(communicator),
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

    /// Leaves the group, with an exception or without.
    pub fn leave(&self, py: Python<'_>, raised: bool) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(()); // a forked child has nothing to leave
        }
        let mut communicator = self.lock()?;
        detach(py, || communicator.shutdown(raised));
        Ok(())
    }

    /// Refuses to take part in the next call, for a reason found outside.
    pub fn refuse(&self, py: Python<'_>, reason: PyErr) -> PyErr {
        match self.lock() {
            Ok(mut communicator) => {
                self.checked(py, &mut communicator, |_| Err::<(), _>(reason)).expect_err("it refuses")
            }
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

    pub(super) fn lock(&self) -> PyResult<MutexGuard<'_, Communicator>> {
        self.refuse_heir()?;
        match self.communicator.try_lock() {
            Ok(communicator) => Ok(communicator),
            Err(TryLockError::Poisoned(broken)) => Ok(broken.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(format!(
                "another thread (or an interrupted frame of this one) is inside a call of this group on rank {}: a group \
                 takes one call at a time; use one group per thread",
                self.rank
            ))),
        }
    }

    /// Runs `checks`; if they refuse, the other ranks are told, so that they raise too instead of waiting.
    #[inline]
    pub(super) fn checked<'py, T>(
        &self,
        py: Python<'py>,
        communicator: &mut Communicator,
        checks: impl FnOnce(&Communicator) -> PyResult<T>,
    ) -> PyResult<T> {
        checks(communicator).map_err(|refusal| {
            let reason = format!(
                "{}: {}",
                refusal.get_type(py).name().map_or_else(|_| "error".into(), |n| n.to_string()),
                refusal.value(py)
            );
            let mut host = Attached { py, raised: None };
            match communicator.refuse(&reason, &mut host) {
                Ok(()) => refusal,
                Err(error) => host.raised.take().unwrap_or_else(|| {
                    let error: PyErr = error.into();
                    error.set_cause(py, Some(refusal));
                    error
                }),
            }
        })
    }
}

/// Runs `work` with the GIL held or, for a long call, released.
pub(super) fn perform(
    py: Python<'_>,
    long: bool,
    work: impl FnOnce(&mut dyn Host) -> Result<(), Error>,
) -> PyResult<()> {
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
    fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the group has.
    #[getter]
    fn size(&self) -> u32 {
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

    /// As the function `arx.all_reduce`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, algo = None, timeout = None, name = None))]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        op: Option<Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
        algo: Option<Bound<'py, PyAny>>,
        timeout: Option<Bound<'py, PyAny>>,
        name: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().reduce(Reduce { x, op, out, algo, timeout, name })
    }

    /// As the function `arx.broadcast`, in this group.
    #[pyo3(signature = (x, root = None, *, timeout = None, name = None))]
    fn broadcast<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        root: Option<Bound<'py, PyAny>>,
        timeout: Option<Bound<'py, PyAny>>,
        name: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().spread(Spread { x, root, timeout, name })
    }

    /// As the function `arx.barrier`, in this group.
    #[pyo3(signature = (*, timeout = None))]
    pub fn barrier(&self, py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut communicator = self.lock()?;
        let timeout = self.checked(py, &mut communicator, |_| arguments::timeout(timeout.as_ref()))?;
        perform(py, false, |host| communicator.barrier(&Call::barrier(timeout), host))
    }

    /// As the function `arx.send`, in this group.
    #[pyo3(signature = (x, dst, *, tag = None, timeout = None))]
    fn send(
        &self,
        x: Bound<'_, PyAny>,
        dst: Bound<'_, PyAny>,
        tag: Option<Bound<'_, PyAny>>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        post::send_in(self, Outgoing { x, dst, tag }, timeout)
    }

    /// As the function `arx.recv`, in this group.
    #[pyo3(signature = (out, src = None, *, tag = None, timeout = None))]
    fn recv(
        &self,
        out: Bound<'_, PyAny>,
        src: Option<Bound<'_, PyAny>>,
        tag: Option<Bound<'_, PyAny>>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<post::Status> {
        post::recv_in(self, Incoming { out, src, tag }, timeout)
    }

    /// As the function `arx.sendrecv`, in this group.
    #[pyo3(signature = (x, dst, out, src = None, *, tag = None, recv_tag = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "as Python has them")]
    fn sendrecv(
        &self,
        x: Bound<'_, PyAny>,
        dst: Bound<'_, PyAny>,
        out: Bound<'_, PyAny>,
        src: Option<Bound<'_, PyAny>>,
        tag: Option<Bound<'_, PyAny>>,
        recv_tag: Option<Bound<'_, PyAny>>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<post::Status> {
        let recv_tag = recv_tag.or_else(|| tag.clone());
        post::sendrecv_in(self, Outgoing { x, dst, tag }, Incoming { out, src, tag: recv_tag }, timeout)
    }

    /// As the function `arx.explain`, in this group.
    #[pyo3(signature = (x, op = None, *, algo = None))]
    pub fn explain(
        &self,
        x: Bound<'_, PyAny>,
        op: Option<Bound<'_, PyAny>>,
        algo: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Explanation> {
        let communicator = self.lock()?;
        let request = Reduce { x, op, out: None, algo, timeout: None, name: None };
        let r = request.check(self.algorithm, &communicator)?;
        let packed = (!r.input.contiguous).then(|| Packed::of(&r.input));
        let bytes = packed.as_ref().map_or_else(|| r.input.bytes(), Packed::bytes);
        Ok(Explanation(communicator.explain(&r.call(), bytes)))
    }

    /// Leaves the group; ranks that still need this one get `PeerLostError`. Harmless when called twice.
    fn shutdown(slf: &Bound<'_, Self>) -> PyResult<()> {
        world::leave(slf, false)
    }

    /// Measures the network between hosts anew; all ranks call it. Seconds: latency, cost of a message, per byte sent, per
    /// byte combined. None on one host.
    fn _survey(&self, py: Python<'_>, rounds: usize) -> PyResult<Option<[f64; 4]>> {
        let mut communicator = self.lock()?;
        let mut found = None;
        perform(py, true, |host| {
            found = communicator.survey(rounds, host)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Memory of `nbytes` that the other ranks of this host can read, all zero.
    fn _allocate<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyMemoryView>> {
        let block = Block::new(self.lock()?.allocate(nbytes)?);
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

/// Arguments of an all-reduce as they were passed.
pub struct Reduce<'py> {
    pub x: Bound<'py, PyAny>,
    pub op: Option<Bound<'py, PyAny>>,
    pub out: Option<Bound<'py, PyAny>>,
    pub algo: Option<Bound<'py, PyAny>>,
    pub timeout: Option<Bound<'py, PyAny>>,
    pub name: Option<Bound<'py, PyAny>>,
}

/// The same, checked.
struct Reduction<'a, 'py> {
    op: ReduceOp,
    input: Array<'py>,
    /// None: in place.
    output: Option<Array<'py>>,
    algorithm: Algorithm,
    timeout: Option<Duration>,
    name: Option<&'a str>,
}

impl<'py> Reduce<'py> {
    #[inline]
    fn check(&self, default: Algorithm, communicator: &Communicator) -> PyResult<Reduction<'_, 'py>> {
        let op = self.op.as_ref().map_or(Ok(ReduceOp::Sum), arguments::operation)?;
        let timeout = arguments::timeout(self.timeout.as_ref())?;
        let name = arguments::text("name", self.name.as_ref())?;
        let algorithm = arguments::algorithm(self.algo.as_ref(), default)?;
        let input = Array::of(&self.x)?;
        arguments::reducible(&input, op)?;
        communicator.serves(algorithm, input.len()).map_err(PyValueError::new_err)?;
        let output = match &self.out {
            None => None,
            Some(out) => {
                let output = arguments::output(out)?;
                (!arguments::same_memory(&self.x, &input, out, &output)?).then_some(output)
            }
        };
        let (written, what) = output.as_ref().map_or((&input, "the array"), |output| (output, "out"));
        arguments::writeable(written, what)?;
        Ok(Reduction { op, input, output, algorithm, timeout, name })
    }
}

impl Reduction<'_, '_> {
    fn call(&self) -> Call<'_> {
        Call {
            collective: Collective::AllReduce(self.op),
            element: self.input.kind.element(),
            shape: self.input.shape(),
            counts: &[],
            algorithm: self.algorithm,
            name: self.name,
            timeout: self.timeout,
        }
    }
}

/// Arguments of a broadcast as they were passed.
pub struct Spread<'py> {
    pub x: Bound<'py, PyAny>,
    pub root: Option<Bound<'py, PyAny>>,
    pub timeout: Option<Bound<'py, PyAny>>,
    pub name: Option<Bound<'py, PyAny>>,
}

impl Group {
    pub fn reduce<'py>(&self, request: Reduce<'py>) -> PyResult<Bound<'py, PyAny>> {
        let py = request.x.py();
        let mut communicator = self.lock()?;
        let r = self.checked(py, &mut communicator, |group| request.check(self.algorithm, group))?;
        let call = r.call();
        let written = r.output.as_ref().unwrap_or(&r.input);
        let long = r.input.len() > LONG;
        if r.input.contiguous && written.contiguous {
            let (dst, src) = (written.bytes(), r.input.bytes());
            perform(py, long, |host| communicator.all_reduce(&call, dst, src, host))?;
        } else {
            let packed = Packed::of(&r.input);
            let both = packed.bytes();
            perform(py, long, |host| communicator.all_reduce(&call, both, both, host))?;
            packed.unpack(written);
        }
        drop(r);
        Ok(request.out.unwrap_or(request.x))
    }

    pub fn spread<'py>(&self, request: Spread<'py>) -> PyResult<Bound<'py, PyAny>> {
        let py = request.x.py();
        let mut communicator = self.lock()?;
        let checks = |_: &Communicator| {
            let timeout = arguments::timeout(request.timeout.as_ref())?;
            let name = arguments::text("name", request.name.as_ref())?;
            let root = request.root.as_ref().map_or(Ok(0), |root| arguments::root(root, self.size))?;
            let array = Array::of(&request.x)?;
            if root != self.rank {
                arguments::writeable(&array, "the array")?;
            }
            Ok((timeout, name, root, array))
        };
        let (timeout, name, root, array) = self.checked(py, &mut communicator, checks)?;
        let call = Call {
            collective: Collective::Broadcast { root },
            element: array.kind.element(),
            shape: array.shape(),
            counts: &[],
            algorithm: Algorithm::Auto,
            name,
            timeout,
        };
        let long = array.len() > LONG;
        if array.contiguous {
            perform(py, long, |host| communicator.broadcast(&call, root, array.bytes(), host))?;
        } else {
            let packed = Packed::of(&array);
            perform(py, long, |host| communicator.broadcast(&call, root, packed.bytes(), host))?;
            if root != self.rank {
                packed.unpack(&array);
            }
        }
        drop(array);
        Ok(request.x)
    }
}
