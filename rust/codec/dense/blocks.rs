//! Symmetric quantisation of blocks: the largest magnitude of a block becomes the largest code, zero stays zero.
//!
//! ```text
//! block      s    code  code  code ...                 value = s · code
//!
//! s    = largest / TOP, rounded up to what its bytes can say (int4: a bfloat16, which adds up to 2^-7)
//! code = round(x · (1/s))                    to nearest even, so |x - s · code| <= s/2, but for the rounding of float32
//! code = round(x · (1/s) + dither)           stochastic: dither is uniform in (-1/2, 1/2), so the mean of s · code is x
//! ```
//! *Not finite.* The sign of s marks a block that holds NaN or infinities. Codes TOP, -TOP, -TOP - 1 are then inf, -inf, NaN, and
//! finite values go without the largest code: s = largest / (TOP - 1). The length is the same.
//!
//! *The smallest.* s is 0 or at least 2^-126, so that no product is subnormal: a block with nothing above TOP · 2^-126 (1.5e-36 for
//! int8) travels as zeros. Blocks near there are quantised 2^64 times larger (`reach`).
//!
//! *The largest.* Where rounding up made s · TOP infinite, the next smaller scale is taken.

use std::cell::Cell;
use std::marker::PhantomData;

use super::super::{Dice, Malformed};
use super::grains::{Coding, Landing};
use super::pieces::{decode_codes, encode_codes};
use super::reach::{INFINITE, LIFT, NORMAL, is_finite, largest, largest_finite, lifted, power};
use super::width::Width;
use crate::kernels::Machine;

#[derive(Clone, Copy)]
pub(super) struct Blocks<W, const STOCHASTIC: bool> {
    block: usize,
    width: PhantomData<W>,
}

impl<W: Width, const STOCHASTIC: bool> Blocks<W, STOCHASTIC> {
    pub(super) fn new(block: u32) -> Blocks<W, STOCHASTIC> {
        assert!(block > 0, "a block of no elements");
        Blocks { block: block as usize, width: PhantomData }
    }
}

impl<W: Width, const STOCHASTIC: bool> Coding for Blocks<W, STOCHASTIC> {
    #[inline(always)]
    fn grain(self) -> usize {
        self.block
    }

    #[inline(always)]
    fn bytes(self, count: usize) -> usize {
        W::SCALE + W::bytes(count)
    }

    #[inline(always)]
    fn encode<M: Machine>(self, _machine: M, values: &[f32], dice: Dice, start: u64, payload: &mut [u8]) {
        let top = largest(values);
        let (head, bytes) = payload.split_at_mut(W::SCALE);
        let dither = |i: u32| if STOCHASTIC { dither(dice, start, i) } else { 0.0 };
        if (SMALL.to_bits()..INFINITE).contains(&top) {
            let scale = Scale::of::<W>(f32::from_bits(top), W::TOP);
            scale.write::<W>(false, head);
            encode_codes::<W>(values, bytes, |i, x| scale.code::<STOCHASTIC>(x, dither(i)));
        } else if top < INFINITE {
            let scale = Scale::of_small::<W>(f32::from_bits(top), W::TOP);
            scale.write::<W>(false, head);
            encode_codes::<W>(values, bytes, |i, x| scale.code::<STOCHASTIC>(lifted(x), dither(i)));
        } else {
            let top = f32::from_bits(largest_finite(values));
            encode_marked::<W, STOCHASTIC>(values, top, dither, head, bytes);
        }
    }

    #[inline(always)]
    fn decode<M: Machine, L: Landing>(self, _machine: M, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        let (head, bytes) = payload.split_at(W::SCALE);
        let mut scale = [0; 4];
        scale[4 - W::SCALE..].copy_from_slice(head);
        let (scale, marked) = (u32::from_le_bytes(scale) & 0x7fff_ffff, head[W::SCALE - 1] & 0x80 != 0);
        let top = if marked { W::TOP - 1 } else { W::TOP };
        check::<W>(scale, top, marked, values.len(), bytes)?;
        let scale = f32::from_bits(scale);
        if marked {
            return decode_marked::<W, L>(scale, bytes, values);
        }
        decode_codes::<W, L>(bytes, values, |code| code as f32 * scale);
        Ok(())
    }
}

/// From here on values that are subnormal are so far below a code that they are nothing.
const SMALL: f32 = power(-40);

/// What a block is divided by.
#[derive(Clone, Copy)]
struct Scale {
    sent: f32,
    /// 1/s for the values as they are quantised: lifted or not. 0 where all codes are 0.
    inverse: f32,
    top: f32,
}

impl Scale {
    /// For a largest magnitude that is finite and not small.
    #[inline(always)]
    fn of<W: Width>(largest: f32, top: i32) -> Scale {
        let top = top as f32;
        let mut sent = round_up::<W>(largest / top);
        if (sent * top).is_infinite() {
            sent = f32::from_bits(sent.to_bits() - step::<W>());
        }
        Scale { sent, inverse: 1.0 / sent, top }
    }

    /// For a small one, and lifted values.
    #[inline(always)]
    fn of_small<W: Width>(largest: f32, top: i32) -> Scale {
        let lifted = round_up::<W>(lifted(largest) / top as f32);
        if lifted < power(LIFT - 126) {
            return Scale { sent: 0.0, inverse: 0.0, top: top as f32 };
        }
        Scale { sent: lifted * power(-LIFT), inverse: 1.0 / lifted, top: top as f32 }
    }

    #[inline(always)]
    fn write<W: Width>(self, marked: bool, head: &mut [u8]) {
        let bits = self.sent.to_bits() | u32::from(marked) << 31;
        head.copy_from_slice(&bits.to_le_bytes()[4 - W::SCALE..]);
    }

    /// Without dither x · inverse exceeds `top` by less than half and rounds to it; with it, that needs a limit.
    #[inline(always)]
    fn code<const STOCHASTIC: bool>(self, x: f32, dither: f32) -> i32 {
        let exact = x * self.inverse;
        if !STOCHASTIC {
            return round(exact);
        }
        let thrown = exact + dither;
        let below = if thrown < self.top { thrown } else { self.top };
        round(if below > -self.top { below } else { -self.top })
    }
}

/// To nearest even, for magnitudes below 2^22: 1.5 · 2^23 leaves no bits for a fraction.
#[inline(always)]
fn round(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i32
}

/// Uniform among the odd multiples of 2^-24 in (-1/2, 1/2): their mean is 0.
#[inline(always)]
fn dither(dice: Dice, start: u64, i: u32) -> f32 {
    ((dice.short_after(start, i) as i32 >> 8) | 1) as f32 * power(-24)
}

/// Between neighbouring scales, in the last place of a float32.
#[inline(always)]
const fn step<W: Width>() -> u32 {
    1 << (32 - 8 * W::SCALE)
}

#[inline(always)]
fn round_up<W: Width>(scale: f32) -> f32 {
    f32::from_bits((scale.to_bits() + (step::<W>() - 1)) & !(step::<W>() - 1))
}

/// A block with values that are not finite.
#[inline(always)]
fn encode_marked<W: Width, const STOCHASTIC: bool>(
    values: &[f32],
    top: f32,
    dither: impl Fn(u32) -> f32,
    head: &mut [u8],
    bytes: &mut [u8],
) {
    let small = top < SMALL;
    let scale = if small { Scale::of_small::<W>(top, W::TOP - 1) } else { Scale::of::<W>(top, W::TOP - 1) };
    scale.write::<W>(true, head);
    encode_codes::<W>(values, bytes, |i, x| {
        let finite = if is_finite(x) { x } else { 0.0 };
        let code = scale.code::<STOCHASTIC>(if small { lifted(finite) } else { finite }, dither(i));
        match x {
            _ if x.is_nan() => -W::TOP - 1,
            f32::INFINITY => W::TOP,
            f32::NEG_INFINITY => -W::TOP,
            _ => code,
        }
    });
}

/// A block with values that are not finite: at least one.
#[inline(always)]
fn decode_marked<W: Width, L: Landing>(scale: f32, bytes: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
    let (infinite, wrong) = (Cell::new(false), Cell::new(false));
    decode_codes::<W, L>(bytes, values, |code| {
        let finite = code.abs() < W::TOP;
        infinite.set(infinite.get() | !finite);
        wrong.set(wrong.get() | (finite && code != 0 && scale == 0.0));
        match code {
            _ if finite => code as f32 * scale,
            code if code == W::TOP => f32::INFINITY,
            code if code == -W::TOP => f32::NEG_INFINITY,
            _ => f32::NAN,
        }
    });
    if infinite.get() && !wrong.get() { Ok(()) } else { Err(Malformed("a block with a mark that it does not need")) }
}

/// Whether an encoder would write these, but for what only the codes of a marked block tell.
#[inline(always)]
fn check<W: Width>(scale: u32, top: i32, marked: bool, count: usize, bytes: &[u8]) -> Result<(), Malformed> {
    if scale >= INFINITE || (f32::from_bits(scale) * top as f32).is_infinite() {
        return Err(Malformed("a block with a scale that is not finite, or makes values that are not"));
    }
    if scale != 0 && scale < NORMAL {
        return Err(Malformed("a block with a subnormal scale"));
    }
    if !marked && W::holds_nan(bytes) {
        return Err(Malformed("a NaN in a block of finite values"));
    }
    if scale == 0 && !marked && bytes.iter().any(|byte| *byte != 0) {
        return Err(Malformed("a block of zeros with codes that are not zero"));
    }
    if !W::ends_clean(bytes, count) {
        return Err(Malformed("a block that goes on behind its end"));
    }
    Ok(())
}
