//! Halves to float32 and back, for where partial results travel: kept in float32 they are rounded once, at the end.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Bytes;
use super::cast::{Plain, typed};
use super::copy::copy;
use super::generic::{Machine, each};
use super::half;
use super::isa::{self, Isa};
use super::vector::{Loop, vectorised, vectorised_with};
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

struct ToDouble;
struct FromDouble;

impl Conversion for ToDouble {
    type From = f32;
    type To = f64;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(_machine: M, x: [f32; N]) -> [f64; N] {
        each(x, f64::from)
    }
}

impl Conversion for FromDouble {
    type From = f64;
    type To = f32;
    #[inline(always)]
    fn block<M: Machine, const N: usize>(_machine: M, x: [f64; N]) -> [f32; N] {
        each(x, |x| x as f32)
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

/// `dst[i] = src[i]` as float32, to nearest even, where `src` holds real floats of type `dtype`.
///
/// # Panics
/// When `dtype` is no real float, when lengths do not fit, or when an operand is not aligned to its element.
pub fn float32_of(dtype: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    match dtype {
        DType::Float32 => copy(dst, src),
        DType::Float64 => with_isa::<FromDouble>(isa::current(), dst, src),
        half => widen(half, dst, src),
    }
}

/// `dst[i] = src[i]`, float32 as real floats of type `dtype`, to nearest even.
///
/// # Panics
/// As `float32_of`.
pub fn of_float32(dtype: DType, dst: Bytes<'_>, src: Bytes<'_>) {
    match dtype {
        DType::Float32 => copy(dst, src),
        DType::Float64 => with_isa::<ToDouble>(isa::current(), dst, src),
        half => narrow(half, dst, src),
    }
}

struct AllFinite<'a>(Bytes<'a>);

impl Loop for AllFinite<'_> {
    type Output = bool;
    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        let (blocks, rest) = typed::<u32>(self.0).as_chunks::<64>();
        let none = |cells: &[Cell<u32>]| {
            cells.iter().fold(false, |found, bits| found | (bits.get() & EXPONENT == EXPONENT)).eq(&false)
        };
        blocks.iter().all(|block| none(block)) && none(rest)
    }
}

/// Whether no float32 of `values` is infinite or no number.
///
/// # Panics
/// When `values` is not aligned to, or no whole number of, floats.
pub fn all_finite(values: Bytes<'_>) -> bool {
    vectorised(AllFinite(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::bytes_of;

    #[test]
    fn what_is_not_finite_is_found_wherever_it_stands() {
        for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
            for at in [0, 1, 63, 64, 130, 199] {
                let mut values: Vec<f32> = (0..200).map(|i| if i % 3 == 0 { f32::MAX } else { -1e-40 }).collect();
                assert!(all_finite(bytes_of(&mut values)));
                values[at] = odd;
                assert!(!all_finite(bytes_of(&mut values)), "{odd} at {at}");
            }
        }
        assert!(all_finite(&[]));
    }

    #[test]
    fn doubles_are_rounded_to_nearest_and_come_back() {
        let values = [1.0 + 2f64.powi(-30), 1e300, -0.0, f64::NAN, 0.1, 1.0 + 3.0 * 2f64.powi(-25)];
        let mut floats = [7.0; 6];
        // Doubles as pairs of floats, from a multiple of eight bytes on.
        let mut memory = [0.0; 13];
        let skip = memory.as_ptr().addr() / 4 % 2;
        let raw = &mut memory[skip..skip + 12];
        let halves = values.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]);
        raw.iter_mut().zip(halves).for_each(|(half, bits)| *half = f32::from_bits(bits));
        float32_of(DType::Float64, bytes_of(&mut floats), bytes_of(raw));
        let bits = floats.map(f32::to_bits);
        let expected = values.map(|x| (x as f32).to_bits());
        assert_eq!(bits[..3], expected[..3]);
        assert!(floats[3].is_nan());
        assert_eq!(bits[4..], expected[4..]);
        of_float32(DType::Float64, bytes_of(raw), bytes_of(&mut floats));
        let back = f64::from_bits(u64::from(raw[8].to_bits()) | u64::from(raw[9].to_bits()) << 32);
        assert_eq!(back, f64::from(0.1_f32));
    }
}
