//! Sums of two sources and copies, against `memcpy` of the same traffic, and dense codecs, per instruction set.
//!
//! A sum of two sources into one of them reads two bytes and writes one; `memcpy` reads one and writes one. Throughput counts those
//! bytes, so that figures of one size compare directly.
//! A codec's throughput counts the bytes of float32 that it encodes or decodes.
//! 64 KiB stays in the cache of the core; 64 MiB leaves every cache but the largest.
//! Run with `cargo bench --bench kernels`, or `-- 65536` for one size.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use arx::codec::{Dense, Dice};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Isa, Reducer, copy, copy_streaming};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES: [usize; 2] = [64 << 10, 64 << 20];
const DTYPES: [DType; 5] = [DType::Float32, DType::Float64, DType::Float16, DType::BFloat16, DType::Int32];

/// `size` bytes, all 0x3f (a number near 1 in every float type), at a cache line, and at different places within a page.
struct Memory(Vec<Cell<u8>>, usize);

impl Memory {
    fn new(size: usize, lines: usize) -> Memory {
        let memory = vec![Cell::new(0x3f); size + 8192];
        let start = memory.as_ptr().align_offset(4096) + 64 * lines;
        Memory(memory, start)
    }

    fn bytes(&self, size: usize) -> Bytes<'_> {
        &self.0[self.1..self.1 + size]
    }
}

fn sums(c: &mut Criterion) {
    for size in SIZES {
        let (a, b) = (Memory::new(size, 0), Memory::new(size, 11));
        let (a, b) = (a.bytes(size), b.bytes(size));
        let mut group = c.benchmark_group(format!("sum/{size}"));
        group.throughput(Throughput::Bytes(2 * size as u64));
        group.bench_function("memcpy", |bencher| bencher.iter(|| copy(black_box(a), black_box(b))));
        group.throughput(Throughput::Bytes(3 * size as u64));
        for (dtype, isa) in
            DTYPES.into_iter().flat_map(|dtype| Isa::available().into_iter().map(move |isa| (dtype, isa)))
        {
            let sum = Reducer::with_isa(dtype, ReduceOp::Sum, isa).expect("every number has a sum");
            group.bench_function(BenchmarkId::new(dtype.name(), isa), |bencher| {
                bencher.iter(|| sum.run(black_box(a), &[black_box(a), black_box(b)]));
            });
        }
        group.finish();
    }
}

fn copies(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    for size in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 64 << 20] {
        let (a, b) = (Memory::new(size, 0), Memory::new(size, 11));
        let (a, b) = (a.bytes(size), b.bytes(size));
        group.throughput(Throughput::Bytes(2 * size as u64));
        group.bench_function(BenchmarkId::new("copy", size), |bencher| {
            bencher.iter(|| copy(black_box(a), black_box(b)))
        });
        group.bench_function(BenchmarkId::new("copy_streaming", size), |bencher| {
            bencher.iter(|| copy_streaming(black_box(a), black_box(b)));
        });
    }
    group.finish();
}

const CODECS: [(&str, Dense); 6] = [
    ("float16", Dense::Float16),
    ("bfloat16", Dense::BFloat16),
    ("int8", Dense::Int8 { block: 256, stochastic: false }),
    ("int8-stochastic", Dense::Int8 { block: 256, stochastic: true }),
    ("int4", Dense::Int4 { block: 64, stochastic: false }),
    ("int4-stochastic", Dense::Int4 { block: 64, stochastic: true }),
];

fn codecs(c: &mut Criterion) {
    let dice = Dice::new(&[1]);
    for size in [1 << 20, 16 << 20] {
        let mut values: Vec<f32> = (0..size / 4).map(|i| (i as f32 * 0.618_034).fract() - 0.5).collect();
        for (name, dense) in CODECS {
            let mut group = c.benchmark_group(format!("{name}/{size}"));
            group.throughput(Throughput::Bytes(size as u64));
            let mut payload = vec![0; dense.payload_len(values.len())];
            for isa in Isa::available() {
                group.bench_function(BenchmarkId::new("encode", isa), |bencher| {
                    bencher.iter(|| dense.encode_with(isa, black_box(&values), dice, 0, black_box(&mut payload)));
                });
                group.bench_function(BenchmarkId::new("decode", isa), |bencher| {
                    bencher.iter(|| dense.decode_with(isa, black_box(&payload), black_box(&mut values)));
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = kernels;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = sums, copies, codecs
}
criterion_main!(kernels);
