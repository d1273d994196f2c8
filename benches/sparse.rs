//! What picking, coding and low-rank products cost on one core, by the instruction set that `ARX_SIMD` names.
//!
//! Selection and products count the bytes of the float32 array, coding and adding the picks.
//! Run with `cargo bench --bench sparse`, or `-- top_k` for one group.

use std::hint::black_box;
use std::time::Duration;

use arx::codec::Dice;
use arx::codec::low_rank::Shape;
use arx::codec::sparse::{Values, add, decode, decode_picks, encode, encode_picks, random_k, top_k};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// 1 MiB and 16 MiB.
const COUNTS: [usize; 2] = [1 << 18, 1 << 22];

/// Numbers that are distributed normally, nearly: sums of twelve that are evenly.
fn normal(count: usize) -> Vec<f32> {
    let dice = Dice::new(&[1]);
    let even = |i: usize| dice.short(i as u64) as f32 / u32::MAX as f32 - 0.5;
    (0..count).map(|i| (12 * i..12 * i + 12).map(even).sum()).collect()
}

fn selection(c: &mut Criterion) {
    let mut group = c.benchmark_group("top_k");
    for count in COUNTS {
        group.throughput(Throughput::Bytes(4 * count as u64));
        let equal = vec![3.0; count];
        let ascending: Vec<f32> = (0..count).map(|i| i as f32).collect();
        for (name, values) in [("normal", normal(count)), ("equal", equal), ("ascending", ascending)] {
            for per_mille in [1, 10, 100] {
                let mut picks = vec![];
                group.bench_function(BenchmarkId::new(format!("{name}/{per_mille}‰"), count), |bencher| {
                    bencher.iter(|| top_k(black_box(&values), count * per_mille / 1000, &mut picks));
                });
            }
        }
    }
    group.finish();
}

fn coding(c: &mut Criterion) {
    let count = COUNTS[1];
    for per_mille in [1, 10, 200] {
        let mut group = c.benchmark_group(format!("picks/{per_mille}‰"));
        let (mut picks, mut payload) = (vec![], vec![]);
        random_k(count, count * per_mille / 1000, Dice::new(&[2]), &mut picks);
        let (mut values, mut array) = (vec![0.5; picks.len()], vec![1.0; count]);
        let mut read = picks.clone();
        group.throughput(Throughput::Elements(picks.len() as u64));
        group.bench_function("encode_picks", |bencher| {
            bencher.iter(|| {
                payload.clear();
                encode_picks(black_box(&picks), count, &mut payload);
            });
        });
        group.bench_function("decode_picks", |bencher| {
            bencher.iter(|| decode_picks(black_box(&payload), count, &mut read).expect("as encoded"));
        });
        for how in [Values::Float32, Values::Float16, Values::Int8] {
            group.bench_function(BenchmarkId::new("encode", format!("{how:?}")), |bencher| {
                bencher.iter(|| {
                    payload.clear();
                    encode(black_box(&picks), &values, count, how, &mut payload);
                });
            });
            group.bench_function(BenchmarkId::new("decode", format!("{how:?}")), |bencher| {
                bencher.iter(|| decode(black_box(&payload), count, how, &mut read, &mut values).expect("as encoded"));
            });
        }
        group.bench_function("add", |bencher| bencher.iter(|| add(black_box(&picks), &values, &mut array)));
        group.bench_function("random_k", |bencher| {
            bencher.iter(|| random_k(count, count * per_mille / 1000, black_box(Dice::new(&[2])), &mut read));
        });
        group.finish();
    }
}

fn low_rank(c: &mut Criterion) {
    let mut group = c.benchmark_group("low_rank");
    for r in [1, 4, 16] {
        let shape = Shape { rows: 1024, cols: 4096, r };
        let mut m = normal(shape.rows * shape.cols);
        let (mut p, mut q) = (normal(shape.rows * r), normal(shape.cols * r));
        group.throughput(Throughput::Bytes(4 * m.len() as u64));
        group.bench_function(BenchmarkId::new("times", r), |b| b.iter(|| shape.times(black_box(&m), &q, &mut p)));
        group.bench_function(BenchmarkId::new("orthogonalise", r), |b| {
            b.iter(|| shape.orthogonalise(black_box(&mut p)))
        });
        group.bench_function(BenchmarkId::new("transposed_times", r), |b| {
            b.iter(|| shape.transposed_times(black_box(&m), &p, &mut q));
        });
        group.bench_function(BenchmarkId::new("subtract_outer", r), |b| {
            b.iter(|| shape.subtract_outer(black_box(&p), &q, &mut m));
        });
    }
    group.finish();
}

criterion_group! {
    name = sparse;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = selection, coding, low_rank
}
criterion_main!(sparse);
