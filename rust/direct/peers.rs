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
//! That it is still the process that showed its word is seen from the word: it is read along with everything else, so a process
//! that is gone, and whose number has been given to another, is not mistaken for that.
//!
//! Where arrays are and when they may be read is not known here.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use crate::kernels::Bytes;
use crate::sync::{Ordering, fence};

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

/// A process, and where in it a word lies that says so.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: libc::pid_t,
    address: usize,
    value: u64,
}

/// The ranks of a group, as far as this one can read their memory.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Process of each rank.
    processes: Vec<Option<Process>>,
    /// This rank's. Others may be slower to try.
    known: Option<Arc<Known>>,
}

impl Peers {
    /// Nobody can be read.
    pub fn none(world: usize) -> Peers {
        Peers { processes: vec![None; world], known: None }
    }

    /// Tries to read a word of each, after all have shown theirs.
    pub fn find(boards: &Boards, known: Option<Known>) -> Peers {
        let reads = |rank| {
            let (pid, address, value) = boards.of(rank).sample.shown()?;
            let process = Process { pid: pid.try_into().ok()?, address, value };
            process.read(address, &[]).then_some(process)
        };
        Peers { processes: (0..boards.world()).map(reads).collect(), known: known.map(Arc::new) }
    }

    /// Those who have these places here, in a group of their own.
    pub fn of(&self, places: &[usize]) -> Peers {
        Peers { processes: places.iter().map(|place| self.processes[*place]).collect(), known: self.known.clone() }
    }

    /// Whether all of them can be read.
    #[inline]
    pub fn are_readable(&self) -> bool {
        self.processes.iter().all(Option::is_some)
    }

    /// `dst` = what is at `address` in the memory of `rank`. If not, it is not tried again. What is looked at afterwards is looked at
    /// after `dst` has been read.
    pub fn read(&mut self, rank: usize, address: usize, dst: Bytes<'_>) -> bool {
        let done = self.processes[rank].is_some_and(|process| process.read(address, dst));
        if !done {
            self.processes[rank] = None;
        }
        // orders: what was read before what will be asked, such as whether its owner had left
        fence(Ordering::Acquire);
        done
    }
}

impl Process {
    /// Whether all of `dst` has been read, and it is the process that it was.
    fn read(self, address: usize, dst: Bytes<'_>) -> bool {
        let word = [const { Cell::new(0) }; size_of::<u64>()];
        let mut done = 0;
        loop {
            let rest = &dst[done..];
            let here =
                [rest, &word].map(|to| libc::iovec { iov_base: to.as_ptr().cast_mut().cast(), iov_len: to.len() });
            let places = [(address.wrapping_add(done), rest.len()), (self.address, word.len())];
            let there =
                places.map(|(at, iov_len)| libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len });
            // SAFETY: the kernel writes to nothing but `rest` and `word`, which are borrowed and, being cells, may change. What it
            // reads it checks itself: an address that is not mapped there is an error. That nobody writes at the same time what is
            // read here, nor touches `dst`, is the protocol of arrivals, or of offered letters: owners show an array when it is
            // ready, and wait until all have read it; who does not says so, and then what was read here is not used.
            let got = unsafe { libc::process_vm_readv(self.pid, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
            match usize::try_from(got) {
                Ok(got) if got == rest.len() + word.len() => break,
                Ok(got @ 1..) => done += got.min(rest.len()),
                // Refused, or nothing is there.
                _ => return false,
            }
        }
        word.each_ref().map(Cell::get) == self.value.to_ne_bytes()
    }
}
