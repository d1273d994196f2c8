//! Products of small integers, which are exact; the same bits on all instruction sets; an orthonormal base, or zeros.

use super::*;
use crate::kernels::{Isa, vectorised_with};

const SHAPES: [(usize, usize, usize); 9] =
    [(0, 3, 1), (1, 1, 1), (2, 16, 1), (3, 15, 2), (4, 17, 3), (5, 40, 4), (9, 33, 5), (70, 50, 8), (40, 65, 32)];

/// Different integers between -8 and 8, in no pattern that fits a block.
fn integers(len: usize, seed: u64) -> Vec<f32> {
    let dice = Dice::new(&[seed]);
    (0..len as u64).map(|i| (dice.short(i) % 17) as f32 - 8.0).collect()
}

fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let dice = Dice::new(&[seed]);
    (0..len as u64).map(|i| uniform(dice.short(i)) * (dice.at(i) as u8 as f32 / 8.0 - 16.0).exp2()).collect()
}

/// Element (i, j) of a product of `depth` terms.
fn product(rows: usize, cols: usize, depth: usize, term: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
    let element = |k: usize| (0..depth).map(|d| term(k / cols, k % cols, d)).sum();
    (0..rows * cols).map(element).collect()
}

#[test]
fn products_of_integers_are_exact() {
    for (rows, cols, r) in SHAPES {
        let shape = Shape { rows, cols, r };
        let (m, p, q) = (integers(rows * cols, 1), integers(rows * r, 2), integers(cols * r, 3));
        let (mut left, mut right, mut whole) = (vec![f32::NAN; rows * r], vec![f32::NAN; cols * r], m.clone());
        shape.times(&m, &q, &mut left);
        assert_eq!(left, product(rows, r, cols, |i, j, c| m[i * cols + c] * q[c * r + j]), "{shape:?}");
        shape.transposed_times(&m, &p, &mut right);
        assert_eq!(right, product(cols, r, rows, |c, j, i| m[i * cols + c] * p[i * r + j]), "{shape:?}");
        let outer = product(rows, cols, r, |i, c, j| p[i * r + j] * q[c * r + j]);
        shape.subtract_outer(&p, &q, &mut whole);
        assert_eq!(whole, m.iter().zip(&outer).map(|(x, product)| x - product).collect::<Vec<_>>(), "{shape:?}");
        shape.outer(&p, &q, &mut whole);
        assert_eq!(whole, outer, "{shape:?}");
    }
}

/// The bits of all results.
fn all_bits(isa: Isa, shape: Shape, m: &[f32], p: &[f32], q: &[f32]) -> Vec<u32> {
    let Shape { rows, cols, r } = shape;
    let lanes = laid_out(q, r);
    let (mut left, mut right) = (vec![0.0; rows * r], vec![[0.0; LANES]; lanes.len()]);
    vectorised_with(isa, Times { shape, m, q: &lanes, p: &mut left });
    vectorised_with(isa, TransposedTimes { shape, m, p, q: &mut right });
    let (mut outer, mut rest) = (vec![0.0; rows * cols], m.to_vec());
    vectorised_with(isa, Outer { shape, p, q: &lanes, m: &mut outer, join: |_, product| product });
    vectorised_with(isa, Outer { shape, p, q: &lanes, m: &mut rest, join: |x, product| x - product });
    let mut base: Vec<Vec<Lanes>> = right.chunks_exact(r).map(<[Lanes]>::to_vec).collect();
    vectorised_with(isa, Orthogonalise { columns: &mut base });
    let right = right.as_flattened().iter().map(|x| settled(*x));
    let all = left.into_iter().chain(right).chain(outer).chain(rest).chain(base.concat().into_flattened());
    all.map(f32::to_bits).collect()
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    for (rows, cols, r) in SHAPES {
        let shape = Shape { rows, cols, r };
        let (mut m, p, q) = (numbers(rows * cols, 1), numbers(rows * r, 2), numbers(cols * r, 3));
        for spoilt in [None, Some(f32::from_bits(0xffc0_1234)), Some(f32::INFINITY)] {
            if let (Some(x), Some(last)) = (spoilt, m.last_mut()) {
                *last = x;
            }
            let expected = all_bits(Isa::Scalar, shape, &m, &p, &q);
            for isa in Isa::available() {
                assert!(all_bits(isa, shape, &m, &p, &q) == expected, "{shape:?} with {spoilt:?} on {isa}");
            }
        }
    }
}

/// Scalar product of columns j and k.
fn along(p: &[f32], r: usize, j: usize, k: usize) -> f64 {
    p.chunks(r).map(|row| f64::from(row[j]) * f64::from(row[k])).sum()
}

#[test]
fn a_base_is_orthonormal_and_spans_the_same() {
    for (rows, r) in [(1, 1), (3, 2), (16, 4), (100, 8), (1000, 32)] {
        let shape = Shape { rows, cols: 1, r };
        for scale in [1.0, 1e-38, 1e30] {
            let before: Vec<f32> = numbers(rows * r, 9).iter().map(|x| x * scale).collect();
            let mut base = before.clone();
            shape.orthogonalise(&mut base);
            for (j, k) in (0..r).flat_map(|j| (0..=j).map(move |k| (j, k))) {
                let expected = if j == k { 1.0 } else { 0.0 };
                // A sum of `rows` products of which each is rounded by 2^-24 of at most 1: far below.
                assert!((along(&base, r, j, k) - expected).abs() < 1e-5, "{shape:?} {scale}: {j}, {k}");
            }
            // Column j is what the first j + 1 of the base say of it.
            for j in 0..r {
                let column: Vec<f64> = before.chunks(r).map(|row| f64::from(row[j])).collect();
                let length = column.iter().map(|x| x * x).sum::<f64>();
                let said =
                    (0..=j).map(|k| base.chunks(r).zip(&column).map(|(row, x)| f64::from(row[k]) * x).sum::<f64>());
                let said = said.map(|x| x * x).sum::<f64>();
                assert!((said / length - 1.0).abs() < 1e-5, "{shape:?} {scale}: column {j}");
            }
        }
    }
}

#[test]
fn columns_that_say_nothing_new_become_zero() {
    // Of unit length, zero, the first doubled, the first and the last together, and one that is new.
    let mut p = vec![];
    for i in 0..50 {
        let (first, new) = ((i % 7) as f32 - 3.0, (i % 5) as f32 - 1.0);
        p.extend([first, 0.0, 2.0 * first, new, 0.5 * new - 3.0 * first]);
    }
    Shape { rows: 50, cols: 1, r: 5 }.orthogonalise(&mut p);
    for (j, expected) in [(0, 1.0), (1, 0.0), (2, 0.0), (3, 1.0), (4, 0.0)] {
        let length = along(&p, 5, j, j);
        assert!(if expected == 0.0 { length == 0.0 } else { (length - 1.0).abs() < 1e-5 }, "column {j}: {length}");
    }
}

#[test]
fn what_is_not_finite_becomes_nan_from_its_column_on() {
    for spoilt in [f32::INFINITY, f32::NAN] {
        let mut p = [3.0, spoilt, 1.0, 4.0, 2.0, 0.0];
        Shape { rows: 2, cols: 1, r: 3 }.orthogonalise(&mut p);
        assert_eq!([p[0], p[3]], [0.6, 0.8]);
        assert!([p[1], p[2], p[4], p[5]].iter().all(|x| x.to_bits() == f32::NAN.to_bits()), "{p:?}");
    }
}

#[test]
fn one_step_finds_a_matrix_of_low_rank() {
    let (rows, cols, r) = (60, 45, 3);
    let shape = Shape { rows, cols, r };
    let mut m = vec![0.0; rows * cols];
    shape.outer(&integers(rows * r, 4), &integers(cols * r, 5), &mut m);
    let (mut p, mut q, mut rest) = (vec![0.0; rows * r], vec![0.0; cols * r], m.clone());
    shape.refill(Dice::new(&[1]), &mut q);
    shape.times(&m, &q, &mut p);
    shape.orthogonalise(&mut p);
    shape.transposed_times(&m, &p, &mut q);
    shape.subtract_outer(&p, &q, &mut rest);
    let largest = rest.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    // Elements are below 3 * 64 = 192 and rounded by 2^-24 of that about `cols` times.
    assert!(largest < 192.0 * 45.0 / (1 << 23) as f32, "{largest}");
}

#[test]
fn only_columns_that_say_nothing_are_refilled() {
    let shape = Shape { rows: 1, cols: 3, r: 4 };
    let mut q = [1.0, 0.0, 0.0, 7.0, 0.0, 0.0, f32::NAN, f32::INFINITY, 2.0, -0.0, 1.0, 5.0];
    shape.refill(Dice::new(&[8]), &mut q);
    assert_eq!([q[0], q[4], q[8]], [1.0, 0.0, 2.0]);
    let mut random = [1, 5, 9, 2, 6, 10, 3, 7, 11].map(|i| q[i]);
    assert!(random.iter().all(|x| x.abs() < 1.0 && *x != 0.0), "{random:?}");
    random.sort_unstable_by(f32::total_cmp);
    assert!(random.windows(2).all(|pair| pair[0] < pair[1]), "{random:?}");
    let refilled = q;
    shape.refill(Dice::new(&[9]), &mut q);
    assert_eq!(q, refilled);
    assert_eq!([uniform(0), uniform(u32::MAX)], [1.0 / 8_388_608.0 - 1.0, 1.0 - 1.0 / 8_388_608.0]);
}
