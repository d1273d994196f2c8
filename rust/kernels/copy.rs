//! Copying between arrays, staging and shared memory.
#![allow(unsafe_code)]

use super::Bytes;

/// Copies `src` to `dst`, which may be the same memory. Any alignment. For data that is or soon will be in the cache.
///
/// # Panics
/// When the lengths differ.
pub fn copy(dst: Bytes<'_>, src: Bytes<'_>) {
    assert!(dst.len() == src.len(), "copy of {} bytes to {}", src.len(), dst.len());
    // SAFETY: both are memory of that many bytes that the caller lent, and `Cell` allows writing to it; `ptr::copy` allows overlap.
    unsafe { std::ptr::copy(src.as_ptr().cast::<u8>(), dst.as_ptr() as *mut u8, dst.len()) };
}

/// The same past the caches, for a destination larger than the last-level cache. Ends with a fence, so that a following release
/// publishes the data.
///
/// # Panics
/// When the lengths differ.
pub fn copy_streaming(dst: Bytes<'_>, src: Bytes<'_>) {
    #[cfg(target_arch = "x86_64")]
    super::x86::stream(dst, src);
    #[cfg(not(target_arch = "x86_64"))]
    copy(dst, src); // no way to say it without assembly
}
