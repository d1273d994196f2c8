//! The codes of a block as bytes, so many at a time that vectors are full.
//!
//! ```text
//! block      64 │ 64 │ ... │ 32 │ rest          full pieces in loops of constant length; the rest in one of 32, filled up
//! ```
//! Where pieces end is part of what a payload means: `Int4` puts the two halves of a piece into the same bytes.

use super::grains::{Landing, PIECE, land, padded};
use super::width::Width;

/// Elements of a piece where less than `PIECE` are left: half, so that blocks of 32 are no exception.
const SHORT: usize = 32;

/// Writes `code(i, values[i])` for all i.
#[inline(always)]
pub(super) fn encode_codes<W: Width>(values: &[f32], bytes: &mut [u8], code: impl Fn(u32, f32) -> i32) {
    let (long, short) = (values.len() - values.len() % PIECE, values.len() % PIECE / SHORT * SHORT);
    let ((long, rest), (long_bytes, rest_bytes)) = (values.split_at(long), bytes.split_at_mut(W::bytes(long)));
    encode_pieces::<W, PIECE>(long, long_bytes, 0, &code);
    let (first, (short, rest)) = (long.len(), rest.split_at(short));
    let (short_bytes, rest_bytes) = rest_bytes.split_at_mut(W::bytes(short.len()));
    encode_pieces::<W, SHORT>(short, short_bytes, first as u32, &code);
    if !rest.is_empty() {
        let codes = codes_of::<SHORT>(&padded(rest), (first + short.len()) as u32, &code);
        let (mut placed, mut full) = ([0; SHORT], [0; SHORT]);
        for i in 0..rest.len() {
            placed[W::place(i, rest.len(), SHORT)] = codes[i];
        }
        W::pack(&placed, &mut full);
        rest_bytes.copy_from_slice(&full[..rest_bytes.len()]);
    }
}

/// The same for full pieces of which the first value is the `first` of the block.
#[inline(always)]
fn encode_pieces<W: Width, const N: usize>(
    values: &[f32],
    bytes: &mut [u8],
    first: u32,
    code: &impl Fn(u32, f32) -> i32,
) {
    let pieces = values.as_chunks::<N>().0.iter().zip(bytes.chunks_exact_mut(W::bytes(N)));
    for (n, (x, bytes)) in pieces.enumerate() {
        W::pack(&codes_of(x, first + (n * N) as u32, code), bytes);
    }
}

#[inline(always)]
fn codes_of<const N: usize>(x: &[f32; N], first: u32, code: &impl Fn(u32, f32) -> i32) -> [i32; N] {
    let mut codes = [0; N];
    for i in 0..N {
        codes[i] = code(first + i as u32, x[i]);
    }
    codes
}

/// `value(code)` lands for all codes.
#[inline(always)]
pub(super) fn decode_codes<W: Width, L: Landing>(bytes: &[u8], values: &mut [f32], value: impl Fn(i32) -> f32) {
    let (long, short) = (values.len() - values.len() % PIECE, values.len() % PIECE / SHORT * SHORT);
    let ((long_bytes, rest_bytes), (long, rest)) = (bytes.split_at(W::bytes(long)), values.split_at_mut(long));
    decode_pieces::<W, L, PIECE>(long_bytes, long, &value);
    let ((short_bytes, rest_bytes), (short, rest)) = (rest_bytes.split_at(W::bytes(short)), rest.split_at_mut(short));
    decode_pieces::<W, L, SHORT>(short_bytes, short, &value);
    if !rest.is_empty() {
        let placed: [i32; SHORT] = W::unpack(&padded::<_, SHORT>(rest_bytes));
        let mut codes = [0; SHORT];
        for i in 0..rest.len() {
            codes[i] = placed[W::place(i, rest.len(), SHORT)];
        }
        land::<L>(rest, &values_of(&codes, &value));
    }
}

#[inline(always)]
fn decode_pieces<W: Width, L: Landing, const N: usize>(bytes: &[u8], values: &mut [f32], value: &impl Fn(i32) -> f32) {
    for (values, bytes) in values.as_chunks_mut::<N>().0.iter_mut().zip(bytes.chunks_exact(W::bytes(N))) {
        land::<L>(values, &values_of(&W::unpack::<N>(bytes), value));
    }
}

#[inline(always)]
fn values_of<const N: usize>(codes: &[i32; N], value: &impl Fn(i32) -> f32) -> [f32; N] {
    let mut values = [0.0; N];
    for i in 0..N {
        values[i] = value(codes[i]);
    }
    values
}
