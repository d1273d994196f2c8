//! DLPack: memory of any library's CPU array. <https://dmlc.github.io/dlpack/latest/c_api.html>
#![allow(unsafe_code)]

use std::ffi::c_void;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::arrays::{Array, Exported, Owner};
use crate::dtype::DType;

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

#[repr(C)]
struct DLManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    flags: u64,
    tensor: DLTensor,
}

const READ_ONLY: u64 = 1;
const CPU: i32 = 1;

/// The memory behind `x.__dlpack__()`. The capsule is not consumed: its destructor gives the tensor back to the exporter
/// when the array view is dropped.
pub fn array<'py>(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let py = x.py();
    let kwargs = PyDict::new(py);
    kwargs.set_item("max_version", (1, 0))?;
    let capsule = match x.call_method("__dlpack__", (), Some(&kwargs)) {
        Err(e) if e.is_instance_of::<PyTypeError>(py) => x.call_method0("__dlpack__")?,
        other => other?,
    };
    // SAFETY: asks for named capsules; a wrong name is answered by null and an error, which is cleared.
    let (versioned, plain) = unsafe {
        let get = |name: &std::ffi::CStr| {
            let valid = ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1;
            if valid { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) } else { std::ptr::null_mut() }
        };
        (get(c"dltensor_versioned"), get(c"dltensor"))
    };
    // SAFETY: the capsule's name says which structure it holds, and the capsule keeps it alive.
    let (tensor, writeable) = unsafe {
        if let Some(managed) = versioned.cast::<DLManagedTensorVersioned>().as_ref() {
            if managed.major != 1 {
                return Err(PyTypeError::new_err(format!("DLPack version {} is not supported", managed.major)));
            }
            (&managed.tensor, managed.flags & READ_ONLY == 0)
        } else if let Some(managed) = plain.cast::<DLManagedTensor>().as_ref() {
            (&managed.tensor, true)
        } else {
            return Err(PyTypeError::new_err("__dlpack__() returned no DLPack capsule"));
        }
    };
    if tensor.device_type != CPU {
        return Err(PyTypeError::new_err(format!(
            "array on DLPack device type {}: move it to the CPU",
            tensor.device_type
        )));
    }
    let dtype = dtype(tensor.code, tensor.bits, tensor.lanes)?;
    let nd = tensor.ndim as usize;
    // SAFETY: `ndim` values each; a null `strides` means row-major.
    let (shape, strides): (Vec<usize>, Option<Vec<isize>>) = unsafe {
        let strides = |k| *tensor.strides.add(k) as isize * dtype.size() as isize;
        (
            (0..nd).map(|k| *tensor.shape.add(k) as usize).collect(),
            (!tensor.strides.is_null()).then(|| (0..nd).map(strides).collect()),
        )
    };
    let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    Ok(Exported { data, dtype, shape, strides, writeable, owner: Owner::Object(capsule) }.into_array())
}

fn dtype(code: u8, bits: u8, lanes: u16) -> PyResult<DType> {
    let found = match (code, bits) {
        (0, 8) => Some(DType::Int8),
        (0, 16) => Some(DType::Int16),
        (0, 32) => Some(DType::Int32),
        (0, 64) => Some(DType::Int64),
        (1, 8) => Some(DType::UInt8),
        (1, 16) => Some(DType::UInt16),
        (1, 32) => Some(DType::UInt32),
        (1, 64) => Some(DType::UInt64),
        (2, 16) => Some(DType::Float16),
        (2, 32) => Some(DType::Float32),
        (2, 64) => Some(DType::Float64),
        (4, 16) => Some(DType::BFloat16),
        (5, 64) => Some(DType::Complex64),
        (5, 128) => Some(DType::Complex128),
        (6, 8) => Some(DType::Bool),
        _ => None,
    };
    found.filter(|_| lanes == 1).ok_or_else(|| {
        PyTypeError::new_err(format!("DLPack element type (code {code}, {bits} bits, {lanes} lanes) is not supported"))
    })
}
