//! numpy's array interface (`__array_struct__`): the memory of any numpy array, whatever its dtype, in one attribute look-up.
//! <https://numpy.org/doc/stable/reference/arrays.interface.html#c-struct-access>
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

/// `PyArrayInterface` of numpy's C API.
#[repr(C)]
struct PyArrayInterface {
    two: c_int,
    nd: c_int,
    typekind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *const ffi::Py_ssize_t,
    strides: *const ffi::Py_ssize_t,
    data: *mut c_void,
    descr: *mut ffi::PyObject,
}

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NOT_SWAPPED: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

/// What the structure says. `_capsule` keeps it and the memory alive.
pub struct Interface<'py> {
    pub kind: u8,
    pub item: usize,
    pub data: *mut u8,
    pub contiguous: bool,
    pub native: bool,
    pub writeable: bool,
    pub nd: usize,
    /// `nd` lengths; they live as long as this value.
    pub shape: *const usize,
    /// `nd` strides in bytes, likewise.
    pub strides: *const isize,
    _capsule: Bound<'py, PyAny>,
}

impl<'py> Interface<'py> {
    /// Of a numpy array.
    pub fn of(array: &Bound<'py, PyAny>) -> PyResult<Interface<'py>> {
        let capsule = array.getattr(pyo3::intern!(array.py(), "__array_struct__"))?;
        // SAFETY: asks for the pointer of a capsule without a name; anything else is an error, not undefined.
        let inside = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if inside.is_null() {
            return Err(PyErr::fetch(array.py()));
        }
        // SAFETY: numpy's contract for this attribute; `two` is its check value, and the capsule keeps the structure alive.
        let a = unsafe { &*inside.cast::<PyArrayInterface>() };
        if a.two != 2 {
            return Err(PyTypeError::new_err("__array_struct__ does not hold an array interface"));
        }
        if a.typekind as u8 == b'V' {
            return Interface::of_fields(array, a, capsule);
        }
        Ok(Interface {
            kind: a.typekind as u8,
            item: a.itemsize as usize,
            data: a.data.cast(),
            contiguous: a.flags & (C_CONTIGUOUS | ALIGNED) == C_CONTIGUOUS | ALIGNED,
            native: a.flags & NOT_SWAPPED != 0,
            writeable: a.flags & WRITEABLE != 0,
            nd: a.nd as usize,
            // Lengths are never negative.
            shape: a.shape.cast(),
            strides: a.strides,
            _capsule: capsule,
        })
    }

    /// Of an array with fields, for which numpy leaves the flags of the structure empty.
    #[cold]
    fn of_fields(
        array: &Bound<'py, PyAny>,
        a: &PyArrayInterface,
        capsule: Bound<'py, PyAny>,
    ) -> PyResult<Interface<'py>> {
        let flags = array.getattr("flags")?;
        let flag = |name: &str| flags.getattr(name)?.is_truthy();
        Ok(Interface {
            kind: b'V',
            item: a.itemsize as usize,
            data: a.data.cast(),
            contiguous: flag("c_contiguous")? && flag("aligned")?,
            native: true,
            writeable: flag("writeable")?,
            nd: a.nd as usize,
            shape: a.shape.cast(),
            strides: a.strides,
            _capsule: capsule,
        })
    }
}
