//! Memory of an argument, held for a call that may run while the interpreter does something else.
#![allow(unsafe_code)]

use std::cell::Cell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use super::arrays::Packed;
use super::strided::View;
use crate::kernels::Bytes;

/// What keeps the memory alive, and where it is.
#[expect(dead_code, reason = "held, never read")]
pub enum Keeper {
    Object(Py<PyAny>),
    Buffer(PyUntypedBuffer),
}

/// An array without the lifetime of the interpreter's attention.
pub struct Held {
    data: *mut u8,
    item: usize,
    shape: Vec<usize>,
    /// Of an array that is packed.
    strides: Vec<isize>,
    len: usize,
    /// Where its elements are during a call if they do not lie one behind the other.
    packed: Option<Packed>,
    _keeper: Keeper,
}

// SAFETY: `data` points to memory that the keeper keeps alive and in place; a call reads and writes it as bytes, from one
// thread at a time, and touches no Python object.
unsafe impl Send for Held {}

impl Held {
    pub fn new(
        data: *mut u8,
        item: usize,
        (shape, strides): (Vec<usize>, Vec<isize>),
        contiguous: bool,
        keeper: Keeper,
    ) -> Held {
        let len = shape.iter().product::<usize>() * item;
        let packed = (!contiguous).then(|| Packed::new(len));
        Held { data, item, shape, strides, len, packed, _keeper: keeper }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it lies in the memory of `other`, and not `offset` bytes behind its start.
    pub fn is_misplaced(&self, other: &Held, offset: usize) -> bool {
        let (start, base) = (self.data.addr(), other.data.addr());
        let inside = self.packed.is_none() && other.packed.is_none() && (base..base + other.len).contains(&start);
        self.len > 0 && inside && start != base + offset
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn view(&self) -> View<'_> {
        View { data: self.data, shape: &self.shape, strides: &self.strides, item: self.item }
    }

    /// Before a call that reads it.
    pub fn pack(&self) {
        if let Some(packed) = &self.packed {
            packed.pack(self.view());
        }
    }

    /// After a call that has written it.
    pub fn unpack(&self) {
        if let Some(packed) = &self.packed {
            packed.unpack(self.view());
        }
    }

    /// Its elements, one behind the other.
    pub fn bytes(&self) -> Bytes<'_> {
        match &self.packed {
            Some(packed) => packed.bytes(),
            None if self.len == 0 => &[],
            // SAFETY: row-major without gaps, `len` bytes from `data` belong to the exporter's memory, which the keeper keeps
            // alive. `Cell`: Python code and other arrays may alias it; nothing here holds a plain reference into it.
            None => unsafe { std::slice::from_raw_parts(self.data.cast::<Cell<u8>>(), self.len) },
        }
    }
}
