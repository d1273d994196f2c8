//! `Group` and the functions of the module: check, call, return.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments;
use super::arrays::{Array, Packed};
use super::host::{Attached, Detached, detach};
use super::memory::Block;
use crate::communicator::{Call, Collective, Communicator, Config};
use crate::direct::Algorithm;
use crate::dtype::ReduceOp;
use crate::error::Error;
use crate::kernels::{Reducer, chosen};
use crate::wait::Host;

/// Above this many bytes the GIL is released for the whole call; below, only while waiting (a release costs 0.1 us).
const LONG: usize = 16 << 10;

/// How often this process is a fork of one that had initialised.
static FORKS: AtomicU32 = AtomicU32::new(0);

static WORLD: Mutex<Option<Py<Group>>> = Mutex::new(None);

fn current() -> MutexGuard<'static, Option<Py<Group>>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranks that communicate. Made by `arx.init`; a context manager that shuts the group down.
#[pyclass(frozen, module = "arx")]
pub struct Group {
    communicator: Mutex<Communicator>,
    rank: u32,
    size: u32,
    forks: u32,
    algorithm: Algorithm,
}

impl Group {
    /// The group that a call names, or the world.
    fn resolve<'py>(py: Python<'py>, group: Option<Bound<'py, Group>>) -> PyResult<Bound<'py, Group>> {
        match group {
            Some(group) => Ok(group),
            None => world(py),
        }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Communicator>> {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            return Err(Error::Init(format!(
                "process {} was forked from rank {} after arx.init: it may not communicate in that group. Start child \
                 processes with the 'spawn' method, or before arx.init",
                std::process::id(),
                self.rank
            ))
            .into());
        }
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
    fn checked<'py, T>(
        &self,
        py: Python<'py>,
        communicator: &mut Communicator,
        checks: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<T> {
        checks().map_err(|refusal| {
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
fn perform(py: Python<'_>, long: bool, work: impl FnOnce(&mut dyn Host) -> Result<(), Error>) -> PyResult<()> {
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

    /// World ranks of the members, in group order.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, 0..self.size)
    }

    /// What errors call the group.
    #[getter]
    fn name(&self) -> &'static str {
        "world"
    }

    /// As the function `arx.all_reduce`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, algo = "auto", timeout = None, name = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        op: Option<Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
        algo: &str,
        timeout: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().reduce(Request { x, op, out, algo, timeout, name })
    }

    /// As the function `arx.broadcast`, in this group.
    #[pyo3(signature = (x, root = 0, *, timeout = None, name = None))]
    fn broadcast<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        root: i64,
        timeout: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().spread(x, root, timeout, name)
    }

    /// As the function `arx.barrier`, in this group.
    #[pyo3(signature = (*, timeout = None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mut communicator = self.lock()?;
        let timeout = self.checked(py, &mut communicator, || arguments::timeout(timeout))?;
        perform(py, false, |host| communicator.barrier(&Call::barrier(timeout), host))
    }

    /// Leaves the group; ranks that still need this one get `PeerLostError`. Harmless when called twice.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let mut communicator = self.lock()?;
        detach(py, || communicator.shutdown());
        Ok(())
    }

    /// Memory of `nbytes` that the other ranks of this host can read, all zero.
    fn _allocate(&self, nbytes: usize) -> PyResult<Block> {
        Ok(Block::new(self.lock()?.allocate(nbytes)?))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _type: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let is_world = current().as_ref().is_some_and(|group| group.is(slf));
        if is_world { shutdown(py) } else { slf.get().shutdown(py) }
    }

    fn __repr__(&self) -> String {
        format!("<arx.Group 'world': rank {} of {}>", self.rank, self.size)
    }
}

/// Arguments of an all-reduce as they were passed.
struct Request<'a, 'py> {
    x: Bound<'py, PyAny>,
    op: Option<Bound<'py, PyAny>>,
    out: Option<Bound<'py, PyAny>>,
    algo: &'a str,
    timeout: Option<f64>,
    name: Option<&'a str>,
}

impl Group {
    fn reduce<'py>(&self, r: Request<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let py = r.x.py();
        let mut communicator = self.lock()?;
        let checks = || {
            let op = r.op.as_ref().map_or(Ok(ReduceOp::Sum), arguments::operation)?;
            let timeout = arguments::timeout(r.timeout)?;
            let algorithm = arguments::algorithm(r.algo, self.algorithm)?;
            let a = Array::of(&r.x)?;
            let dtype = arguments::reducible(&a, op)?;
            arguments::fits(algorithm, a.len())?;
            let target = match &r.out {
                None => None,
                Some(out) => {
                    let b = Array::of(out)?;
                    (!arguments::same_memory(&r.x, &a, out, &b)?).then_some(b)
                }
            };
            let (written, what) = target.as_ref().map_or((&a, "the array"), |b| (b, "out"));
            arguments::writeable(written, what)?;
            Ok((op, dtype, timeout, algorithm, a, target))
        };
        let (op, dtype, timeout, algorithm, a, target) = self.checked(py, &mut communicator, checks)?;
        let collective = Collective::AllReduce(op);
        let call = Call { collective, element: a.kind.element(), shape: a.shape(), algorithm, name: r.name, timeout };
        let reducer = Reducer::of(dtype, op).expect("`reducible` has checked that the operation exists");
        let written = target.as_ref().unwrap_or(&a);
        let long = a.len() > LONG;
        if a.contiguous && written.contiguous {
            perform(py, long, |host| communicator.all_reduce(&call, reducer, written.bytes(), a.bytes(), host))?;
        } else {
            let packed = Packed::of(&a);
            perform(py, long, |host| communicator.all_reduce(&call, reducer, packed.bytes(), packed.bytes(), host))?;
            packed.unpack(written);
        }
        Ok(r.out.unwrap_or(r.x))
    }

    fn spread<'py>(
        &self,
        x: Bound<'py, PyAny>,
        root: i64,
        timeout: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = x.py();
        let mut communicator = self.lock()?;
        let checks = || {
            let timeout = arguments::timeout(timeout)?;
            let at = u32::try_from(root).ok().filter(|r| *r < self.size).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "root {root} is not a rank of this group: they go from 0 to {}",
                    self.size - 1
                ))
            })?;
            let a = Array::of(&x)?;
            if at != self.rank {
                arguments::writeable(&a, "the array")?;
            }
            Ok((timeout, at, a))
        };
        let (timeout, root, a) = self.checked(py, &mut communicator, checks)?;
        let collective = Collective::Broadcast { root };
        let call =
            Call { collective, element: a.kind.element(), shape: a.shape(), algorithm: Algorithm::Auto, name, timeout };
        let long = a.len() > LONG;
        if a.contiguous {
            perform(py, long, |host| communicator.broadcast(&call, root, a.bytes(), host))?;
        } else {
            let packed = Packed::of(&a);
            perform(py, long, |host| communicator.broadcast(&call, root, packed.bytes(), host))?;
            if root != self.rank {
                packed.unpack(&a);
            }
        }
        Ok(x)
    }
}

/// Settings of `connect`, as `arx.init` read them from its arguments and the environment.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    rank: u32,
    world_size: u32,
    job_id: String,
    generation: u32,
    timeout: f64,
    /// Negative: the default.
    spin_us: f64,
    tune: Option<String>,
    algo: String,
}

/// Forms the world: returns when all ranks of the job are there.
#[pyfunction]
pub fn connect(py: Python<'_>, settings: Settings) -> PyResult<Bound<'_, Group>> {
    if let Err(why) = chosen() {
        return Err(Error::Init(why).into());
    }
    let timeout = arguments::timeout(Some(settings.timeout))?.expect("a value was given");
    let algorithm = arguments::algorithm(&settings.algo, Algorithm::Auto)?;
    let config = Config {
        rank: settings.rank,
        world: settings.world_size,
        job_id: settings.job_id,
        generation: settings.generation,
        timeout,
        spin: (settings.spin_us >= 0.0).then(|| Duration::from_secs_f64(settings.spin_us.min(1e9) * 1e-6)),
        tune: settings.tune,
    };
    let mut host = Attached { py, raised: None };
    let communicator = match Communicator::connect(&config, &mut host) {
        Ok(communicator) => communicator,
        Err(Error::Interrupted) => return Err(host.raised.take().unwrap_or_else(|| Error::Interrupted.into())),
        Err(error) => return Err(error.into()),
    };
    let (rank, size) = (communicator.rank(), communicator.world());
    let forks = FORKS.load(Ordering::Relaxed);
    let group = Bound::new(py, Group { communicator: Mutex::new(communicator), rank, size, forks, algorithm })?;
    *current() = Some(group.clone().unbind());
    Ok(group)
}

/// The group of all ranks.
///
/// Raises `InitError` before `arx.init`.
#[pyfunction]
pub fn world(py: Python<'_>) -> PyResult<Bound<'_, Group>> {
    match &*current() {
        Some(group) => Ok(group.bind(py).clone()),
        None if FORKS.load(Ordering::Relaxed) > 0 => Err(Error::Init(
            "this process was forked from a rank: it is not a rank itself. Start child processes with the 'spawn' method \
             if they are to call arx.init"
                .into(),
        )
        .into()),
        None => Err(Error::Init("arx is not initialised: call arx.init() first".into()).into()),
    }
}

/// Whether `arx.init` has been called, and `arx.shutdown` has not.
#[pyfunction]
pub fn is_initialized() -> bool {
    current().is_some()
}

/// Leaves the world, if there is one. Ranks that still need this one get `PeerLostError`.
#[pyfunction]
pub fn shutdown(py: Python<'_>) -> PyResult<()> {
    let group = current().take();
    group.map_or(Ok(()), |group| group.get().shutdown(py))
}

/// Registered by `arx.init` with `os.register_at_fork`.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(group) = current().take() {
        // Its watcher thread lives in the parent only: joining it here would wait for ever, so it is never dropped.
        std::mem::forget(group);
    }
}

/// Combine `x` element by element over all ranks; every rank holds the result.
///
/// Works in place unless `out` is given, and returns the array that holds the result.
///
/// Parameters
/// ----------
/// x : array
///     CPU memory of any shape and layout: numpy (any strides, ml_dtypes too), a torch CPU tensor, a DLPack object or a
///     writable buffer. All ranks pass the same shape and dtype; layouts may differ, elements are matched by index.
/// op : str or ReduceOp
///     "sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land" or "lor". Integer sums and products wrap as in
///     numpy; "avg" divides the sum by the group's size (floats and complex); float16 and bfloat16 are combined in float32
///     and rounded once; NaN wins in "min" and "max"; bool "sum" is or, "prod" is and.
/// out : array, optional
///     Receives the result; `x` stays as it is. The same dtype and shape as `x`; either exactly the same memory or none of it.
/// group : Group, optional
///     Instead of the world.
/// algo : str
///     "auto", or one of "lines" (up to 1 KiB), "staged", "symmetric" to force a way; equal on all ranks.
/// timeout : float, optional
///     Seconds without progress after which waiting ends, instead of the group's.
/// name : str, optional
///     Part of what ranks must agree on; shown in errors.
///
/// Returns
/// -------
/// `out` if given, else `x`: the same bits on every rank and from run to run.
///
/// Raises
/// ------
/// TypeError, ValueError
///     This rank's arguments are refused; every other rank gets `MismatchError`.
/// MismatchError
///     Ranks came with different calls. No data has moved, the group stays usable.
/// PeerLostError, CollectiveTimeout, AbortedError
///     A rank is gone, silent, or was interrupted. The content of the result is unspecified and the group is closed.
///
/// MPI: MPI_Allreduce (MPI 4.1, section 6.9.6).
///
/// Examples
/// --------
/// >>> x = np.arange(4.0) + arx.rank()
/// >>> arx.all_reduce(x)                                      # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (x, op = None, *, out = None, group = None, algo = "auto", timeout = None, name = None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
pub fn all_reduce<'py>(
    x: Bound<'py, PyAny>,
    op: Option<Bound<'py, PyAny>>,
    out: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, Group>>,
    algo: &str,
    timeout: Option<f64>,
    name: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    Group::resolve(x.py(), group)?.get().reduce(Request { x, op, out, algo, timeout, name })
}

/// Copy `x` of rank `root` into `x` of every other rank.
///
/// Parameters
/// ----------
/// x : array
///     As in `all_reduce`, of any dtype without Python objects (structured, string and time types are copied byte by
///     byte). Read on the root, where it may be read-only; written elsewhere. Shape and dtype agree on all ranks.
/// root : int
///     A rank of the group.
/// group, timeout, name
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `x`.
///
/// MPI: MPI_Bcast (MPI 4.1, section 6.4).
#[pyfunction]
#[pyo3(signature = (x, root = 0, *, group = None, timeout = None, name = None))]
pub fn broadcast<'py>(
    x: Bound<'py, PyAny>,
    root: i64,
    group: Option<Bound<'py, Group>>,
    timeout: Option<f64>,
    name: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    Group::resolve(x.py(), group)?.get().spread(x, root, timeout, name)
}

/// Return when every rank of the group has called it.
///
/// MPI: MPI_Barrier (MPI 4.1, section 6.3). Errors as in `all_reduce`.
#[pyfunction]
#[pyo3(signature = (*, group = None, timeout = None))]
pub fn barrier(py: Python<'_>, group: Option<Bound<'_, Group>>, timeout: Option<f64>) -> PyResult<()> {
    Group::resolve(py, group)?.get().barrier(py, timeout)
}
