//! Some elements of an array and their places, instead of the whole array: who is picked, and how picks travel.
//!
//! ```text
//! select   the k largest · all from a threshold on        ┐
//! random   k places by lot, the same on all who share it  ┴─► picks: places, ascending ─► values at the picks
//!
//! payload  coding, 1 byte │ picks, u32 │ places: varints of gaps, or a bitmap │ values: float32, float16 or int8
//! ```
//! Places cost one or two bytes each as gaps and `count / 8` bytes together as a bitmap; the encoder takes what is
//! smaller, and gaps when equal. A payload that says the same in another way is refused, so what decodes is what
//! encodes to those bytes.
//!
//! Arrays have at most `u32::MAX` elements here. Knows nothing of residuals: `encode_rest` says what a payload left
//! out, and `scatter` puts it back.

mod bracket;
mod places;
mod radix;
mod random;
mod select;

use super::{Dense, Dice, Malformed};
pub use places::{decode_picks, encode_picks};
pub use random::random_k;
pub use select::{Make, at_least, top_k, top_k_of};

/// How picked values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// As they are.
    Float32,
    /// As `Dense::Float16` has them.
    Float16,
    /// As `Dense::Int8` has them: rounded to nearest, in blocks of 256 picks.
    Int8,
}

impl Values {
    /// The codec of the picked values, as an array by themselves.
    pub fn dense(self) -> Option<Dense> {
        match self {
            Values::Float32 => None,
            Values::Float16 => Some(Dense::Float16),
            Values::Int8 => Some(Dense::INT8),
        }
    }

    /// Bytes of the values of `picks` picks.
    fn len(self, picks: usize) -> usize {
        self.dense().map_or(picks * size_of::<f32>(), |dense| dense.payload_len(picks))
    }
}

/// What codecs that round to nearest ask for and do not throw.
fn no_dice() -> Dice {
    Dice::new(&[])
}

/// The most bytes of a payload with `k` picks of `count` elements.
pub fn max_len(count: usize, k: usize, how: Values) -> usize {
    places::max_places_len(count, k) + how.len(k)
}

/// Appends the payload of `values`, one per pick, of an array of `count` elements.
///
/// # Panics
/// Unless there are as many values as picks; as `encode_picks`.
pub fn encode(picks: &[u32], values: &[f32], count: usize, how: Values, payload: &mut Vec<u8>) {
    assert_paired(picks, values);
    let room = begin(picks, count, how, payload);
    match how.dense() {
        Some(dense) => dense.encode(values, no_dice(), 0, room),
        None => {
            for (bytes, value) in room.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
        }
    }
}

/// The same payload; `values` become what it leaves out of them, which is nothing where they are not finite.
///
/// # Panics
/// As `encode`.
pub fn encode_rest(picks: &[u32], values: &mut [f32], count: usize, how: Values, payload: &mut Vec<u8>) {
    let Some(dense) = how.dense() else {
        encode(picks, values, count, how, payload);
        return values.fill(0.0);
    };
    assert_paired(picks, values);
    dense.encode_rest(values, no_dice(), 0, begin(picks, count, how, payload));
}

/// Appends places; returns room for the values behind them.
fn begin<'a>(picks: &[u32], count: usize, how: Values, payload: &'a mut Vec<u8>) -> &'a mut [u8] {
    encode_picks(picks, count, payload);
    let start = payload.len();
    payload.resize(start + how.len(picks.len()), 0);
    &mut payload[start..]
}

/// Decodes a payload of an array of `count` elements. `picks` and `values` are cleared before, and mean nothing after
/// an error. Allocates no more than the payload's length accounts for: at most 8 picks a byte.
pub fn decode(
    payload: &[u8],
    count: usize,
    how: Values,
    picks: &mut Vec<u32>,
    values: &mut Vec<f32>,
) -> Result<(), Malformed> {
    values.clear();
    let rest = places::read_picks(payload, count, picks)?;
    if rest.len() != how.len(picks.len()) {
        return Err(Malformed("another number of values than of picks"));
    }
    let Some(dense) = how.dense() else {
        values.extend(rest.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        return Ok(());
    };
    values.resize(picks.len(), 0.0);
    dense.decode(rest, values)
}

fn assert_paired(picks: &[u32], values: &[f32]) {
    assert!(picks.len() == values.len(), "{} values for {} picks", values.len(), picks.len());
}

/// `values` become those of `array` at `picks`.
///
/// # Panics
/// When a pick lies beyond the array.
pub fn gather(picks: &[u32], array: &[f32], values: &mut Vec<f32>) {
    values.clear();
    values.extend(picks.iter().map(|pick| array[*pick as usize]));
}

/// `array[pick] = value` for each.
///
/// # Panics
/// When a pick lies beyond the array, or there are not as many values as picks.
pub fn scatter(picks: &[u32], values: &[f32], array: &mut [f32]) {
    assert_paired(picks, values);
    for (pick, value) in picks.iter().zip(values) {
        array[*pick as usize] = *value;
    }
}

/// `array[pick] += value` for each.
///
/// # Panics
/// As `scatter`.
pub fn add(picks: &[u32], values: &[f32], array: &mut [f32]) {
    assert_paired(picks, values);
    for (pick, value) in picks.iter().zip(values) {
        array[*pick as usize] += *value;
    }
}

#[cfg(test)]
mod tests;
