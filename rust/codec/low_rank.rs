//! A matrix as the product of two thin ones: the linear algebra of PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019).
//!
//! ```text
//! M  rows x cols, a gradient          before   Q random where it says nothing       `refill`
//! P  rows x r     left factor         step     P = M Q,    summed over ranks        `times`
//! Q  cols x r     right factor                 P = an orthonormal base of it        `orthogonalise`
//!                                              Q = M^T P,  summed over ranks        `transposed_times`
//!                                     after    M ~ P Q^T,  residual M - P Q^T       `outer`, `subtract_outer`
//! ```
//! All are row-major. M is much larger than the factors, so every loop reads it once, in order, 16 columns at a time;
//! for that, Q lies as `Lanes`: row by row of 16-column blocks.
//!
//! The order of every sum is written down, so all instruction sets give the same bits; NaN is canonical. A process that
//! flushes subnormals to zero may differ in them. Knows neither ranks nor residuals.

mod base;

use super::Dice;
use crate::kernels::{Loop, Machine, vectorised};
use base::Orthogonalise;

/// The sizes of a matrix and its factors. `r`, the rank of the product, is small; it and `cols` are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub r: usize,
}

impl Shape {
    /// Columns of `q` that hold nothing but zeros, or anything that is not finite, become random numbers: those of a
    /// new `q`, and those that no later step would revive. Almost surely no column lies in the span of the others.
    ///
    /// # Panics
    /// As all methods do, when an operand has another length than its shape.
    pub fn refill(self, dice: Dice, q: &mut [f32]) {
        check(q, self.cols, self.r, "right factor");
        for j in 0..self.r {
            let column = || q.iter().skip(j).step_by(self.r);
            if column().all(|x| x.is_finite()) && column().any(|x| *x != 0.0) {
                continue;
            }
            for i in (j..q.len()).step_by(self.r) {
                q[i] = uniform(dice.short(i as u64));
            }
        }
    }

    /// `p = m q`.
    pub fn times(self, m: &[f32], q: &[f32], p: &mut [f32]) {
        self.check(m, p, q);
        vectorised(Times { shape: self, m, q: &laid_out(q, self.r), p });
    }

    /// `q = m^T p`.
    pub fn transposed_times(self, m: &[f32], p: &[f32], q: &mut [f32]) {
        self.check(m, p, q);
        let mut lanes = vec![[0.0; LANES]; self.cols.div_ceil(LANES) * self.r];
        vectorised(TransposedTimes { shape: self, m, p, q: &mut lanes });
        for (c, row) in q.chunks_exact_mut(self.r).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x = settled(lanes[c / LANES * self.r + j][c % LANES]);
            }
        }
    }

    /// The columns of `p` become orthogonal to those before them, and of length 1. One that lies in their span, to
    /// rounding, becomes zero; one that holds anything not finite, and those after it, NaN.
    pub fn orthogonalise(self, p: &mut [f32]) {
        check(p, self.rows, self.r, "left factor");
        let mut columns = vec![vec![[0.0; LANES]; self.rows.div_ceil(LANES)]; self.r];
        for (i, x) in p.iter().enumerate() {
            columns[i % self.r][i / self.r / LANES][i / self.r % LANES] = *x;
        }
        vectorised(Orthogonalise { columns: &mut columns });
        for (i, x) in p.iter_mut().enumerate() {
            *x = columns[i % self.r][i / self.r / LANES][i / self.r % LANES];
        }
    }

    /// `m = p q^T`.
    pub fn outer(self, p: &[f32], q: &[f32], m: &mut [f32]) {
        self.check(m, p, q);
        vectorised(Outer { shape: self, p, q: &laid_out(q, self.r), m, join: |_, product| product });
    }

    /// `m -= p q^T`: what the product leaves out.
    pub fn subtract_outer(self, p: &[f32], q: &[f32], m: &mut [f32]) {
        self.check(m, p, q);
        vectorised(Outer { shape: self, p, q: &laid_out(q, self.r), m, join: |x, product| x - product });
    }

    fn check(self, m: &[f32], p: &[f32], q: &[f32]) {
        check(m, self.rows, self.cols, "matrix");
        check(p, self.rows, self.r, "left factor");
        check(q, self.cols, self.r, "right factor");
    }
}

fn check(x: &[f32], rows: usize, cols: usize, what: &str) {
    assert!(cols > 0 && x.len() == rows * cols, "a {what} of {} numbers where {rows} x {cols} are due", x.len());
}

/// Columns that are worked on together, and partial sums of a scalar product: as many as the widest vector has numbers.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// A right factor by blocks of `LANES` columns of the matrix: of each block `r` rows. The last is filled up with zeros.
fn laid_out(q: &[f32], r: usize) -> Vec<Lanes> {
    let mut lanes = vec![[0.0; LANES]; (q.len() / r).div_ceil(LANES) * r];
    for (c, row) in q.chunks_exact(r).enumerate() {
        for (j, x) in row.iter().enumerate() {
            lanes[c / LANES * r + j][c % LANES] = *x;
        }
    }
    lanes
}

/// Of 32 random bits a number between -1 and 1, never 0: exact, as an odd number of 24 bits and a power of two.
fn uniform(bits: u32) -> f32 {
    ((bits >> 8 | 1) as f32 - 8_388_608.0) / 8_388_608.0
}

/// The canonical NaN for any NaN: which one an operation gives depends on the order of its operands, which the compiler
/// may change.
#[inline(always)]
fn settled(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// `x` filled up with zeros.
#[inline(always)]
fn padded(x: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

/// Always in the same order: halves upon each other. Not inlined: seeing how lanes are added in the end, the compiler
/// splits the vectors of the loop before it, which then takes twice as long.
#[inline(never)]
fn total(x: &Lanes) -> f32 {
    let mut x = *x;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            x[i] += x[i + half];
        }
    }
    x[0]
}

#[inline(always)]
fn add_product(mut sum: Lanes, x: &Lanes, y: &Lanes) -> Lanes {
    for i in 0..LANES {
        sum[i] += x[i] * y[i];
    }
    sum
}

/// Element (i, j) of P is a scalar product of row i of M: `LANES` partial sums, then their `total`.
struct Times<'a> {
    shape: Shape,
    m: &'a [f32],
    q: &'a [Lanes],
    p: &'a mut [f32],
}

impl Loop for Times<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) {
        let Shape { cols, r, .. } = self.shape;
        for (row, p) in self.m.chunks_exact(cols).zip(self.p.chunks_exact_mut(r)) {
            let (groups, rest) = p.as_chunks_mut::<4>();
            let grouped = 4 * groups.len();
            for (g, p) in groups.iter_mut().enumerate() {
                *p = scalar_products(row, self.q, r, 4 * g);
            }
            for (j, p) in rest.iter_mut().enumerate() {
                [*p] = scalar_products(row, self.q, r, grouped + j);
            }
        }
    }
}

/// Those of `row` and columns `first..first + N` of the right factor.
#[inline(always)]
fn scalar_products<const N: usize>(row: &[f32], q: &[Lanes], r: usize, first: usize) -> [f32; N] {
    let mut sums = [[0.0; LANES]; N];
    let (blocks, rest) = row.as_chunks::<LANES>();
    let whole = blocks.len() * r;
    for (block, q) in blocks.iter().zip(q[..whole].chunks_exact(r)) {
        let q: &[Lanes; N] = q[first..].first_chunk().expect("as many columns as the caller says");
        for n in 0..N {
            sums[n] = add_product(sums[n], block, &q[n]);
        }
    }
    if !rest.is_empty() {
        for n in 0..N {
            sums[n] = add_product(sums[n], &padded(rest), &q[whole + first + n]);
        }
    }
    let mut products = [0.0; N];
    for (product, sum) in products.iter_mut().zip(&sums) {
        *product = settled(total(sum));
    }
    products
}

/// Column c of M times P, as sums over the rows in order, four rows at a time.
struct TransposedTimes<'a> {
    shape: Shape,
    m: &'a [f32],
    p: &'a [f32],
    q: &'a mut [Lanes],
}

/// Rows that are worked on together, so that sums are read and written less often.
const ROWS: usize = 4;

impl Loop for TransposedTimes<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) {
        let Shape { rows, cols, r } = self.shape;
        let (no_row, no_factors) = (vec![0.0; cols], vec![0.0; r]);
        for first in (0..rows).step_by(ROWS) {
            let (mut m, mut p) = ([&no_row[..]; ROWS], [&no_factors[..]; ROWS]);
            for i in 0..ROWS.min(rows - first) {
                m[i] = &self.m[(first + i) * cols..][..cols];
                p[i] = &self.p[(first + i) * r..][..r];
            }
            add_rows(m, p, r, self.q);
        }
    }
}

#[inline(always)]
fn add_rows(m: [&[f32]; ROWS], p: [&[f32]; ROWS], r: usize, q: &mut [Lanes]) {
    let [a, b, c, d] = m.map(|row| row.as_chunks::<LANES>());
    let last = [padded(a.1), padded(b.1), padded(c.1), padded(d.1)];
    let whole = a.0.len();
    for (k, q) in q.chunks_exact_mut(r).enumerate() {
        let blocks = if k < whole { [a.0[k], b.0[k], c.0[k], d.0[k]] } else { last };
        for (j, q) in q.iter_mut().enumerate() {
            let factors = [p[0][j], p[1][j], p[2][j], p[3][j]];
            for i in 0..LANES {
                let first = blocks[0][i] * factors[0] + blocks[1][i] * factors[1];
                q[i] += first + (blocks[2][i] * factors[2] + blocks[3][i] * factors[3]);
            }
        }
    }
}

/// What becomes of every element of M, given what it was and the same element of `P Q^T`: products summed in order.
struct Outer<'a, J> {
    shape: Shape,
    p: &'a [f32],
    q: &'a [Lanes],
    m: &'a mut [f32],
    join: J,
}

impl<J: Fn(f32, f32) -> f32> Loop for Outer<'_, J> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) {
        let Outer { shape: Shape { rows, cols, r }, p, q, m, join } = self;
        for i in 0..rows {
            let p = &p[i * r..][..r];
            let (blocks, rest) = m[i * cols..][..cols].as_chunks_mut::<LANES>();
            for (k, block) in blocks.iter_mut().enumerate() {
                let product = outer_block(p, &q[k * r..][..r]);
                for l in 0..LANES {
                    block[l] = settled(join(block[l], product[l]));
                }
            }
            if rest.is_empty() {
                continue;
            }
            let product = outer_block(p, &q[q.len() - r..]);
            for (x, product) in rest.iter_mut().zip(product) {
                *x = settled(join(*x, product));
            }
        }
    }
}

#[inline(always)]
fn outer_block(p: &[f32], q: &[Lanes]) -> Lanes {
    let mut sum = [0.0; LANES];
    for (p, q) in p.iter().zip(q) {
        sum = add_product(sum, &[*p; LANES], q);
    }
    sum
}

#[cfg(test)]
mod tests;
