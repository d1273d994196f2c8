//! `coalesce()`: all-reduces that are put off, to be done together when their block ends. Python keeps them (`arx._many`).

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::group::Group;
use super::reduce::Reduce;

/// Blocks that are open, in any thread.
static OPEN: AtomicUsize = AtomicUsize::new(0);

#[inline]
pub fn is_active() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// A block of `coalesce` opens (1) or ends (-1).
#[pyfunction]
#[pyo3(name = "_coalescing")]
pub fn coalescing(change: isize) {
    OPEN.fetch_add(change as usize, Ordering::Relaxed); // wraps for -1
}

/// Puts an all-reduce off, if this thread is in such a block: what the caller gets for now.
#[cold]
pub fn defer<'py>(group: &Bound<'py, Group>, request: &Reduce<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if request.options.compression.is_some() {
        return Ok(None); // it has a state of its own, and is no part of a larger array
    }
    let py = group.py();
    let arguments = PyDict::new(py);
    arguments.set_item("op", &request.op)?;
    arguments.set_item("out", &request.out)?;
    arguments.set_item("algo", &request.options.algo)?;
    arguments.set_item("timeout", &request.options.timeout)?;
    arguments.set_item("name", &request.options.name)?;
    arguments.set_item("async_op", request.options.later)?;
    let kept = py.import("arx._many")?.call_method1("put_off", (group, &request.x, arguments))?;
    Ok(if kept.is_none() { None } else { Some(kept) })
}
