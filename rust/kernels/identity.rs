//! What leaves every value as it is when an operation combines the two.

use crate::dtype::{DType, ReduceOp};

use super::{Bytes, copy};

/// Bytes that are filled element by element, and then copied to the rest: a multiple of every element.
const PATTERN: usize = 4096;

/// Fills `dst` with the identity of `op`: 0 for a sum, 1 for a product, the largest value for a minimum, and so on.
///
/// # Panics
/// When `op` has none: an average.
pub fn fill_identity(dtype: DType, op: ReduceOp, dst: Bytes<'_>) {
    let word = identity(dtype, op);
    let (pattern, rest) = dst.split_at(dst.len().min(PATTERN));
    for element in pattern.chunks_exact(dtype.size()) {
        element.iter().zip(word).for_each(|(cell, byte)| cell.set(byte));
    }
    rest.chunks(PATTERN).for_each(|part| copy(part, &pattern[..part.len()]));
}

/// Bytes of one element, and then zeros.
fn identity(dtype: DType, op: ReduceOp) -> [u8; 16] {
    use ReduceOp::*;
    match op {
        Sum | BOr | BXor | LOr => [0; 16],
        Prod | LAnd => one(dtype),
        Min => largest(dtype, false),
        Max => largest(dtype, true),
        BAnd if dtype == DType::Bool => one(dtype),
        BAnd => [0xff; 16],
        Avg => panic!("an average has no identity"),
    }
}

fn one(dtype: DType) -> [u8; 16] {
    match dtype {
        DType::Bool | DType::Int8 | DType::UInt8 => word(&[1]),
        DType::Int16 | DType::UInt16 => word(&1_u16.to_ne_bytes()),
        DType::Int32 | DType::UInt32 => word(&1_u32.to_ne_bytes()),
        DType::Int64 | DType::UInt64 => word(&1_u64.to_ne_bytes()),
        DType::Float16 => word(&0x3c00_u16.to_ne_bytes()),
        DType::BFloat16 => word(&0x3f80_u16.to_ne_bytes()),
        DType::Float32 | DType::Complex64 => word(&1_f32.to_ne_bytes()),
        DType::Float64 | DType::Complex128 => word(&1_f64.to_ne_bytes()),
    }
}

/// The largest value, or the `smallest`.
fn largest(dtype: DType, smallest: bool) -> [u8; 16] {
    macro_rules! extreme {
        ($type:ty, $low:ident, $high:ident) => {
            word(&if smallest { <$type>::$low } else { <$type>::$high }.to_ne_bytes())
        };
    }
    match dtype {
        DType::Bool => word(&[u8::from(!smallest)]),
        DType::Int8 => extreme!(i8, MIN, MAX),
        DType::Int16 => extreme!(i16, MIN, MAX),
        DType::Int32 => extreme!(i32, MIN, MAX),
        DType::Int64 => extreme!(i64, MIN, MAX),
        DType::UInt8 => extreme!(u8, MIN, MAX),
        DType::UInt16 => extreme!(u16, MIN, MAX),
        DType::UInt32 => extreme!(u32, MIN, MAX),
        DType::UInt64 => extreme!(u64, MIN, MAX),
        DType::Float16 => word(&if smallest { 0xfc00_u16 } else { 0x7c00 }.to_ne_bytes()),
        DType::BFloat16 => word(&if smallest { 0xff80_u16 } else { 0x7f80 }.to_ne_bytes()),
        DType::Float32 => extreme!(f32, NEG_INFINITY, INFINITY),
        DType::Float64 => extreme!(f64, NEG_INFINITY, INFINITY),
        DType::Complex64 | DType::Complex128 => panic!("complex numbers have no order"),
    }
}

fn word(bytes: &[u8]) -> [u8; 16] {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    word
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::kernels::Reducer;

    #[test]
    fn every_element_of_a_long_array_is_the_identity() {
        for len in [0, 1, 1023, 1024, 1025, 5000] {
            let array: Vec<Cell<u8>> = vec![Cell::new(7); 4 * len];
            fill_identity(DType::Float32, ReduceOp::Prod, &array);
            let one = 1_f32.to_ne_bytes();
            assert!(array.chunks_exact(4).all(|x| x.iter().map(Cell::get).eq(one)), "{len} elements");
        }
    }

    #[test]
    fn combining_with_it_changes_nothing() {
        // Bit patterns that are canonical for every type: no signalling NaN among them.
        let patterns: [u8; 32] = std::array::from_fn(|k| (k as u8).wrapping_mul(37) & 0x3f);
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let logical = matches!(op, ReduceOp::LAnd | ReduceOp::LOr);
                if op == ReduceOp::Avg || op.check(dtype).is_err() || logical && dtype != DType::Bool {
                    continue;
                }
                let value = |k: usize| if dtype == DType::Bool { patterns[k] & 1 } else { patterns[k] };
                let values: Vec<Cell<u8>> = (0..32).map(|k| Cell::new(value(k))).collect();
                let neutral = vec![Cell::new(0); 32];
                fill_identity(dtype, op, &neutral);
                let combined = vec![Cell::new(0); 32];
                let reducer = Reducer::of(dtype, op).expect("checked above");
                for order in [[&neutral[..], &values[..]], [&values[..], &neutral[..]]] {
                    reducer.run(&combined, &order);
                    assert_eq!(combined, values, "{op} of {dtype}");
                }
            }
        }
    }
}
