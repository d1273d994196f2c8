//! The memory of a numpy array: by the array interface (`__array_struct__`), whatever its dtype, or, for the usual dtypes,
//! by the fields of the array object, which is a quarter of a small call cheaper.
//! <https://numpy.org/doc/stable/reference/arrays.interface.html#c-struct-access>
//! <https://numpy.org/doc/stable/reference/c-api/types-and-structures.html>
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

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
/// How a dtype may also say that it is in this machine's byte order.
const NATIVE: u8 = if cfg!(target_endian = "little") { b'<' } else { b'>' };

/// `PyArrayObject_fields`: what numpy's macros, compiled into every extension module, read. The same since numpy 1.7.
#[repr(C)]
struct PyArrayFields {
    head: ffi::PyObject,
    data: *mut u8,
    nd: c_int,
    dimensions: *const ffi::Py_ssize_t,
    strides: *const ffi::Py_ssize_t,
    base: *mut ffi::PyObject,
    descr: *const PyArrayDescr,
    flags: c_int,
}

/// Start of `PyArray_Descr`, which numpy 1 and 2 have in common.
#[repr(C)]
struct PyArrayDescr {
    head: ffi::PyObject,
    typeobj: *mut ffi::PyObject,
    kind: c_char,
    letter: c_char,
    byteorder: c_char,
    flags: c_char,
    type_num: c_int,
}

/// 0: not compared yet; 1: the fields say the same as the interface; 2: they do not, on this numpy.
static FIELDS: AtomicU8 = AtomicU8::new(0);

/// What the array says. `_owner` keeps that and the memory alive.
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
    _owner: Bound<'py, PyAny>,
}

impl<'py> Interface<'py> {
    /// What keeps the memory alive.
    pub fn into_owner(self) -> Bound<'py, PyAny> {
        self._owner
    }

    /// Of a numpy array that is no subclass.
    #[inline]
    pub fn of_exact(array: &Bound<'py, PyAny>) -> PyResult<Interface<'py>> {
        match FIELDS.load(Ordering::Relaxed) {
            1 => Interface::by_fields(array).map_or_else(|| Interface::of(array), Ok),
            0 => Interface::compare(array),
            _ => Interface::of(array),
        }
    }

    /// The first array of the process is read both ways, so that a numpy of another layout costs speed, not sense.
    #[cold]
    fn compare(array: &Bound<'py, PyAny>) -> PyResult<Interface<'py>> {
        let known = Interface::of(array)?;
        if let Some(found) = Interface::by_fields(array) {
            let view = |i: &Interface<'_>| (i.kind, i.item, i.data, i.nd, i.contiguous, i.native, i.writeable);
            let dims = |i: &Interface<'_>| (0..i.nd).map(|k| i.dim(k)).collect::<Vec<_>>();
            let same = view(&known) == view(&found) && dims(&known) == dims(&found);
            FIELDS.store(if same { 1 } else { 2 }, Ordering::Relaxed);
        }
        Ok(known)
    }

    fn dim(&self, k: usize) -> (usize, isize) {
        assert!(k < self.nd);
        // SAFETY: one of `nd` lengths and strides, which the owner keeps alive.
        unsafe { (*self.shape.add(k), *self.strides.add(k)) }
    }

    /// By the array's own fields; None for dtypes that are not of the usual ones.
    #[inline]
    fn by_fields(array: &Bound<'py, PyAny>) -> Option<Interface<'py>> {
        // SAFETY: the caller has checked that this is exactly numpy's array type, whose objects begin with these fields.
        let (a, descr) = unsafe {
            let a = &*array.as_ptr().cast::<PyArrayFields>();
            (a, &*a.descr)
        };
        let long = size_of::<std::ffi::c_long>();
        let (kind, item) = match descr.type_num {
            0 => (b'b', 1),
            1 => (b'i', 1),
            2 => (b'u', 1),
            3 => (b'i', 2),
            4 => (b'u', 2),
            5 => (b'i', 4),
            6 => (b'u', 4),
            7 => (b'i', long),
            8 => (b'u', long),
            9 => (b'i', 8),
            10 => (b'u', 8),
            11 => (b'f', 4),
            12 => (b'f', 8),
            14 => (b'c', 8),
            15 => (b'c', 16),
            23 => (b'f', 2),
            _ => return None,
        };
        Some(Interface {
            kind,
            item,
            data: a.data,
            contiguous: a.flags & (C_CONTIGUOUS | ALIGNED) == C_CONTIGUOUS | ALIGNED,
            native: matches!(descr.byteorder as u8, b'=' | b'|' | NATIVE),
            writeable: a.flags & WRITEABLE != 0,
            nd: a.nd as usize,
            shape: a.dimensions.cast(),
            strides: a.strides,
            _owner: array.clone(),
        })
    }

    /// Of any numpy array.
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
            _owner: capsule,
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
            _owner: capsule,
        })
    }
}
