//! Magnitudes from one end of float32 to the other.
//!
//! Arithmetic with subnormal numbers is left to nobody: some libraries make a whole process flush them to zero, and one rank would
//! compute something else than the others. They are moved into the normal range, and back, by way of integers:
//!
//! ```text
//! subnormal  x = n · 2^-149   with the bits of the integer n      lifted:   x · 2^64  =  float(n) · 2^-85
//!                                                                 lowered:  z · 2^-64 =  bits of round(z · 2^85)
//! ```

/// Bits of the smallest magnitude that is not finite.
pub(super) const INFINITE: u32 = 0x7f80_0000;

/// By how many powers of two `lifted` and `lowered` move.
pub(super) const LIFT: i32 = 64;

/// Bits of the smallest normal number.
pub(super) const NORMAL: u32 = 0x0080_0000;

/// 2^k, for k from -126 to 127.
#[inline(always)]
pub(super) const fn power(k: i32) -> f32 {
    f32::from_bits(((127 + k) as u32) << 23)
}

#[inline(always)]
pub(super) fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

#[inline(always)]
pub(super) fn is_finite(x: f32) -> bool {
    magnitude(x) < INFINITE
}

/// x · 2^64, exactly, for magnitudes below 2^63 whatever the process does to subnormal numbers. NaN and infinities stay.
#[inline(always)]
pub(super) fn lifted(x: f32) -> f32 {
    let subnormal = magnitude(x) as i32 as f32 * power(LIFT - 149);
    let normal = f32::from_bits(magnitude(x)) * power(LIFT);
    let wide = if magnitude(x) < NORMAL { subnormal } else { normal };
    f32::from_bits(wide.to_bits() | (x.to_bits() & 0x8000_0000))
}

/// z · 2^-64, to nearest even, whatever the process does to subnormal numbers. NaN and infinities stay.
#[inline(always)]
pub(super) fn lowered(z: f32) -> f32 {
    let wide = f32::from_bits(magnitude(z));
    // 2^23 makes the last place of the sum one unit: what is left of its bits is the rounded integer.
    let subnormal = (wide * power(149 - LIFT) + 8_388_608.0).to_bits().wrapping_sub(0x4b00_0000);
    let normal = (wide * power(-LIFT)).to_bits();
    let bits = if wide < power(LIFT - 126) { subnormal } else { normal };
    f32::from_bits(bits | (z.to_bits() & 0x8000_0000))
}

/// The largest magnitude, as bits; NaN above infinity above the finite.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> u32 {
    // Signed, because the oldest vectors compare only that way.
    values.iter().fold(0, |top, x| i32::max(top, magnitude(*x) as i32)) as u32
}

/// The largest finite magnitude, as bits; 0 where there is none.
#[inline(always)]
pub(super) fn largest_finite(values: &[f32]) -> u32 {
    values.iter().fold(0, |top, x| i32::max(top, if is_finite(*x) { magnitude(*x) as i32 } else { 0 })) as u32
}
