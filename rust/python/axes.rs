//! Gathering along any axis, and scattering what only the root knows: calls that do more than one step in Python's terms.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments;
use super::calls;
use super::fresh::moved;
use super::group::Group;
use super::options::Options;
use super::task::{Answer, Task};

type Any<'py> = Bound<'py, PyAny>;

pub fn all_gather<'py>(
    slf: &Bound<'py, Group>,
    (x, out, axis): (Any<'py>, Option<Any<'py>>, Option<Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Py<PyAny>> {
    Group::call(slf, options.later, |group| along(group, None, (&x, out.as_ref(), axis.as_ref()), options))
}

pub fn gather<'py>(
    slf: &Bound<'py, Group>,
    root: Option<Any<'py>>,
    (x, out, axis): (Any<'py>, Option<Any<'py>>, Option<Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Py<PyAny>> {
    Group::call(slf, options.later, |group| {
        let root = root.as_ref().map_or(Ok(0), |root| arguments::root(root, group.size()))?;
        along(group, Some(root), (&x, out.as_ref(), axis.as_ref()), options)
    })
}

/// With the axis that is joined in front; the core knows no other.
#[inline]
fn along<'py>(
    group: &Group,
    root: Option<u32>,
    (x, out, axis): (&Any<'py>, Option<&Any<'py>>, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let axis = axis.map_or(Ok(0), |axis| axis_of(axis, x))?;
    if axis == 0 {
        return calls::gather(group, root, (x, out, 0), options);
    }
    let front = moved(x, axis, 0)?;
    let result = out.map(|out| moved(out, axis, 0)).transpose()?;
    let mut task = calls::gather(group, root, (&front, result.as_ref(), axis), options)?;
    if let (Some(out), Answer::Object(_)) = (out, &task.answer) {
        task.answer = Answer::Object(out.clone().unbind());
    }
    Ok(task)
}

/// An axis as Python counts it, from 0.
fn axis_of(axis: &Any<'_>, x: &Any<'_>) -> PyResult<usize> {
    let number: isize = axis
        .call_method0("__index__")
        .and_then(|index| index.extract())
        .map_err(|_| PyTypeError::new_err("axis must be an integer"))?;
    if matches!(number, 0 | -1) && x.getattr("ndim").is_err() {
        return Ok(0); // a buffer or another object with one axis
    }
    // A 0-d array counts as one with a single axis.
    let axes = x.getattr("ndim")?.extract::<isize>()?.max(1);
    let index = if number < 0 { number + axes } else { number };
    if (0..axes).contains(&index) {
        return Ok(index as usize);
    }
    Err(PyIndexError::new_err(format!("axis {number} of an array with {axes} axes")))
}

pub fn scatter<'py>(
    slf: &Bound<'py, Group>,
    (x, root, out): (Option<Any<'py>>, Option<Any<'py>>, Option<Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Py<PyAny>> {
    if out.is_none() && !options.later {
        // Python tells the others what they will get.
        let arguments = (slf, x, root, &options.timeout, &options.name);
        return Ok(slf.py().import("arx._objects")?.call_method1("scatter_new", arguments)?.unbind());
    }
    Group::call(slf, options.later, |group| {
        let root = root.as_ref().map_or(Ok(0), |root| arguments::root(root, group.size()))?;
        let nothing = || PyValueError::new_err("x is needed on the root");
        let x = match (&x, root == group.rank()) {
            (Some(x), _) => x.clone(),
            (None, true) => return Err(nothing()),
            (None, false) => out.clone().ok_or_else(|| PyValueError::new_err("scatter(async_op=True) needs out="))?,
        };
        calls::scatter(group, (&x, root, out.as_ref()), options)
    })
}
