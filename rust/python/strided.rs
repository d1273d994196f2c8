//! Copies between strided and contiguous memory, in logical (row-major) order.
#![allow(unsafe_code)]

/// Where the elements of an array lie.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub data: *mut u8,
    pub shape: &'a [usize],
    /// In bytes.
    pub strides: &'a [isize],
    /// Bytes of an element.
    pub item: usize,
}

/// Elements are copied one by one only along the innermost axis that is not contiguous.
struct Walk<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    item: usize,
}

/// Copies `array` into `packed`, which is as long as it.
pub fn pack(array: View<'_>, packed: *mut u8) {
    let mut to = packed;
    walk(array).each(array.data, &mut |from, count, stride, item| {
        // SAFETY: `from` runs over elements of the array as its exporter described them; `to` over `packed`, which has
        // room for all of them; the two do not overlap, since `packed` is a fresh allocation.
        unsafe { copy(to, item as isize, from, stride, count, item) };
        to = to.wrapping_add(count * item);
    });
}

/// Copies `packed` into `array`, which may be written.
pub fn unpack(packed: *const u8, array: View<'_>) {
    let mut from = packed;
    walk(array).each(array.data, &mut |to, count, stride, item| {
        // SAFETY: as in `pack`, the other way round.
        unsafe { copy(to, stride, from, item as isize, count, item) };
        from = from.wrapping_add(count * item);
    });
}

fn walk(array: View<'_>) -> Walk<'_> {
    Walk { shape: array.shape, strides: array.strides, item: array.item }
}

impl Walk<'_> {
    /// Calls `run(first, count, stride, item)` for every innermost run of elements.
    fn each(&self, at: *mut u8, run: &mut impl FnMut(*mut u8, usize, isize, usize)) {
        match (self.shape, self.strides) {
            ([], _) => run(at, 1, self.item as isize, self.item),
            ([count], [stride]) => run(at, *count, *stride, self.item),
            ([count, shape @ ..], [stride, strides @ ..]) => {
                let inner = Walk { shape, strides, item: self.item };
                for k in 0..*count {
                    inner.each(at.wrapping_offset(k as isize * stride), run);
                }
            }
            _ => unreachable!("as many strides as dimensions"),
        }
    }
}

/// # Safety
/// `count` elements of `item` bytes, `to_stride` and `from_stride` bytes apart, may be written and read; the two areas do
/// not overlap.
unsafe fn copy(to: *mut u8, to_stride: isize, from: *const u8, from_stride: isize, count: usize, item: usize) {
    if to_stride == item as isize && from_stride == item as isize {
        // SAFETY: both are contiguous here.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, count * item) };
    }
    // SAFETY: as promised by the caller; unaligned moves of a size known at compile time.
    unsafe {
        match item {
            1 => each::<[u8; 1]>(to, to_stride, from, from_stride, count),
            2 => each::<[u8; 2]>(to, to_stride, from, from_stride, count),
            4 => each::<[u8; 4]>(to, to_stride, from, from_stride, count),
            8 => each::<[u8; 8]>(to, to_stride, from, from_stride, count),
            16 => each::<[u8; 16]>(to, to_stride, from, from_stride, count),
            _ => {
                for k in 0..count as isize {
                    std::ptr::copy_nonoverlapping(from.offset(k * from_stride), to.offset(k * to_stride), item);
                }
            }
        }
    }
}

/// # Safety
/// As `copy`, with elements of type T (bytes, so alignment does not matter).
unsafe fn each<T: Copy>(to: *mut u8, to_stride: isize, from: *const u8, from_stride: isize, count: usize) {
    for k in 0..count as isize {
        // SAFETY: element k of either side.
        unsafe { *to.offset(k * to_stride).cast::<T>() = *from.offset(k * from_stride).cast::<T>() };
    }
}
