//! Memory of symmetric arrays, as an object that numpy can build an array on.
#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

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
        if failed == 0 {
            Ok(())
        } else {
            Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("no buffer")))
        }
    }
}
