//! Every schedule, proved for every world from 1 to 64 and compared with the formulas in its documentation. No I/O.
#![cfg(not(loom))]

use Collective::*;
use arx::schedule::verify::{Report, table, verify};
use arx::schedule::{Algorithm, Apply, Buf, Collective, Schedule, Span, Step, UnknownAlgorithm};

const WORLDS: std::ops::RangeInclusive<u32> = 1..=64;

fn algorithm(name: &str) -> Algorithm {
    name.parse().expect("a known algorithm")
}

fn algorithms() -> Vec<Algorithm> {
    let names = "ring recursive doubling all_gather_reduce reduce_broadcast relay tree chain k_ary:2:1 k_ary:2:5 k_ary:3:4 double_tree:1 double_tree:5 pairwise exchange";
    names.split(' ').map(algorithm).collect()
}

/// With every root in small worlds, and some in large ones.
fn collectives(world: u32) -> Vec<Collective> {
    let roots: Vec<u32> = match world {
        1..=12 => (0..world).collect(),
        _ => vec![0, 1, world / 2, world - 1],
    };
    let rooted = roots.into_iter().flat_map(|root| [Broadcast(root), Reduce(root), Gather(root), Scatter(root)]);
    [AllReduce, ReduceScatter, AllGather, AllToAll, Scan, Exscan].into_iter().chain(rooted).collect()
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
                let report = proved(algorithm, collective, world);
                assert_eq!(
                    report.scratch,
                    algorithm.scratch(collective, world),
                    "{algorithm}, {collective:?}, {world}"
                );
            }
        }
    }
}

/// Steps, chunks sent, received and reduced of the rank that has most, and scratch: the formulas in the documentation.
#[derive(Debug, PartialEq)]
struct Cost {
    chunks: u32,
    steps: usize,
    sent: u64,
    received: u64,
    reduced: u64,
    scratch: u32,
}

fn counted(report: &Report) -> Cost {
    let most = |counts: &[u64]| counts.iter().copied().max().expect("at least one rank");
    Cost {
        chunks: report.chunks,
        steps: report.steps,
        sent: most(&report.sent),
        received: most(&report.received),
        reduced: most(&report.reduced),
        scratch: report.scratch,
    }
}

/// What the documentation says of `p` ranks; None where it gives only bounds.
fn documented(name: &str, collective: Collective, p: u32) -> Option<Cost> {
    let others = p - 1;
    let levels = p.next_power_of_two().ilog2();
    let (chunks, steps, sent, received, reduced, scratch) = match (name, collective) {
        ("ring", AllReduce) => (p, 2 * others, 2 * others, 2 * others, others, 0),
        ("ring" | "recursive", ReduceScatter | AllGather | AllReduce) if name == "ring" || p.is_power_of_two() => {
            let steps = if name == "ring" { others } else { levels };
            let phases = if collective == AllReduce { 2 } else { 1 };
            (p, phases * steps, phases * others, phases * others, if collective == AllGather { 0 } else { others }, 0)
        }
        ("ring", Reduce(_)) => (p, 2 * others, p, 2 * others, others, 0),
        ("pairwise", AllReduce) => (p, 2 * others, 2 * others, 2 * others, others, others),
        ("pairwise", ReduceScatter) => (p, others, others, others, others, others),
        ("pairwise", AllGather) => (p, others, others, others, 0, 0),
        ("pairwise", Reduce(_)) => (p, 2 * others, p, 2 * others, others, others),
        ("exchange", AllReduce) if p == 2 => (1, 1, 1, 1, 1, 0),
        ("exchange", AllReduce) => (1, others, others, others, others, others),
        ("exchange", Broadcast(_)) => (1, others, others, 1, 0, 0),
        ("exchange", Reduce(_)) => (1, others, 1, others, others, others),
        ("exchange", Gather(_)) => (p, others, 1, others, 0, 0),
        ("exchange", Scatter(_)) => (p, others, others, 1, 0, 0),
        ("exchange", Scan) => (1, others, others, others, others, others),
        // What one rank before it brings is copied, not reduced.
        ("exchange", Exscan) => (1, others, others, others, others - 1, others),
        ("pairwise", AllToAll) => (2 * p, others, others, others, 0, 0),
        ("tree", Gather(0)) if p.is_power_of_two() => (p, levels, p / 2, others, 0, 0),
        ("tree", Scatter(0)) if p.is_power_of_two() => (p, levels, others, p / 2, 0, 0),
        ("chain", Scan) => (1, if p == 2 { 1 } else { 2 }, 1, 1, 1, 0),
        ("chain", Exscan) if p > 3 => (1, 3, 2, 2, 1, 0),
        ("all_gather_reduce", AllReduce) if p == 2 => (1, 1, 1, 1, 1, 0),
        ("all_gather_reduce", AllReduce) => (1, levels, others, others, others, p),
        ("reduce_broadcast", AllReduce) => (1, others + levels, levels.max(1), others, others, others),
        ("relay", AllReduce) if p == 2 => (1, 1, 1, 1, 1, 0),
        ("relay", AllReduce) => (1, p / 2 + levels, levels, p.div_ceil(2), p / 2, p / 2),
        ("doubling", AllReduce) if p.is_power_of_two() => (1, levels, levels, levels, levels, 0),
        ("doubling", AllReduce) => (1, levels + 1, levels, levels, levels, 0),
        ("tree", AllReduce) => (1, 2 * levels, levels, levels, levels, 0),
        ("tree", Broadcast(_)) => (1, levels, levels, 1, 0, 0),
        ("tree", Reduce(_)) => (1, levels, 1, levels, levels, 0),
        ("chain", Broadcast(_)) => (1, if p == 2 { 1 } else { 2 }, 1, 1, 0, 0),
        ("chain", Reduce(_)) => (1, if p == 2 { 1 } else { 2 }, 1, 1, 1, 0),
        _ => return None,
    };
    let [sent, received, reduced] = [sent, received, reduced].map(u64::from);
    Some(Cost { chunks, steps: steps as usize, sent, received, reduced, scratch })
}

#[test]
fn steps_and_bytes_are_those_of_the_documentation() {
    let mut compared = 0;
    for name in
        "ring recursive doubling all_gather_reduce reduce_broadcast relay tree chain pairwise exchange".split(' ')
    {
        for world in 2..=64_u32 {
            for collective in collectives(world).into_iter().filter(|&collective| algorithm(name).serves(collective)) {
                let Some(expected) = documented(name, collective, world) else { continue };
                let report = proved(algorithm(name), collective, world);
                assert_eq!(counted(&report), expected, "{name}, {collective:?}, {world} ranks");
                compared += 1;
            }
        }
    }
    assert!(compared > 2000, "{compared}");
}

/// In any world halving and doubling take `⌈log2 p⌉` rounds each, of two steps at most, and the bytes of a ring on every rank.
#[test]
fn halving_and_doubling_send_no_more_than_a_ring_in_any_world() {
    for world in 2..=64_u32 {
        let rounds = world.next_power_of_two().ilog2() as usize;
        for (collective, phases) in [(AllReduce, 2), (ReduceScatter, 1), (AllGather, 1)] {
            let report = proved(Algorithm::Recursive, collective, world);
            let least = vec![phases * u64::from(world - 1); world as usize];
            assert_eq!((&report.sent, &report.received), (&least, &least), "{collective:?}, {world} ranks");
            let fewest = phases as usize * rounds;
            assert!((fewest..=2 * fewest).contains(&report.steps), "{}, {collective:?}, {world}", report.steps);
        }
        let root = proved(Algorithm::Recursive, Reduce(0), world);
        assert_eq!(root.received[0], 2 * u64::from(world - 1));
    }
}

/// Everybody but the root receives every chunk once, and the root none.
#[test]
fn a_broadcast_brings_every_chunk_once() {
    for name in "ring tree chain k_ary:2:5 double_tree:5 exchange".split(' ') {
        for (world, root) in (2..=64).flat_map(|world| [0, world / 2].map(|root| (world, root))) {
            let report = proved(algorithm(name), Broadcast(root), world);
            let mut expected = vec![u64::from(report.chunks); world as usize];
            expected[root as usize] = 0;
            assert_eq!(report.received, expected, "{name}, {world} ranks, root {root}");
        }
    }
}

#[test]
fn a_broadcast_by_ring_costs_what_its_documentation_says() {
    for world in 2..=64_u32 {
        let report = proved(Algorithm::Ring, Broadcast(0), world);
        let levels = world.next_power_of_two().ilog2();
        assert!(report.steps <= (levels + world - 1) as usize, "{}, {world} ranks", report.steps);
        assert!(report.sent[0] <= 2 * u64::from(world - 1));
    }
}

/// Twice the array out of and into each rank at most, once combined; and for one root once the array out of each rank.
#[test]
fn a_double_tree_spreads_the_bytes() {
    for world in 2..=64_u32 {
        let report = proved(algorithm("double_tree:5"), AllReduce, world);
        let array = u64::from(report.chunks);
        for rank in 0..world as usize {
            assert!(report.sent[rank] <= 2 * array && report.received[rank] <= 2 * array, "{world}: {report:?}");
            assert!(report.reduced[rank] <= array, "{world}: {report:?}");
        }
        let broadcast = proved(algorithm("double_tree:5"), Broadcast(0), world);
        assert!(broadcast.sent.iter().all(|&sent| sent <= array), "{world}: {broadcast:?}");
        let reduce = proved(algorithm("double_tree:5"), Reduce(0), world);
        assert!(reduce.received.iter().all(|&received| received <= array), "{world}: {reduce:?}");
    }
}

#[test]
fn a_k_ary_tree_has_so_many_steps_per_piece() {
    for (world, arity, pieces) in (2..=64).flat_map(|world| [(world, 2, 5), (world, 3, 4)]) {
        let report = proved(Algorithm::KAry { arity, pieces }, Broadcast(0), world);
        let children = |v: u32| (1..world).filter(|&child| (child - 1) / arity == v).count();
        let most = (0..world).map(|v| children(v) + usize::from(v > 0)).max().expect("a rank");
        assert_eq!(report.steps, most * pieces as usize, "{world} ranks, {arity} children");
        assert_eq!(report.sent[0], u64::from(pieces * arity.min(world - 1)));
    }
}

/// A schedule among some ranks of a larger world is the same under other names, and names no others.
#[test]
fn schedules_can_be_given_to_some_ranks_of_a_larger_world() {
    let ranks = [7, 2, 9, 4, 0];
    for algorithm in algorithms() {
        let plain = |rank| algorithm.schedule(AllReduce, rank, 5).expect("every algorithm serves all-reduce");
        for rank in 0..5 {
            let renamed: Vec<u32> = plain(rank).on(&ranks).peers().into_iter().collect();
            let mut expected: Vec<u32> = plain(rank).peers().into_iter().map(|peer| ranks[peer as usize]).collect();
            expected.sort_unstable();
            assert_eq!(renamed, expected, "{algorithm}, rank {rank}");
        }
        // Back under the old names it is what it was.
        let mut back = [0; 10];
        (0..).zip(ranks).for_each(|(rank, name)| back[name as usize] = rank);
        assert_eq!(plain(3).on(&ranks).on(&back), plain(3));
    }
}

#[test]
fn peers_are_those_a_rank_talks_to() {
    let peers = |name, rank, world| -> Vec<u32> {
        let schedule = algorithm(name).schedule(AllReduce, rank, world).expect("every algorithm serves all-reduce");
        schedule.peers().into_iter().collect()
    };
    assert_eq!(peers("ring", 0, 6), [1, 5]);
    assert_eq!(peers("recursive", 5, 8), [1, 4, 7]);
    assert_eq!(peers("tree", 4, 8), [0, 5, 6]);
    assert_eq!(peers("exchange", 2, 4), [0, 1, 3]);
    assert!(peers("ring", 0, 1).is_empty());
}

#[test]
fn schedules_that_follow_each_other_are_one() {
    let phases = [ReduceScatter, AllGather].map(|phase| Algorithm::Pairwise.schedule(phase, 1, 4).expect("served"));
    let [first, second] = phases.clone();
    let both = first.then(second);
    assert_eq!(both.scratch, 3);
    assert_eq!(both.steps, [&phases[0].steps[..], &phases[1].steps[..]].concat());
}

/// With nobody to talk to there is nothing to do, for every algorithm and every collective that it serves.
#[test]
fn a_world_of_one_has_nothing_to_do() {
    for algorithm in algorithms() {
        for collective in collectives(1) {
            if collective == AllToAll {
                continue; // what a rank sends to itself changes places
            }
            let expected = algorithm.serves(collective).then(|| Schedule::new(1, []));
            assert_eq!(algorithm.schedule(collective, 0, 1), expected, "{algorithm}, {collective:?}");
            let of_two = algorithm.schedule(collective, 0, 2);
            assert_eq!(of_two.is_some(), algorithm.serves(collective), "{algorithm}, {collective:?}");
        }
    }
}

#[test]
fn scratch_has_the_length_of_the_chunk_it_is_combined_into() {
    let schedule = Algorithm::Pairwise.schedule(ReduceScatter, 2, 4).expect("served");
    assert_eq!(schedule.stands_for(), [Some(2), Some(2), Some(2)]);
    let schedule = Algorithm::Exchange.schedule(AllReduce, 2, 4).expect("served");
    assert_eq!(schedule.stands_for(), [Some(0), Some(0), Some(0)]);
}

#[test]
fn parts_of_chunks_go_where_the_chunks_went() {
    for algorithm in algorithms() {
        for collective in [AllReduce, ReduceScatter, AllGather].into_iter().filter(|&c| algorithm.serves(c)) {
            for rank in 0..5 {
                let whole = algorithm.schedule(collective, rank, 5).expect("served");
                assert_eq!(whole.clone().in_parts(1), whole);
                let parts = whole.clone().in_parts(3);
                assert_eq!((parts.chunks, parts.scratch), (3 * whole.chunks, 3 * whole.scratch));
                let spans = |schedule: &Schedule| -> Vec<_> {
                    schedule.steps.iter().flat_map(spans_of).map(|span| (span.lo, span.hi)).collect()
                };
                let expected: Vec<_> = spans(&whole).into_iter().map(|(lo, hi)| (3 * lo, 3 * hi)).collect();
                assert_eq!(spans(&parts), expected);
                let twins = whole.stands_for().into_iter().map(|twin| twin.expect("combined"));
                let expected: Vec<_> = twins.flat_map(|twin| (0..3).map(move |i| Some(3 * twin + i))).collect();
                assert_eq!(parts.stands_for(), expected);
            }
        }
    }
}

fn spans_of(step: &Step) -> Vec<Span> {
    match step {
        Step::Exchange { send, recv } => {
            send.iter().map(|(_, span)| *span).chain(recv.iter().map(|(_, span, _)| *span)).collect()
        }
        Step::Local { dst, srcs, .. } => srcs.iter().copied().chain([*dst]).collect(),
    }
}

/// With a root anywhere a tree has twice the steps at most, and as many chunks go through every rank as with root 0.
#[test]
fn trees_of_shares_send_each_share_up_or_down_its_branch() {
    for (world, root) in (2..=64_u32).flat_map(|world| [0, 1, world / 2, world - 1].map(|root| (world, root % world))) {
        let levels = world.next_power_of_two().ilog2() as usize;
        let (gather, scatter) = ([Gather(root), Scatter(root)]).map(|c| proved(Algorithm::Tree, c, world)).into();
        assert!((levels..=2 * levels + 1).contains(&gather.steps), "{world} ranks, root {root}: {}", gather.steps);
        assert_eq!((&gather.sent, &gather.received), (&scatter.received, &scatter.sent));
        assert_eq!(gather.received[root as usize], u64::from(world - 1));
        assert_eq!(gather.sent[root as usize], 0);
    }
}

/// What sums of halves need: one step combines all contributions to a chunk, and nothing else is combined.
#[test]
fn algorithms_that_round_once_combine_everything_at_once() {
    for algorithm in algorithms() {
        for (world, collective) in [3, 4, 7].into_iter().flat_map(|world| [(world, AllReduce), (world, Reduce(1))]) {
            let Some(schedules) =
                (0..world).map(|rank| algorithm.schedule(collective, rank, world)).collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            let at_once = schedules.iter().flat_map(|schedule| &schedule.steps).all(|step| match step {
                Step::Exchange { recv: Some((.., apply)), .. } => *apply == Apply::Store,
                Step::Exchange { .. } => true,
                Step::Local { dst, srcs, finish: false } => dst.buf == Buf::Scratch && srcs.len() == 1,
                Step::Local { srcs, .. } => srcs.len() == world as usize,
            });
            assert_eq!(at_once, algorithm.rounds_once(), "{algorithm}, {collective:?}, {world} ranks");
        }
    }
}

#[test]
fn every_algorithm_has_a_name_that_means_it() {
    for algorithm in algorithms() {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    assert_eq!("chain".parse(), Ok(Algorithm::KAry { arity: 1, pieces: 1 }));
    assert_eq!(algorithm("double_tree"), Algorithm::DoubleTree { pieces: 16 });
    assert_eq!(algorithm("k_ary:4"), Algorithm::KAry { arity: 4, pieces: 16 });
    for wrong in ["", "rings", "ring:2", "double_tree:0", "double_tree:x", "double_tree:1:2", "k_ary:2:3:4", "Ring"] {
        assert_eq!(wrong.parse::<Algorithm>(), Err(UnknownAlgorithm(wrong.to_owned())));
    }
    let message = "rings".parse::<Algorithm>().expect_err("unknown").to_string();
    assert_eq!(
        message,
        "\"rings\" is none of the algorithms ring, recursive, doubling, all_gather_reduce, reduce_broadcast, relay, tree, chain, \
         k_ary:ARITY:PIECES, double_tree:PIECES, pairwise, exchange"
    );
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
        ("all_gather_reduce", include_str!("../rust/schedule/recursive.rs"), vec![AllReduce]),
        (
            "tree",
            include_str!("../rust/schedule/tree.rs"),
            vec![AllReduce, Broadcast(0), Reduce(0), Gather(0), Scatter(0)],
        ),
        ("chain", include_str!("../rust/schedule/chain.rs"), vec![Scan, Exscan]),
        ("k_ary:2:2", include_str!("../rust/schedule/tree.rs"), vec![Broadcast(0), Reduce(0)]),
        ("double_tree:1", include_str!("../rust/schedule/double_tree.rs"), vec![AllReduce, Broadcast(0), Reduce(0)]),
        (
            "pairwise",
            include_str!("../rust/schedule/pairwise.rs"),
            vec![AllReduce, ReduceScatter, AllGather, Reduce(0), AllToAll],
        ),
        (
            "exchange",
            include_str!("../rust/schedule/exchange.rs"),
            vec![AllReduce, Broadcast(0), Reduce(0), Gather(0), Scatter(0), Scan, Exscan],
        ),
        ("reduce_broadcast", include_str!("../rust/schedule/exchange.rs"), vec![AllReduce]),
        ("relay", include_str!("../rust/schedule/relay.rs"), vec![AllReduce]),
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
