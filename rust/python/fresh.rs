//! New arrays for results: of the library and dtype of the array that a call was made with.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::arrays::{Array, Kind, Packed};
use super::memory::Found;

/// How to make arrays like one that was passed.
pub struct Fresh {
    /// Bytes of an element.
    pub item: usize,
    kind: Kind,
    like: Py<PyAny>,
    /// Where the axis that was cut belongs.
    axis: usize,
}

impl Fresh {
    pub fn like(x: &Bound<'_, PyAny>, array: &Array<'_>) -> Fresh {
        Fresh { item: array.item, kind: array.kind.clone(), like: x.clone().unbind(), axis: 0 }
    }

    /// With rows along `axis` of the array that the caller gets.
    pub fn along(mut self, axis: usize) -> Fresh {
        self.axis = axis;
        self
    }

    /// An array of any content.
    pub fn empty<'py>(&self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        let like = self.like.bind(py);
        let shape = PyTuple::new(py, shape)?;
        if is_torch(like)? {
            return like.call_method1(intern!(py, "new_empty"), (shape,));
        }
        let dtype = self.dtype(py)?;
        py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "empty"), (shape, dtype))
    }

    /// An array on memory that holds rows of `shape`, which says all lengths but the first; that too if rows have no bytes.
    pub fn array(self, py: Python<'_>, memory: Packed, shape: &[usize]) -> PyResult<Py<PyAny>> {
        let row: usize = self.item * shape.iter().skip(1).product::<usize>();
        let rows = memory.bytes().len().checked_div(row).unwrap_or_else(|| shape[0]);
        let dims = PyTuple::new(py, tall(rows, shape))?;
        let array = self.on(py, memory, dims)?;
        Ok(if self.axis == 0 { array } else { moved(&array, 0, self.axis)? }.unbind())
    }

    fn on<'py>(&self, py: Python<'py>, memory: Packed, dims: Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let like = self.like.bind(py);
        let kwargs = PyDict::new(py);
        kwargs.set_item("dtype", self.dtype(py)?)?;
        if is_torch(like)? {
            if memory.bytes().is_empty() {
                return like.call_method1("new_empty", (dims,)); // torch makes no tensor on an empty buffer
            }
            let found = Bound::new(py, Found::new(memory))?;
            let flat = py.import("torch")?.call_method("frombuffer", (found,), Some(&kwargs))?;
            return flat.call_method1("reshape", (dims,));
        }
        kwargs.set_item("buffer", Bound::new(py, Found::new(memory))?)?;
        py.import("numpy")?.call_method("ndarray", (dims,), Some(&kwargs))
    }

    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let like = self.like.bind(py);
        match like.getattr_opt(intern!(py, "dtype"))? {
            Some(dtype) => Ok(dtype),
            None => py.import("numpy")?.call_method1("dtype", (self.kind.name(),)),
        }
    }
}

/// The shape of an array of so many rows; a 0-d array is a row.
pub fn tall(rows: usize, shape: &[usize]) -> Vec<usize> {
    std::iter::once(rows).chain(shape.iter().skip(1).copied()).collect()
}

pub fn is_torch(x: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(x.get_type().module()?.to_cow()?.starts_with("torch") && x.hasattr("new_empty")?)
}

/// `x` with axis `from` in place of axis `to`, the order of the others kept; no copy.
pub fn moved<'py>(x: &Bound<'py, PyAny>, from: usize, to: usize) -> PyResult<Bound<'py, PyAny>> {
    if is_torch(x)? {
        return x.call_method1("movedim", (from, to));
    }
    x.py().import("numpy")?.call_method1("moveaxis", (x, from, to))
}
