//! The checks before any data moves: each says what is wrong, with which value, and what to do.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use super::arrays::{Array, Kind};
use crate::communicator::{Algorithm, tuple};
use crate::dtype::ReduceOp;

pub fn operation(op: &Bound<'_, PyAny>) -> PyResult<ReduceOp> {
    let text = op.extract::<&str>().or_else(|_| {
        Err(PyTypeError::new_err(format!("op must be a string or an arx.ReduceOp, not {}", op.get_type().name()?)))
    })?;
    ReduceOp::parse(text).ok_or_else(|| {
        let names: Vec<&str> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
        PyValueError::new_err(format!("op '{text}' is not one of {}", names.join(", ")))
    })
}

/// An argument of the wrong Python type, by name.
fn wrong_type(what: &str, expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let got = value.get_type().name().map_or_else(|_| "another type".into(), |n| n.to_string());
    PyTypeError::new_err(format!("{what} must be {expected}, not {got}"))
}

/// Text, or nothing.
pub fn text<'a>(what: &str, value: Option<&'a Bound<'_, PyAny>>) -> PyResult<Option<&'a str>> {
    value.map(|v| v.extract().map_err(|_| wrong_type(what, "a string", v))).transpose()
}

/// A time-out in seconds, as the caller wrote it.
pub fn timeout(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let convert =
        |v: &Bound<'_, PyAny>| seconds(v.extract().map_err(|_| wrong_type("timeout", "a number of seconds", v))?);
    value.map(convert).transpose()
}

pub fn seconds(s: f64) -> PyResult<Duration> {
    if s > 0.0 {
        // What is too long for a clock is for ever.
        let time = Duration::try_from_secs_f64(s).unwrap_or(Duration::from_secs(u64::MAX / 4));
        return Ok(time.max(Duration::from_nanos(1)));
    }
    Err(PyValueError::new_err(format!("timeout must be a positive number of seconds, not {s}")))
}

/// A rank of a group of `size`.
pub fn root(value: &Bound<'_, PyAny>, size: u32) -> PyResult<u32> {
    // Nearly all callers pass a plain number, which need not be asked for one.
    if value.is_exact_instance_of::<PyInt>()
        && let Some(rank) = value.extract::<u32>().ok().filter(|rank| *rank < size)
    {
        return Ok(rank);
    }
    let number = value.call_method0("__index__").map_err(|_| wrong_type("root", "an integer", value))?;
    let rank = number.extract::<u32>().ok().filter(|r| *r < size);
    rank.ok_or_else(|| {
        PyValueError::new_err(format!("root {number} is not a rank of this group: they go from 0 to {}", size - 1))
    })
}

pub fn algorithm(value: Option<&Bound<'_, PyAny>>, default: Algorithm) -> PyResult<Algorithm> {
    let Some(name) = text("algo", value)? else { return Ok(default) };
    match Algorithm::parse(name) {
        Some(Algorithm::Auto) => Ok(default),
        Some(algorithm) => Ok(algorithm),
        None => Err(PyValueError::new_err(format!("algo '{name}' is not one of {}", Algorithm::names()))),
    }
}

/// An array that receives the result: what is wrong with it is said of `out`.
pub fn output<'py>(out: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let py = out.py();
    Array::of(out).map_err(|e| PyErr::from_type(e.get_type(py), format!("out: {}", e.value(py))))
}

/// Whether `op` works on the elements of `array`.
pub fn reducible(array: &Array<'_>, op: ReduceOp) -> PyResult<()> {
    match &array.kind {
        Kind::Number(dtype) => op.check(*dtype).map_err(PyTypeError::new_err),
        Kind::Opaque(text) => Err(PyTypeError::new_err(format!(
            "cannot reduce elements of dtype '{text}': only numbers and bool (dates can be viewed as int64)"
        ))),
    }
}

/// Whether a codec can work on `array`: sums and averages of real floats.
pub fn compressible(array: &Array<'_>, op: ReduceOp) -> PyResult<()> {
    let real = matches!(&array.kind, Kind::Number(dtype) if dtype.is_float());
    if !real {
        return Err(PyTypeError::new_err(format!(
            "compression works on real floats, not on {}: cast, or leave it out",
            array.kind.name()
        )));
    }
    if !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        return Err(PyValueError::new_err(format!("compression works with op 'sum' and 'avg', not with '{op}'")));
    }
    Ok(())
}

pub fn writeable(array: &Array<'_>, what: &str) -> PyResult<()> {
    if !array.writeable {
        return Err(PyValueError::new_err(format!("{what} is read-only: pass a writable array, or a writable out=")));
    }
    if array.overlaps_itself() {
        return Err(PyValueError::new_err(format!(
            "{what} has elements that share memory (strides {}, a broadcast or sliding view): pass a copy",
            tuple(array.strides())
        )));
    }
    Ok(())
}

/// Whether `out` is exactly `x`; where they overlap in part it is an error.
pub fn same_memory(x: &Bound<'_, PyAny>, a: &Array<'_>, out: &Bound<'_, PyAny>, b: &Array<'_>) -> PyResult<bool> {
    if a.shape() != b.shape() || a.kind != b.kind {
        return Err(PyValueError::new_err(format!(
            "out has dtype {} and shape {}, x has dtype {} and shape {}: they must be equal",
            b.kind.name(),
            tuple(b.shape()),
            a.kind.name(),
            tuple(a.shape())
        )));
    }
    let ((a0, a1), (b0, b1)) = (a.bounds(), b.bounds());
    if a1 <= b0 || b1 <= a0 || a.len() == 0 {
        return Ok(false);
    }
    let axes = |m: &Array<'_>| -> Vec<isize> {
        m.shape().iter().zip(m.strides()).filter(|(n, _)| **n > 1).map(|(_, s)| *s).collect()
    };
    if a.data == b.data && axes(a) == axes(b) {
        return Ok(true);
    }
    // Views that interleave without touching are fine; numpy decides, within bounded work.
    let kwargs = pyo3::types::PyDict::new(x.py());
    kwargs.set_item("max_work", 10_000)?;
    let shared = x.py().import("numpy")?.call_method("shares_memory", (x, out), Some(&kwargs));
    if shared.is_ok_and(|s| !s.is_truthy().unwrap_or(true)) {
        return Ok(false);
    }
    Err(PyValueError::new_err("x and out overlap in part: pass the same array for both, or separate ones"))
}

/// `small` lies `offset` bytes behind the start of `large`, or shares no memory with it (`usize::MAX`: only the latter).
pub fn apart(
    (x, small): (&Bound<'_, PyAny>, &Array<'_>),
    (y, large): (&Bound<'_, PyAny>, &Array<'_>),
    offset: usize,
) -> PyResult<()> {
    match within((x, small), (y, large))? {
        Some(found) if found != offset => Err(overlap()),
        _ => Ok(()),
    }
}

/// Where in `large` the memory of `small` begins; None if they share no memory, an error if they share some of it.
pub fn within(
    (x, small): (&Bound<'_, PyAny>, &Array<'_>),
    (y, large): (&Bound<'_, PyAny>, &Array<'_>),
) -> PyResult<Option<usize>> {
    let ((a0, a1), (b0, b1)) = (small.bounds(), large.bounds());
    if a1 <= b0 || b1 <= a0 || small.len() == 0 || large.len() == 0 {
        return Ok(None);
    }
    if small.contiguous && large.contiguous && b0 <= a0 && a1 <= b1 {
        return Ok(Some(a0 - b0));
    }
    let kwargs = pyo3::types::PyDict::new(x.py());
    kwargs.set_item("max_work", 10_000)?;
    let shared = x.py().import("numpy")?.call_method("shares_memory", (x, y), Some(&kwargs));
    match shared.is_ok_and(|s| !s.is_truthy().unwrap_or(true)) {
        true => Ok(None),
        false => Err(overlap()),
    }
}

fn overlap() -> PyErr {
    PyValueError::new_err("x and out overlap: pass separate arrays, or this rank's own block of the larger one")
}

/// A number per rank, from 0.
pub fn numbers(what: &str, value: &Bound<'_, PyAny>, world: usize) -> PyResult<Vec<usize>> {
    let wrong = || PyTypeError::new_err(format!("{what} must be a sequence of {world} integers from 0, one per rank"));
    let number = |(k, item): (usize, PyResult<Bound<'_, PyAny>>)| {
        let index = item.and_then(|item| item.call_method0("__index__")).map_err(|_| wrong())?;
        index
            .extract()
            .map_err(|_| PyValueError::new_err(format!("{what}[{k}] is {index}: a number of rows from 0 is needed")))
    };
    let numbers: Vec<usize> =
        value.try_iter().map_err(|_| wrong())?.enumerate().map(number).collect::<PyResult<_>>()?;
    if numbers.len() != world {
        return Err(PyValueError::new_err(format!(
            "{what} has {} numbers, the group has {world} ranks: one each",
            numbers.len()
        )));
    }
    Ok(numbers)
}

/// Rows of `array` for each rank: all of them are used.
pub fn counts(what: &str, value: &Bound<'_, PyAny>, world: usize, array: &Array<'_>) -> PyResult<Vec<usize>> {
    let counts = numbers(what, value, world)?;
    let Some(rows) = array.shape().first() else {
        return Err(PyValueError::new_err("x is 0-d: there is no axis to cut it along"));
    };
    let sum = counts.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n));
    if sum != Some(*rows) {
        return Err(PyValueError::new_err(format!(
            "{what} {} do not add up to the {rows} rows of x (shape {})",
            tuple(&counts),
            tuple(array.shape())
        )));
    }
    Ok(counts)
}
