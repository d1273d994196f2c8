//! Kernels against a naive oracle: every dtype, operation and instruction set, equal bit for bit.
//!
//! NaN: the oracle says where; which NaN it is must not depend on the instruction set, the cut into calls or the aliasing.

use std::cell::Cell;

use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Isa, Reducer, chosen, copy, copy_streaming, narrow_with, widen_with};
use proptest::prelude::*;

#[path = "kernels/oracle.rs"]
mod oracle;

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

/// Contributions that have been combined before count, too. As if the others were there by themselves, and were the -0 which leaves
/// any sum as it is.
#[test]
fn an_average_divides_by_the_contributions() {
    for (n, (dtype, op)) in pairs().enumerate() {
        for (ranks, count) in [(1, 3), (2, 2), (2, 3), (2, 7), (3, 4)] {
            let case = Case { dtype, op, ranks, len: 141, offset: 1, alias: None, seed: (n * 5 + count) as u64 };
            let mut sources = case.sources();
            for isa in Isa::available() {
                let reducer = Reducer::with_isa(dtype, op, isa).expect("a pair that goes together");
                let operands: Vec<Operand> = sources.iter().map(|x| Operand::new(x, 0)).collect();
                let dst = Operand::new(&vec![0xee; sources[0].len()], 0);
                let srcs: Vec<Bytes> = operands.iter().map(Operand::bytes).collect();
                reducer.run_counted(dst.bytes(), &srcs, count);
                let zero: Vec<u8> = [vec![0; dtype.align() - 1], vec![0x80]].concat();
                let others = if op == ReduceOp::Avg { count - ranks } else { 0 };
                sources.extend(vec![zero.repeat(sources[0].len() / zero.len()); others]);
                let want = Case { ranks: ranks + others, ..case.clone() }.run(isa, &sources, 0);
                assert!(dst.content() == want, "{case:?} {isa}: counted as {count}");
                sources.truncate(ranks);
            }
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

/// The same value at every element of each rank, as halves; the result, which every element and every instruction set agrees on.
fn of_halves(dtype: DType, op: ReduceOp, ranks: &[f64]) -> f64 {
    let to = |x| match dtype {
        DType::Float16 => half::f16::from_f64(x).to_le_bytes(),
        _ => half::bf16::from_f64(x).to_le_bytes(),
    };
    let from = |x| match dtype {
        DType::Float16 => half::f16::from_le_bytes(x).to_f64(),
        _ => half::bf16::from_le_bytes(x).to_f64(),
    };
    let results = Isa::available().into_iter().map(|isa| {
        // A whole block and a padded one.
        let operands: Vec<Operand> = ranks.iter().map(|&x| Operand::new(&to(x).repeat(200), 0)).collect();
        let srcs: Vec<Bytes> = operands.iter().map(Operand::bytes).collect();
        Reducer::with_isa(dtype, op, isa).expect("a pair that goes together").run(srcs[0], &srcs);
        let x: Vec<f64> = operands[0].content().chunks(2).map(|x| from([x[0], x[1]])).collect();
        assert!(x.iter().all(|y| y.to_bits() == x[0].to_bits()), "{dtype} {op} {isa}: equal inputs, different results");
        x[0]
    });
    let results: Vec<f64> = results.collect();
    assert!(results.iter().all(|y| y.to_bits() == results[0].to_bits()), "{dtype} {op}: {results:?}");
    results[0]
}

#[test]
fn halves_are_rounded_once() {
    let sum = |dtype, ranks: &[f64]| of_halves(dtype, ReduceOp::Sum, ranks);
    assert_eq!(sum(DType::Float16, &[2048.0, 1.0, 1.0, 1.0]), 2052.0); // 2051 is a tie, and 2052 the even one
    assert_eq!(sum(DType::BFloat16, &[256.0, 1.0, 1.0, 1.0]), 260.0);
    assert_eq!(sum(DType::Float16, &[6e4, 6e4, -6e4, -6e4]), 0.0);
    assert_eq!(sum(DType::Float16, &[65504.0, 15.0]), 65504.0);
    assert_eq!(sum(DType::Float16, &[65504.0, 16.0]), f64::INFINITY); // the tie
    assert_eq!(sum(DType::Float16, &[-65504.0, -65504.0]), f64::NEG_INFINITY);
    assert!(sum(DType::Float16, &[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
    assert!(sum(DType::BFloat16, &[1.0, f64::NAN]).is_nan());
    assert_eq!(of_halves(DType::Float16, ReduceOp::Avg, &[4e4; 4]), 4e4);
    assert_eq!(of_halves(DType::Float16, ReduceOp::Prod, &[2f64.powi(-14), 2f64.powi(-10)]), 2f64.powi(-24));
    assert_eq!(of_halves(DType::Float16, ReduceOp::Prod, &[2f64.powi(-14), 2f64.powi(-11)]), 0.0); // the tie with zero
    assert_eq!(of_halves(DType::Float16, ReduceOp::Avg, &[1e-7; 3]), half::f16::from_f64(1e-7).to_f64());
}

/// All 65,536 patterns, alone (widened and narrowed) and times factors that lead through subnormals, ties and overflow.
#[test]
fn every_half_converts_as_the_half_crate_does() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [DType::Float16, DType::BFloat16] {
        for factor in [1.0, 3.0, 1.0 / 3.0, 1e-3, 6e-8, 700.0] {
            let factor = match dtype {
                DType::Float16 => half::f16::from_f64(factor).to_le_bytes(),
                _ => half::bf16::from_f64(factor).to_le_bytes(),
            };
            let want: Vec<u8> =
                all.chunks(2).flat_map(|x| oracle::element(dtype, ReduceOp::Prod, &[x, &factor])).collect();
            let nan = nans(dtype, &want);
            for isa in Isa::available() {
                let (x, y) = (Operand::new(&all, 2), Operand::new(&factor.repeat(65536), 0));
                Reducer::with_isa(dtype, ReduceOp::Prod, isa).expect("prod").run(y.bytes(), &[x.bytes(), y.bytes()]);
                let got = y.content();
                assert_eq!(nans(dtype, &got), nan, "{dtype} {isa}");
                for (i, (got, want)) in got.chunks(2).zip(want.chunks(2)).enumerate() {
                    assert!(got == want || nan[i], "{dtype} {isa}: pattern {i:#06x} gives {got:x?}, not {want:x?}");
                }
            }
        }
    }
}

/// A NaN at each place of 67 elements, on each rank in turn, with the other sign of zero elsewhere.
#[test]
fn min_and_max_do_not_depend_on_who_holds_what() {
    let zero = |sign: bool| if sign { -0.0f32 } else { 0.0 };
    for isa in Isa::available() {
        for (op, want) in [(ReduceOp::Min, -0.0f32), (ReduceOp::Max, 0.0)] {
            for (place, holder) in (0..67).flat_map(|place| (0..3).map(move |holder| (place, holder))) {
                let payload = f32::from_bits(0xff80_0001 + place as u32); // a signalling NaN with a sign
                let value =
                    |rank: usize, i: usize| if (rank, i) == (holder, place) { payload } else { zero(rank == holder) };
                let bytes = |rank| (0..67).flat_map(|i| value(rank, i).to_le_bytes()).collect::<Vec<u8>>();
                let operands = [0, 1, 2].map(|rank| Operand::new(&bytes(rank), 4 * rank));
                let srcs = [0, 1, 2].map(|rank| operands[rank].bytes());
                Reducer::with_isa(DType::Float32, op, isa).expect("ordered").run(srcs[1], &srcs);
                for (i, x) in operands[1].content().chunks(4).enumerate() {
                    let x = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                    assert_eq!(x.is_nan(), i == place, "{isa} {op}: NaN of rank {holder} at {place}, element {i}");
                    assert!(x.is_nan() || x.to_bits() == want.to_bits(), "{isa} {op}: element {i} is {x:?}");
                }
            }
        }
    }
}

#[test]
fn pairs_that_do_not_go_together_have_no_kernel() {
    for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op))) {
        for isa in Isa::ALL {
            let expected = isa.is_available() && op.check(dtype).is_ok();
            assert_eq!(Reducer::with_isa(dtype, op, isa).is_some(), expected, "{dtype} {op} {isa}");
        }
        assert_eq!(Reducer::of(dtype, op).is_some(), op.check(dtype).is_ok(), "{dtype} {op}");
    }
}

#[test]
fn wrong_operands_are_refused() {
    let sum = Reducer::with_isa(DType::Float32, ReduceOp::Sum, Isa::detected()).expect("sum");
    let memory = Operand::new(&[0; 64], 0);
    let at = |range: std::ops::Range<usize>| &memory.bytes()[range];
    let refused =
        |dst, srcs: &[Bytes]| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sum.run(dst, srcs))).is_err();
    assert!(!refused(at(0..8), &[at(0..8), at(8..16)]));
    assert!(refused(at(0..8), &[]), "no source");
    assert!(refused(at(0..8), &[at(0..8), at(8..12)]), "lengths differ");
    assert!(refused(at(0..0), &[at(0..0), at(8..12)]), "lengths differ");
    assert!(refused(at(0..6), &[at(0..6), at(8..14)]), "a broken element");
    assert!(refused(at(2..10), &[at(2..10), at(12..20)]), "destination not aligned");
    assert!(refused(at(0..8), &[at(0..8), at(13..21)]), "source not aligned");
}

#[test]
fn the_process_uses_what_the_variable_asks_for() {
    match std::env::var("ARX_SIMD") {
        Ok(asked) => assert_eq!(chosen().map(Isa::name), Ok(asked.as_str())),
        Err(_) => assert_eq!(chosen(), Ok(Isa::detected())),
    }
    assert_eq!(Isa::available().first(), Some(&Isa::Scalar));
    assert!(Isa::detected().is_available());
}

#[test]
fn copies_are_exact_at_any_alignment() {
    for copy in [copy, copy_streaming] as [fn(Bytes, Bytes); 2] {
        for len in (0..200).chain([255, 256, 257, 1023, 2047, 2048, 2049, 4096, 5000, 70_001]) {
            for (to, from) in [(0, 0), (1, 0), (0, 1), (13, 50), (63, 17), (32, 16)] {
                let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251 + 1) as u8).collect();
                let (src, dst) = (Operand::new(&content, from), Operand::new(&vec![0; len], to));
                copy(dst.bytes(), src.bytes());
                assert!(dst.content() == content, "{len} bytes from {from} to {to}");
                copy(src.bytes(), src.bytes());
                assert!(src.content() == content, "{len} bytes at {from} onto themselves");
                assert!(src.guards_intact() && dst.guards_intact(), "{len} bytes from {from} to {to}: outside");
            }
        }
    }
}

/// Every half is the same number in float32, and comes back; every float32 that is tried is rounded as the `half` crate does it.
#[test]
fn halves_convert_exactly_and_round_to_nearest_even() {
    let floats: Vec<f32> = (0..1_u32 << 18).map(|k| f32::from_bits(k.wrapping_mul(0x9e37_79b9) ^ k << 3)).collect();
    for isa in Isa::available() {
        for dtype in [DType::Float16, DType::BFloat16] {
            let wide = |x| match dtype {
                DType::Float16 => half::f16::from_bits(x).to_f32(),
                _ => half::bf16::from_bits(x).to_f32(),
            };
            let back = |x| match dtype {
                DType::Float16 => half::f16::from_f32(x).to_bits(),
                _ => half::bf16::from_f32(x).to_bits(),
            };
            let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
            // Also lengths that leave a rest, and addresses that are no multiples of a vector.
            for (first, offset) in [(0, 0), (1, 4), (65_500, 12)] {
                let halves: Vec<u16> = (first..=u16::MAX).collect();
                let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_ne_bytes()).collect();
                let (narrow, widened) = (Operand::new(&bytes, offset), Operand::new(&vec![0; 2 * bytes.len()], offset));
                widen_with(isa, dtype, widened.bytes(), narrow.bytes());
                for (x, y) in halves.iter().zip(widened.content().as_chunks::<4>().0) {
                    assert!(same(wide(*x), f32::from_ne_bytes(*y)), "{isa} {dtype} {x:#06x}");
                }
                let narrowed = Operand::new(&vec![0; bytes.len()], offset);
                narrow_with(isa, dtype, narrowed.bytes(), widened.bytes());
                for (x, y) in halves.iter().zip(narrowed.content().as_chunks::<2>().0) {
                    let y = u16::from_ne_bytes(*y);
                    assert!(*x == y || wide(*x).is_nan() && wide(y).is_nan(), "{isa} {dtype} {x:#06x}: {y:#06x}");
                }
                assert!([&narrow, &widened, &narrowed].iter().all(|operand| operand.guards_intact()));
            }
            let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let (widened, narrowed) = (Operand::new(&bytes, 0), Operand::new(&vec![0; bytes.len() / 2], 0));
            narrow_with(isa, dtype, narrowed.bytes(), widened.bytes());
            for (x, y) in floats.iter().zip(narrowed.content().as_chunks::<2>().0) {
                assert!(same(wide(back(*x)), wide(u16::from_ne_bytes(*y))), "{isa} {dtype} {x}: {y:?}");
            }
        }
    }
}
