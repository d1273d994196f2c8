//! The engine, over media so narrow that full, empty and half an element happen at once. Every result is compared bit by bit with
//! what the schedules say.

use arx::dtype::{DType, ReduceOp};
use arx::engine::SEGMENT;
use arx::schedule::{Algorithm, Collective};
use proptest::prelude::*;
use ranks::Medium;
use ranks::case::Case;

mod ranks;

const ALGORITHMS: [Algorithm; 12] = [
    Algorithm::Ring,
    Algorithm::Recursive,
    Algorithm::Doubling,
    Algorithm::AllGatherReduce,
    Algorithm::ReduceBroadcast,
    Algorithm::Relay,
    Algorithm::Tree,
    Algorithm::CHAIN,
    Algorithm::KAry { arity: 2, pieces: 3 },
    Algorithm::DoubleTree { pieces: 2 },
    Algorithm::Pairwise,
    Algorithm::Exchange,
];

/// Whether the bits are the same on all ranks: where partial results are rounded, only if everything is combined at once.
fn suits(algorithm: Algorithm, dtype: DType, op: ReduceOp) -> bool {
    let rounds = matches!(dtype, DType::Float16 | DType::BFloat16)
        && matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg);
    !rounds || algorithm.rounds_once()
}

const PAIRS: [(DType, ReduceOp); 6] = [
    (DType::Int8, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Avg),
    (DType::Float64, ReduceOp::Max),
    (DType::Float64, ReduceOp::Avg),
    (DType::Complex128, ReduceOp::Avg),
];

#[test]
fn every_world_and_every_length_at_which_something_changes() {
    let collective = Collective::AllReduce;
    for algorithm in ALGORITHMS {
        for world in 1..=9 {
            for elements in [0, 1, world - 1, world, world + 1, 1000] {
                // All pairs meet all lengths, in worlds that take turns.
                let pairs = PAIRS.into_iter().enumerate().filter(|(k, _)| (k + world + elements) % PAIRS.len() == 0);
                for (_, (dtype, op)) in pairs.filter(|(_, (dtype, op))| suits(algorithm, *dtype, *op)) {
                    let medium = Medium::Pipes(if elements == 1000 { 256 } else { 128 + 16 * (elements % 5) });
                    Case { algorithm, collective, world, elements, dtype, op, tile: usize::MAX, medium }.check();
                }
            }
        }
    }
}

#[test]
fn arrays_longer_than_three_segments() {
    let collective = Collective::AllReduce;
    for algorithm in ALGORITHMS {
        let (int, float) = ((DType::Int8, ReduceOp::Sum), (DType::Float32, ReduceOp::Avg));
        for (world, tile, (dtype, op), medium) in [
            (2, usize::MAX, float, Medium::Sockets(64 << 10)),
            (3, usize::MAX, int, Medium::Both(48 << 10)),
            (3, 64 << 10, float, Medium::Rings(48 << 10)),
        ] {
            let elements = 3 * SEGMENT / dtype.size() + 1;
            Case { algorithm, collective, world, elements, dtype, op, tile, medium }.check();
        }
    }
}

fn pairs() -> Vec<(DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| *dtype != DType::Bool && op.check(*dtype).is_ok()).collect()
}

/// Of a root.
type Kind = fn(u32) -> Collective;

/// What every algorithm serves.
fn jobs() -> Vec<(Algorithm, Kind)> {
    let collectives: [Kind; 10] = [
        |_| Collective::AllReduce,
        |_| Collective::ReduceScatter,
        |_| Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        |_| Collective::AllToAll,
        |_| Collective::Scan,
        |_| Collective::Exscan,
    ];
    let all = ALGORITHMS.into_iter().flat_map(|algorithm| collectives.map(|collective| (algorithm, collective)));
    all.filter(|(algorithm, collective)| algorithm.serves(collective(0))).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let tile = prop_oneof![Just(usize::MAX), 1..3000usize];
    let medium = prop_oneof![
        3 => (8..=16usize).prop_map(|k| Medium::Pipes(16 * k)),
        2 => (2..=4usize).prop_map(|k| Medium::Rings(64 * k)),
        1 => Just(Medium::Sockets(1)),
        2 => (8..=16usize).prop_map(|k| Medium::Both(16 * k)),
    ];
    let memory = (tile, medium);
    (prop::sample::select(jobs()), 1..=9usize, 0..9u32, 0..700usize, prop::sample::select(pairs()), memory)
        .prop_filter("combined at once", |((algorithm, _), _, _, _, (dtype, op), _)| suits(*algorithm, *dtype, *op))
        .prop_map(|((algorithm, collective), world, root, elements, (dtype, op), (tile, medium))| {
            let collective = collective(root % world as u32);
            // What comes must be as long as what goes.
            let (equal, tile) = if collective == Collective::AllToAll { (2 * world, usize::MAX) } else { (1, tile) };
            let elements = elements - elements % equal;
            Case { algorithm, collective, world, elements, dtype, op, tile, medium }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_ends_with_the_bits_of_the_schedule(case in case()) {
        case.check();
    }
}
