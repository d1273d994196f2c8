//! float16 and bfloat16: every operation runs in float32 over all sources and is rounded once, to nearest even, at the end.
//!
//! The conversions here are plain arithmetic that vectorises. They are the definition; where a machine converts float16 in one
//! instruction (`Machine::widen_f16`), the result is the same, NaN included, because a NaN reaches `narrow_f16` only in its
//! canonical form. They need no subnormal float32, so a process that flushes those to zero (some libraries do) gets the same.

use std::marker::PhantomData;

use super::generic::{Elementwise, Fold, Machine, each};

/// A 16-bit float as its bits.
pub(super) trait Half {
    fn widen<M: Machine, const N: usize>(machine: M, x: [u16; N]) -> [f32; N];
    fn narrow<M: Machine, const N: usize>(machine: M, x: [f32; N]) -> [u16; N];
}

pub(super) struct Float16;

impl Half for Float16 {
    #[inline(always)]
    fn widen<M: Machine, const N: usize>(machine: M, x: [u16; N]) -> [f32; N] {
        machine.widen_f16(x)
    }
    #[inline(always)]
    fn narrow<M: Machine, const N: usize>(machine: M, x: [f32; N]) -> [u16; N] {
        machine.narrow_f16(x)
    }
}

pub(super) struct BFloat16;

/// The upper half of a float32. A block is widened in pairs, with the even elements first: shifting and masking 32 bits at a time
/// costs half of what spreading 16-bit lanes does. The order of the accumulators is nobody else's business.
impl Half for BFloat16 {
    #[inline(always)]
    fn widen<M: Machine, const N: usize>(_machine: M, x: [u16; N]) -> [f32; N] {
        let mut wide = [0.0; N];
        for i in 0..N / 2 {
            let pair = u32::from(x[2 * i]) | u32::from(x[2 * i + 1]) << 16;
            wide[i] = f32::from_bits(pair << 16);
            wide[N / 2 + i] = f32::from_bits(pair & 0xffff_0000);
        }
        if N % 2 == 1 {
            wide[N - 1] = f32::from_bits(u32::from(x[N - 1]) << 16);
        }
        wide
    }
    #[inline(always)]
    fn narrow<M: Machine, const N: usize>(_machine: M, x: [f32; N]) -> [u16; N] {
        let mut halves = [0; N];
        for i in 0..N / 2 {
            let pair = round_bf16(x[i]) >> 16 | round_bf16(x[N / 2 + i]) & 0xffff_0000;
            halves[2 * i] = pair as u16;
            halves[2 * i + 1] = (pair >> 16) as u16;
        }
        if N % 2 == 1 {
            halves[N - 1] = (round_bf16(x[N - 1]) >> 16) as u16;
        }
        halves
    }
}

/// The operation `F` of float32 for elements `H`.
pub(super) struct InFloat32<H, F>(PhantomData<(H, F)>);

impl<H: Half, F: Elementwise<Elem = f32, Acc = f32>> Fold for InFloat32<H, F> {
    type Elem = u16;
    type Acc = f32;
    const COUNTS: bool = F::COUNTS;
    #[inline(always)]
    fn load<M: Machine, const N: usize>(machine: M, x: [u16; N]) -> [f32; N] {
        each(H::widen(machine, x), F::load)
    }
    #[inline(always)]
    fn join(acc: f32, next: f32) -> f32 {
        F::join(acc, next)
    }
    #[inline(always)]
    fn finish<M: Machine, const N: usize>(machine: M, acc: [f32; N], count: usize) -> [u16; N] {
        H::narrow(machine, each(acc, |acc| F::finish(acc, count)))
    }
}

/// float16 to float32, exactly; a signalling NaN becomes a quiet one, as the instructions have it.
#[inline(always)]
pub(super) fn widen_f16(half: u16) -> f32 {
    let bits = u32::from(half);
    let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // Another bias for the exponent (127 against 15); infinity and NaN go to the top of the scale.
    let normal = (magnitude << 13) + (112 << 23);
    let special = (magnitude << 13) | 0x7f80_0000 | if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    // magnitude * 2^-24: 2^23 + magnitude is exact, and so is what is left when 2^23 is taken away again.
    let subnormal = ((f32::from_bits(0x4b00_0000 | magnitude) - 8_388_608.0) * f32::from_bits(0x3380_0000)).to_bits();
    let wide = if magnitude >= 0x7c00 { special } else { normal };
    f32::from_bits(sign | if magnitude < 0x0400 { subnormal } else { wide })
}

/// float32 to float16, to nearest even; beyond 65,519 infinity; NaN stays NaN.
#[inline(always)]
pub(super) fn narrow_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Round the 13 bits that go, half to even; a carry into the exponent is right, even the one into infinity.
    let rounded = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0fff + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14: adding 1/2 leaves exactly the bits down to 2^-24, rounded by the addition itself.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 { subnormal } else { rounded };
    let wide = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
    (sign | if magnitude > 0x7f80_0000 { 0x7e00 } else { wide }) as u16
}

/// The bits of a float32 whose upper half is the nearest bfloat16, half to even. The canonical NaN stays what it is.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    bits + 0x7fff + ((bits >> 16) & 1)
}
