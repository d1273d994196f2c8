//! Kernels against a naive oracle (`oracle` below): every dtype, operation and instruction set, equal bit for bit.
//!
//! NaN: the oracle says where; which NaN it is must not depend on the instruction set, the cut into calls or the aliasing.

use std::cell::Cell;

use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Isa, Reducer, chosen, copy, copy_streaming};
use proptest::prelude::*;

mod oracle {
    //! One element at a time, in 128-bit integers, native floats, or the `half` crate; shares nothing with the kernels.

    use arx::dtype::{DType, ReduceOp};
    use half::{bf16, f16};

    /// Value of one element of `dtype` on each rank, combined.
    pub fn element(dtype: DType, op: ReduceOp, ranks: &[&[u8]]) -> Vec<u8> {
        match dtype {
            DType::Bool => vec![u8::from(boolean(op, ranks.iter().map(|x| x[0] != 0)))],
            DType::Float16 => half_float(
                op,
                ranks,
                |x| f16::from_le_bytes(x).to_f32_const(),
                |x| f16::from_f32_const(x).to_le_bytes(),
            ),
            DType::BFloat16 => half_float(
                op,
                ranks,
                |x| bf16::from_le_bytes(x).to_f32_const(),
                |x| bf16::from_f32_const(x).to_le_bytes(),
            ),
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
        let pick = |better: fn(T, T) -> bool| {
            x.iter().copied().reduce(|a, b| if better(b, a) { b } else { a }).expect("a rank")
        };
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
}

/// Where the scalars of `dtype` hold NaN.
fn nans(dtype: DType, x: &[u8]) -> Vec<bool> {
    let exponent = match dtype {
        DType::Float16 => 0x7c00u64,
        DType::BFloat16 => 0x7f80,
        DType::Float32 | DType::Complex64 => 0x7f80_0000,
        DType::Float64 | DType::Complex128 => 0x7ff0 << 48,
        _ => return Vec::new(),
    };
    let width = dtype.align();
    let bits = |x: &[u8]| x.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    x.chunks(width).map(|x| bits(x) & (u64::MAX >> (65 - 8 * width)) > exponent).collect()
}

/// Bytes of one scalar, of all the kinds that matter: small numbers, special ones, any bits.
fn scalar(dtype: DType, random: &mut impl FnMut() -> u64) -> Vec<u8> {
    let (kind, bits) = (random() % 8, random());
    let small = f64::from((bits % 4001) as u32) / 16.0 - 125.0;
    let special =
        [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 65504.0, 6e-8, 1e-40, 5e-324, 3e38, 1e-5];
    let x = if kind < 4 { small } else { special[bits as usize % special.len()] };
    match dtype {
        _ if kind == 7 => bits.to_le_bytes()[..dtype.align()].to_vec(),
        DType::Float16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BFloat16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::Float32 | DType::Complex64 => (x as f32).to_le_bytes().to_vec(),
        DType::Float64 | DType::Complex128 => x.to_le_bytes().to_vec(),
        _ if kind < 2 => ((bits % 3) as i64 - 1).to_le_bytes()[..dtype.size()].to_vec(),
        _ => bits.to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// xorshift64*, so that a case is its seed.
fn generator(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

const GUARD: u8 = 0xa5;

/// Memory of one operand: `offset` bytes past a cache line, with guards before and after.
struct Operand {
    memory: Vec<Cell<u8>>,
    start: usize,
    len: usize,
}

impl Operand {
    fn new(content: &[u8], offset: usize) -> Operand {
        let memory = vec![Cell::new(GUARD); content.len() + offset + 192];
        let start = memory.as_ptr().align_offset(64) + 64 + offset;
        memory[start..start + content.len()].iter().zip(content).for_each(|(cell, &x)| cell.set(x));
        Operand { memory, start, len: content.len() }
    }

    fn bytes(&self) -> Bytes<'_> {
        &self.memory[self.start..self.start + self.len]
    }

    fn content(&self) -> Vec<u8> {
        self.bytes().iter().map(Cell::get).collect()
    }

    fn guards_intact(&self) -> bool {
        let (before, after) = (&self.memory[..self.start], &self.memory[self.start + self.len..]);
        before.iter().chain(after).all(|cell| cell.get() == GUARD)
    }
}

/// What one call has to be right about.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    op: ReduceOp,
    ranks: usize,
    len: usize,
    /// Distance of the operands from a cache line, in units of the alignment; operand `k` lies `k` units further.
    offset: usize,
    /// Which source the destination is.
    alias: Option<usize>,
    seed: u64,
}

impl Case {
    fn sources(&self) -> Vec<Vec<u8>> {
        let mut random = generator(self.seed);
        let scalars = self.len * self.dtype.size() / self.dtype.align();
        (0..self.ranks).map(|_| (0..scalars).flat_map(|_| scalar(self.dtype, &mut random)).collect()).collect()
    }

    fn expected(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        let size = self.dtype.size();
        let element = |i: usize| {
            let ranks: Vec<&[u8]> = sources.iter().map(|x| &x[i * size..(i + 1) * size]).collect();
            oracle::element(self.dtype, self.op, &ranks)
        };
        (0..self.len).flat_map(element).collect()
    }

    /// The result of one instruction set, with the call cut in two after `cut` elements.
    fn run(&self, isa: Isa, sources: &[Vec<u8>], cut: usize) -> Vec<u8> {
        let reducer = Reducer::with_isa(self.dtype, self.op, isa).expect("a pair that goes together");
        let place = |k: usize| (self.offset + k) * self.dtype.align() % 64;
        let operands: Vec<Operand> = sources.iter().enumerate().map(|(k, x)| Operand::new(x, place(k))).collect();
        let separate = Operand::new(&vec![0xee; self.len * self.dtype.size()], place(self.ranks));
        let dst = self.alias.map_or(&separate, |k| &operands[k]);
        let cut = cut * self.dtype.size();
        for range in [0..cut, cut..dst.len] {
            let srcs: Vec<Bytes> = operands.iter().map(|x| &x.bytes()[range.clone()]).collect();
            reducer.run(&dst.bytes()[range], &srcs);
        }
        for (k, (operand, source)) in operands.iter().zip(sources).enumerate() {
            assert!(operand.guards_intact(), "{self:?} {isa}: wrote outside of source {k}");
            assert!(self.alias == Some(k) || operand.content() == *source, "{self:?} {isa}: changed source {k}");
        }
        assert!(separate.guards_intact(), "{self:?} {isa}: wrote outside of the destination");
        dst.content()
    }

    fn check(&self) {
        let sources = self.sources();
        let want = self.expected(&sources);
        let scalar = self.run(Isa::Scalar, &sources, 0);
        let (nan, width) = (nans(self.dtype, &want), self.dtype.align());
        assert_eq!(nan, nans(self.dtype, &scalar), "{self:?}: NaN in other places");
        for (i, (got, want)) in scalar.chunks(width).zip(want.chunks(width)).enumerate() {
            assert!(got == want || nan.get(i) == Some(&true), "{self:?}: scalar {i} is {got:x?}, not {want:x?}");
        }
        for isa in Isa::available() {
            let cut = self.seed as usize % (self.len + 1);
            assert!(self.run(isa, &sources, 0) == scalar, "{self:?}: {isa} differs from scalar code");
            assert!(self.run(isa, &sources, cut) == scalar, "{self:?}: {isa} cut at {cut} differs");
        }
    }
}

fn pairs() -> impl Iterator<Item = (DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| op.check(*dtype).is_ok())
}

/// Lengths around the borders of registers and blocks (64, 128 or 256 elements).
const LENGTHS: [usize; 20] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 700];

#[test]
fn every_pair_at_every_border() {
    for (n, (dtype, op)) in pairs().enumerate() {
        for (k, len) in LENGTHS.into_iter().enumerate() {
            let ranks = 1 + (n + k) % 4;
            let alias = (ranks > 1 && k % 2 == 0).then_some(k % ranks);
            Case { dtype, op, ranks, len, offset: k, alias, seed: (n * 31 + k) as u64 }.check();
        }
    }
}

#[test]
fn the_destination_may_be_any_source() {
    for (n, (dtype, op)) in pairs().enumerate() {
        for ranks in [2, 3, 5] {
            for alias in 0..ranks {
                Case { dtype, op, ranks, len: 141, offset: 1, alias: Some(alias), seed: (n * 7 + alias) as u64 }
                    .check();
            }
        }
    }
}

proptest! {
    #[test]
    fn any_case(
        (dtype, op) in prop::sample::select(pairs().collect::<Vec<_>>()),
        ranks in prop_oneof![9 => 1usize..=9, 1 => Just(128usize)],
        len in prop_oneof![prop::sample::select(LENGTHS.to_vec()), 0usize..600],
        offset in 0usize..64,
        alias in any::<Option<prop::sample::Index>>(),
        seed: u64,
    ) {
        Case { dtype, op, ranks, len, offset, alias: alias.map(|k| k.index(ranks)), seed }.check();
    }
}
