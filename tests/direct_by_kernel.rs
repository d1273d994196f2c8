//! Deals among private arrays that the kernel reads where they lie: worlds of threads, which read their own process by the same
//! call. That a rank is not allowed to is a seccomp filter on its thread, as containers have them on all.

mod filter;
mod host;

use arx::direct::{MEASURE, NEVER, Tuning};
use arx::dtype::DType;
use arx::wait::Stop;
use host::family::{Kind, Lengths, Step};
use host::{Rank, Terms};

/// Rings so long that all blocks are for the kernel, and short slices.
const TUNING: Tuning = Tuning { chunk: 2048, round: 1 << 15, symmetric: NEVER, kernel: 64 };

/// Bytes of a block at most. If blocks differ, one has a third of that at least: too much to come with the arrival.
const SIZES: [usize; 3] = [3300, 4096, 6144];

fn terms(world: usize, crowd: bool) -> Terms {
    Terms { world, crowd, tuning: TUNING, heap: 1 << 20 }
}

/// Whether calls of that kind only move bytes.
fn is_for_kernel(kind: Kind, world: usize) -> bool {
    match kind {
        Kind::Scatter { .. } | Kind::AllToAll { .. } => true,
        Kind::AllGather { .. } | Kind::Gather { .. } | Kind::Broadcast { .. } => true,
        Kind::Exscan => world == 2,
        _ => false,
    }
}

/// Everything in every size, blocks as long as each other or not.
fn steps(world: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (k, size) in SIZES.into_iter().enumerate() {
        let root = k % world;
        let kinds = [Kind::family(root), vec![Kind::Broadcast { root }]].concat();
        for (j, kind) in kinds.into_iter().enumerate() {
            let dtype = [DType::UInt8, DType::Int32, DType::Float32, DType::Float64][(k + j) % 4];
            for lengths in [Lengths::Even, Lengths::Uneven] {
                steps.push(Step::new(kind, dtype, lengths(size / dtype.size())));
            }
        }
    }
    // Where the only block that would have to move is empty, all go in place.
    let moves = |step: &Step| {
        !matches!((world, step.kind, step.lengths), (2, Kind::Gather { root: 1, .. }, Lengths::Uneven(_)))
    };
    steps.retain(moves);
    steps
}

/// Operations on others' arrays that a rank has been through.
fn operations(rank: &Rank<'_>) -> u64 {
    rank.direct.boards().of(rank.me).progress.wrote.position()
}

/// Plays all steps; `during` is run before each of them. How many were left to the kernel.
fn play(rank: &mut Rank<'_>, mut during: impl FnMut(usize, &Rank<'_>)) -> Result<u64, Stop> {
    let (mut sequence, mut count) = (1, 0);
    for (k, step) in steps(rank.world).iter().enumerate() {
        during(k, rank);
        let before = operations(rank);
        rank.play(sequence, step)?;
        let done = operations(rank) - before;
        assert!(done <= u64::from(is_for_kernel(step.kind, rank.world)), "{step:?}: {done} operations");
        (sequence, count) = (sequence + step.calls(rank.world), count + done);
    }
    Ok(count)
}

/// Steps that are for the kernel by their kind and by the length of the longest block.
fn expected(world: usize) -> u64 {
    steps(world).iter().filter(|step| is_for_kernel(step.kind, world)).count() as u64
}

fn every_world(work: impl Fn(&mut Rank<'_>) -> Result<(), Stop> + Copy + Send + Sync + 'static) {
    for world in 2..=9 {
        for crowd in [false, true] {
            host::run(format!("{world} ranks, crowd: {crowd}"), terms(world, crowd), work);
        }
    }
}

#[test]
fn private_arrays_are_read_where_they_lie() {
    every_world(|rank| {
        let count = play(rank, |_, _| ())?;
        assert_eq!(count, expected(rank.world));
        Ok(())
    });
}

/// Calls of a class in which each of two ways has had a turn; those until it is decided which one is faster, at most; and the least
/// block that is tried.
const TURN: u64 = 8;
const TRIALS: u64 = 64;
const TRIED: usize = 32 << 10;

#[test]
fn both_ways_are_tried_and_then_all_take_the_faster_one() {
    let tuning = Tuning { chunk: 64 << 10, round: 64 << 10, kernel: MEASURE, ..TUNING };
    for (world, crowd) in [(2, false), (3, false), (4, true)] {
        host::run(format!("{world} ranks, crowd: {crowd}"), Terms { tuning, ..terms(world, crowd) }, |rank| {
            let (mut sequence, world) = (1, rank.world);
            let certain = true;
            let all = [Kind::AllGather { certain }, Kind::AllToAll { certain }, Kind::Gather { root: 1, certain }];
            let rooted = [Kind::Scatter { root: 0 }, Kind::Broadcast { root: 1 }, Kind::Exscan];
            for kind in all.into_iter().chain(rooted).filter(|kind| is_for_kernel(*kind, world)) {
                for (bytes, tried) in [(TRIED - 4, false), (TRIED, true)] {
                    let step = Step::new(kind, DType::Float32, Lengths::Even(bytes / size_of::<f32>()));
                    let mut play = || {
                        let before = operations(rank);
                        rank.play(sequence, &step)?;
                        sequence += step.calls(world);
                        Ok(operations(rank) - before)
                    };
                    for call in 0..TRIALS {
                        let done = play()?;
                        let known = done == u64::from(tried) || call >= TURN && done == 0;
                        assert!(known, "{kind:?} of {bytes} bytes, call {call}: {done}");
                    }
                    // Nothing is operated on others' arrays in the rings.
                    let found = play()?;
                    assert!(found <= u64::from(tried), "{kind:?} of {bytes} bytes");
                    for _ in 0..3 {
                        assert_eq!(play()?, found, "{kind:?} of {bytes} bytes");
                    }
                }
            }
            Ok(())
        });
    }
}

/// From some length on, within an octave, it is also tried to write past the caches.
#[test]
fn calls_of_one_octave_may_have_different_ways() {
    let tuning = Tuning { chunk: 64 << 10, round: 64 << 10, kernel: MEASURE, ..TUNING };
    host::run("3 ranks".into(), Terms { tuning, ..terms(3, false) }, |rank| {
        let mut sequence = 1;
        for calls in 1..20 {
            for (bytes, calls) in [(250_000, calls), (200_000, 1)] {
                let step = Step::new(Kind::AllGather { certain: true }, DType::UInt8, Lengths::Even(bytes));
                for _ in 0..calls {
                    rank.play(sequence, &step)?;
                    sequence += step.calls(rank.world);
                }
            }
        }
        Ok(())
    });
}

#[test]
fn if_one_rank_cannot_read_the_others_nobody_does() {
    every_world(|rank| {
        if rank.me == rank.world / 2 {
            filter::refuse_reading();
            rank.find_peers();
        }
        assert_eq!(play(rank, |_, _| ())?, 0);
        Ok(())
    });
}

#[test]
fn a_rank_that_may_not_read_any_more_gets_its_blocks_through_the_rings() {
    every_world(|rank| {
        let last = rank.world - 1;
        let count = play(rank, |k, rank| {
            if k == 7 && rank.me == last {
                filter::refuse_reading();
            }
        })?;
        let before =
            steps(rank.world).iter().take(7).filter(|step| is_for_kernel(step.kind, rank.world)).count() as u64;
        let refused = |who: usize| rank.direct.boards().of(who).progress.refused.position();
        // Those before, and the one in which it came out. The others were not refused anything.
        assert_eq!((0..rank.world).map(refused).max(), Some(count));
        assert!(before < count && count < expected(rank.world), "{before} {count}");
        assert_eq!((0..last).map(refused).max(), Some(0));
        Ok(())
    });
}
