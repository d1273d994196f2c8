//! One element at a time, in 128-bit integers, native floats, or the `half` crate; shares nothing with the kernels.

use arx::dtype::{DType, ReduceOp};
use half::{bf16, f16};

/// Value of one element of `dtype` on each rank, combined.
pub fn element(dtype: DType, op: ReduceOp, ranks: &[&[u8]]) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(boolean(op, ranks.iter().map(|x| x[0] != 0)))],
        DType::Float16 => {
            half_float(op, ranks, |x| f16::from_le_bytes(x).to_f32_const(), |x| f16::from_f32_const(x).to_le_bytes())
        }
        DType::BFloat16 => {
            half_float(op, ranks, |x| bf16::from_le_bytes(x).to_f32_const(), |x| bf16::from_f32_const(x).to_le_bytes())
        }
        DType::Float32 => real::<f32>(op, &reals(ranks)).to_le_bytes().to_vec(),
        DType::Float64 => real::<f64>(op, &reals(ranks)).to_le_bytes().to_vec(),
        DType::Complex64 => complex::<f32>(op, ranks).concat(),
        DType::Complex128 => complex::<f64>(op, ranks).concat(),
        _ => integer(dtype, op, ranks),
    }
}

fn boolean(op: ReduceOp, mut x: impl Iterator<Item = bool>) -> bool {
    match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BOr | ReduceOp::LOr => x.any(|x| x),
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::BAnd | ReduceOp::LAnd => x.all(|x| x),
        ReduceOp::BXor => x.filter(|&x| x).count() % 2 == 1,
        ReduceOp::Avg => unreachable!("refused"),
    }
}

fn integer(dtype: DType, op: ReduceOp, ranks: &[&[u8]]) -> Vec<u8> {
    let signed = matches!(dtype, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64);
    let value = |x: &&[u8]| {
        let fill = if signed && x[x.len() - 1] >= 128 { 255 } else { 0 };
        let mut wide = [fill; 16];
        wide[..x.len()].copy_from_slice(x);
        i128::from_le_bytes(wide)
    };
    let x = ranks.iter().map(value);
    let y = match op {
        ReduceOp::Sum => x.fold(0, i128::wrapping_add),
        ReduceOp::Prod => x.fold(1, i128::wrapping_mul),
        ReduceOp::Min => x.min().expect("a rank"),
        ReduceOp::Max => x.max().expect("a rank"),
        ReduceOp::BAnd => x.fold(-1, |a, b| a & b),
        ReduceOp::BOr => x.fold(0, |a, b| a | b),
        ReduceOp::BXor => x.fold(0, |a, b| a ^ b),
        _ => i128::from(boolean(op, x.map(|x| x != 0))),
    };
    y.to_le_bytes()[..dtype.size()].to_vec()
}

fn half_float(op: ReduceOp, ranks: &[&[u8]], wide: fn([u8; 2]) -> f32, narrow: fn(f32) -> [u8; 2]) -> Vec<u8> {
    let x: Vec<f32> = ranks.iter().map(|x| wide([x[0], x[1]])).collect();
    narrow(real(op, &x)).to_vec()
}

pub trait Float: Copy + PartialOrd + std::ops::Div<Output = Self> {
    const NAN: Self;
    const SIZE: usize;
    fn of(x: f64) -> Self;
    fn read(x: &[u8]) -> Self;
    fn bytes(self) -> Vec<u8>;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn below(self, other: Self) -> bool;
}

macro_rules! float {
    ($type:ty) => {
        impl Float for $type {
            const NAN: Self = <$type>::NAN;
            const SIZE: usize = size_of::<$type>();
            fn of(x: f64) -> Self {
                x as $type
            }
            fn read(x: &[u8]) -> Self {
                <$type>::from_le_bytes(x.try_into().expect("an element"))
            }
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn sub(self, other: Self) -> Self {
                self - other
            }
            fn mul(self, other: Self) -> Self {
                self * other
            }
            fn below(self, other: Self) -> bool {
                self.total_cmp(&other).is_lt()
            }
        }
    };
}
float!(f32);
float!(f64);

fn reals<T: Float>(ranks: &[&[u8]]) -> Vec<T> {
    ranks.iter().map(|x| T::read(x)).collect()
}

fn real<T: Float>(op: ReduceOp, x: &[T]) -> T {
    let nan = x.iter().any(|x| x.partial_cmp(x).is_none());
    let pick =
        |better: fn(T, T) -> bool| x.iter().copied().reduce(|a, b| if better(b, a) { b } else { a }).expect("a rank");
    let sum = || x.iter().copied().reduce(T::add).expect("a rank");
    match op {
        ReduceOp::Sum => sum(),
        ReduceOp::Avg => sum() / T::of(x.len() as f64),
        ReduceOp::Prod => x.iter().copied().reduce(T::mul).expect("a rank"),
        ReduceOp::Min | ReduceOp::Max if nan => T::NAN,
        ReduceOp::Min => pick(T::below),
        ReduceOp::Max => pick(|a, b| b.below(a)),
        _ => T::of(f64::from(u8::from(boolean(op, x.iter().map(|&x| x != T::of(0.0)))))),
    }
}

fn complex<T: Float>(op: ReduceOp, ranks: &[&[u8]]) -> [Vec<u8>; 2] {
    let z: Vec<(T, T)> = ranks.iter().map(|z| (T::read(&z[..T::SIZE]), T::read(&z[T::SIZE..]))).collect();
    let parts = |op| {
        let (re, im): (Vec<T>, Vec<T>) = z.iter().copied().unzip();
        (real(op, &re), real(op, &im))
    };
    let (re, im) = match op {
        ReduceOp::Sum | ReduceOp::Avg => parts(op),
        ReduceOp::Prod => {
            let times = |(a, b): (T, T), (c, d): (T, T)| (a.mul(c).sub(b.mul(d)), a.mul(d).add(b.mul(c)));
            z.iter().copied().reduce(times).expect("a rank")
        }
        _ => {
            let zero = T::of(0.0);
            (T::of(f64::from(u8::from(boolean(op, z.iter().map(|z| z.0 != zero || z.1 != zero))))), zero)
        }
    };
    [re.bytes(), im.bytes()]
}
