//! The formulas of `cost` against its simulation of the schedules. No I/O, no clock.
#![cfg(not(loom))]

use Collective::*;
use arx::schedule::cost::{Model, simulate};
use arx::schedule::{Algorithm, Collective, Schedule};

const COLLECTIVES: [Collective; 10] =
    [AllReduce, ReduceScatter, AllGather, Broadcast(0), Reduce(0), Gather(0), Scatter(0), AllToAll, Scan, Exscan];
const SIZES: [u64; 6] = [8, 4 << 10, 32 << 10, 256 << 10, 3 << 20, 64 << 20];
/// A fast link, a slow one, and one on which messages cost nothing but their latency.
const MODELS: [Model; 3] = [
    Model { alpha: 5e-6, overhead: 1e-6, beta: 0.2e-9, gamma: 0.1e-9, segment: 256e3, rooted: 1.0 },
    Model { alpha: 30e-6, overhead: 3e-6, beta: 8e-9, gamma: 0.1e-9, segment: 64e3, rooted: 1.0 },
    Model { alpha: 20e-6, overhead: 0.0, beta: 1e-9, gamma: 0.2e-9, segment: 256e3, rooted: 1.0 },
];

fn algorithm(name: &str) -> Algorithm {
    name.parse().expect("a known algorithm")
}

fn schedules(algorithm: Algorithm, collective: Collective, world: u32) -> Option<Vec<Schedule>> {
    (0..world).map(|rank| algorithm.schedule(collective, rank, world)).collect()
}

/// Every formula, over worlds and sizes, is as close to the simulation as `tolerance` says. The largest arrays have thousands of
/// segments, and are compared in some worlds only.
fn compare(names: &str, shares: bool, worlds: &[u32], sizes: &[u64], tolerance: f64) {
    for algorithm in names.split(' ').map(algorithm) {
        for collective in COLLECTIVES {
            for &world in worlds {
                if matches!(collective, Gather(_) | Scatter(_)) != shares {
                    continue;
                }
                let Some(schedules) = schedules(algorithm, collective, world) else { continue };
                let some = [2, 3, 8, 13, 64].contains(&world);
                let sizes = sizes.iter().filter(|&&bytes| bytes < 64 << 20 || some);
                for (bytes, model) in sizes.flat_map(|&bytes| MODELS.map(|model| (bytes, model))) {
                    // The array of an all-to-all holds what comes beside what goes.
                    let arrays = if collective == AllToAll { 2 } else { 1 };
                    let simulated = simulate(&model, arrays * bytes, &schedules);
                    let formula =
                        model.predict(algorithm, collective, world, bytes).expect("it serves this collective");
                    assert!(
                        (formula / simulated - 1.0).abs() <= tolerance,
                        "{algorithm}, {collective:?}, {world} ranks, {bytes} bytes, {model:?}: \
                         {formula} s by formula, {simulated} s simulated"
                    );
                }
            }
        }
    }
}

fn all_worlds() -> Vec<u32> {
    (2..=64).collect()
}

#[test]
fn the_formulas_of_rings_and_trees_agree_with_simulation() {
    compare("ring pairwise tree chain k_ary:2:5 k_ary:3:4 doubling", false, &all_worlds(), &SIZES, 0.03);
}

/// Every rank has all others for peers here, so that simulating all worlds would take long.
#[test]
fn the_formula_of_direct_exchange_agrees_with_simulation() {
    for shares in [false, true] {
        compare("exchange", shares, &[2, 3, 4, 5, 8, 13, 64], &SIZES[..5], 1e-6);
    }
}

/// Of longer arrays a part is passed on while the rest still comes in, which the formula leaves out: nobody takes it for them.
#[test]
fn the_formula_of_reduce_and_broadcast_agrees_with_simulation_where_arrays_are_small() {
    compare("reduce_broadcast relay", false, &all_worlds(), &SIZES[..3], 0.05);
}

#[test]
fn the_formula_of_halving_and_doubling_agrees_with_simulation() {
    compare("recursive", false, &all_worlds(), &SIZES, 0.05);
    // Of larger arrays, a world's number of which is gathered, there are too many segments to simulate; nobody takes it for them.
    compare("all_gather_reduce", false, &all_worlds(), &SIZES[..4], 0.05);
}

/// Ranks of a tree of shares send what lies in other order than it came.
#[test]
fn the_formula_of_gather_and_scatter_by_tree_agrees_roughly_with_simulation() {
    compare("tree", true, &all_worlds(), &SIZES, 0.25);
}

#[test]
fn the_formula_of_the_double_tree_agrees_roughly_with_simulation() {
    let worlds: Vec<u32> = (4..=64).collect();
    compare("double_tree:8 double_tree:32", false, &worlds, &SIZES[3..], 0.25);
}

/// Two ranks that send each other everything: latency, overhead, bytes and their combination, each once.
#[test]
fn a_full_exchange_costs_what_the_model_says() {
    let model = MODELS[0];
    let expected = model.alpha + model.overhead + 1e6 * (model.beta + model.gamma);
    let exchange = algorithm("exchange");
    assert!((model.predict(exchange, AllReduce, 2, 1_000_000).expect("served") - expected).abs() < 1e-12);
    let simulated = simulate(&model, 1_000_000, &schedules(exchange, AllReduce, 2).expect("served"));
    assert!((simulated - expected).abs() < 1e-12);
}

/// The formula of the ring in the limits in which everybody knows it.
#[test]
fn a_ring_costs_latency_for_small_and_bandwidth_for_large_arrays() {
    let model = MODELS[1];
    let predict = |bytes| model.predict(Algorithm::Ring, AllReduce, 4096, bytes).expect("served");
    let steps = 2.0 * 4095.0;
    assert!((predict(0) - steps * (model.alpha + model.overhead)).abs() < 1e-9);
    let bytes = 1u64 << 40;
    let share = bytes as f64 * 4095.0 / 4096.0;
    let expected = 2.0 * share * model.beta + share * model.gamma;
    assert!((predict(bytes) / expected - 1.0).abs() < 1e-3);
}

#[test]
fn a_world_of_one_costs_nothing_and_what_is_not_served_has_no_cost() {
    let model = MODELS[0];
    assert_eq!(model.predict(Algorithm::Ring, AllReduce, 1, 1 << 20), Some(0.0));
    assert_eq!(model.predict(Algorithm::Tree, AllGather, 1, 1 << 20), None);
    assert_eq!(model.predict(Algorithm::Tree, AllGather, 8, 1 << 20), None);
}

/// Nothing is built per rank or per step.
#[test]
fn every_algorithm_can_be_costed_for_a_world_that_is_never_built() {
    for name in
        "ring recursive doubling all_gather_reduce reduce_broadcast relay tree chain k_ary:4:16 double_tree:16 pairwise exchange".split(' ')
    {
        for collective in COLLECTIVES.into_iter().filter(|&collective| algorithm(name).serves(collective)) {
            let predict = |world| MODELS[0].predict(algorithm(name), collective, world, 1 << 20).expect("served");
            let (small, large) = (predict(4096), predict(1 << 30));
            assert!(small.is_finite() && small < large && large.is_finite(), "{name}: {small}, {large}");
        }
    }
}
