//! Places by lot.

use crate::codec::Dice;

/// `k` different places of `count`, ascending, every set of them equally likely; the same for the same `dice`. `picks`
/// is cleared before.
///
/// Draws places, and again where one came up before, into a bitmap of `count` bits; when more than half are wanted it
/// draws those that are left out. So at most `2 ln 2 k` draws are expected, and the order comes from reading the
/// bitmap.
///
/// # Panics
/// When `k` exceeds `count`, or `count` exceeds `u32::MAX`.
pub fn random_k(count: usize, k: usize, dice: Dice, picks: &mut Vec<u32>) {
    assert!(k <= count, "{k} of {count} elements");
    assert!(count <= u32::MAX as usize, "an array of {count} elements is too long for sparse payloads");
    picks.clear();
    picks.reserve(k);
    let left_out = if k > count / 2 { u64::MAX } else { 0 };
    let drawn = draw(count, k.min(count - k), dice);
    for (w, word) in drawn.into_iter().enumerate() {
        let start = 64 * w;
        let inside = u64::MAX >> (64 - (count - start).min(64));
        let mut word = (word ^ left_out) & inside;
        while word != 0 {
            picks.push(start as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
}

/// A bitmap of `count` bits with `k` of them set.
fn draw(count: usize, k: usize, dice: Dice) -> Vec<u64> {
    let mut drawn = vec![0; count.div_ceil(64)];
    let mut left = k;
    let mut draws = (0..).map(|position| dice.at(position));
    while left > 0 {
        let draw = draws.next().expect("an endless sequence");
        let Some(place) = below(count as u64, draw) else { continue };
        let (word, bit) = (&mut drawn[(place / 64) as usize], 1 << (place % 64));
        left -= usize::from(*word & bit == 0);
        *word |= bit;
    }
    drawn
}

/// A number below `count` from one of 64 bits: the upper half of their product. None for the few draws that would make
/// some numbers likelier than others (D. Lemire, "Fast random integer generation in an interval", 2019).
fn below(count: u64, draw: u64) -> Option<u64> {
    let product = u128::from(draw) * u128::from(count);
    let fair = product as u64 >= count || product as u64 >= count.wrapping_neg() % count;
    fair.then_some((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(count: usize, k: usize, words: &[u64]) -> Vec<u32> {
        let mut picks = vec![9; 2];
        random_k(count, k, Dice::new(words), &mut picks);
        picks
    }

    #[test]
    fn as_many_different_places_as_asked_for_and_the_same_ones_again() {
        for count in [1, 2, 63, 64, 65, 1000, 10_007] {
            for k in [0, 1, count / 100, count / 2, count / 2 + 1, count - 1, count] {
                let picks = drawn(count, k, &[5]);
                assert_eq!(picks.len(), k, "{k} of {count}");
                assert!(picks.windows(2).all(|pair| pair[0] < pair[1]), "{k} of {count}");
                assert!(picks.last().is_none_or(|last| (*last as usize) < count), "{k} of {count}");
                assert_eq!(picks, drawn(count, k, &[5]));
            }
        }
        assert!(drawn(0, 0, &[5]).is_empty());
        assert_ne!(drawn(1000, 10, &[5]), drawn(1000, 10, &[6]));
    }

    #[test]
    fn every_set_comes_up_equally_often() {
        const DRAWS: u64 = 20_000;
        for (count, k, sets) in [(6, 2, 15), (6, 3, 20), (6, 4, 15), (5, 1, 5)] {
            let mut seen = std::collections::BTreeMap::new();
            for draw in 0..DRAWS {
                *seen.entry(drawn(count, k, &[1, draw])).or_insert(0_u64) += 1;
            }
            assert_eq!(seen.len(), sets, "{k} of {count}");
            // Six standard deviations of a binomial distribution, whose variance is below its mean.
            let mean = DRAWS as f64 / sets as f64;
            for (set, times) in seen {
                assert!((times as f64 - mean).abs() < 6.0 * mean.sqrt(), "{set:?}: {times} of {mean}");
            }
        }
    }

    #[test]
    fn draws_that_would_make_some_numbers_likelier_are_refused() {
        // 2^64 = 3 * 0x5555555555555555 + 1: one draw is too many, the one whose product begins the first of three
        // parts.
        assert_eq!(below(3, 0), None);
        assert_eq!(below(3, 1), Some(0));
        assert_eq!(below(3, 0x5555_5555_5555_5555), Some(0));
        assert_eq!(below(3, 0x5555_5555_5555_5556), Some(1));
        assert_eq!(below(3, u64::MAX), Some(2));
        assert_eq!(below(4, 0), Some(0));
    }
}
