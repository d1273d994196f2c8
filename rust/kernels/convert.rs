//! Halves to float32 and back, for where partial results travel: kept in float32 they are rounded once, at the end.

use std::marker::PhantomData;

use super::Bytes;
use super::cast::{Plain, typed};
use super::generic::{Machine, each};
use super::half;
use super::isa::{self, Isa};
use super::vector::{Loop, vectorised_with};
use crate::dtype::DType;

/// What becomes of one element, for a block of them.
pub(super) trait Conversion {
    type From: Plain;
    type To: Plain;
    fn block<M: Machine, const N: usize>(machine: M, x: [Self::From; N]) -> [Self::To; N];
}

struct Widen16;
struct Narrow16;
struct WidenBrain;
struct NarrowBrain;

impl Conversion for Widen16 {
    type From = u16;
    type To = f32;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(machine: M, x: [u16; N]) -> [f32; N] {
        machine.widen_f16(x)
    }
}

impl Conversion for Narrow16 {
    type From = f32;
    type To = u16;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(machine: M, x: [f32; N]) -> [u16; N] {
        machine.narrow_f16(each(x, settled))
    }
}

impl Conversion for WidenBrain {
    type From = u16;
    type To = f32;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(_machine: M, x: [u16; N]) -> [f32; N] {
        each(x, |half| f32::from_bits(u32::from(half) << 16))
    }
}

impl Conversion for NarrowBrain {
    type From = f32;
    type To = u16;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(_machine: M, x: [f32; N]) -> [u16; N] {
        each(x, |wide| (half::round_bf16(settled(wide)) >> 16) as u16)
    }
}

/// The canonical NaN for any NaN: what the narrowing code expects.
#[inline(always)]
fn settled(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// Memory of the result, operand; as many elements in each.
struct Convert<'a, C>(Bytes<'a>, Bytes<'a>, PhantomData<C>);

impl<C: Conversion> Loop for Convert<'_, C> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        convert::<M, C>(machine, self.0, self.1);
    }
}

#[inline(always)]
fn convert<M: Machine, C: Conversion>(machine: M, dst: Bytes<'_>, src: Bytes<'_>) {
    const BLOCK: usize = 64;
    let (dst, src) = (typed::<C::To>(dst), typed::<C::From>(src));
    assert!(dst.len() == src.len(), "a conversion between different numbers of elements");
    let (blocks, rest) = dst.as_chunks::<BLOCK>();
    for (to, from) in blocks.iter().zip(src.as_chunks::<BLOCK>().0) {
        let mut x = [C::From::default(); BLOCK];
        for i in 0..BLOCK {
            x[i] = from[i].get();
        }
        let y = C::block(machine, x);
        for i in 0..BLOCK {
            to[i].set(y[i]);
        }
    }
    for (to, from) in rest.iter().zip(&src[blocks.len() * BLOCK..]) {
        let [y] = C::block(machine, [from.get()]);
        to.set(y);
    }
}

fn with_isa<C: Conversion>(isa: Isa, dst: Bytes<'_>, src: Bytes<'_>) {
    vectorised_with(isa, Convert::<C>(dst, src, PhantomData));
}

/// `dst[i] = src[i]`, exactly: halves of type `half` as float32.
///
/// # Panics
/// When `half` is no 16-bit float, when lengths do not fit, or when an operand is not aligned to its element.
pub fn widen(half: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    widen_with(isa::current(), half, dst, src);
}

/// The same by one instruction set, which this machine must have.
pub fn widen_with(isa: Isa, half: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    match half {
        DType::Float16 => with_isa::<Widen16>(isa, dst, src),
        DType::BFloat16 => with_isa::<WidenBrain>(isa, dst, src),
        other => panic!("{other} is no 16-bit float"),
    }
}

/// `dst[i] = src[i]` rounded to nearest even: float32 as halves of type `half`.
///
/// # Panics
/// As `widen`.
pub fn narrow(half: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    narrow_with(isa::current(), half, dst, src);
}

/// The same by one instruction set, which this machine must have.
pub fn narrow_with(isa: Isa, half: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    match half {
        DType::Float16 => with_isa::<Narrow16>(isa, dst, src),
        DType::BFloat16 => with_isa::<NarrowBrain>(isa, dst, src),
        other => panic!("{other} is no 16-bit float"),
    }
}
