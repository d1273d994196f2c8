//! The atomics of every shared-memory protocol in arx. Under `--cfg loom` they are loom's, so that the models in
//! `tests/loom_*.rs` explore the very code that runs on mapped memory in production.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A word on cache lines of its own: 128 bytes, since x86 fetches lines in pairs.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(pub T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// One turn of a spin loop.
#[inline(always)]
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
