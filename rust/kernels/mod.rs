//! Element-wise reduction of arrays, and copying, as fast as the memory allows. Knows dtypes and operations, no ranks.
//!
//! ```text
//! Reducer::of(dtype, op)  ──► table: (dtype, op) ─► Fold (ops · order · logic · half)
//!                                        │
//!                  shell of one instruction set: Baseline · x86::{Avx2, Avx512} · aarch64::Neon
//!                                        │
//!                              generic::reduce, the one loop, inlined and compiled for that set
//! ```
//!
//! The instruction set is chosen once per process, a kernel once per call; after that nothing is decided per element.
//! For every instruction set and every way to cut an array into calls the result has the same bits: the operations and their
//! order per element are the same, nothing is contracted to a fused multiply-add, and NaN is canonical (`ops`).
//!
//! `unsafe` stays in `cast` (bytes as elements), `x86` and `aarch64` (instructions, after their detection) and `copy`.

mod cast;
mod convert;
mod copy;
mod generic;
mod half;
mod identity;
mod isa;
mod logic;
mod ops;
mod order;
mod table;
mod vector;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cell::Cell;

use crate::dtype::{DType, ReduceOp};
pub use cast::bytes_of;
pub use convert::{all_finite, float32_of, narrow, narrow_with, of_float32, widen, widen_with};
pub use copy::{copy, copy_streaming};
pub use generic::Machine;
pub use identity::fill_identity;
pub use isa::{Isa, chosen, current};
use table::{Baseline, Kernel};
pub use vector::{Loop, vectorised, vectorised_with};

/// Memory that other owners may alias: a destination may be exactly one of its sources, and a peer may hold it mapped. Elements
/// are only read and written through this module.
pub type Bytes<'a> = &'a [Cell<u8>];

/// The element-wise code of one (dtype, op).
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    kernel: Kernel,
    size: usize,
    align: usize,
}

impl Reducer {
    /// The reducer for the instruction set of this process (`chosen`). None when `op.check(dtype)` refuses.
    pub fn of(dtype: DType, op: ReduceOp) -> Option<Reducer> {
        Reducer::with_isa(dtype, op, isa::current())
    }

    /// The same for one instruction set. None also when this machine lacks it.
    pub fn with_isa(dtype: DType, op: ReduceOp, isa: Isa) -> Option<Reducer> {
        let kernel = match isa {
            _ if !isa.is_available() => None,
            Isa::Scalar => table::kernel::<Baseline>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => table::kernel::<x86::Avx2>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => table::kernel::<x86::Avx512>(dtype, op),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => table::kernel::<aarch64::Neon>(dtype, op),
            _ => None,
        };
        kernel.map(|kernel| Reducer { kernel, size: dtype.size(), align: dtype.align() })
    }

    /// Bytes of an element.
    pub fn elem(&self) -> usize {
        self.size
    }

    /// `dst[i] = finish(srcs[0][i] (+) srcs[1][i] (+) ...)`, strictly in that order. `dst` may be exactly the memory of any source;
    /// where it overlaps one in part the result is unspecified.
    ///
    /// # Panics
    /// Without a source, when lengths differ or are no multiple of the element, or when an operand is not aligned to
    /// `dtype.align()`.
    #[inline]
    pub fn run(&self, dst: Bytes<'_>, srcs: &[Bytes<'_>]) {
        self.run_counted(dst, srcs, srcs.len());
    }

    /// The same where the sources hold `count` contributions, some of which have been combined before: that is what an average
    /// divides by.
    ///
    /// # Panics
    /// As `run`.
    pub fn run_counted(&self, dst: Bytes<'_>, srcs: &[Bytes<'_>], count: usize) {
        assert!(!srcs.is_empty(), "a reduction needs at least one source");
        assert!(
            dst.len().is_multiple_of(self.size),
            "{} bytes are no whole number of {}-byte elements",
            dst.len(),
            self.size
        );
        if dst.is_empty() {
            assert!(srcs.iter().all(|src| src.is_empty()), "operands of a reduction differ in length");
            return; // an empty slice may lie anywhere, aligned or not
        }
        for operand in srcs.iter().chain([&dst]) {
            assert!(operand.len() == dst.len(), "operands of a reduction differ in length");
            assert!(
                operand.as_ptr().addr().is_multiple_of(self.align),
                "an operand is not aligned to {} bytes",
                self.align
            );
        }
        (self.kernel)(dst, srcs, count);
    }
}
