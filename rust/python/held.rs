//! Memory of an argument, held for a call that may run while the interpreter does something else.
#![allow(unsafe_code)]

use std::cell::Cell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::arrays::Packed;
use super::strided::View;
use crate::kernels::Bytes;

/// What keeps the memory alive, and where it is.
#[expect(dead_code, reason = "held, never read")]
pub enum Keeper {
    Object(Py<PyAny>),
    Buffer(PyUntypedBuffer),
}

/// Lengths of all axes. Those of most arrays need no allocation, which small calls would feel.
pub type Shape = SmallVec<[usize; 4]>;

/// An array whose elements do not lie one behind the other.
struct Scattered {
    strides: Vec<isize>,
    /// Where they are during a call.
    packed: Packed,
}

/// An array without the lifetime of the interpreter's attention.
pub struct Held {
    data: *mut u8,
    item: usize,
    shape: Shape,
    len: usize,
    scattered: Option<Box<Scattered>>,
    _keeper: Keeper,
}

// SAFETY: `data` points to memory that the keeper keeps alive and in place; a call reads and writes it as bytes, from one
// thread at a time, and touches no Python object.
unsafe impl Send for Held {}

impl Held {
    /// `strides`: of an array whose elements do not lie one behind the other.
    #[inline]
    pub fn new(data: *mut u8, item: usize, (shape, strides): (Shape, Option<Vec<isize>>), keeper: Keeper) -> Held {
        let len = shape.iter().product::<usize>() * item;
        let scattered = strides.map(|strides| Box::new(Scattered { strides, packed: Packed::new(len) }));
        Held { data, item, shape, len, scattered, _keeper: keeper }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it lies in the memory of `other`, and not `offset` bytes behind its start.
    pub fn is_misplaced(&self, other: &Held, offset: usize) -> bool {
        let (start, base) = (self.data.addr(), other.data.addr());
        let inside = self.scattered.is_none() && other.scattered.is_none() && (base..base + other.len).contains(&start);
        self.len > 0 && inside && start != base + offset
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn view<'a>(&'a self, strides: &'a [isize]) -> View<'a> {
        View { data: self.data, shape: &self.shape, strides, item: self.item }
    }

    /// Before a call that reads it.
    pub fn pack(&self) {
        if let Some(Scattered { strides, packed }) = self.scattered.as_deref() {
            packed.pack(self.view(strides));
        }
    }

    /// After a call that has written it.
    pub fn unpack(&self) {
        if let Some(Scattered { strides, packed }) = self.scattered.as_deref() {
            packed.unpack(self.view(strides));
        }
    }

    /// Its elements, one behind the other.
    pub fn bytes(&self) -> Bytes<'_> {
        match &self.scattered {
            Some(scattered) => scattered.packed.bytes(),
            None if self.len == 0 => &[],
            // SAFETY: row-major without gaps, `len` bytes from `data` belong to the exporter's memory, which the keeper keeps
            // alive. `Cell`: Python code and other arrays may alias it; nothing here holds a plain reference into it.
            None => unsafe { std::slice::from_raw_parts(self.data.cast::<Cell<u8>>(), self.len) },
        }
    }
}
