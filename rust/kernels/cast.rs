//! Bytes seen as elements: the one cast on the way from shared memory to the safe loops.
#![allow(unsafe_code)]

use std::cell::Cell;

use super::Bytes;

/// Types for which every bit pattern is a value and which have no padding.
///
/// # Safety
/// Any `size_of::<Self>()` initialised bytes must be a valid `Self`, and the other way round.
pub(super) unsafe trait Plain: Copy + Default + 'static {}

macro_rules! plain {
    ($($type:ty),*) => {$(
        // SAFETY: numbers, and arrays of them, have neither invalid bit patterns nor padding.
        unsafe impl Plain for $type {}
        // SAFETY: as above; a pair of equal numbers has no padding.
        unsafe impl Plain for [$type; 2] {}
    )*};
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// Private numbers as memory that everything here works on.
#[inline]
pub fn bytes_of(values: &mut [f32]) -> Bytes<'_> {
    let bytes = size_of_val(values);
    // SAFETY: the borrow is exclusive and becomes a shared one of the same memory; a float consists of bytes, all of which may have
    // any value; `Cell<u8>` has the layout of `u8`.
    unsafe { std::slice::from_raw_parts(values.as_mut_ptr().cast::<Cell<u8>>(), bytes) }
}

/// `bytes` as elements. Panics unless they are aligned and hold a whole number of them.
#[inline(always)]
pub(super) fn typed<T: Plain>(bytes: Bytes<'_>) -> &[Cell<T>] {
    if bytes.is_empty() {
        return &[]; // which may stand anywhere
    }
    let start = bytes.as_ptr();
    assert!(start.addr().is_multiple_of(align_of::<T>()), "kernel operand is not aligned to its element type");
    assert!(bytes.len().is_multiple_of(size_of::<T>()), "kernel operand holds a broken element");
    // SAFETY: the memory is the caller's for as long as `bytes` lives; the lines above checked alignment and length; `Plain`
    // makes every content valid; `Cell<T>` has the layout of `T` and, like `Cell<u8>`, allows other owners in the same thread.
    unsafe { std::slice::from_raw_parts(start.cast::<Cell<T>>(), bytes.len() / size_of::<T>()) }
}
