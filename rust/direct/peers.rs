//! Reading what lies in another rank's own memory: the kernel copies it, if it lets us (`process_vm_readv`).
//!
//! ```text
//! when ranks meet      each shows where in its memory a word is, and what it says: a number that nobody else has     (Sample)
//! when all have met    each tries to read all of them
//! ```
//! That it works is known by nothing but having done it. yama, a seccomp filter, another user, a process that may not be traced,
//! another pid namespace (in which the number belongs to somebody else): all of it means that this rank does not read there,
//! and nobody hears of it. It may also end later; then a read fails, and whoever asked does without.
//!
//! Where arrays are and when they may be read is not known here.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use crate::kernels::Bytes;

use super::board::Boards;

/// A word of this process that the others try to read.
#[derive(Debug)]
pub struct Known(Box<u64>);

impl Known {
    /// None if the system has no random numbers to give.
    pub fn new() -> Option<Known> {
        let mut value = [0; size_of::<u64>()];
        let got = rustix::rand::getrandom(&mut value[..], rustix::rand::GetRandomFlags::empty());
        (got == Ok(value.len())).then(|| Known(Box::new(u64::from_ne_bytes(value))))
    }

    /// Shows it to the others, as rank `me`.
    pub fn show(&self, boards: &Boards, me: usize) {
        boards.of(me).sample.show(std::process::id(), &raw const *self.0 as usize, *self.0);
    }
}

/// The ranks of a group, as far as this one can read their memory.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Process of each rank.
    pids: Vec<Option<libc::pid_t>>,
    /// This rank's. Others may be slower to try.
    known: Option<Arc<Known>>,
}

impl Peers {
    /// Nobody can be read.
    pub fn none(world: usize) -> Peers {
        Peers { pids: vec![None; world], known: None }
    }

    /// Tries to read a word of each, after all have shown theirs.
    pub fn find(boards: &Boards, known: Option<Known>) -> Peers {
        let reads = |rank| {
            let (pid, address, value) = boards.of(rank).sample.shown()?;
            let (pid, found) = (pid.try_into().ok()?, [const { Cell::new(0) }; size_of::<u64>()]);
            let same = || found.each_ref().map(Cell::get) == value.to_ne_bytes();
            (read(pid, address, &found) && same()).then_some(pid)
        };
        Peers { pids: (0..boards.world()).map(reads).collect(), known: known.map(Arc::new) }
    }

    /// Those who have these places here, in a group of their own.
    pub fn of(&self, places: &[usize]) -> Peers {
        Peers { pids: places.iter().map(|place| self.pids[*place]).collect(), known: self.known.clone() }
    }

    /// Whether all of them can be read.
    #[inline]
    pub fn are_readable(&self) -> bool {
        self.pids.iter().all(Option::is_some)
    }

    /// `dst` = what is at `address` in the memory of `rank`. If not, it is not tried again.
    pub fn read(&mut self, rank: usize, address: usize, dst: Bytes<'_>) -> bool {
        let done = self.pids[rank].is_some_and(|pid| read(pid, address, dst));
        if !done {
            self.pids[rank] = None;
        }
        done
    }
}

/// Whether all of `dst` has been read.
fn read(pid: libc::pid_t, address: usize, dst: Bytes<'_>) -> bool {
    let mut done = 0;
    while done < dst.len() {
        let rest = &dst[done..];
        let here = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let there =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(address.wrapping_add(done)), iov_len: rest.len() };
        // SAFETY: the kernel writes to nothing but `rest`, which is borrowed and, being cells, may change. What it reads it
        // checks itself: an address that is not mapped there is an error. That nobody writes at the same time what is read here,
        // nor touches `dst`, is the protocol of arrivals: owners show an array when it is ready, and wait until all have read it.
        let got = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
        match usize::try_from(got) {
            Ok(1..) => done += got as usize,
            // Refused, or nothing is there.
            _ => return false,
        }
    }
    true
}
