//! Any other loop than a reduction, compiled once per instruction set.

use super::generic::{Machine, Portable};
use super::isa::{self, Isa};
#[cfg(target_arch = "x86_64")]
use super::x86;

/// A loop with all that it works on. Only what is inlined into `run` is compiled for the instruction set.
pub trait Loop {
    type Output;
    fn run<M: Machine>(self, machine: M) -> Self::Output;
}

/// Runs `job` with the instruction set of this process.
#[inline]
pub fn vectorised<L: Loop>(job: L) -> L::Output {
    vectorised_with(isa::current(), job)
}

/// The same with one instruction set.
///
/// # Panics
/// When this machine lacks it.
pub fn vectorised_with<L: Loop>(isa: Isa, job: L) -> L::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::run_avx2(job),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::run_avx512(job),
        // Every aarch64 machine has NEON: the compiler uses it for the portable code.
        _ => job.run(Portable),
    }
}
