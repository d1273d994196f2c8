//! Some elements of an array and their places, instead of the whole array: who is picked, and how picks travel.
//!
//! ```text
//! select   the k largest · all from a threshold on        ┐
//! random   k places by lot, the same on all who share it  ┴─► picks: places, ascending ─► values at the picks
//!
//! payload  coding, 1 byte │ picks, u32 │ places: varints of gaps, or a bitmap │ values: float32, float16 or int8
//! ```
//! Places cost one or two bytes each as gaps and `count / 8` bytes together as a bitmap; the encoder takes what is smaller, and gaps
//! when equal. A payload that says the same in another way is refused, so what decodes is what encodes to those bytes.
//!
//! Arrays have at most `u32::MAX` elements here. Knows nothing of residuals: `encode_rest` says what a payload left out, and `scatter`
//! puts it back.

mod bracket;
mod places;
mod radix;
mod random;
mod select;

use super::Malformed;
pub use places::{decode_picks, encode_picks};
pub use random::random_k;
pub use select::{at_least, top_k};

/// How picked values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// As they are.
    Float32,
}

impl Values {
    /// Bytes of the values of `picks` picks.
    fn len(self, picks: usize) -> usize {
        match self {
            Values::Float32 => picks * size_of::<f32>(),
        }
    }
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
    assert!(picks.len() == values.len(), "{} values for {} picks", values.len(), picks.len());
    payload.reserve(max_len(count, picks.len(), how));
    encode_picks(picks, count, payload);
    match how {
        Values::Float32 => payload.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}

/// The same payload; `values` become what it leaves out of them, which is nothing where they are not finite.
///
/// # Panics
/// As `encode`.
pub fn encode_rest(picks: &[u32], values: &mut [f32], count: usize, how: Values, payload: &mut Vec<u8>) {
    encode(picks, values, count, how, payload);
    match how {
        Values::Float32 => values.fill(0.0),
    }
}

/// Decodes a payload of an array of `count` elements. `picks` and `values` are cleared before, and mean nothing after an error. Allocates
/// no more than the payload's length accounts for: at most 8 picks a byte.
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
    match how {
        Values::Float32 => values.extend(rest.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
    }
    Ok(())
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
    assert!(picks.len() == values.len(), "{} values for {} picks", values.len(), picks.len());
    for (pick, value) in picks.iter().zip(values) {
        array[*pick as usize] = *value;
    }
}

/// `array[pick] += value` for each.
///
/// # Panics
/// As `scatter`.
pub fn add(picks: &[u32], values: &[f32], array: &mut [f32]) {
    assert!(picks.len() == values.len(), "{} values for {} picks", values.len(), picks.len());
    for (pick, value) in picks.iter().zip(values) {
        array[*pick as usize] += *value;
    }
}

#[cfg(test)]
mod tests;
