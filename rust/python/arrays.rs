//! The memory behind an argument: pointer, shape and strides.
//!
//! numpy arrays come by `__array_struct__` (all dtypes, bfloat16 too), everything else by `exporters`. Nothing is ever
//! copied here, and nothing that lies on a device is ever dereferenced.
#![allow(unsafe_code)]

use std::cell::Cell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::exporters;
use super::held::{Held, Keeper, Shape};
use super::interface::Interface;
use super::strided::{self, View};
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
pub enum Owner<'py> {
    Interface(Interface<'py>),
    Object(Bound<'py, PyAny>),
    Buffer(PyUntypedBuffer),
}

/// Lengths or strides of all axes, where they were found: the hot path does not copy them.
enum Dims<T> {
    /// In the structure that the owner holds.
    Borrowed(*const T, usize),
    Owned(Vec<T>),
}

impl<T> Dims<T> {
    fn get(&self) -> &[T] {
        match self {
            Dims::Borrowed(_, 0) => &[],
            // SAFETY: so many values, in a structure that lives as long as the array's owner, which is as long as self.
            Dims::Borrowed(first, count) => unsafe { std::slice::from_raw_parts(*first, *count) },
            Dims::Owned(values) => values,
        }
    }
}

/// Memory of one argument, described.
pub struct Array<'py> {
    pub data: *mut u8,
    pub kind: Kind,
    /// Bytes of an element.
    pub item: usize,
    shape: Dims<usize>,
    strides: Dims<isize>,
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
    pub owner: Owner<'py>,
}

impl<'py> Exported<'py> {
    pub fn into_array(self) -> Array<'py> {
        let Exported { data, dtype, shape, strides, writeable, owner } = self;
        let item = dtype.size();
        let packed = row_major(&shape, item);
        let strides = strides.unwrap_or_else(|| packed.clone());
        let empty = shape.contains(&0);
        let in_order = empty || shape.iter().zip(strides.iter().zip(&packed)).all(|(n, (s, p))| *n == 1 || s == p);
        Array {
            data,
            kind: Kind::Number(dtype),
            item,
            contiguous: in_order && data.addr() % dtype.align() == 0,
            shape: Dims::Owned(shape),
            strides: Dims::Owned(strides),
            writeable,
            _owner: owner,
        }
    }
}

static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl<'py> Array<'py> {
    /// Reads what `x` says of itself.
    #[inline]
    pub fn of(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        let ndarray = NDARRAY.import(x.py(), "numpy", "ndarray")?;
        // The type of an object can be read without counting it as a use of the type.
        if x.get_type_ptr() == ndarray.as_type_ptr() {
            return Array::from_interface(x, Interface::of_exact(x)?);
        }
        if x.is_instance(ndarray)? {
            exporters::refuse_masked(x)?;
            return Array::numpy(x);
        }
        exporters::array(x)
    }

    /// A numpy array.
    #[inline]
    pub fn numpy(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        Array::from_interface(x, Interface::of(x)?)
    }

    #[inline]
    fn from_interface(x: &Bound<'py, PyAny>, a: Interface<'py>) -> PyResult<Array<'py>> {
        let kind = numpy_kind(x, a.kind, a.item)?;
        if !a.native && a.item > 1 && a.kind != b'V' {
            return Err(PyTypeError::new_err(format!(
                "array of dtype '{}' is not in this machine's byte order: convert it with x.astype(x.dtype.newbyteorder('='))",
                x.getattr("dtype")?.str()?
            )));
        }
        Ok(Array {
            data: a.data,
            kind,
            item: a.item,
            shape: Dims::Borrowed(a.shape, a.nd),
            strides: Dims::Borrowed(a.strides, a.nd),
            contiguous: a.contiguous,
            writeable: a.writeable,
            _owner: Owner::Interface(a),
        })
    }

    pub fn shape(&self) -> &[usize] {
        self.shape.get()
    }

    /// Bytes from one element to the next along each axis.
    pub fn strides(&self) -> &[isize] {
        self.strides.get()
    }

    pub fn view(&self) -> View<'_> {
        View { data: self.data, shape: self.shape(), strides: self.strides(), item: self.item }
    }

    /// For a call that outlives this one.
    #[inline]
    pub fn hold(self) -> Held {
        let Array { data, item, contiguous, .. } = self;
        // Both may lie in what the owner holds only until it is taken apart.
        let (shape, strides) = (Shape::from_slice(self.shape()), (!contiguous).then(|| self.strides().to_vec()));
        let keeper = match self._owner {
            Owner::Interface(interface) => Keeper::Object(interface.into_owner().unbind()),
            Owner::Object(object) => Keeper::Object(object.unbind()),
            Owner::Buffer(buffer) => Keeper::Buffer(buffer),
        };
        Held::new(data, item, (shape, strides), keeper)
    }

    pub fn count(&self) -> usize {
        self.shape().iter().product()
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
        for (n, stride) in self.shape().iter().zip(self.strides()) {
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
        let axes = self.shape().iter().zip(self.strides()).filter(|(n, _)| **n > 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(n, s)| (s.unsigned_abs(), *n)).collect();
        axes.sort_unstable();
        let mut extent = self.item;
        axes.into_iter().any(|(stride, n)| {
            let clash = stride < extent;
            extent += stride * (n - 1);
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
            "array of dtype '{}' holds Python objects, which cannot leave their process as they are: all_gather_object, \
             broadcast_object, gather_object and scatter_object pickle them",
            dtype.str()?
        )));
    }
    if item == 2 && dtype.getattr("name")?.extract::<String>()? == "bfloat16" {
        return Ok(Kind::Number(DType::BFloat16));
    }
    Ok(Kind::Opaque(dtype.str()?.to_string()))
}

/// Contiguous memory: the elements of an array in logical order.
pub struct Packed {
    /// Words, so that the kernels find it aligned.
    words: Vec<Cell<u64>>,
    len: usize,
}

impl Packed {
    pub fn of(array: &Array<'_>) -> Packed {
        let packed = Packed::new(array.len());
        packed.pack(array.view());
        packed
    }

    /// So many bytes, all zero.
    pub fn new(len: usize) -> Packed {
        Packed { words: vec![Cell::new(0); len.div_ceil(8)], len }
    }

    /// Takes the elements of an array that is as long.
    pub fn pack(&self, array: View<'_>) {
        if self.len > 0 {
            strided::pack(array, self.words.as_ptr().cast_mut().cast());
        }
    }

    pub fn bytes(&self) -> Bytes<'_> {
        // SAFETY: `len` bytes within `words`; cells of bytes may alias cells of words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    /// Copies it into `array`, of the same shape and element, which may be written.
    pub fn unpack(&self, array: View<'_>) {
        if self.len > 0 {
            strided::unpack(self.words.as_ptr().cast(), array);
        }
    }
}
