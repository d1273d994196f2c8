//! The k-th largest magnitude by counting digits: for arrays of which a sample told the wrong thing.

use super::select::image;

/// Digits of an image, highest first: lowest bit and number of bits. Counters of one digit stay in the first-level
/// cache.
const DIGITS: [(u32, u32); 3] = [(20, 11), (9, 11), (0, 9)];

/// The image of the `k`-th largest, for `k` from 1, and how many of the `k` equal it.
pub(super) fn kth_largest(values: &[f32], k: usize) -> (i32, usize) {
    let (mut known, mut left) = (0, k);
    for (shift, bits) in DIGITS {
        let mut counts = vec![0_usize; 1 << bits];
        for image in values.iter().map(|x| image(*x)) {
            let digit = (image >> shift) & ((1 << bits) - 1);
            counts[digit as usize] += usize::from(image >> shift >> bits == known);
        }
        let mut digit = counts.len() - 1;
        while counts[digit] < left {
            left -= counts[digit];
            digit -= 1;
        }
        known = known << bits | digit as i32;
    }
    (known, left)
}
