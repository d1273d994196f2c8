//! Whose memory is it: every kind of array that a caller may pass, as pointer, shape and strides.
//!
//! numpy arrays come by `__array_struct__` (all dtypes, bfloat16 too), torch CPU tensors by their own methods (they refuse
//! DLPack while they require grad), everything else by DLPack or the buffer protocol. Nothing is ever copied here, and
//! nothing that lies on a device is ever dereferenced.
#![allow(unsafe_code)]

use std::cell::Cell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyString, PyType};

use super::dlpack;
use super::interface::Interface;
use super::strided;
use crate::communicator::Element;
use crate::dtype::DType;
use crate::kernels::Bytes;

/// Type of an array's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Number(DType),
    /// Can be moved but not reduced: numpy's text for it.
    Opaque(String),
}

impl Kind {
    pub fn element(&self) -> Element<'_> {
        match self {
            Kind::Number(dtype) => Element::Number(*dtype),
            Kind::Opaque(text) => Element::Opaque(text),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Kind::Number(dtype) => dtype.name(),
            Kind::Opaque(text) => text,
        }
    }
}

/// What keeps the memory alive.
#[expect(dead_code, reason = "held, never read")]
enum Owner<'py> {
    Interface(Interface<'py>),
    Object(Bound<'py, PyAny>),
    Buffer(PyUntypedBuffer),
}

/// Memory of one argument, described.
pub struct Array<'py> {
    pub data: *mut u8,
    pub kind: Kind,
    /// Bytes of an element.
    pub item: usize,
    pub shape: Vec<usize>,
    /// Bytes from one element to the next along each axis.
    pub strides: Vec<isize>,
    /// Row-major without gaps, and aligned for the kernels.
    pub contiguous: bool,
    pub writeable: bool,
    _owner: Owner<'py>,
}

/// What exporters other than numpy say.
pub struct Exported<'py> {
    pub data: *mut u8,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// In bytes; None for row-major.
    pub strides: Option<Vec<isize>>,
    pub writeable: bool,
    pub owner: Bound<'py, PyAny>,
}

impl<'py> Exported<'py> {
    pub fn into_array(self) -> Array<'py> {
        let Exported { data, dtype, shape, strides, writeable, owner } = self;
        Array::new(data, Kind::Number(dtype), dtype.size(), shape, strides, writeable, Owner::Object(owner))
    }
}

static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl<'py> Array<'py> {
    /// Reads what `x` says of itself.
    #[inline]
    pub fn of(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        let ndarray = NDARRAY.import(x.py(), "numpy", "ndarray")?;
        if x.get_type().is(ndarray) { Array::numpy(x) } else { Array::other(x, ndarray) }
    }

    #[cold]
    fn other(x: &Bound<'py, PyAny>, ndarray: &Bound<'py, PyType>) -> PyResult<Array<'py>> {
        if x.is_instance(ndarray)? {
            refuse_masked(x)?;
            return Array::numpy(x);
        }
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
        if let Ok(buffer) = PyUntypedBuffer::get(x) {
            return from_buffer(x, buffer);
        }
        if x.hasattr("__array_struct__")? || x.hasattr("__array_interface__")? {
            return Array::numpy(&x.py().import("numpy")?.call_method1("asarray", (x,))?);
        }
        let name = x.get_type().fully_qualified_name()?;
        Err(PyTypeError::new_err(format!(
            "cannot use an object of type '{name}': expected a numpy array, a torch CPU tensor, a DLPack object or a writable buffer"
        )))
    }

    #[inline]
    fn numpy(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        let a = Interface::of(x)?;
        let kind = numpy_kind(x, a.kind, a.item)?;
        if !a.native && a.item > 1 && a.kind != b'V' {
            return Err(PyTypeError::new_err(format!(
                "array of dtype '{}' is not in this machine's byte order: convert it with x.astype(x.dtype.newbyteorder('='))",
                text_of(x)?
            )));
        }
        let (shape, strides) = (a.shape().collect(), a.strides().collect());
        Ok(Array {
            data: a.data,
            kind,
            item: a.item,
            shape,
            strides,
            contiguous: a.contiguous,
            writeable: a.writeable,
            _owner: Owner::Interface(a),
        })
    }

    fn new(
        data: *mut u8,
        kind: Kind,
        item: usize,
        shape: Vec<usize>,
        strides: Option<Vec<isize>>,
        writeable: bool,
        owner: Owner<'py>,
    ) -> Array<'py> {
        let packed = row_major(&shape, item);
        let align = if let Kind::Number(dtype) = &kind { dtype.align() } else { 1 };
        let strides = strides.unwrap_or_else(|| packed.clone());
        let count: usize = shape.iter().product();
        let in_order = count == 0 || shape.iter().zip(strides.iter().zip(&packed)).all(|(n, (s, p))| *n == 1 || s == p);
        let contiguous = in_order && data.addr() % align == 0;
        Array { data, kind, item, shape, strides, contiguous, writeable, _owner: owner }
    }

    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn len(&self) -> usize {
        self.count() * self.item
    }

    /// The memory as bytes. Only of contiguous arrays.
    pub fn bytes(&self) -> Bytes<'_> {
        assert!(self.contiguous, "packed before it comes here");
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: row-major without gaps, `len` bytes from `data` belong to the exporter's memory, which the owner keeps
        // alive. `Cell`: Python code and other arrays may alias it; nothing here holds a plain reference into it. Whether
        // it may be written is checked by the caller before anything does.
        unsafe { std::slice::from_raw_parts(self.data.cast::<Cell<u8>>(), self.len()) }
    }

    /// First and one past the last byte that any element touches.
    pub fn bounds(&self) -> (usize, usize) {
        let (mut low, mut high) = (self.data.addr() as isize, self.data.addr() as isize);
        if self.len() == 0 {
            return (low as usize, low as usize);
        }
        for (n, stride) in self.shape.iter().zip(&self.strides) {
            let reach = (*n as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        (low as usize, high as usize + self.item)
    }

    /// Whether two different indices may name the same memory, as in a broadcast view.
    pub fn overlaps_itself(&self) -> bool {
        if self.contiguous || self.len() == 0 {
            return false;
        }
        let axes = self.shape.iter().zip(&self.strides).filter(|(n, _)| **n > 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(n, s)| (s.unsigned_abs(), *n)).collect();
        axes.sort_unstable();
        let mut extent = self.item;
        axes.into_iter().any(|(stride, n)| {
            let clash = stride < extent;
            extent = stride * (n - 1) + extent;
            clash
        })
    }
}

fn row_major(shape: &[usize], item: usize) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = item as isize;
    for (stride, n) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step *= *n as isize;
    }
    strides
}

#[inline]
fn numpy_kind(x: &Bound<'_, PyAny>, kind: u8, item: usize) -> PyResult<Kind> {
    Ok(Kind::Number(match (kind, item) {
        (b'f', 4) => DType::Float32,
        (b'f', 8) => DType::Float64,
        (b'f', 2) => DType::Float16,
        (b'i', 1) => DType::Int8,
        (b'i', 2) => DType::Int16,
        (b'i', 4) => DType::Int32,
        (b'i', 8) => DType::Int64,
        (b'u', 1) => DType::UInt8,
        (b'u', 2) => DType::UInt16,
        (b'u', 4) => DType::UInt32,
        (b'u', 8) => DType::UInt64,
        (b'c', 8) => DType::Complex64,
        (b'c', 16) => DType::Complex128,
        (b'b', 1) => DType::Bool,
        _ => return unusual(x, item),
    }))
}

#[cold]
fn unusual(x: &Bound<'_, PyAny>, item: usize) -> PyResult<Kind> {
    let dtype = x.getattr("dtype")?;
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(PyTypeError::new_err(format!(
            "array of dtype '{}' holds Python objects, which cannot leave their process",
            dtype.str()?
        )));
    }
    if item == 2 && dtype.getattr("name")?.extract::<String>()? == "bfloat16" {
        return Ok(Kind::Number(DType::BFloat16));
    }
    Ok(Kind::Opaque(dtype.str()?.to_string()))
}

fn text_of(x: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(x.getattr("dtype")?.str()?.to_string())
}

fn refuse_masked(x: &Bound<'_, PyAny>) -> PyResult<()> {
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
        owner: x.clone(),
    }
    .into_array())
}

/// bytearray, memoryview, array.array, mmap and the like.
fn from_buffer<'py>(x: &Bound<'py, PyAny>, buffer: PyUntypedBuffer) -> PyResult<Array<'py>> {
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
    let (shape, strides) = (buffer.shape().to_vec(), buffer.strides().to_vec());
    let writeable = !buffer.readonly();
    let data = buffer.buf_ptr().cast();
    let _ = x;
    Ok(Array::new(data, Kind::Number(dtype), item, shape, Some(strides), writeable, Owner::Buffer(buffer)))
}

/// A contiguous copy of an array, in logical order.
pub struct Packed {
    /// Words, so that the kernels find it aligned.
    words: Vec<Cell<u64>>,
    len: usize,
}

impl Packed {
    pub fn of(array: &Array<'_>) -> Packed {
        let packed = Packed { words: vec![Cell::new(0); array.len().div_ceil(8)], len: array.len() };
        if packed.len > 0 {
            strided::pack(array, packed.words.as_ptr().cast_mut().cast());
        }
        packed
    }

    pub fn bytes(&self) -> Bytes<'_> {
        // SAFETY: `len` bytes within `words`; cells of bytes may alias cells of words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    /// Copies it into `array`, of the same shape and element, which may be written.
    pub fn unpack(&self, array: &Array<'_>) {
        if self.len > 0 {
            strided::unpack(self.words.as_ptr().cast(), array);
        }
    }
}
