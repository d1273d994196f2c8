//! What a sample says about the k-th largest magnitude, before the array is read.

use super::select::{image, kth_largest};
use crate::codec::Dice;

/// Images between which the `k`-th largest most likely lies, ends included.
pub(super) struct Bracket {
    pub(super) low: i32,
    pub(super) high: i32,
    /// How many of the array may lie above `low`; more mean that the sample misled.
    pub(super) limit: usize,
}

impl Bracket {
    /// For `k` from 1 to less than `count`, of values that `value` gives by place. One value is drawn from each of as many equal parts of the
    /// array as the sample has values, so that no period of the data fits it.
    ///
    /// The number of sampled values among the `k` largest has mean `q = sample k / count` and deviation below `sqrt q`;
    /// the bracket leaves four of them, and a few for small numbers, on either side.
    pub(super) fn of(count: usize, value: impl Fn(usize) -> f32, k: usize) -> Bracket {
        let mut images: Vec<i32> = sampled(count).map(|place| image(value(place))).collect();
        let sample = images.len();
        let rank = (sample as u64 * k as u64 / count as u64) as usize;
        let margin = spread(rank);
        let beyond = rank + margin;
        let low = if beyond < sample { kth_largest(&mut images, beyond) } else { -1 };
        // Selecting has put the larger ones in front.
        let high = if rank > margin { kth_largest(&mut images[..beyond.min(sample)], rank - margin) } else { i32::MAX };
        Bracket { low, high, limit: count.min((beyond + spread(beyond)) * count.div_ceil(sample)) }
    }
}

/// The places of a sample of `count` values.
pub(super) fn sampled(count: usize) -> impl Iterator<Item = usize> {
    let sample = (count / SPARING).clamp(count.min(LEAST), MOST);
    let (part, dice) = (count / sample, Dice::new(&[]));
    (0..sample).map(move |i| i * part + ((u64::from(dice.short(i as u64)) * part as u64) >> 32) as usize)
}

/// One value in so many is sampled, but no fewer and no more than these.
const SPARING: usize = 32;
const LEAST: usize = 1 << 10;
const MOST: usize = 1 << 14;

/// Four standard deviations of how many of a sample lie above a value, where `rank` are expected to.
fn spread(rank: usize) -> usize {
    4 * rank.isqrt() + 8
}
