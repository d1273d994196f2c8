//! float16 with one power of two per grain: 40,000 times four ranks, and 1e-7, and 1e30 all fit, and scaling costs nothing since it
//! is exact.
//!
//! ```text
//! grain      e: i16, 2^e · largest finite magnitude in [2^14, 2^15)    half(x · 2^e) ...
//! ```
//! Halves go on for 2^-24, so values down to 2^-39 of the largest are left. One more power would round up to 65,536, which is no
//! half. All zeros: e = 0.

use super::super::{Dice, Malformed};
use super::grains::{Coding, Landing};
use super::halves::{Half, largest_half, narrow_all, widen_all};
use super::reach::{INFINITE, LIFT, NORMAL, is_finite, largest, largest_finite, lifted, lowered, magnitude, power};
use crate::kernels::Machine;

#[derive(Clone, Copy)]
pub(super) struct Float16;

const GRAIN: usize = 1024;

/// Halves, as bits: 2^14, 2^15, infinity, the canonical NaN.
const LEAST_TOP: u16 = 0x7400;
const GREATEST_TOP: u16 = 0x7800;
const INFINITE_HALF: u16 = 0x7c00;
const NAN_HALF: u16 = 0x7e00;

/// The exponent of a grain that holds the largest float32, and of one that holds nothing above the smallest.
const LEAST_EXPONENT: i32 = 14 - 127;
const GREATEST_EXPONENT: i32 = 14 + 149;

/// Bits of (2 - 2^-10) · 2^127, the largest finite float32 that has the digits of a half. What is above would become 2^128.
const CEILING: u32 = 0x7f7f_e000;

impl Coding for Float16 {
    #[inline(always)]
    fn grain(self) -> usize {
        GRAIN
    }

    #[inline(always)]
    fn bytes(self, count: usize) -> usize {
        2 + 2 * count
    }

    #[inline(always)]
    fn encode<M: Machine>(self, machine: M, values: &[f32], _dice: Dice, _start: u64, payload: &mut [u8]) {
        let top = largest(values);
        let finite = if top < INFINITE { top } else { largest_finite(values) };
        let e = exponent(finite);
        let (head, halves) = payload.as_chunks_mut::<2>().0.split_first_mut().expect("an exponent leads");
        *head = (e as i16).to_le_bytes();
        if top < INFINITE && e != LEAST_EXPONENT && e <= LIFT {
            let scale = power(e);
            narrow(machine, values, halves, |x| x * scale);
        } else {
            narrow(machine, values, halves, |x| scaled(x, e));
        }
    }

    #[inline(always)]
    fn decode<M: Machine, L: Landing>(self, machine: M, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        let (head, halves) = payload.as_chunks::<2>().0.split_first().expect("an exponent leads");
        let e = i32::from(i16::from_le_bytes(*head));
        check(e, halves)?;
        if e <= LIFT {
            let scale = power(-e);
            widen::<M, L>(machine, halves, values, |x| x * scale);
        } else {
            let scale = power(LIFT - e);
            widen::<M, L>(machine, halves, values, |x| lowered(x * scale));
        }
        Ok(())
    }
}

/// What takes a grain to where its largest finite magnitude, of these bits, lies in [2^14, 2^15).
#[inline(always)]
fn exponent(top: u32) -> i32 {
    match top {
        0 => 0,
        subnormal if subnormal < NORMAL => 14 + 149 - subnormal.ilog2() as i32,
        normal => 14 + 127 - (normal >> 23) as i32,
    }
}

/// x · 2^e, for any x and any exponent; NaN in its canonical form.
#[inline(always)]
fn scaled(x: f32, e: i32) -> f32 {
    let sign = x.to_bits() & 0x8000_0000;
    let kept = if is_finite(x) { f32::from_bits(sign | magnitude(x).min(CEILING)) } else { x };
    let scaled = if e <= LIFT { kept * power(e) } else { lifted(kept) * power(e - LIFT) };
    if x.is_nan() { f32::NAN } else { scaled }
}

/// `scale`d and narrowed.
#[inline(always)]
fn narrow<M: Machine>(machine: M, values: &[f32], halves: &mut [Half], scale: impl Fn(f32) -> f32) {
    narrow_all(values, halves, |mut x| {
        for x in &mut x {
            *x = scale(*x);
        }
        machine.narrow_f16(x)
    });
}

/// Widened and `scale`d.
#[inline(always)]
fn widen<M: Machine, L: Landing>(machine: M, halves: &[Half], values: &mut [f32], scale: impl Fn(f32) -> f32) {
    widen_all::<L>(halves, values, |halves| {
        let mut x = machine.widen_f16(halves);
        for x in &mut x {
            *x = scale(*x);
        }
        x
    });
}

/// Whether an encoder would write these.
#[inline(always)]
fn check(e: i32, halves: &[Half]) -> Result<(), Malformed> {
    if !(LEAST_EXPONENT..=GREATEST_EXPONENT).contains(&e) {
        return Err(Malformed("float16: an exponent that no grain needs"));
    }
    let mut top = largest_half(halves);
    if top >= INFINITE_HALF {
        top = largest_finite_half(halves)?;
    }
    let greatest = if e == LEAST_EXPONENT { GREATEST_TOP - 1 } else { GREATEST_TOP };
    if (LEAST_TOP..=greatest).contains(&top) || (top == 0 && e == 0) {
        Ok(())
    } else {
        Err(Malformed("float16: an exponent that does not fit the values"))
    }
}

/// The largest finite magnitude, as bits, where some are not finite.
#[inline(always)]
fn largest_finite_half(halves: &[Half]) -> Result<u16, Malformed> {
    let mut top = 0;
    for half in halves.iter().map(|half| u16::from_le_bytes(*half)) {
        match half & 0x7fff {
            finite if finite < INFINITE_HALF => top = top.max(finite),
            INFINITE_HALF => {}
            _ if half == NAN_HALF => {}
            _ => return Err(Malformed("float16: a NaN of another form")),
        }
    }
    Ok(top)
}
