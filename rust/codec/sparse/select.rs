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

use std::ops::Range;

use super::bracket::Bracket;
use super::radix;
use crate::kernels::{Loop, Machine, vectorised};

/// The places of the `k` largest magnitudes of `values`, ascending; of equals the first. NaN counts as larger than
/// infinity. `picks` is cleared before.
///
/// # Panics
/// When `k` exceeds the number of values, or that `u32::MAX`.
pub fn top_k(values: &[f32], k: usize, picks: &mut Vec<u32>) {
    vectorised(TopK { count: values.len(), source: values, k, picks });
}

/// The same of values that are made on the way, in `values`: an array that is longer than the caches is read once.
///
/// # Panics
/// As `top_k`.
pub fn top_k_of(made: &mut impl Make, values: &mut [f32], k: usize, picks: &mut Vec<u32>) {
    vectorised(TopK { count: values.len(), source: Making { made, values }, k, picks });
}

/// What makes values.
pub trait Make {
    /// The value at a place, before it is made.
    fn at(&self, place: usize) -> f32;
    /// Makes those of `range`, each of which is made once.
    fn make(&mut self, range: Range<usize>, values: &mut [f32]);
}

/// Where values come from: those that are there, or those that are made.
trait Source {
    fn at(&self, place: usize) -> f32;
    /// From a multiple of `PIECE` on, as many or what is left.
    fn piece(&mut self, start: usize) -> &[f32];
    /// All of them, once all have been read as pieces.
    fn all(&self) -> &[f32];
}

/// Values that are made and looked at while they are in the nearest cache.
const PIECE: usize = 4 << 10;

impl Source for &[f32] {
    #[inline(always)]
    fn at(&self, place: usize) -> f32 {
        self[place]
    }
    #[inline(always)]
    fn piece(&mut self, start: usize) -> &[f32] {
        &self[start..self.len().min(start + PIECE)]
    }
    #[inline(always)]
    fn all(&self) -> &[f32] {
        self
    }
}

struct Making<'a, M> {
    made: &'a mut M,
    values: &'a mut [f32],
}

impl<M: Make> Source for Making<'_, M> {
    #[inline(always)]
    fn at(&self, place: usize) -> f32 {
        self.made.at(place)
    }
    #[inline(always)]
    fn piece(&mut self, start: usize) -> &[f32] {
        let range = start..self.values.len().min(start + PIECE);
        self.made.make(range.clone(), &mut self.values[range.clone()]);
        &self.values[range]
    }
    #[inline(always)]
    fn all(&self) -> &[f32] {
        self.values
    }
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

struct TopK<'a, S> {
    count: usize,
    source: S,
    k: usize,
    picks: &'a mut Vec<u32>,
}

impl<S: Source> Loop for TopK<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let TopK { count, mut source, k, picks } = self;
        assert!(k <= count, "the largest {k} of {count} elements");
        assert!(count <= u32::MAX as usize, "an array of {count} elements is too long for sparse payloads");
        if k == 0 || k == count {
            (0..count).step_by(PIECE).for_each(|start| _ = source.piece(start));
            picks.clear();
            picks.extend(0..k as u32);
            return;
        }
        let bracket = Bracket::of(count, |place| source.at(place), k);
        let wanted = Wanted { above: bracket.low, ties: 0 };
        let fits = collect(machine, (&mut source, count), wanted, bracket.limit, picks);
        let values = source.all();
        if fits && picks.len() >= k {
            return settle(values, k, bracket.high, picks);
        }
        if fits {
            // All above low are fewer than k: low is the k-th itself, if the array has enough of it.
            let ties = k - picks.len();
            collect(machine, (&mut { values }, count), Wanted { above: bracket.low, ties }, k, picks);
            if picks.len() == k {
                return;
            }
        }
        let (kth, ties) = radix::kth_largest(values, k);
        collect(machine, (&mut { values }, count), Wanted { above: kth, ties }, k, picks);
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
        let AtLeast { mut values, picks, .. } = self;
        collect(machine, (&mut values, count), Wanted { above: least - 1, ties: 0 }, count, picks);
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
/// `limit`; all values have been read, and made, nevertheless.
#[inline(always)]
fn collect<M: Machine, S: Source>(
    machine: M,
    (source, count): (&mut S, usize),
    mut wanted: Wanted,
    limit: usize,
    picks: &mut Vec<u32>,
) -> bool {
    picks.clear();
    for start in (0..count).step_by(PIECE) {
        let piece = source.piece(start);
        if picks.len() > limit {
            continue;
        }
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for (b, block) in blocks.iter().enumerate() {
            collect_block(machine, block, start + b * BLOCK, &mut wanted, picks);
        }
        if !rest.is_empty() {
            // Zeros may be wanted too: those that fill up the last block lie at the end of it.
            let mut last = [0.0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            collect_block(machine, &last, start + blocks.len() * BLOCK, &mut wanted, picks);
            let beyond = picks.iter().rev().take_while(|pick| **pick as usize >= count).count();
            picks.truncate(picks.len() - beyond);
        }
    }
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
