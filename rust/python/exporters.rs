//! Arrays of other libraries than numpy: torch tensors, DLPack objects, buffers; and what is refused, with the reason.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyMemoryView, PyString};

use super::arrays::{Array, Exported, Owner};
use super::dlpack;
use crate::dtype::DType;

/// Reads what `x`, which is no numpy array, says of itself.
pub fn array<'py>(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    refuse_scalars(x)?;
    if x.get_type().module().is_ok_and(|m| m == "torch" || m.to_string().starts_with("torch."))
        && x.hasattr("data_ptr")?
    {
        return torch(x);
    }
    if x.hasattr("__cuda_array_interface__")? {
        return Err(on_device(x, "a CUDA device"));
    }
    if x.hasattr("__dlpack_device__")? {
        let (kind, id): (i32, i32) = x.call_method0("__dlpack_device__")?.extract()?;
        return if kind == 1 { dlpack::array(x) } else { Err(on_device(x, &device(kind, id))) };
    }
    // By way of a memoryview, which fills in the strides that an exporter may leave out.
    if let Ok(view) = PyMemoryView::from(x) {
        return from_buffer(PyUntypedBuffer::get(&view)?);
    }
    if x.hasattr("__array_struct__")? || x.hasattr("__array_interface__")? {
        return Array::numpy(&x.py().import("numpy")?.call_method1("asarray", (x,))?);
    }
    let name = x.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "cannot use an object of type '{name}': expected a numpy array, a torch CPU tensor, a DLPack object or a writable buffer"
    )))
}

/// What a mask means for the other ranks is not defined.
pub fn refuse_masked(x: &Bound<'_, PyAny>) -> PyResult<()> {
    let masked = x.py().import("numpy.ma")?.getattr("MaskedArray")?;
    if x.is_instance(&masked)? {
        return Err(PyTypeError::new_err(
            "masked array: what a mask means for the other ranks is not defined; pass x.filled(...) or x.data",
        ));
    }
    Ok(())
}

fn refuse_scalars(x: &Bound<'_, PyAny>) -> PyResult<()> {
    let generic = x.py().import("numpy")?.getattr("generic")?;
    let scalar = x.is_instance_of::<PyBool>()
        || x.is_instance_of::<PyInt>()
        || x.is_instance_of::<PyFloat>()
        || x.is_instance_of::<PyComplex>()
        || x.is_instance(&generic)?;
    if scalar {
        let name = x.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a scalar ({name}) cannot be changed in place: use arx.functional.all_reduce, which returns the result, or a 0-d array"
        )));
    }
    if x.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("cannot use a str: expected an array"));
    }
    Ok(())
}

fn on_device(x: &Bound<'_, PyAny>, device: &str) -> PyErr {
    let name = x.get_type().fully_qualified_name().map_or_else(|_| "array".into(), |n| n.to_string());
    PyTypeError::new_err(format!(
        "{name} lies on {device}: arx works on CPU memory; move it to the CPU first (x.cpu())"
    ))
}

fn device(kind: i32, id: i32) -> String {
    let name = match kind {
        2 => "a CUDA device",
        3 => "CUDA pinned memory",
        8 => "a Metal device",
        10 => "a ROCm device",
        13 => "CUDA managed memory",
        14 => "a oneAPI device",
        _ => return format!("DLPack device type {kind}, number {id}"),
    };
    format!("{name} (number {id})")
}

/// A torch tensor, by its own methods.
fn torch<'py>(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let device = x.getattr("device")?;
    if device.getattr("type")?.extract::<String>()? != "cpu" {
        return Err(on_device(x, &format!("device '{}'", device.str()?)));
    }
    let layout = x.getattr("layout")?.str()?.to_string();
    if layout != "torch.strided" {
        return Err(PyTypeError::new_err(format!(
            "tensor of layout {layout}: only dense (strided) tensors can be used"
        )));
    }
    if x.call_method0("is_conj")?.is_truthy()? || x.call_method0("is_neg")?.is_truthy()? {
        return Err(PyTypeError::new_err(
            "tensor is a lazy conjugate or negation: call .resolve_conj().resolve_neg() first",
        ));
    }
    let name = x.getattr("dtype")?.str()?.to_string();
    let plain = name.strip_prefix("torch.").unwrap_or(&name);
    let dtype = DType::ALL
        .into_iter()
        .find(|d| d.name() == plain)
        .ok_or_else(|| PyTypeError::new_err(format!("tensor of dtype {name} is not supported")))?;
    let strides: Vec<isize> = x.call_method0("stride")?.extract()?;
    Ok(Exported {
        data: std::ptr::with_exposed_provenance_mut(x.call_method0("data_ptr")?.extract()?),
        dtype,
        shape: x.getattr("shape")?.extract()?,
        strides: Some(strides.into_iter().map(|s| s * dtype.size() as isize).collect()),
        writeable: true,
        owner: Owner::Object(x.clone()),
    }
    .into_array())
}

/// bytearray, memoryview, array.array, mmap and the like.
fn from_buffer<'py>(buffer: PyUntypedBuffer) -> PyResult<Array<'py>> {
    let format = buffer.format().to_str().unwrap_or("?").to_owned();
    let item = buffer.item_size();
    let (order, code) = format.split_at(format.len() - 1);
    let kind = match code {
        "?" => Some('b'),
        "b" | "h" | "i" | "l" | "q" | "n" => Some('i'),
        "B" | "H" | "I" | "L" | "Q" | "N" | "c" => Some('u'),
        "e" | "f" | "d" => Some('f'),
        _ => None,
    };
    let dtype = DType::ALL.into_iter().find(|d| {
        let letter = match d {
            DType::Bool => 'b',
            DType::BFloat16 | DType::Complex64 | DType::Complex128 => return false,
            d if d.is_float() => 'f',
            d => d.name().chars().next().unwrap_or('?'),
        };
        Some(letter) == kind && d.size() == item
    });
    let native =
        matches!(order, "" | "@" | "=") || item == 1 || order == if cfg!(target_endian = "little") { "<" } else { ">" };
    let Some(dtype) = dtype.filter(|_| native) else {
        return Err(PyTypeError::new_err(format!(
            "buffer of format '{format}' ({} bytes an element) has no dtype here, or another byte order",
            item
        )));
    };
    if buffer.suboffsets().is_some() {
        return Err(PyValueError::new_err("buffer with suboffsets (an array of pointers) is not supported"));
    }
    Ok(Exported {
        data: buffer.buf_ptr().cast(),
        dtype,
        shape: buffer.shape().to_vec(),
        strides: Some(buffer.strides().to_vec()),
        writeable: !buffer.readonly(),
        owner: Owner::Buffer(buffer),
    }
    .into_array())
}
