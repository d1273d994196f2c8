//! All collectives but all-reduce and broadcast on the direct path: worlds of threads over one segment, with rings of a few
//! lines, so that wrapping and waiting for room happen at once. Every byte of every array is compared with a plain oracle.

mod host;

use arx::direct::{Algorithm, NEVER, PAYLOAD, Tuning};
use arx::dtype::{DType, ReduceOp};
use host::family::{Kind, Lengths, Step};
use host::{Terms, pairs};
use proptest::prelude::*;

/// Bytes that a rank brings or gets at most.
const MOST: usize = 512 << 10;

/// Runs `steps` one after the other in one group.
fn run(world: usize, crowd: bool, tuning: Tuning, steps: Vec<Step>) {
    let terms = Terms { world, crowd, tuning, heap: 2 * MOST };
    host::run(format!("{steps:?}"), terms, move |rank| {
        let mut sequence = 1;
        for step in &steps {
            rank.play(sequence, step)?;
            sequence += step.calls(rank.world);
        }
        Ok(())
    });
}

const TUNING: Tuning = Tuning { chunk: 256, round: 1024, symmetric: 1, kernel: NEVER };

/// Bytes of a block at which something changes: elements, what fits into the head line, the payload of one block and of a
/// block for each rank, a slice, several.
fn sizes(world: usize) -> Vec<usize> {
    let slice = (TUNING.round / world).next_multiple_of(64);
    let edges = [32, 32 / world, PAYLOAD, PAYLOAD / world, slice, TUNING.chunk, 3 * TUNING.chunk];
    let around = edges.into_iter().flat_map(|edge| [edge.saturating_sub(8), edge, edge + 8]);
    [0, 1, 8].into_iter().chain(around).chain([4000]).collect()
}

/// Every collective at every size.
fn every(world: usize, crowd: bool, change: impl Fn(&mut Step)) {
    let mut steps = Vec::new();
    for (k, size) in sizes(world).into_iter().enumerate() {
        for (j, kind) in Kind::family(k % world).into_iter().enumerate() {
            let dtype = [DType::UInt8, DType::Int32, DType::Float32, DType::Float16, DType::Float64][(k + j) % 5];
            for lengths in [Lengths::Even, Lengths::Uneven] {
                let mut step = Step::new(kind, dtype, lengths(size.div_ceil(dtype.size())));
                change(&mut step);
                steps.push(step);
            }
        }
    }
    run(world, crowd, TUNING, steps);
}

fn every_world(change: impl Fn(&mut Step)) {
    for world in 2..=9 {
        for crowd in [false, true] {
            every(world, crowd, &change);
        }
    }
}

#[test]
fn private_arrays() {
    every_world(|_| ());
}

#[test]
fn private_arrays_through_the_rings_at_every_size() {
    every_world(|step| step.algorithm = Algorithm::Staged);
}

#[test]
fn symmetric_arrays() {
    every_world(|step| (step.algorithm, step.symmetric) = (Algorithm::Symmetric, u32::MAX));
}

#[test]
fn some_arrays_symmetric_some_private() {
    every_world(|step| (step.algorithm, step.symmetric) = (Algorithm::Symmetric, 0b1_0011_0110));
}

#[test]
fn a_root_alone_with_symmetric_arrays() {
    every_world(|step| {
        (step.algorithm, step.symmetric) = (Algorithm::Symmetric, 1 << step.kind.root().unwrap_or(1));
    });
}

#[test]
fn in_place() {
    every_world(|step| step.in_place = u32::MAX);
    every_world(|step| (step.in_place, step.algorithm) = (0b0_1101_1010, Algorithm::Staged));
}

/// What a rank writes while its ring is full, where others still have to be shown what lies there.
#[test]
fn in_place_and_longer_than_the_rings() {
    for world in [2, 3] {
        let kinds = [Kind::Exscan, Kind::Scan, Kind::Scatter { root: 0 }, Kind::Scatter { root: world - 1 }];
        let steps = [20_000, 100_000].into_iter().flat_map(|size| {
            kinds.into_iter().flat_map(move |kind| {
                [Lengths::Even(size), Lengths::Uneven(size)].map(|lengths| Step::new(kind, DType::UInt8, lengths))
            })
        });
        let steps: Vec<Step> = steps.map(|step| Step { in_place: u32::MAX, ..step }).collect();
        run(world, false, TUNING, [steps.clone(), steps.clone(), steps].concat());
    }
}

#[test]
fn symmetric_arrays_in_place() {
    every_world(|step| {
        (step.algorithm, step.symmetric, step.in_place) = (Algorithm::Symmetric, u32::MAX, 0b1_0110_1101);
    });
}

/// The tuning of production, and sizes at which it begins to matter.
#[test]
fn large_arrays() {
    let tuning = Tuning { chunk: 256 << 10, round: 256 << 10, symmetric: usize::MAX, kernel: NEVER };
    for world in [2, 3, 4] {
        for (crowd, symmetric) in [(false, 0), (true, 0), (false, u32::MAX), (true, 0b0101)] {
            let kinds = || Kind::family(world - 1).into_iter();
            let sizes = [60 << 10, 64 << 10, 100_000].into_iter().flat_map(|size| [size, size / world]);
            let steps = sizes.flat_map(|size| {
                kinds().map(move |kind| Step { symmetric, ..Step::new(kind, DType::Int32, Lengths::Even(size / 4)) })
            });
            run(world, crowd, tuning, steps.collect());
        }
    }
}

#[test]
fn ranks_that_call_different_things_move_nothing_and_go_on() {
    for world in 2..=9 {
        for crowd in [false, true] {
            let mut steps = Vec::new();
            for size in [8, PAYLOAD / 8 + 1, 1000] {
                for (k, kind) in Kind::family(size % world).into_iter().enumerate() {
                    let lengths = if k % 2 == 0 { Lengths::Even(size) } else { Lengths::Uneven(size) };
                    let step = Step::new(kind, DType::Float64, lengths);
                    steps.extend([Step { stray: Some(k % world), symmetric: 0b1010_0101, ..step }, step]);
                }
            }
            run(world, crowd, TUNING, steps);
        }
    }
}

fn step(world: usize) -> impl Strategy<Value = Step> {
    let kind = (0..world).prop_flat_map(|root| {
        let more = vec![Kind::AllReduce, Kind::Broadcast { root }];
        prop::sample::select([Kind::family(root), more].concat())
    });
    let elements = || prop_oneof![0..80usize, 0..=2000usize];
    let lengths = prop_oneof![elements().prop_map(Lengths::Even), elements().prop_map(Lengths::Uneven)];
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    // None, all, or each rank as it likes.
    let mask = || prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    let stray = prop_oneof![9 => Just(None), 1 => (0..world).prop_map(Some)];
    (kind, prop::sample::select(pairs()), lengths, algorithm, mask(), mask(), stray).prop_map(
        |(kind, (dtype, op), lengths, algorithm, symmetric, in_place, stray)| {
            let scans = matches!(kind, Kind::Scan | Kind::Exscan);
            let op = if scans && op == ReduceOp::Avg { ReduceOp::Sum } else { op };
            Step { kind, dtype, op, lengths, algorithm, symmetric, in_place, stray }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn calls_of_all_kinds_follow_each_other(
        (world, crowd, tuning, steps) in (2..=9usize).prop_flat_map(|world| {
            let some = || prop_oneof![Just(256), Just(usize::MAX)];
            let tuning = (1..=8usize, 1..=16usize, some(), some()).prop_map(|(chunk, round, symmetric, kernel)| {
                Tuning { chunk: 64 * chunk, round: 64 * round, symmetric, kernel }
            });
            (Just(world), any::<bool>(), tuning, prop::collection::vec(step(world), 1..12))
        })
    ) {
        run(world, crowd, tuning, steps);
    }
}
