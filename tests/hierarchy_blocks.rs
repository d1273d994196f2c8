//! Collectives over several hosts that end with something else on every rank: every shape of hosts, every way that serves, blocks
//! of any lengths, against what the definition of the collective says.

use std::ops::Range;

use arx::blocks::Blocks;
use arx::direct::Verdict;
use arx::dtype::{DType, ReduceOp};
use arx::error::Rank;
use arx::hierarchy::{Announced, Way};
use arx::kernels::{Bytes, Isa, Reducer};
use arx::schedule::{Algorithm, Collective};
use hosts::{Array, Member, bytes_of, job, shapes, value};

mod hosts;

const ELEM: usize = 4;

/// Elements of each rank's block: even ones, uneven ones of which some are empty, one that has everything.
fn patterns(world: usize) -> Vec<Vec<usize>> {
    vec![
        vec![1; world],
        vec![2500; world],
        (0..world).map(|rank| 37 * (rank * 3 % 4)).collect(),
        (0..world).map(|rank| if rank == world - 1 { 9001 } else { 0 }).collect(),
    ]
}

/// Where blocks of so many elements lie.
fn edges(counts: &[usize]) -> Vec<usize> {
    let mut edges = vec![0];
    counts.iter().for_each(|count| edges.push(edges[edges.len() - 1] + ELEM * count));
    edges
}

/// All ways to a collective.
fn ways(collective: Collective) -> Vec<Way> {
    let algorithms = "ring recursive tree chain pairwise exchange double_tree:3".split(' ').map(|name| name.parse());
    let serving = algorithms.map(|parsed| parsed.expect("a known one")).filter(|a: &Algorithm| a.serves(collective));
    serving.flat_map(|algorithm| [Way::Hierarchical(algorithm), Way::Flat(algorithm)]).collect()
}

fn algorithm_of(way: Way) -> Algorithm {
    let (Way::Hierarchical(algorithm) | Way::Flat(algorithm)) = way;
    algorithm
}

/// Elements `span` of what `rank` brings.
fn brought(rank: Rank, span: Range<usize>) -> Vec<u8> {
    span.flat_map(|k| (value(rank, k) as i32).to_le_bytes()).collect()
}

/// Sums of elements `span` of what these ranks bring.
fn summed(ranks: Range<Rank>, span: Range<usize>) -> Vec<u8> {
    span.flat_map(|k| (ranks.clone().map(|rank| value(rank, k)).sum::<i64>() as i32).to_le_bytes()).collect()
}

const SUM: (DType, ReduceOp) = (DType::Int32, ReduceOp::Sum);

/// Runs `work` on every rank of every shape, with the size of the world; it checks what comes out.
fn everywhere(work: impl Fn(&mut Member, Rank) + Sync) {
    for members in shapes() {
        let world = members.iter().map(Vec::len).sum::<usize>() as Rank;
        for crowd in [false, true] {
            job(&members, crowd, |member| work(member, world));
        }
    }
}

fn agreed(member: &mut Member, call: impl Fn(&mut arx::hierarchy::Session<'_, '_>) -> Result<(), arx::engine::Halt>) {
    member.session(|session| {
        assert_eq!(session.arrive()?, Verdict::Agreed);
        call(session)
    });
}

#[test]
fn all_gather_brings_every_block_to_everybody() {
    everywhere(|member, world| {
        for (counts, way) in patterns(world as usize)
            .into_iter()
            .flat_map(|counts| ways(Collective::AllGather).into_iter().map(move |way| (counts.clone(), way)))
        {
            let (edges, me) = (edges(&counts), member.rank as usize);
            let mine = brought(member.rank, 0..counts[me]);
            let expected: Vec<u8> = (0..world).flat_map(|rank| brought(rank, 0..counts[rank as usize])).collect();
            for in_place in [false, true] {
                let (dst, src) = (Array::new(&vec![0xa5; expected.len()]), Array::new(&mine));
                let own = &dst.cells()[edges[me]..edges[me + 1]];
                if in_place {
                    own.iter().zip(&mine).for_each(|(cell, byte)| cell.set(*byte));
                }
                let src = if in_place { own } else { src.cells() };
                agreed(member, |s| s.all_gather(way, &Blocks::Cut(&edges), (dst.cells(), src)));
                assert!(dst.read() == expected, "rank {me} of {world}, {way:?}, {counts:?}");
            }
        }
    });
}

#[test]
fn everybody_learns_how_long_all_blocks_are() {
    everywhere(|member, world| {
        for way in ways(Collective::AllGather) {
            for length in [|rank: u32| 4 * rank as usize, |_| Announced::SHORT] {
                let mine = Array::new(&brought(member.rank, 0..length(member.rank) / ELEM));
                let all = member.session(|session| {
                    assert_eq!(session.arrive()?, Verdict::Agreed);
                    session.announce(way, mine.cells(), false)
                });
                assert_eq!(all.lengths(), (0..world).map(length).collect::<Vec<_>>());
                if length(0) == length(1) {
                    let dst = Array::new(&vec![0; world as usize * Announced::SHORT]);
                    all.deliver(Announced::SHORT, dst.cells());
                    let expected = (0..world).flat_map(|rank| brought(rank, 0..Announced::SHORT / ELEM));
                    assert_eq!(dst.read(), expected.collect::<Vec<_>>());
                }
            }
        }
    });
}

#[test]
fn gather_and_scatter_move_blocks_to_and_from_every_root() {
    everywhere(|member, world| {
        let me = member.rank as usize;
        for counts in patterns(world as usize) {
            let edges = edges(&counts);
            let blocks = Blocks::Cut(&edges);
            for (root, way) in
                (0..world).flat_map(|root| ways(Collective::Gather(0)).into_iter().map(move |w| (root, w)))
            {
                let (algorithm, is_root) = (algorithm_of(way), member.rank == root);
                let what = format!("rank {me} of {world}, root {root}, {algorithm}, {counts:?}");
                let mine = brought(member.rank, 0..counts[me]);
                let all: Vec<u8> = (0..world).flat_map(|rank| brought(rank, 0..counts[rank as usize])).collect();
                let (dst, src) = (Array::new(&vec![0xa5; if is_root { all.len() } else { 0 }]), Array::new(&mine));
                agreed(member, |s| s.gather(algorithm, root, &blocks, (dst.cells(), src.cells())));
                assert!(dst.read() == if is_root { &all[..] } else { &[] }, "gather: {what}");
                assert!(src.read() == mine, "gather writes to what it reads: {what}");

                let whole = brought(root, 0..counts.iter().sum());
                let (dst, src) =
                    (Array::new(&vec![0xa5; mine.len()]), Array::new(if is_root { &whole[..] } else { &[] }));
                agreed(member, |s| s.scatter(algorithm, root, &blocks, (dst.cells(), src.cells())));
                assert!(dst.read() == whole[edges[me]..edges[me + 1]], "scatter: {what}");
                assert!(!is_root || src.read() == whole, "scatter writes to what it reads: {what}");
            }
        }
    });
}

#[test]
fn a_root_may_gather_and_scatter_in_place() {
    everywhere(|member, world| {
        let (me, counts) = (member.rank as usize, vec![50; world as usize]);
        let edges = edges(&counts);
        let (blocks, own) = (Blocks::Cut(&edges), edges[me]..edges[me + 1]);
        for algorithm in [Algorithm::Tree, Algorithm::Exchange] {
            let root = world / 2;
            let array = Array::new(&vec![0xa5; ELEM * 50 * world as usize]);
            let part = &array.cells()[own.clone()];
            part.iter().zip(brought(member.rank, 0..50)).for_each(|(cell, byte)| cell.set(byte));
            let none: Bytes<'_> = &[];
            let dst = if member.rank == root { array.cells() } else { none };
            agreed(member, |s| s.gather(algorithm, root, &blocks, (dst, part)));
            let all: Vec<u8> = (0..world).flat_map(|rank| brought(rank, 0..50)).collect();
            assert!(member.rank != root || array.read() == all);
            let src = if member.rank == root { array.cells() } else { none };
            agreed(member, |s| s.scatter(algorithm, root, &blocks, (part, src)));
            assert_eq!(array.read()[own.clone()], all[own.clone()]);
        }
    });
}

/// Rank `f` has so many elements for rank `t`: any numbers, some of them 0.
fn count(pattern: usize, f: Rank, t: Rank) -> usize {
    match pattern {
        0 => 3,
        1 => ((f * 5 + t * 11) % 7) as usize * 300,
        _ => {
            if f == 1 {
                4000
            } else {
                0
            }
        }
    }
}

#[test]
fn all_to_all_brings_each_rank_what_each_has_for_it() {
    everywhere(|member, world| {
        let me = member.rank;
        for pattern in 0..3 {
            let give: Vec<usize> = (0..world).map(|t| count(pattern, me, t)).collect();
            let take: Vec<usize> = (0..world).map(|f| count(pattern, f, me)).collect();
            let (give, take) = (edges(&give), edges(&take));
            let src = Array::new(&brought(me, 0..give[world as usize] / ELEM));
            let dst = Array::new(&vec![0xa5; take[world as usize]]);
            let before = src.read();
            agreed(member, |s| {
                let blocks = (&Blocks::Cut(&give), &Blocks::Cut(&take));
                s.all_to_all(Algorithm::Pairwise, blocks, (dst.cells(), src.cells()))
            });
            let from = |f: Rank| {
                let first: usize = (0..me).map(|t| count(pattern, f, t)).sum();
                brought(f, first..first + count(pattern, f, me))
            };
            assert!(dst.read() == (0..world).flat_map(from).collect::<Vec<_>>(), "rank {me} of {world}, {pattern}");
            assert!(src.read() == before);
        }
    });
}

#[test]
fn reduce_sums_for_every_root_and_leaves_the_others_what_they_bring() {
    everywhere(|member, world| {
        for (root, way) in
            (0..world).flat_map(|root| ways(Collective::Reduce(0)).into_iter().map(move |way| (root, way)))
        {
            for len in [1, 1000, 40_000] {
                let is_root = member.rank == root;
                let what = format!("rank {} of {world}, root {root}, {way:?}, {len}", member.rank);
                let mine = brought(member.rank, 0..len);
                let (src, dst) = (Array::new(&mine), Array::new(&vec![0xa5; if is_root { mine.len() } else { 0 }]));
                // In place every other time.
                let in_place = is_root && len == 1000;
                let to = if in_place { src.cells() } else { dst.cells() };
                assert_eq!(member.session(|s| s.reduce(way, root, SUM, to, src.cells())), Verdict::Agreed);
                let got = if in_place { src.read() } else { dst.read() };
                assert!(got == if is_root { summed(0..world, 0..len) } else { vec![] }, "{what}");
                assert!(in_place || src.read() == mine, "it writes to what it reads: {what}");
            }
        }
    });
}

#[test]
fn reduce_scatter_sums_each_block_for_its_rank() {
    everywhere(|member, world| {
        let me = member.rank as usize;
        for (counts, way) in patterns(world as usize)
            .into_iter()
            .flat_map(|counts| ways(Collective::ReduceScatter).into_iter().map(move |way| (counts.clone(), way)))
        {
            let edges = edges(&counts);
            let own = edges[me]..edges[me + 1];
            let mine = brought(member.rank, 0..counts.iter().sum());
            let expected = summed(0..world, own.start / ELEM..own.end / ELEM);
            for in_place in [false, true] {
                let (src, dst) = (Array::new(&mine), Array::new(&vec![0xa5; own.len()]));
                let to = if in_place { &src.cells()[own.clone()] } else { dst.cells() };
                let verdict = member.session(|s| s.reduce_scatter(way, SUM, &Blocks::Cut(&edges), (to, src.cells())));
                assert_eq!(verdict, Verdict::Agreed);
                let what = format!("rank {me} of {world}, {way:?}, {counts:?}");
                assert!((if in_place { src.read()[own.clone()].to_vec() } else { dst.read() }) == expected, "{what}");
                let mut rest = src.read();
                rest[own.clone()].copy_from_slice(&mine[own.clone()]);
                assert!(rest == mine, "it writes to what it reads: {what}");
            }
        }
    });
}

/// Values of which no two orders of adding have the same bits.
fn float(rank: Rank, k: usize) -> f32 {
    value(rank, k) as f32 * 1.7e-3 + 1e3 / (k + 1 + rank as usize) as f32
}

/// What ranks `0..operands` bring, combined in that order at once by the scalar kernel.
fn in_rank_order(dtype: DType, op: ReduceOp, operands: Rank, brings: impl Fn(Rank) -> Vec<u8>) -> Vec<u8> {
    let arrays: Vec<Array> = (0..operands).map(|rank| Array::new(&brings(rank))).collect();
    let sources: Vec<Bytes<'_>> = arrays.iter().map(Array::cells).collect();
    let result = Array::new(&arrays[0].read());
    Reducer::with_isa(dtype, op, Isa::Scalar).expect("a pair that goes together").run(result.cells(), &sources);
    result.read()
}

#[test]
fn scans_combine_in_the_order_of_ranks_wherever_these_are() {
    everywhere(|member, world| {
        let kinds = [
            (DType::Int32, ReduceOp::Sum),
            (DType::Float32, ReduceOp::Sum),
            (DType::Float32, ReduceOp::Max),
            (DType::Float16, ReduceOp::Sum),
            (DType::BFloat16, ReduceOp::Prod),
        ];
        for (dtype, op) in kinds {
            let brings = |rank: Rank| match dtype {
                DType::Int32 => brought(rank, 0..7001),
                DType::Float32 => bytes_of(7001, |k| float(rank, k).to_le_bytes()),
                DType::Float16 => bytes_of(7001, |k| half::f16::from_f32(float(rank, k)).to_le_bytes()),
                _ => bytes_of(7001, |k| half::bf16::from_f32(1.0 + value(rank, k) as f32 / 500.0).to_le_bytes()),
            };
            for (collective, operands) in [(Collective::Scan, member.rank + 1), (Collective::Exscan, member.rank)] {
                let expected = match operands {
                    0 => {
                        let array = Array::new(&brings(0));
                        arx::kernels::fill_identity(dtype, op, array.cells());
                        array.read()
                    }
                    _ => in_rank_order(dtype, op, operands, brings),
                };
                for (way, in_place) in ways(collective).into_iter().flat_map(|way| [(way, false), (way, true)]) {
                    let (src, dst) = (Array::new(&brings(member.rank)), Array::new(&vec![0xa5; expected.len()]));
                    let to = if in_place { src.cells() } else { dst.cells() };
                    agreed(member, |s| s.scan(collective, algorithm_of(way), (dtype, op), (to, src.cells())));
                    let got = if in_place { src.read() } else { dst.read() };
                    let what = format!("{collective:?} {op} of {dtype}, rank {} of {world}, {way:?}", member.rank);
                    assert!(got == expected, "{what}");
                    assert!(in_place || src.read() == brings(member.rank), "it writes to what it reads: {what}");
                }
            }
        }
    });
}

/// Where every rank has a host of its own, or all ranks take part by messages, sums of floats are added in the order of ranks; on
/// hosts of several ranks as an all-reduce adds them, and both give the bits of one.
#[test]
fn sums_of_floats_are_those_of_an_all_reduce() {
    for members in shapes() {
        let world = members.iter().map(Vec::len).sum::<usize>() as Rank;
        let flat = members.len() == 1 || members.iter().all(|ranks| ranks.len() == 1);
        let kind = (DType::Float32, ReduceOp::Avg);
        let brings = |rank: Rank| bytes_of(900 * world as usize, |k| float(rank, k).to_le_bytes());
        let ordered = in_rank_order(kind.0, kind.1, world, brings);
        let even = Blocks::Even { len: 4 * 900, count: world as usize };
        job(&members, false, |member| {
            for way in [Way::Hierarchical(Algorithm::Pairwise), Way::Flat(Algorithm::Pairwise)] {
                let (src, all) = (Array::new(&brings(member.rank)), Array::new(&vec![0; ordered.len()]));
                assert_eq!(member.session(|s| s.all_reduce(way, kind, all.cells(), src.cells())), Verdict::Agreed);
                assert_eq!(
                    all.read() == ordered,
                    flat || way == Way::Flat(Algorithm::Pairwise) || world == 2,
                    "{way:?}"
                );
                let own = even.of(member.rank as usize);
                let block = Array::new(&vec![0; own.len()]);
                let verdict = member.session(|s| s.reduce_scatter(way, kind, &even, (block.cells(), src.cells())));
                assert_eq!(verdict, Verdict::Agreed);
                assert!(block.read() == all.read()[own], "rank {} of {members:?}, {way:?}", member.rank);
                let one = Array::new(&vec![0; if member.rank == 1 { ordered.len() } else { 0 }]);
                assert_eq!(member.session(|s| s.reduce(way, 1, kind, one.cells(), src.cells())), Verdict::Agreed);
                assert!(member.rank != 1 || one.read() == all.read(), "{members:?}, {way:?}");
            }
        });
    }
}

/// 2048 + 1 + 1 + ... in float16 is 2048 if it is rounded at every step.
#[test]
fn halves_are_rounded_once() {
    everywhere(|member, world| {
        let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
        let brings = |rank: usize, k: usize| {
            if rank == k % world as usize { 2048.0 } else { (1 + (k + rank) % 3) as f32 }
        };
        let len = 120 * world as usize;
        let sum = |k: usize| half((0..world as usize).map(|rank| brings(rank, k)).sum());
        let expected = bytes_of(len, sum);
        let even = Blocks::Even { len: 240, count: world as usize };
        let kind = (DType::Float16, ReduceOp::Sum);
        for way in ways(Collective::ReduceScatter) {
            let src = Array::new(&bytes_of(len, |k| half(brings(member.rank as usize, k))));
            let (before, own) = (src.read(), even.of(member.rank as usize));
            let block = Array::new(&vec![0; own.len()]);
            let verdict = member.session(|s| s.reduce_scatter(way, kind, &even, (block.cells(), src.cells())));
            assert_eq!(verdict, Verdict::Agreed);
            assert!(block.read() == expected[own], "{way:?}");
            let one = Array::new(&vec![0; if member.rank == 0 { expected.len() } else { 0 }]);
            assert_eq!(member.session(|s| s.reduce(way, 0, kind, one.cells(), src.cells())), Verdict::Agreed);
            assert!(member.rank != 0 || one.read() == expected, "{way:?}");
            assert!(src.read() == before);
        }
    });
}

/// Where temporary memory is used tile by tile, ranks that need none of it keep in step with those that do.
#[test]
fn arrays_of_many_tiles_are_combined() {
    let len = 500_000;
    for members in [vec![vec![0], vec![1], vec![2]], vec![vec![0, 2, 4], vec![1], vec![3]]] {
        let world = members.iter().map(Vec::len).sum::<usize>() as Rank;
        job(&members, false, |member| {
            let me = member.rank;
            let mine = brought(me, 0..len);
            for way in [Way::Hierarchical(Algorithm::Exchange), Way::Flat(Algorithm::Exchange)] {
                let (src, dst) = (Array::new(&mine), Array::new(&vec![0; if me == 1 { mine.len() } else { 0 }]));
                assert_eq!(member.session(|s| s.reduce(way, 1, SUM, dst.cells(), src.cells())), Verdict::Agreed);
                assert!(me != 1 || dst.read() == summed(0..world, 0..len), "{way:?}");
            }
            for collective in [Collective::Scan, Collective::Exscan] {
                let (src, dst) = (Array::new(&mine), Array::new(&vec![0; mine.len()]));
                agreed(member, |s| s.scan(collective, Algorithm::Exchange, SUM, (dst.cells(), src.cells())));
                let ranks = if collective == Collective::Scan { 0..me + 1 } else { 0..me };
                assert!(dst.read() == summed(ranks, 0..len), "{collective:?}");
            }
            let mut counts = vec![7; world as usize];
            (counts[0], counts[1]) = (len / 2, 0);
            let edges = edges(&counts);
            let own = edges[me as usize]..edges[me as usize + 1];
            for way in [Way::Hierarchical(Algorithm::Pairwise), Way::Flat(Algorithm::Pairwise)] {
                let (src, dst) = (Array::new(&mine[..edges[world as usize]]), Array::new(&vec![0; own.len()]));
                let blocks = Blocks::Cut(&edges);
                let verdict = member.session(|s| s.reduce_scatter(way, SUM, &blocks, (dst.cells(), src.cells())));
                assert_eq!(verdict, Verdict::Agreed);
                assert!(dst.read() == summed(0..world, own.start / ELEM..own.end / ELEM), "{way:?}");
            }
        });
    }
}
