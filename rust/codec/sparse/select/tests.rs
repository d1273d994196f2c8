//! Selection against sorting, on every instruction set, for values that invite mistakes and for those that mislead the
//! sample.

use super::*;
use crate::codec::Dice;
use crate::codec::sparse::bracket::sampled;
use crate::kernels::{Isa, vectorised_with};

/// By sorting: the largest first, of equals the first.
fn sorted_top(values: &[f32], k: usize) -> Vec<u32> {
    let mut places: Vec<u32> = (0..values.len() as u32).collect();
    places.sort_by_key(|place| (-i64::from(image(values[*place as usize])), *place));
    places.truncate(k);
    places.sort_unstable();
    places
}

fn check(values: &[f32], k: usize, what: &str) {
    let expected = sorted_top(values, k);
    for isa in Isa::available() {
        let mut picks = vec![7; 3];
        vectorised_with(isa, TopK { count: values.len(), source: values, k, picks: &mut picks });
        assert!(picks == expected, "{what}: the largest {k} of {} on {isa}", values.len());
    }
}

/// Values that are made in pieces, each once.
struct Halved<'a>(&'a [f32], usize);

impl Make for Halved<'_> {
    fn at(&self, place: usize) -> f32 {
        0.5 * self.0[place]
    }
    fn make(&mut self, range: Range<usize>, values: &mut [f32]) {
        assert_eq!(range.start, self.1, "each once, in order");
        self.1 = range.end;
        values.iter_mut().zip(&self.0[range]).for_each(|(value, twice)| *value = 0.5 * twice);
    }
}

#[test]
fn values_that_are_made_on_the_way_are_picked_like_others() {
    for count in [1, 100, 4096, 4097, 70_001] {
        for (what, twice) in inputs(count) {
            let halves: Vec<f32> = twice.iter().map(|x| 0.5 * x).collect();
            for k in [0, 1, count / 100, count / 2, count] {
                let (mut values, mut picks, mut expected) = (vec![9.0; count], vec![], vec![]);
                let mut made = Halved(&twice, 0);
                top_k_of(&mut made, &mut values, k, &mut picks);
                assert_eq!(made.1, count, "{what}: all are made");
                top_k(&halves, k, &mut expected);
                assert_eq!(picks, expected, "{what}: the largest {k} of {count}");
                assert!(values.iter().zip(&halves).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{what}");
            }
        }
    }
}

/// Named arrays of `count` values.
fn inputs(count: usize) -> Vec<(&'static str, Vec<f32>)> {
    let dice = Dice::new(&[count as u64]);
    let bits = |i: usize| dice.short(i as u64);
    let unit = |i: usize| (bits(i) >> 8) as f32 / (1 << 24) as f32;
    let made = |f: &dyn Fn(usize) -> f32| (0..count).map(f).collect::<Vec<f32>>();
    vec![
        ("any bits", made(&|i| f32::from_bits(bits(i)))),
        ("uniform", made(&|i| unit(i) - 0.5)),
        ("huge range", made(&|i| (unit(i) * 160.0 - 80.0).exp())),
        ("subnormal", made(&|i| f32::from_bits(bits(i) & 0x807f_ffff))),
        ("zeros of both signs", made(&|i| if bits(i) & 1 == 0 { 0.0 } else { -0.0 })),
        ("all equal", made(&|_| -3.5)),
        ("all NaN", made(&|i| f32::from_bits(0x7fc0_0000 | bits(i) & 0x803f_ffff))),
        ("infinities and NaN", made(&|i| [f32::INFINITY, f32::NAN, f32::NEG_INFINITY, f32::MAX][bits(i) as usize % 4])),
        ("two values", made(&|i| if bits(i) % 100 == 0 { 2.0 } else { -1.0 })),
        ("few values", made(&|i| (bits(i) % 5) as f32)),
        ("ascending", made(&|i| i as f32)),
        ("descending", made(&|i| (count - i) as f32)),
        ("one large block", made(&|i| if i * 50 < count { 1.0 + unit(i) } else { unit(i) })),
        ("mostly zero", made(&|i| if bits(i) % 300 == 0 { unit(i) } else { 0.0 })),
    ]
}

#[test]
fn the_largest_are_those_that_sorting_finds() {
    for count in [1, 2, 63, 64, 65, 1000, 1024, 5000, 70_001] {
        for (what, values) in inputs(count) {
            for k in [0, 1, 2, count / 1000, count / 100, count / 10, count / 2, count - count / 20, count - 1, count] {
                if k <= count {
                    check(&values, k, what);
                }
            }
        }
    }
}

#[test]
fn magnitudes_count_and_of_equals_the_first() {
    let pick = |values: &[f32], k| {
        let mut picks = vec![];
        top_k(values, k, &mut picks);
        picks
    };
    assert_eq!(pick(&[3.0, -5.0, 1.0, 2.0], 1), [1]);
    assert_eq!(pick(&[1.0, -1.0, 1.0, -1.0], 2), [0, 1]);
    assert_eq!(pick(&[f32::INFINITY, 1.0, f32::NAN, -f32::NAN], 2), [2, 3]);
    assert_eq!(pick(&[f32::INFINITY, 1.0, f32::NAN, f32::MAX], 2), [0, 2]);
    assert_eq!(pick(&[0.0, f32::from_bits(1), -0.0], 1), [1]);
    assert_eq!(pick(&[], 0), [] as [u32; 0]);
}

#[test]
fn a_sample_that_misleads_costs_time_only() {
    let count = 100_000;
    // All large values are sampled, or none: the bracket lies above the k-th, or far below it.
    let mut seen = vec![false; count];
    sampled(count).for_each(|place| seen[place] = true);
    for large in [true, false] {
        let values: Vec<f32> = (0..count)
            .map(|i| if seen[i] == large { 1e6 + (i * 7919 % count) as f32 } else { i as f32 / 1e6 })
            .collect();
        for k in [1, 100, 1000, 5000, 50_000] {
            check(&values, k, if large { "large values sampled" } else { "small values sampled" });
        }
    }
}

#[test]
fn digits_find_the_same_as_sorting() {
    for (what, values) in inputs(3000) {
        let mut images: Vec<i32> = values.iter().map(|x| image(*x)).collect();
        images.sort_unstable_by(|a, b| b.cmp(a));
        for k in [1, 2, 30, 1500, 2999, 3000] {
            let ties = images[..k].iter().filter(|image| **image == images[k - 1]).count();
            assert_eq!(radix::kth_largest(&values, k), (images[k - 1], ties), "{what}: {k}");
        }
    }
}

#[test]
fn a_threshold_picks_what_reaches_it_and_all_that_is_not_finite() {
    for (what, values) in inputs(1000) {
        for threshold in [0.0, -1.0, -0.0, 1e-40, 0.25, 1.0, 3.5, f32::MAX, f32::INFINITY, f32::NAN] {
            let picked = |x: &f32| x.abs() >= threshold || !x.is_finite();
            let expected: Vec<u32> = (0..1000).filter(|i| picked(&values[*i as usize])).collect();
            for isa in Isa::available() {
                let mut picks = vec![7; 3];
                vectorised_with(isa, AtLeast { values: &values, threshold, picks: &mut picks });
                assert!(picks == expected, "{what}: at least {threshold} on {isa}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "the largest 3 of 2 elements")]
fn more_than_there_are_is_a_mistake() {
    top_k(&[1.0, 2.0], 3, &mut vec![]);
}
