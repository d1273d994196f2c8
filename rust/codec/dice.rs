//! Random numbers that depend on nothing but a key and a position, so that runs can be repeated and loops vectorised.

/// One sequence of numbers: of one call on one rank, or of one call on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dice {
    key: u64,
}

impl Dice {
    /// Sequences of different `words` have nothing to do with each other.
    pub fn new(words: &[u64]) -> Dice {
        let stir = |key: u64, word: &u64| finish(key ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        Dice { key: words.iter().fold(words.len() as u64, stir) }
    }

    /// The number at `position`.
    #[inline(always)]
    pub fn at(self, position: u64) -> u64 {
        finish(self.key.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Another number at `position`, mixed in 32 bits, which vectorises twice as wide.
    #[inline(always)]
    pub fn short(self, position: u64) -> u32 {
        self.short_after(position, 0)
    }

    /// `short(start + offset)`, where nothing of the loop over offsets is 64 bits wide.
    #[inline(always)]
    pub fn short_after(self, start: u64, offset: u32) -> u32 {
        let (low, carried) = (start as u32).overflowing_add(offset);
        let row = ((start >> 32) as u32).wrapping_mul(0x9e37_79b9);
        let row = if carried { row.wrapping_add(0x9e37_79b9) } else { row };
        let high = (self.key >> 32) as u32 ^ row;
        let mut x = low.wrapping_add(self.key as u32);
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15) ^ high).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }
}

/// splitmix64's finaliser.
#[inline(always)]
fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_set_half_of_the_time_in_both_sequences() {
        let dice = Dice::new(&[3, 14]);
        const COUNT: u64 = 1 << 14;
        for bit in 0..32 {
            let short = (0..COUNT).filter(|i| dice.short(*i) >> bit & 1 == 1).count();
            let long = (0..COUNT).filter(|i| dice.at(*i) >> (2 * bit) & 1 == 1).count();
            // Six standard deviations of a binomial distribution are 384.
            for ones in [short, long] {
                assert!(ones.abs_diff(COUNT as usize / 2) < 384, "bit {bit}: {ones}");
            }
        }
    }

    #[test]
    fn a_sequence_goes_on_where_32_bits_end() {
        let dice = Dice::new(&[9]);
        for start in [0, 7, (1 << 32) - 2, (5 << 32) - 1, u64::from(u32::MAX) << 32] {
            for offset in [0, 1, 2, 3, 1 << 31, u32::MAX] {
                assert_eq!(
                    dice.short_after(start, offset),
                    dice.short(start + u64::from(offset)),
                    "{start} + {offset}"
                );
            }
        }
        assert_ne!(dice.short(3), dice.short(3 + (1 << 32)));
    }

    #[test]
    fn words_and_their_order_matter() {
        let first = |words: &[u64]| Dice::new(words).at(0);
        let mut all = [first(&[]), first(&[0]), first(&[0, 0]), first(&[1, 2]), first(&[2, 1]), first(&[1])];
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
