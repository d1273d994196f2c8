//! bfloat16: the upper half of a float32, rounded to nearest even. It has the exponents of float32 and needs no scale.

use super::super::{Dice, Malformed};
use super::grains::{Coding, Landing, PIECE};
use super::halves::{Half, largest_half, narrow_all, widen_all};
use crate::kernels::Machine;

#[derive(Clone, Copy)]
pub(super) struct BFloat16;

/// Every value is encoded by itself; this many make the loop over grains cheap.
const GRAIN: usize = 256;

const INFINITE_HALF: u16 = 0x7f80;
const NAN_HALF: u16 = 0x7fc0;

impl Coding for BFloat16 {
    #[inline(always)]
    fn grain(self) -> usize {
        GRAIN
    }

    #[inline(always)]
    fn bytes(self, count: usize) -> usize {
        2 * count
    }

    #[inline(always)]
    fn encode<M: Machine>(self, _machine: M, values: &[f32], _dice: Dice, _start: u64, payload: &mut [u8]) {
        narrow_all(values, payload.as_chunks_mut::<2>().0, |x| {
            let mut halves = [0; PIECE];
            for i in 0..PIECE {
                halves[i] = narrow(x[i]);
            }
            halves
        });
    }

    #[inline(always)]
    fn decode<M: Machine, L: Landing>(self, _machine: M, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        let halves = payload.as_chunks::<2>().0;
        if largest_half(halves) > INFINITE_HALF {
            check(halves)?;
        }
        widen_all::<L>(halves, values, |halves| {
            let mut x = [0.0; PIECE];
            for i in 0..PIECE {
                x[i] = f32::from_bits(u32::from(halves[i]) << 16);
            }
            x
        });
        Ok(())
    }
}

#[inline(always)]
fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { NAN_HALF } else { rounded as u16 }
}

/// Whether all that is NaN is the canonical one.
#[inline(always)]
fn check(halves: &[Half]) -> Result<(), Malformed> {
    let known = |half: u16| half & 0x7fff <= INFINITE_HALF || half == NAN_HALF;
    if halves.iter().all(|half| known(u16::from_le_bytes(*half))) {
        Ok(())
    } else {
        Err(Malformed("bfloat16: a NaN of another form"))
    }
}
