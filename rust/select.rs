//! Which algorithm for which size: the one that takes least time by the model of the network. Pure, and every rank has the same
//! model, so all of them choose the same.

use crate::schedule::cost::Model;
use crate::schedule::{Algorithm, Collective};

/// An algorithm and what it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub algorithm: Algorithm,
    pub seconds: f64,
}

/// From so many ranks on nobody sends to everybody at once: the messages of one step would fill buffers and tables.
const CROWDED: u32 = 17;

/// Below this, a sum whose order matters takes few steps among very many ranks, a constant, so that it does not depend on what was
/// measured; and blocks for or from one rank may go along a tree.
const SMALL: usize = 64 << 10;

/// What the result of a reduction depends on, besides its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// On nothing: integers, minima, logic.
    Free,
    /// On the order in which operands are combined. It must not depend on what was measured, or the same program would end with
    /// other bits the next time.
    Fixed,
    /// As `Fixed`, and all values of an element must come together before any are combined: halves, which are rounded once.
    Together,
}

/// Ways to do `collective` on `bytes` bytes, of all blocks together, among `world` ranks, the fastest first.
///
/// Where order matters only those come into question that combine in the order of ranks (`Algorithm::keeps_order`), so that it makes no difference to the
/// bits which of them is faster today; but an all-reduce among very many ranks takes one other, always the same.
pub fn choices(model: &Model, collective: Collective, world: u32, bytes: usize, order: Order) -> Vec<Choice> {
    let direct = (world < CROWDED).then_some(Algorithm::Exchange);
    let candidates: Vec<Algorithm> = match collective {
        Collective::AllReduce => all_reduce(world, bytes, order),
        Collective::Reduce(_) => reduce(world, order),
        Collective::Broadcast(_) => {
            [Algorithm::Tree, Algorithm::Ring].into_iter().chain(direct).chain(double_trees()).collect()
        }
        Collective::ReduceScatter => match order {
            Order::Free => vec![Algorithm::Pairwise, Algorithm::Recursive, Algorithm::Ring],
            Order::Fixed | Order::Together => vec![Algorithm::Pairwise],
        },
        Collective::AllGather => vec![Algorithm::Recursive, Algorithm::Ring, Algorithm::Pairwise],
        // The root's port is what much takes time at, and on a tree half of it would pass through one other rank's memory.
        Collective::Gather(_) | Collective::Scatter(_) if bytes >= SMALL => vec![Algorithm::Exchange],
        Collective::Gather(_) | Collective::Scatter(_) => vec![Algorithm::Exchange, Algorithm::Tree],
        Collective::AllToAll => vec![Algorithm::Pairwise],
        Collective::Scan | Collective::Exscan => direct.into_iter().chain([Algorithm::CHAIN]).collect(),
    };
    ranked(candidates.into_iter(), model, collective, world, bytes)
}

fn all_reduce(world: u32, bytes: usize, order: Order) -> Vec<Algorithm> {
    let direct = (world < CROWDED).then_some(Algorithm::Exchange);
    let few_messages = [Algorithm::AllGatherReduce, Algorithm::ReduceBroadcast];
    let few_messages = (3..CROWDED).contains(&world).then_some(few_messages).into_iter().flatten();
    // Two hosts exchange all they have in one step, or half of it in each of two: then each combines only its half.
    let relay = (order != Order::Together && (3..CROWDED).contains(&world)).then_some(Algorithm::Relay);
    let ordered = direct.into_iter().chain([Algorithm::Pairwise]).chain(few_messages).chain(relay);
    let many = if bytes < SMALL { Algorithm::Doubling } else { Algorithm::Ring };
    let free = [Algorithm::Doubling, Algorithm::Recursive, Algorithm::Ring, Algorithm::Tree];
    match order {
        Order::Fixed if world >= CROWDED => vec![many],
        Order::Free if world > 2 => ordered.chain(free).chain(double_trees()).collect(),
        _ => ordered.collect(),
    }
}

fn reduce(world: u32, order: Order) -> Vec<Algorithm> {
    let direct = (world < CROWDED).then_some(Algorithm::Exchange);
    let pairwise = (world > 2).then_some(Algorithm::Pairwise);
    let free = [Algorithm::Recursive, Algorithm::Ring, Algorithm::Tree];
    match order {
        Order::Free if world > 2 => direct.into_iter().chain(pairwise).chain(free).chain(double_trees()).collect(),
        _ => direct.into_iter().chain(pairwise).collect(),
    }
}

fn double_trees() -> impl Iterator<Item = Algorithm> {
    [4, 16, 64].into_iter().map(|pieces| Algorithm::DoubleTree { pieces })
}

/// What the formulas leave out. The two trees of the double tree hinder each other: up to a quarter of its time. Halving and
/// doubling pass nothing on while it arrives: with links of 1 Gb/s a twentieth to a fifth slower than the ring at 1 to 16 MiB.
fn doubt(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::DoubleTree { .. } => 1.25,
        Algorithm::Recursive => 1.1,
        _ => 1.0,
    }
}

/// Ties keep the order of the candidates, so that no two ranks can differ.
fn ranked(
    algorithms: impl Iterator<Item = Algorithm>,
    model: &Model,
    collective: Collective,
    world: u32,
    bytes: usize,
) -> Vec<Choice> {
    let choice = |algorithm| {
        let seconds = doubt(algorithm) * model.predict(algorithm, collective, world, bytes as u64)?;
        Some(Choice { algorithm, seconds })
    };
    let mut choices: Vec<Choice> = algorithms.filter_map(choice).collect();
    choices.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Exscan, Gather, Reduce, ReduceScatter, Scan, Scatter};

    /// 1 Gb/s, 30 us away.
    const WIRE: Model = Model { alpha: 20e-6, overhead: 5e-6, beta: 8e-9, gamma: 1e-10, segment: 32768.0, rooted: 1.0 };

    #[test]
    fn small_arrays_take_few_steps_and_large_ones_few_bytes() {
        for world in [3, 4, 5, 7, 8, 16, 33, 4096] {
            let best = |bytes| choices(&WIRE, AllReduce, world, bytes, Order::Free)[0].algorithm;
            let slim = [Algorithm::Ring, Algorithm::Recursive, Algorithm::Pairwise];
            assert!(!slim.contains(&best(8)), "{world}: {}", best(8));
            let large = best(1 << 30);
            assert!(slim.contains(&large) || matches!(large, Algorithm::DoubleTree { .. }), "{world}: {large}");
            assert_eq!(best(64 << 10), best(64 << 10));
        }
    }

    #[test]
    fn two_ranks_share_the_work_where_combining_takes_longer_than_another_step() {
        let best = |model: &Model, bytes| choices(model, AllReduce, 2, bytes, Order::Fixed)[0].algorithm;
        let loopback = Model { alpha: 1e-6, overhead: 3e-6, beta: 1e-10, gamma: 5e-11, ..WIRE };
        for (model, bytes) in [(&WIRE, 8), (&WIRE, 64 << 10), (&loopback, 8), (&loopback, 64 << 10)] {
            assert_eq!(best(model, bytes), Algorithm::Exchange, "{bytes} bytes");
        }
        assert_eq!(best(&loopback, 1 << 20), Algorithm::Pairwise);
    }

    #[test]
    fn small_sums_take_few_messages_where_these_cost_more_than_latency() {
        let best = |model: Model| choices(&model, AllReduce, 8, 8, Order::Fixed)[0].algorithm;
        assert_eq!(best(WIRE), Algorithm::Exchange);
        assert_eq!(best(Model { alpha: 2e-6, overhead: 20e-6, ..WIRE }), Algorithm::AllGatherReduce);
        assert_eq!(best(Model { alpha: 2e-6, overhead: 20e-6, rooted: 0.25, ..WIRE }), Algorithm::Relay);
    }

    #[test]
    fn sums_of_halves_are_not_combined_on_the_way() {
        for world in [2, 3, 8, 64] {
            for choice in choices(&WIRE, AllReduce, world, 1 << 20, Order::Together) {
                assert!(choice.algorithm.rounds_once(), "{}", choice.algorithm);
            }
        }
    }

    /// Whatever was measured: an order is the same for all models.
    #[test]
    fn the_order_of_a_sum_does_not_depend_on_the_model() {
        let slow = Model { alpha: 1e-3, overhead: 1e-4, beta: 1e-7, gamma: 1e-9, segment: 32768.0, rooted: 1.0 };
        for world in [2, 3, 8, 16, 17, 100] {
            for bytes in [8, 1 << 10, 1 << 20, 1 << 28] {
                let order = |model| match choices(model, AllReduce, world, bytes, Order::Fixed)[0].algorithm {
                    ordered if ordered.keeps_order() => "ranks".to_owned(),
                    other => other.to_string(),
                };
                assert_eq!(order(&WIRE), order(&slow), "{world} {bytes}");
            }
        }
    }

    #[test]
    fn a_broadcast_of_much_is_not_sent_whole() {
        assert_eq!(choices(&WIRE, Broadcast(0), 64, 8, Order::Free)[0].algorithm, Algorithm::Tree);
        let large = choices(&WIRE, Broadcast(0), 8, 1 << 26, Order::Free)[0].algorithm;
        assert!(!matches!(large, Algorithm::Tree | Algorithm::Exchange), "{large}");
        assert_eq!(choices(&WIRE, Broadcast(0), 2, 1 << 26, Order::Free).len(), 6);
    }

    /// Everything that combines floats does so in the order of ranks, whatever was measured.
    #[test]
    fn where_order_matters_it_is_that_of_ranks() {
        for world in [1, 2, 3, 8, 16, 17, 100] {
            for collective in [Reduce(0), ReduceScatter, Scan, Exscan] {
                for order in [Order::Fixed, Order::Together] {
                    let choices = choices(&WIRE, collective, world, 1 << 20, order);
                    assert!(!choices.is_empty(), "{collective:?}, {world}");
                    let ordered = [Algorithm::Exchange, Algorithm::Pairwise, Algorithm::CHAIN];
                    assert!(
                        choices.iter().all(|choice| ordered.contains(&choice.algorithm)),
                        "{collective:?}, {world}"
                    );
                    let chained = choices.iter().any(|choice| choice.algorithm == Algorithm::CHAIN);
                    assert_eq!(chained, matches!(collective, Scan | Exscan));
                }
            }
        }
    }

    #[test]
    fn few_steps_for_small_blocks_and_no_byte_twice_for_large_ones() {
        let best = |collective, bytes| choices(&WIRE, collective, 16, bytes, Order::Free)[0].algorithm;
        for rooted in [Gather(0), Scatter(0)] {
            assert_eq!((best(rooted, 16), best(rooted, 1 << 26)), (Algorithm::Exchange, Algorithm::Exchange));
            let slow = Model { overhead: 50e-6, ..WIRE };
            assert_eq!(choices(&slow, rooted, 16, 16, Order::Free)[0].algorithm, Algorithm::Tree);
        }
        assert_eq!((best(Scan, 8), best(Scan, 1 << 24)), (Algorithm::Exchange, Algorithm::CHAIN));
        assert_eq!(best(AllToAll, 8), Algorithm::Pairwise);
        let slow = Model { overhead: 50e-6, ..WIRE };
        assert_eq!(choices(&slow, AllGather, 16, 128, Order::Free)[0].algorithm, Algorithm::Recursive);
    }
}
