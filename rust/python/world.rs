//! The world: the one group that module functions act on, from `connect` to `shutdown`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::arguments;
use super::group::Group;
use super::host::Attached;
use super::listening::Listening;
use crate::communicator::{Across, Algorithm, Communicator, Config, Master};
use crate::error::Error;
use crate::kernels::chosen;

static WORLD: Mutex<Option<Py<Group>>> = Mutex::new(None);

/// Held for a moment only, never while a call runs.
fn current() -> MutexGuard<'static, Option<Py<Group>>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process is a fork of one that had initialised.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The group that a call names, or the world.
pub fn resolve<'py>(py: Python<'py>, group: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, Group>> {
    match group {
        None => world(py),
        Some(group) => group.cast_into::<Group>().or_else(|error| {
            let got = error.into_inner().get_type().name()?.to_string();
            let refusal = PyTypeError::new_err(format!("group must be an arx.Group, not {got}"));
            Err(world(py)?.get().refuse(py, refusal))
        }),
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
    /// None: all ranks are on this host.
    master: Option<String>,
    secret: Option<String>,
    transport: String,
    iface: Option<String>,
    port_range: Option<String>,
    heartbeat: f64,
    /// On rank 0, if its address was published before.
    listening: Option<Py<Listening>>,
}

impl Settings {
    fn across(&self) -> PyResult<Option<Across>> {
        let Some(master) = &self.master else { return Ok(None) };
        Ok(Some(Across {
            master: Master::parse(master)?,
            secret: self.secret.clone(),
            iface: self.iface.clone(),
            ports: self.port_range.clone(),
            apart: self.transport == "tcp",
            silence: Duration::from_secs_f64(self.heartbeat.clamp(1.0, 1e6)),
            listening: self.listening.as_ref().and_then(|listening| listening.get().take()),
        }))
    }
}

/// Forms the world: returns when all ranks of the job are there.
#[pyfunction]
pub fn connect(py: Python<'_>, settings: Settings) -> PyResult<Bound<'_, Group>> {
    if let Err(why) = chosen() {
        return Err(Error::Init(why).into());
    }
    let timeout = arguments::seconds(settings.timeout)?;
    let algorithm = Algorithm::parse(&settings.algo)
        .ok_or_else(|| Error::Init(format!("ARX_ALGO: '{}' is not one of {}", settings.algo, Algorithm::names())))?;
    let across = settings.across()?;
    let config = Config {
        across,
        rank: settings.rank,
        world: settings.world_size,
        job_id: settings.job_id,
        generation: settings.generation,
        timeout,
        spin: (settings.spin_us >= 0.0).then(|| Duration::from_secs_f64(settings.spin_us.min(1e9) * 1e-6)),
        tune: settings.tune,
    };
    let mut host = Attached { py, raised: None };
    let communicator = match Communicator::connect(config, &mut host) {
        Ok(communicator) => communicator,
        Err(Error::Interrupted) => return Err(host.raised.take().unwrap_or_else(|| Error::Interrupted.into())),
        Err(error) => return Err(error.into()),
    };
    let group = Bound::new(py, Group::new(communicator, algorithm))?;
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
        None if forks() > 0 => Err(Error::Init(
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

/// Leaves the world, if there is one. Ranks that still need this one get `PeerLostError`; `raised` tells them that an
/// exception is the reason.
#[pyfunction]
#[pyo3(signature = (raised = false))]
pub fn shutdown(py: Python<'_>, raised: bool) -> PyResult<()> {
    let group = current().take();
    group.map_or(Ok(()), |group| group.get().leave(py, raised))
}

/// Leaves `group`, and forgets it if it is the world.
pub fn leave(group: &Bound<'_, Group>, raised: bool) -> PyResult<()> {
    let mut world = current();
    if world.as_ref().is_some_and(|world| world.is(group)) {
        *world = None;
    }
    drop(world);
    group.get().leave(group.py(), raised)
}

/// Registered by `arx.init` with `os.register_at_fork`.
///
/// Returns descriptors that the child must close: as long as it lives they would keep the job's name taken, or hide the
/// parent's death from other hosts.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub fn after_fork_in_child() -> Vec<i32> {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let Some(group) = current().take() else { return Vec::new() };
    let descriptors = group.get().descriptors();
    // Its watcher thread lives in the parent only: joining it here would wait for ever, so it is never dropped.
    std::mem::forget(group);
    descriptors
}
