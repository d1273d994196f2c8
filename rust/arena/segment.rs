//! A mapped, sealed memfd.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// Types that may be looked at in place in shared memory.
///
/// # Safety
/// Every bit pattern is a value, and all mutation by others goes through atomics.
pub unsafe trait Shared {}

/// The mapping of one job's memory. All access is bounds-checked against its length, which seals keep from changing.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, and what lies in it is reached only through atomics
// (`Shared`) or through `cells`, whose callers order their accesses by those atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// What keeps the other side from pulling the pages from under us (a truncated mapping is a SIGBUS).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Above this, pages of 2 MiB are asked for.
pub const HUGE: usize = 2 << 20;

impl Segment {
    /// Makes a memfd of `len` bytes, all of them zero and none of them backed yet.
    pub fn create(len: usize) -> Result<(Segment, OwnedFd)> {
        let fd = rustix::fs::memfd_create("arx", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::os("cannot create shared memory (memfd_create)", e))?;
        rustix::fs::ftruncate(&fd, len as u64)
            .map_err(|e| Error::os(&format!("cannot size shared memory to {len} bytes (ftruncate)"), e))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| Error::os("cannot seal shared memory", e))?;
        Ok((Segment::map(fd.as_fd(), len)?, fd))
    }

    /// Maps what another rank handed over, once it is certain that nobody can resize it.
    pub fn adopt(fd: BorrowedFd<'_>, len: usize) -> Result<Segment> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| Error::os("rank 0 sent no memfd", e))?;
        let size = rustix::fs::fstat(fd).map_err(|e| Error::os("fstat of the shared memory", e))?.st_size;
        if !seals.contains(SEALS) || size as u64 != len as u64 {
            return Err(Error::Auth(format!(
                "rank 0 sent shared memory of {size} bytes with seals {seals:?}; expected {len} bytes, sealed"
            )));
        }
        Segment::map(fd, len)
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Segment> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; nobody else knows it.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )
        }
        .map_err(|e| Error::os(&format!("cannot map {len} bytes of shared memory (is `ulimit -v` set?)"), e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null for a mapping of its own choice");
        Ok(Segment { base, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `offset`.
    pub fn at<T: Shared>(&self, offset: usize) -> &T {
        &self.array::<T>(offset, 1)[0]
    }

    /// `count` values from `offset`.
    pub fn array<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count.checked_mul(size_of::<T>()).expect("layout arithmetic stays in range");
        self.check(offset, bytes);
        assert_eq!(offset % align_of::<T>(), 0, "misplaced in the segment");
        // SAFETY: inside the mapping (checked), aligned (checked; the mapping is page-aligned), any bits are a value and
        // others only change it through atomics (`Shared`), and the mapping outlives the borrow of self.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// Plain bytes, in which other processes, and other threads with the same segment, write too. Contract: whoever reads or
    /// writes them has ordered that against the others by an acquire load of a word that they stored with release.
    /// `direct/board.rs` and `transport/shm/ring.rs` are the only callers outside tests; the `words.rs` beside each has those words.
    #[doc(hidden)]
    pub fn cells(&self, offset: usize, len: usize) -> &[Cell<u8>] {
        self.check(offset, len);
        // SAFETY: inside the mapping (checked), which outlives the borrow; `Cell` allows aliasing within this process.
        // Against other processes the protocol in `direct/` orders accesses as said above.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), len) }
    }

    /// Where in the segment `bytes` lies, if it does.
    #[inline]
    pub fn offset_of(&self, bytes: &[Cell<u8>]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).wrapping_sub(self.base.as_ptr() as usize);
        (offset < self.len && bytes.len() <= self.len - offset).then_some(offset)
    }

    /// Address of `offset`, for the buffer that an array is made of.
    pub fn address(&self, offset: usize, len: usize) -> *mut u8 {
        self.check(offset, len);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Asks for pages of 2 MiB; the kernel may decline, which costs speed only.
    pub fn prefer_huge(&self, offset: usize, len: usize) {
        self.advise(offset, len, Advice::LinuxHugepage);
    }

    /// Gives the pages back to the system; they read as zero afterwards.
    pub fn punch(&self, offset: usize, len: usize) {
        self.advise(offset, len, Advice::LinuxRemove);
    }

    /// Has the pages made, and mapped here, that would be on their first use (since Linux 5.14).
    pub fn make_pages(&self, offset: usize, len: usize) {
        self.advise_pages(offset, len, Advice::LinuxPopulateWrite);
    }

    /// The same, but of pages that others write to.
    pub fn map_pages(&self, offset: usize, len: usize) {
        self.advise_pages(offset, len, Advice::LinuxPopulateRead);
    }

    /// Also of the whole page in which the first byte is.
    fn advise_pages(&self, offset: usize, len: usize, advice: Advice) {
        let start = offset - offset % rustix::param::page_size();
        self.advise(start, offset + len - start, advice);
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) {
        self.check(offset, len);
        // SAFETY: a range of this mapping. `LinuxRemove` zeroes it, which its owner has given up.
        let done = unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
        // Advice: where the kernel cannot follow it, memory stays as it is.
        let _ = done;
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "outside the shared segment");
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, not unmapped before, and every borrow has ended.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: atomics of any bits.
unsafe impl Shared for crate::sync::AtomicU32 {}
// SAFETY: atomics of any bits.
unsafe impl Shared for crate::sync::AtomicU64 {}
// SAFETY: a T and padding.
unsafe impl<T: Shared> Shared for crate::sync::Padded<T> {}
// SAFETY: nothing but values of T.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}
