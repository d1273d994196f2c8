//! Memory of symmetric arrays, as an object that numpy can build an array on.
#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::arrays::Packed;
use crate::arena::heap;

/// A block of the shared heap; exports its bytes through the buffer protocol. The pages go back to the system with it.
#[pyclass(frozen, module = "arx._arx")]
pub struct Block {
    block: heap::Block,
}

impl Block {
    pub fn new(block: heap::Block) -> Block {
        Block { block }
    }
}

#[pymethods]
impl Block {
    /// # Safety
    /// Called by the interpreter with a `view` to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = &slf.get().block;
        // SAFETY: the memory lives as long as the block, to which `view` gets a reference.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), block.address().cast(), block.len() as ffi::Py_ssize_t, 0, flags)
        };
        filled(slf.py(), failed)
    }
}

/// The result of a call, of which the length was not known before.
#[pyclass(frozen, module = "arx._arx")]
pub struct Found {
    memory: Packed,
}

// SAFETY: nothing here writes to the memory any more; those who get views of it answer for themselves, as with any buffer.
unsafe impl Sync for Found {}

impl Found {
    pub fn new(memory: Packed) -> Found {
        Found { memory }
    }
}

#[pymethods]
impl Found {
    /// # Safety
    /// Called by the interpreter with a `view` to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().memory.bytes();
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the memory lives as long as this object, to which `view` gets a reference, and consists of cells.
        let failed =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 0, flags) };
        filled(slf.py(), failed)
    }
}

fn filled(py: Python<'_>, failed: c_int) -> PyResult<()> {
    if failed == 0 { Ok(()) } else { Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("no buffer"))) }
}
