//! Columns that are orthogonal and of length 1, and span what the given ones did.

use super::{LANES, Lanes, add_product, total};
use crate::kernels::{Loop, Machine};

/// Gram and Schmidt's process as modified, and done twice for every column: once leaves rounding errors in proportion
/// to what it took away.
pub(super) struct Orthogonalise<'a> {
    pub(super) columns: &'a mut [Vec<Lanes>],
}

/// A column of which less than this is left lies in the span of those before: what is left is their rounding.
const SPANNED: f32 = 1.0 / (1 << 18) as f32;

impl Loop for Orthogonalise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) {
        for j in 0..self.columns.len() {
            let (before, column) = self.columns.split_at_mut(j);
            let column = &mut column[0];
            normalise(column, 0.0);
            for other in before.iter().chain(&*before) {
                let along = scalar_product(column, other);
                subtract(column, along, other);
            }
            normalise(column, SPANNED);
        }
    }
}

#[inline(always)]
fn scalar_product(a: &[Lanes], b: &[Lanes]) -> f32 {
    let mut sum = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        sum = add_product(sum, a, b);
    }
    total(&sum)
}

#[inline(always)]
fn subtract(column: &mut [Lanes], along: f32, other: &[Lanes]) {
    for (x, other) in column.iter_mut().zip(other) {
        for i in 0..LANES {
            x[i] -= along * other[i];
        }
    }
}

/// Divides a column by its length. It becomes zero where that is not above `least`, NaN where it is not finite.
#[inline(always)]
fn normalise(column: &mut [Lanes], least: f32) {
    let (mut largest, mut finite) = (0.0, true);
    for x in column.as_flattened() {
        finite &= x.is_finite();
        largest = if x.abs() > largest { x.abs() } else { largest };
    }
    if !finite || largest == 0.0 {
        column.fill([if finite { 0.0 } else { f32::NAN }; LANES]);
        return;
    }
    // The squares of what is left neither overflow nor vanish.
    scale(column, largest);
    let length = scalar_product(column, column).sqrt();
    if largest * length > least { scale(column, length) } else { column.fill([0.0; LANES]) }
}

#[inline(always)]
fn scale(column: &mut [Lanes], by: f32) {
    for x in column.as_flattened_mut() {
        *x /= by;
    }
}
