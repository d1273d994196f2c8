//! The checks before any data moves: each says what is wrong, with which value, and what to do.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arrays::{Array, Kind};
use crate::communicator::LINES;
use crate::direct::Algorithm;
use crate::dtype::{DType, ReduceOp};

pub fn operation(op: &Bound<'_, PyAny>) -> PyResult<ReduceOp> {
    let text = op
        .extract::<&str>()
        .map_err(|_| PyTypeError::new_err(format!("op must be a string or an arx.ReduceOp, not {}", op.get_type())))?;
    ReduceOp::parse(text).ok_or_else(|| {
        let names: Vec<&str> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
        PyValueError::new_err(format!("op '{text}' is not one of {}", names.join(", ")))
    })
}

/// Seconds, as the caller wrote them.
pub fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |s: f64| match Duration::try_from_secs_f64(s) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ if s == f64::INFINITY => Ok(Duration::from_secs(u64::MAX / 4)),
        _ => Err(PyValueError::new_err(format!("timeout must be a positive number of seconds, not {s}"))),
    };
    seconds.map(convert).transpose()
}

pub fn algorithm(name: &str, default: Algorithm) -> PyResult<Algorithm> {
    match Algorithm::parse(name) {
        Some(Algorithm::Auto) => Ok(default),
        Some(algorithm) => Ok(algorithm),
        None => {
            let names: Vec<&str> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            Err(PyValueError::new_err(format!("algo '{name}' is not one of {}", names.join(", "))))
        }
    }
}

/// Whether a forced algorithm can carry an array of `len` bytes.
pub fn fits(algorithm: Algorithm, len: usize) -> PyResult<()> {
    if algorithm == Algorithm::Lines && len > LINES {
        return Err(PyValueError::new_err(format!("algo 'lines' carries {LINES} bytes at most, not {len}")));
    }
    Ok(())
}

/// The dtype, if `op` works on it.
pub fn reducible(array: &Array<'_>, op: ReduceOp) -> PyResult<DType> {
    match &array.kind {
        Kind::Number(dtype) => op.check(*dtype).map(|()| *dtype).map_err(PyTypeError::new_err),
        Kind::Opaque(text) => Err(PyTypeError::new_err(format!("cannot reduce elements of dtype '{text}'"))),
    }
}

pub fn writeable(array: &Array<'_>, what: &str) -> PyResult<()> {
    if !array.writeable {
        return Err(PyValueError::new_err(format!("{what} is read-only: pass a writable array, or a writable out=")));
    }
    if array.overlaps_itself() {
        return Err(PyValueError::new_err(format!(
            "{what} has elements that share memory (strides {:?}, a broadcast or sliding view): pass a copy",
            array.strides()
        )));
    }
    Ok(())
}

/// Whether `out` is exactly `x`; where they overlap in part it is an error.
pub fn same_memory(x: &Bound<'_, PyAny>, a: &Array<'_>, out: &Bound<'_, PyAny>, b: &Array<'_>) -> PyResult<bool> {
    if a.shape() != b.shape() || a.kind != b.kind {
        return Err(PyValueError::new_err(format!(
            "out has dtype {} and shape {:?}, x has dtype {} and shape {:?}: they must be equal",
            b.kind.name(),
            b.shape(),
            a.kind.name(),
            a.shape()
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
