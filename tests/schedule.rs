//! Every schedule, proved for every world from 1 to 64 and compared with the formulas in its documentation. No I/O.
#![cfg(not(loom))]

use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
use arx::schedule::verify::{Report, table, verify};
use arx::schedule::{Algorithm, Collective};

const WORLDS: std::ops::RangeInclusive<u32> = 1..=64;

fn algorithm(name: &str) -> Algorithm {
    name.parse().expect("a known algorithm")
}

fn algorithms() -> Vec<Algorithm> {
    let names = "ring recursive doubling tree chain k_ary:2:1 k_ary:2:5 k_ary:3:4 double_tree:1 double_tree:5 pairwise exchange";
    names.split(' ').map(algorithm).collect()
}

/// With every root in small worlds, and some in large ones.
fn collectives(world: u32) -> Vec<Collective> {
    let roots: Vec<u32> = match world {
        1..=12 => (0..world).collect(),
        _ => vec![0, 1, world / 2, world - 1],
    };
    let rooted = roots.into_iter().flat_map(|root| [Broadcast(root), Reduce(root)]);
    [AllReduce, ReduceScatter, AllGather].into_iter().chain(rooted).collect()
}

fn proved(algorithm: Algorithm, collective: Collective, world: u32) -> Report {
    let schedule = |rank| algorithm.schedule(collective, rank, world).expect("it serves this collective");
    verify(collective, world, schedule)
        .unwrap_or_else(|fault| panic!("{algorithm}, {collective:?}, {world} ranks: {fault}"))
}

#[test]
fn every_schedule_is_right_for_every_world() {
    for algorithm in algorithms() {
        for world in WORLDS {
            for collective in collectives(world).into_iter().filter(|&collective| algorithm.serves(collective)) {
                proved(algorithm, collective, world);
            }
        }
    }
}

/// The documentation shows what every rank has after each step, for three ranks: exactly what `table` prints.
#[test]
fn the_tables_in_the_documentation_are_those_of_verify() {
    let documented = [
        (
            "ring",
            include_str!("../rust/schedule/ring.rs"),
            vec![AllReduce, ReduceScatter, AllGather, Broadcast(0), Reduce(0)],
        ),
        (
            "recursive",
            include_str!("../rust/schedule/recursive.rs"),
            vec![AllReduce, ReduceScatter, AllGather, Reduce(0)],
        ),
        ("doubling", include_str!("../rust/schedule/recursive.rs"), vec![AllReduce]),
        ("tree", include_str!("../rust/schedule/tree.rs"), vec![AllReduce, Broadcast(0), Reduce(0)]),
        ("k_ary:2:2", include_str!("../rust/schedule/tree.rs"), vec![Broadcast(0), Reduce(0)]),
        ("double_tree:1", include_str!("../rust/schedule/double_tree.rs"), vec![AllReduce, Broadcast(0), Reduce(0)]),
        (
            "pairwise",
            include_str!("../rust/schedule/pairwise.rs"),
            vec![AllReduce, ReduceScatter, AllGather, Reduce(0)],
        ),
        ("exchange", include_str!("../rust/schedule/exchange.rs"), vec![AllReduce, Broadcast(0), Reduce(0)]),
    ];
    for (name, source, collectives) in documented {
        for collective in collectives {
            let schedule = |rank| algorithm(name).schedule(collective, rank, 3).expect("it serves this collective");
            let table = table(collective, 3, schedule).expect("proved above");
            let lines: String = table.lines().map(|line| format!("/// {line}\n")).collect();
            let block = format!("/// ```text\n{lines}/// ```\n");
            assert!(source.contains(&block), "{name} does not show this table of {collective:?}:\n{block}");
        }
    }
}
