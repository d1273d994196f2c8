//! Which elements are large.
//!
//! Magnitudes are compared as integers, `image`: the bits of a float without its sign order as the float does. NaN,
//! whatever its bits, counts as one value above infinity, so that it is sent rather than lost.
//!
//! ```text
//! bracket    the k-th of a sample of the magnitudes, give or take: low, high
//! collect    one pass: places of all above low, 64 elements compared at a time      most blocks of the array have none
//! settle     the k-th of those, exactly; which of its equals are the first
//!
//!   too few above low     low is the k-th itself (many equals): a second pass takes the first of them
//!   neither, or too many  the sample misled: radix, three passes that count
//! ```
//! Every step is linear at worst, whatever the values; the sample is drawn with the same dice always, so the time
//! repeats as well.

use super::bracket::Bracket;
use super::radix;
use crate::kernels::{Loop, Machine, vectorised};

/// The places of the `k` largest magnitudes of `values`, ascending; of equals the first. NaN counts as larger than
/// infinity. `picks` is cleared before.
///
/// # Panics
/// When `k` exceeds the number of values, or that `u32::MAX`.
pub fn top_k(values: &[f32], k: usize, picks: &mut Vec<u32>) {
    vectorised(TopK { values, k, picks });
}

/// The places of all magnitudes of at least `threshold`, of infinities and of NaN, ascending. `picks` is cleared
/// before. A threshold of zero or less picks everything; NaN as a threshold what infinity does.
///
/// # Panics
/// When there are more than `u32::MAX` values.
pub fn at_least(values: &[f32], threshold: f32, picks: &mut Vec<u32>) {
    vectorised(AtLeast { values, threshold, picks });
}

const INFINITY: i32 = 0x7f80_0000;

/// An integer that orders as the magnitude of `x` does.
#[inline(always)]
pub(super) fn image(x: f32) -> i32 {
    ((x.to_bits() & 0x7fff_ffff) as i32).min(INFINITY + 1)
}

/// The `k`-th largest of `images`, for `k` from 1.
pub(super) fn kth_largest(images: &mut [i32], k: usize) -> i32 {
    *images.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1
}

struct TopK<'a> {
    values: &'a [f32],
    k: usize,
    picks: &'a mut Vec<u32>,
}

impl Loop for TopK<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let TopK { values, k, picks } = self;
        let count = values.len();
        assert!(k <= count, "the largest {k} of {count} elements");
        assert!(count <= u32::MAX as usize, "an array of {count} elements is too long for sparse payloads");
        if k == 0 || k == count {
            picks.clear();
            picks.extend(0..k as u32);
            return;
        }
        let bracket = Bracket::of(values, k);
        let fits = collect(machine, values, Wanted { above: bracket.low, ties: 0 }, bracket.limit, picks);
        if fits && picks.len() >= k {
            return settle(values, k, bracket.high, picks);
        }
        if fits {
            // All above low are fewer than k: low is the k-th itself, if the array has enough of it.
            let ties = k - picks.len();
            collect(machine, values, Wanted { above: bracket.low, ties }, k, picks);
            if picks.len() == k {
                return;
            }
        }
        let (kth, ties) = radix::kth_largest(values, k);
        collect(machine, values, Wanted { above: kth, ties }, k, picks);
    }
}

struct AtLeast<'a> {
    values: &'a [f32],
    threshold: f32,
    picks: &'a mut Vec<u32>,
}

impl Loop for AtLeast<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let count = self.values.len();
        assert!(count <= u32::MAX as usize, "an array of {count} elements is too long for sparse payloads");
        let least = if self.threshold <= 0.0 { 0 } else { image(self.threshold).min(INFINITY) };
        collect(machine, self.values, Wanted { above: least - 1, ties: 0 }, count, self.picks);
    }
}

/// Images above one, and the first `ties` that equal it.
struct Wanted {
    above: i32,
    ties: usize,
}

/// Elements compared at a time: bits of a word.
const BLOCK: usize = 64;

/// `picks` becomes the places of all that is wanted, ascending. False, and only some of them, when they are more than
/// `limit`.
#[inline(always)]
fn collect<M: Machine>(machine: M, values: &[f32], mut wanted: Wanted, limit: usize, picks: &mut Vec<u32>) -> bool {
    picks.clear();
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    for (b, block) in blocks.iter().enumerate() {
        collect_block(machine, block, b * BLOCK, &mut wanted, picks);
        if picks.len() > limit {
            return false;
        }
    }
    // Zeros may be wanted too: those that fill up the last block lie at the end of it.
    let mut last = [0.0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    collect_block(machine, &last, blocks.len() * BLOCK, &mut wanted, picks);
    let beyond = picks.iter().rev().take_while(|pick| **pick as usize >= values.len()).count();
    picks.truncate(picks.len() - beyond);
    picks.len() <= limit
}

#[inline(always)]
fn collect_block<M: Machine>(machine: M, x: &[f32; BLOCK], start: usize, wanted: &mut Wanted, picks: &mut Vec<u32>) {
    let mut images = [0; BLOCK];
    for i in 0..BLOCK {
        images[i] = image(x[i]);
    }
    if wanted.ties == 0 {
        let mut mask = machine.above(&images, wanted.above);
        while mask != 0 {
            picks.push(start as u32 + mask.trailing_zeros());
            mask &= mask - 1;
        }
        return;
    }
    let mut mask = machine.above(&images, wanted.above - 1);
    while mask != 0 {
        let i = mask.trailing_zeros();
        mask &= mask - 1;
        if images[i as usize] == wanted.above {
            if wanted.ties == 0 {
                continue;
            }
            wanted.ties -= 1;
        }
        picks.push(start as u32 + i);
    }
}

/// Keeps the `k` largest of `picks`, which are at least that many and hold all of them. Those above `high` are fewer
/// than `k` unless the sample misled, and need no ordering.
fn settle(values: &[f32], k: usize, high: i32, picks: &mut Vec<u32>) {
    let mut images: Vec<i32> = picks.iter().map(|pick| image(values[*pick as usize])).collect();
    let mut band: Vec<i32> = images.iter().copied().filter(|image| *image <= high).collect();
    let above = images.len() - band.len();
    let kth = if above < k { kth_largest(&mut band, k - above) } else { kth_largest(&mut images.clone(), k) };
    let mut ties = k - images.iter().filter(|image| **image > kth).count();
    let mut kept = 0;
    for (i, image) in images.drain(..).enumerate() {
        let tie = image == kth && ties > 0;
        picks[kept] = picks[i];
        kept += usize::from(tie || image > kth);
        ties -= usize::from(tie);
    }
    picks.truncate(kept);
}

#[cfg(test)]
mod tests;
