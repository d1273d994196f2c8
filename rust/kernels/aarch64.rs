//! The loop compiled for NEON. Every aarch64 machine has it, so the shell is safe and differs from the baseline only in name:
//! the compiler vectorises the same loop with the same instructions.

use super::generic::{Fold, Portable, reduce};
use super::table::{Kernel, Shell};

pub(super) struct Neon;

impl Shell for Neon {
    fn kernel<F: Fold>() -> Kernel {
        |dst, srcs, count| reduce::<Portable, F>(Portable, dst, srcs, count)
    }
}
