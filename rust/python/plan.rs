//! `Plan`: an all-reduce that is checked once and done often.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::calls::{self, Which};
use super::group::{Group, LONG, perform};
use super::options::Options;
use super::reduce;
use super::task::Task;
use super::world;
use crate::progress::Job;

type Any<'py> = Bound<'py, PyAny>;

/// A call of `all_reduce` on always the same arrays, made by `plan_all_reduce`. Calling it does it, and returns the result's array.
#[pyclass(frozen, module = "arx")]
pub struct Plan {
    group: Py<Group>,
    task: Mutex<Task>,
    object: Py<PyAny>,
}

#[pymethods]
impl Plan {
    fn __call__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut communicator = self.group.get().enter(py)?;
        // Who is in a call of the group has the communicator too, so nobody waits here.
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        perform(py, task.len() > LONG, |host| task.run(&mut communicator, host))?;
        Ok(self.object.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        format!("<arx.Plan of {} bytes>", self.task.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

/// Check an `all_reduce` once, to do it many times: `plan = plan_all_reduce(x)`, then `plan()` whenever `x` has new values.
///
/// For arrays that stay where they are, as in a training loop: the checks and the reading of the array's description are paid here.
///
/// Parameters
/// ----------
/// x, op, out, group, compression, algo, timeout, name
///     As in `all_reduce`. The arrays are kept alive by the plan. A torch tensor must not be resized meanwhile. Codecs in Python, `clip_norm=`
///     and warm-up cannot be planned.
///
/// Returns
/// -------
/// Plan
///     Calling it does the all-reduce and returns `out` if given, else `x`. Errors of a call are those of `all_reduce`; what is wrong with
///     the arguments raises here, on this rank alone: making a plan is no call that others take part in.
///
/// MPI: MPI_Allreduce_init (MPI 4.1, section 6.13).
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
#[pyo3(signature = (x, op = None, *, out = None, group = None, compression = None, algo = None, timeout = None, name = None))]
pub fn plan_all_reduce<'py>(
    x: Any<'py>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    group: Option<Any<'py>>,
    compression: Option<Any<'py>>,
    algo: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
) -> PyResult<Plan> {
    let options = Options { algo, timeout, name, ..Options::default() };
    let group = world::resolve(x.py(), group)?;
    let mut task = calls::combine(group.get(), Which::All, (&x, op.as_ref(), out.as_ref()), &options)?;
    if let Some(compression) = compression {
        task = task.with(reduce::planned(&group, (&x, op.as_ref()), &compression, options.name.as_ref())?);
    }
    Ok(Plan { group: group.unbind(), task: Mutex::new(task), object: out.unwrap_or(x).unbind() })
}
