//! What the two 16-bit floats share: little-endian halves in a payload, a piece at a time.

use super::grains::{Landing, PIECE, land, padded};

pub(super) type Half = [u8; 2];

/// `halves[i] = narrow(values[i])`.
#[inline(always)]
pub(super) fn narrow_all(values: &[f32], halves: &mut [Half], narrow: impl Fn([f32; PIECE]) -> [u16; PIECE]) {
    let (pieces, rest) = values.as_chunks::<PIECE>();
    let (pieces_out, rest_out) = halves.as_chunks_mut::<PIECE>();
    for (from, to) in pieces.iter().zip(pieces_out) {
        store(to, narrow(*from));
    }
    if !rest.is_empty() {
        store(rest_out, narrow(padded(rest)));
    }
}

/// `widen(halves[i])` lands in `values[i]`.
#[inline(always)]
pub(super) fn widen_all<L: Landing>(halves: &[Half], values: &mut [f32], widen: impl Fn([u16; PIECE]) -> [f32; PIECE]) {
    let (pieces, rest) = halves.as_chunks::<PIECE>();
    let (pieces_out, rest_out) = values.as_chunks_mut::<PIECE>();
    for (from, to) in pieces.iter().zip(pieces_out) {
        land::<L>(to, &widen(load(from)));
    }
    if !rest.is_empty() {
        land::<L>(rest_out, &widen(load(&padded(rest))));
    }
}

#[inline(always)]
fn store(to: &mut [Half], halves: [u16; PIECE]) {
    for (to, half) in to.iter_mut().zip(halves) {
        *to = half.to_le_bytes();
    }
}

#[inline(always)]
fn load(from: &[Half; PIECE]) -> [u16; PIECE] {
    let mut halves = [0; PIECE];
    for i in 0..PIECE {
        halves[i] = u16::from_le_bytes(from[i]);
    }
    halves
}

/// The largest magnitude, as bits.
#[inline(always)]
pub(super) fn largest_half(halves: &[Half]) -> u16 {
    halves.iter().fold(0, |top, half| i16::max(top, (u16::from_le_bytes(*half) & 0x7fff) as i16)) as u16
}
