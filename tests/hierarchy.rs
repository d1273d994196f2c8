//! Collectives over several hosts: results are exact, equal on every rank, and for halves rounded once, whatever the hosts look
//! like.

use arx::direct::Verdict;
use arx::dtype::{DType, ReduceOp};
use arx::error::Rank;
use arx::hierarchy::Way;
use arx::kernels::{Bytes, Isa, Reducer, widen_with};
use arx::schedule::Algorithm;
use hosts::{Array, bytes_of, job, shapes, value};

mod hosts;

const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::Ring,
    Algorithm::Recursive,
    Algorithm::Tree,
    Algorithm::Pairwise,
    Algorithm::Exchange,
    Algorithm::AllGatherReduce,
    Algorithm::ReduceBroadcast,
    Algorithm::Relay,
    Algorithm::DoubleTree { pieces: 3 },
];

#[test]
fn every_shape_and_algorithm_sums_exactly() {
    for members in shapes() {
        let world: Rank = members.iter().map(|ranks| ranks.len() as Rank).sum();
        let lengths = [1, 5, 16, 1000, 20_000, 60_000];
        for crowd in [false, true] {
            let results = job(&members, crowd, |member| {
                let mut all = Vec::new();
                for algorithm in ALGORITHMS {
                    for way in [Way::Hierarchical(algorithm), Way::Flat(algorithm)] {
                        for len in lengths {
                            let x = Array::new(&bytes_of(len, |k| (value(member.rank, k) as i32).to_le_bytes()));
                            let kind = (DType::Int32, ReduceOp::Sum);
                            let verdict = member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells()));
                            assert_eq!(verdict, Verdict::Agreed);
                            all.push((way, len, x.read()));
                        }
                    }
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (way, len, got) in all {
                    let sum = |k| (0..world).map(|r| value(r, k)).sum::<i64>() as i32;
                    assert!(got == bytes_of(len, |k| sum(k).to_le_bytes()), "rank {rank} {members:?} {way:?} {len}");
                }
            }
        }
    }
}

/// Sums whose order matters: the bits need not be those of another order, but must be the same on all ranks.
#[test]
fn floats_have_the_same_bits_on_every_rank() {
    for members in shapes() {
        let results = job(&members, false, |member| {
            let mut all = Vec::new();
            for algorithm in ALGORITHMS {
                for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
                    let float = |k: usize| value(member.rank, k) as f32 * 1.7e-3 + 1e3 / (k + 1) as f32;
                    let x = Array::new(&bytes_of(17_001, |k| float(k).to_le_bytes()));
                    let y = Array::new(&vec![0; 4 * 17_001]);
                    let kind = (DType::Float32, op);
                    let way = Way::Hierarchical(algorithm);
                    assert_eq!(member.session(|s| s.all_reduce(way, kind, y.cells(), x.cells())), Verdict::Agreed);
                    all.push(y.read());
                }
            }
            all
        });
        assert!(results.iter().all(|r| *r == results[0]), "{members:?}");
        // An average is the sum divided once.
        let world: usize = members.iter().map(Vec::len).sum();
        for pair in results[0].chunks(3) {
            for (sum, avg) in pair[0].as_chunks::<4>().0.iter().zip(pair[1].as_chunks::<4>().0) {
                assert_eq!(f32::from_le_bytes(*sum) / world as f32, f32::from_le_bytes(*avg));
            }
        }
    }
}

/// 2048 + 1 + 1 + ... in float16 is 2048 if it is rounded at every step.
#[test]
fn halves_are_rounded_once_wherever_the_ranks_are() {
    for members in shapes() {
        let world: usize = members.iter().map(Vec::len).sum();
        for dtype in [DType::Float16, DType::BFloat16] {
            let half = |x: f32| match dtype {
                DType::Float16 => half::f16::from_f32(x).to_le_bytes(),
                _ => half::bf16::from_f32(x).to_le_bytes(),
            };
            let big = if dtype == DType::Float16 { 2048.0 } else { 256.0 };
            let brings = |rank: usize, k: usize| if rank == k % world { big } else { (1 + (k + rank) % 3) as f32 };
            let results = job(&members, false, |member| {
                let mut all = Vec::new();
                for algorithm in ALGORITHMS {
                    for way in [Way::Hierarchical(algorithm), Way::Flat(algorithm)] {
                        for op in [ReduceOp::Sum, ReduceOp::Avg] {
                            let x = Array::new(&bytes_of(2500, |k| half(brings(member.rank as usize, k))));
                            let kind = (dtype, op);
                            assert_eq!(
                                member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells())),
                                Verdict::Agreed
                            );
                            all.push((way, op, x.read()));
                        }
                    }
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (way, op, got) in all {
                    // Whole numbers: float32 adds them exactly, in any order.
                    let sum = |k| (0..world).map(|r| brings(r, k)).sum::<f32>();
                    let expected = |k| half(if op == ReduceOp::Avg { sum(k) / world as f32 } else { sum(k) });
                    assert!(got == bytes_of(2500, expected), "rank {rank} {members:?} {way:?} {dtype} {op}");
                }
            }
        }
    }
}

/// Where every rank has a host of its own and the algorithm brings values together, they are combined in rank order.
#[test]
fn what_brings_values_together_combines_halves_in_rank_order() {
    let members: Vec<Vec<Rank>> = (0..4).map(|rank| vec![rank]).collect();
    let input = |rank: Rank| bytes_of(3000, |k| half::f16::from_f32(value(rank, k) as f32 / 7.0).to_le_bytes());
    let arrays: Vec<Array> = (0..4).map(|rank| Array::new(&input(rank))).collect();
    let operands: Vec<Bytes<'_>> = arrays.iter().map(Array::cells).collect();
    let expected = Array::new(&vec![0; 6000]);
    let kernel = Reducer::with_isa(DType::Float16, ReduceOp::Sum, Isa::Scalar).expect("it has sums");
    kernel.run(expected.cells(), &operands);
    let expected = expected.read();
    for algorithm in ALGORITHMS.into_iter().filter(|algorithm| algorithm.rounds_once()) {
        let results = job(&members, false, |member| {
            let x = Array::new(&input(member.rank));
            let kind = (DType::Float16, ReduceOp::Sum);
            let way = Way::Hierarchical(algorithm);
            assert_eq!(member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells())), Verdict::Agreed);
            x.read()
        });
        assert!(results.iter().all(|r| *r == expected), "{algorithm}");
    }
    // The test would not see an order if float16 sums had none.
    let wide = Array::new(&vec![0; 12_000]);
    widen_with(Isa::Scalar, DType::Float16, wide.cells(), Array::new(&expected).cells());
    assert_ne!(wide.read(), vec![0; 12_000]);
}

#[test]
fn every_root_broadcasts_and_barriers_end() {
    for members in shapes() {
        let world: Rank = members.iter().map(|ranks| ranks.len() as Rank).sum();
        for crowd in [false, true] {
            let results = job(&members, crowd, |member| {
                let mut all = Vec::new();
                for root in 0..world {
                    for (len, algorithm) in [(1, Algorithm::Tree), (3000, Algorithm::Tree), (200_000, Algorithm::Ring)]
                    {
                        let x = Array::new(&bytes_of(len, |k| [(value(member.rank, k) + 130) as u8]));
                        assert_eq!(member.session(|s| s.broadcast(algorithm, root, x.cells())), Verdict::Agreed);
                        all.push((root, len, x.read()));
                    }
                    assert_eq!(member.session(|s| s.barrier(Algorithm::Exchange)), Verdict::Agreed);
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (root, len, got) in all {
                    let expected = bytes_of(len, |k| [(value(root, k) + 130) as u8]);
                    assert!(got == expected, "rank {rank} {members:?} root {root} {len}");
                }
            }
        }
    }
}
