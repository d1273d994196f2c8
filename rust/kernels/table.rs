//! Which loop serves which dtype and operation.

use std::ops::{BitAnd, BitOr, BitXor};

use super::Bytes;
use super::cast::Plain;
use super::generic::{Fold, Portable, reduce};
use super::half::{self, Half, InFloat32};
use super::logic::{self, All, And, Any, Byte, Int16, Int32, Int64, Odd, Or, Pair, Truth, Xor};
use super::ops::{Avg, ComplexProd, Number, Prod, Real, Sum};
use super::order::{self, Max, Min, Ordered};
use crate::dtype::{DType, ReduceOp};

/// Memory of the result, operands, number of contributions that are in them.
pub(super) type Kernel = fn(Bytes<'_>, &[Bytes<'_>], usize);

/// An instruction set, as a place to compile the loop for.
pub(super) trait Shell {
    fn kernel<F: Fold>() -> Kernel;
}

/// The baseline of the target.
pub(super) struct Baseline;

impl Shell for Baseline {
    fn kernel<F: Fold>() -> Kernel {
        |dst, srcs, count| reduce::<Portable, F>(Portable, dst, srcs, count)
    }
}

/// The kernel of (dtype, op) in `S`; None where they do not go together, as `ReduceOp::check` explains.
pub(super) fn kernel<S: Shell>(dtype: DType, op: ReduceOp) -> Option<Kernel> {
    match dtype {
        DType::Bool => boolean::<S>(op),
        DType::Int8 => integer::<S, u8, i8, Byte>(op),
        DType::Int16 => integer::<S, u16, i16, Int16>(op),
        DType::Int32 => integer::<S, u32, i32, Int32>(op),
        DType::Int64 => integer::<S, u64, i64, Int64>(op),
        DType::UInt8 => integer::<S, u8, u8, Byte>(op),
        DType::UInt16 => integer::<S, u16, u16, Int16>(op),
        DType::UInt32 => integer::<S, u32, u32, Int32>(op),
        DType::UInt64 => integer::<S, u64, u64, Int64>(op),
        DType::Float16 => half_float::<S, half::Float16, order::Float16, logic::Float16>(op),
        DType::BFloat16 => half_float::<S, half::BFloat16, order::BFloat16, logic::BFloat16>(op),
        DType::Float32 => float::<S, f32, order::Float32, logic::Float32>(op),
        DType::Float64 => float::<S, f64, order::Float64, logic::Float64>(op),
        DType::Complex64 => complex::<S, f32, logic::Float32>(op),
        DType::Complex128 => complex::<S, f64, logic::Float64>(op),
    }
}

fn boolean<S: Shell>(op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BOr | ReduceOp::LOr => Some(S::kernel::<Any<Byte>>()),
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::BAnd | ReduceOp::LAnd => Some(S::kernel::<All<Byte>>()),
        ReduceOp::BXor => Some(S::kernel::<Odd<Byte>>()),
        ReduceOp::Avg => None,
    }
}

/// `U` computes and `O` compares: for all but order, signed integers are unsigned ones.
fn integer<S: Shell, U, O, L>(op: ReduceOp) -> Option<Kernel>
where
    U: Number + BitAnd<Output = U> + BitOr<Output = U> + BitXor<Output = U>,
    O: Ordered,
    L: Truth,
{
    match op {
        ReduceOp::Sum => Some(S::kernel::<Sum<U>>()),
        ReduceOp::Prod => Some(S::kernel::<Prod<U>>()),
        ReduceOp::Min => Some(S::kernel::<Min<O>>()),
        ReduceOp::Max => Some(S::kernel::<Max<O>>()),
        ReduceOp::BAnd => Some(S::kernel::<And<U>>()),
        ReduceOp::BOr => Some(S::kernel::<Or<U>>()),
        ReduceOp::BXor => Some(S::kernel::<Xor<U>>()),
        ReduceOp::LAnd => Some(S::kernel::<All<L>>()),
        ReduceOp::LOr => Some(S::kernel::<Any<L>>()),
        ReduceOp::Avg => None,
    }
}

fn float<S: Shell, T: Real, O: Ordered, L: Truth>(op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::Sum => Some(S::kernel::<Sum<T>>()),
        ReduceOp::Prod => Some(S::kernel::<Prod<T>>()),
        ReduceOp::Avg => Some(S::kernel::<Avg<T>>()),
        other => ordered_or_logical::<S, O, L>(other),
    }
}

fn half_float<S: Shell, H: Half, O: Ordered, L: Truth>(op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::Sum => Some(S::kernel::<InFloat32<H, Sum<f32>>>()),
        ReduceOp::Prod => Some(S::kernel::<InFloat32<H, Prod<f32>>>()),
        ReduceOp::Avg => Some(S::kernel::<InFloat32<H, Avg<f32>>>()),
        other => ordered_or_logical::<S, O, L>(other),
    }
}

/// What needs only the bits of a float.
fn ordered_or_logical<S: Shell, O: Ordered, L: Truth>(op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::Min => Some(S::kernel::<Min<O>>()),
        ReduceOp::Max => Some(S::kernel::<Max<O>>()),
        ReduceOp::LAnd => Some(S::kernel::<All<L>>()),
        ReduceOp::LOr => Some(S::kernel::<Any<L>>()),
        _ => None,
    }
}

/// Sum and average go part by part.
fn complex<S: Shell, T: Real, L: Truth>(op: ReduceOp) -> Option<Kernel>
where
    [T; 2]: Plain,
    [L::Elem; 2]: Plain,
{
    match op {
        ReduceOp::Sum => Some(S::kernel::<Sum<T>>()),
        ReduceOp::Avg => Some(S::kernel::<Avg<T>>()),
        ReduceOp::Prod => Some(S::kernel::<ComplexProd<T>>()),
        ReduceOp::LAnd => Some(S::kernel::<All<Pair<L>>>()),
        ReduceOp::LOr => Some(S::kernel::<Any<Pair<L>>>()),
        _ => None,
    }
}
