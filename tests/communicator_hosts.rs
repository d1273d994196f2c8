//! Groups that meet over the loopback interface: every collective of blocks through a whole `Communicator`, over real TCP where
//! ranks share no memory, and within one host where they turn out to share it.

mod members;

use std::cell::Cell;

use arx::blocks::Blocks;
use arx::communicator::{Algorithm, Call, Collective, Communicator, Cut, Element};
use arx::dtype::{DType, ReduceOp};
use arx::error::Error;
use arx::wait::Plain;
use members::Meet;

/// Instead of what would be measured.
const NETWORK: &str = "alpha_ns=30000,overhead_ns=8000,beta_fs=1000000,gamma_fs=100000,ring=2097152";

/// Runs `rank` in a group of `world` threads, which share no memory if they are `apart`.
fn group(world: u32, apart: bool, rank: impl Fn(&mut Communicator) + Copy + Send + Sync) {
    members::group(world, Meet::Over { apart }, NETWORK, rank);
}

/// Groups of every size, over TCP and, if it is not too large, on one host.
fn everywhere(rank: impl Fn(&mut Communicator) + Copy + Send + Sync) {
    for world in 2..=5 {
        group(world, true, rank);
        group(world, false, rank);
    }
}

fn call(collective: Collective, shape: &[usize]) -> Call<'_> {
    Call {
        collective,
        element: Element::Number(DType::Int32),
        shape,
        counts: &[],
        algorithm: Algorithm::Auto,
        compression: None,
        name: None,
        timeout: None,
    }
}

/// Makes `call` on `src`; what comes back, `count` elements of it, and the lengths, if they are not as supposed.
fn collect(
    group: &mut Communicator,
    call: &Call<'_>,
    cut: &Cut<'_>,
    src: &[i32],
    count: usize,
) -> Result<(Vec<i32>, Option<Vec<usize>>), Error> {
    let cells = |values: &[i32]| -> Vec<Cell<u8>> {
        values.iter().flat_map(|value| value.to_ne_bytes()).map(Cell::new).collect::<Vec<_>>()
    };
    // One longer each, to begin where an element may.
    let (from, to) = (cells(&[&[0], src].concat()), cells(&vec![-1; count + 1]));
    let aligned = |cells: &[Cell<u8>], len: usize| {
        let skip = cells.as_ptr().align_offset(4);
        skip..skip + 4 * len
    };
    let (source, target) = (aligned(&from, src.len()), aligned(&to, count));
    let src_bytes = cells(src);
    from[source.clone()].iter().zip(&src_bytes).for_each(|(cell, byte)| cell.set(byte.get()));
    let lengths = group.collect(call, cut, (&to[target.clone()], &from[source]), &mut Plain)?;
    let bytes: Vec<u8> = to[target].iter().map(Cell::get).collect();
    Ok((bytes.as_chunks::<4>().0.iter().map(|word| i32::from_ne_bytes(*word)).collect(), lengths))
}

/// Element `k` of what `rank` brings.
fn value(rank: usize, k: usize) -> i32 {
    (1000 * rank + 7 * k % 1000) as i32
}

fn brought(rank: usize, elements: std::ops::Range<usize>) -> Vec<i32> {
    elements.map(|k| value(rank, k)).collect()
}

fn even(elements: usize, count: usize) -> Blocks<'static> {
    Blocks::Even { len: 4 * elements, count }
}

const ONE: Blocks<'static> = Blocks::Even { len: 0, count: 0 };

#[test]
fn blocks_of_the_same_length_are_moved() {
    everywhere(|group| {
        let (world, me) = (group.world() as usize, group.rank() as usize);
        for elements in [0, 1, 9, 30_000] {
            let shape = [elements];
            let mine = brought(me, 0..elements);
            let all: Vec<i32> = (0..world).flat_map(|rank| brought(rank, 0..elements)).collect();
            let cut = Cut::new(even(elements, 1), even(elements, world));
            let gathered = collect(group, &call(Collective::AllGather { axis: 0 }, &shape), &cut, &mine, all.len());
            assert_eq!(gathered.expect("all agree"), (all.clone(), None));
            for root in 0..world {
                let gather = Collective::Gather { root: root as u32, axis: 0 };
                let count = if me == root { all.len() } else { 0 };
                let gathered = collect(group, &call(gather, &shape), &cut, &mine, count).expect("all agree");
                assert_eq!(gathered, (all[..count].to_vec(), None));
                let scatter = Collective::Scatter { root: root as u32 };
                let cut = Cut::new(even(elements, world), even(elements, 1));
                let src = if me == root { brought(root, 0..elements * world) } else { vec![] };
                let scattered = collect(group, &call(scatter, &shape), &cut, &src, elements).expect("all agree");
                assert_eq!(scattered, (brought(root, me * elements..(me + 1) * elements), None));
            }
            let cut = Cut::new(even(elements, world), even(elements, world));
            let all_to_all = call(Collective::AllToAll { counts: false }, &shape);
            let src = brought(me, 0..elements * world);
            let exchanged = collect(group, &all_to_all, &cut, &src, src.len()).expect("all agree");
            let from = |rank| brought(rank, me * elements..(me + 1) * elements);
            assert_eq!(exchanged, ((0..world).flat_map(from).collect(), None));
        }
    });
}

#[test]
fn arrays_are_combined() {
    everywhere(|group| {
        let (world, me) = (group.world() as usize, group.rank() as usize);
        let sum = |ranks: std::ops::Range<usize>, k: usize| ranks.map(|rank| value(rank, k)).sum::<i32>();
        for elements in [0, 1, 7, 30_000] {
            let shape = [elements];
            let mine = brought(me, 0..elements);
            let cut = Cut::new(even(elements, 1), even(elements, 1));
            for root in 0..world {
                let reduce = Collective::Reduce { op: ReduceOp::Sum, root: root as u32 };
                let count = if me == root { elements } else { 0 };
                let reduced = collect(group, &call(reduce, &shape), &cut, &mine, count).expect("all agree");
                assert_eq!(reduced, ((0..count).map(|k| sum(0..world, k)).collect(), None));
            }
            let scan = collect(group, &call(Collective::Scan(ReduceOp::Sum), &shape), &cut, &mine, elements);
            assert_eq!(scan.expect("all agree").0, (0..elements).map(|k| sum(0..me + 1, k)).collect::<Vec<_>>());
            let exscan = collect(group, &call(Collective::Exscan(ReduceOp::Sum), &shape), &cut, &mine, elements);
            assert_eq!(exscan.expect("all agree").0, (0..elements).map(|k| sum(0..me, k)).collect::<Vec<_>>());
            let cut = Cut::new(even(elements, world), even(elements, 1));
            let reduce_scatter = call(Collective::ReduceScatter(ReduceOp::Sum), &shape);
            let src = brought(me, 0..elements * world);
            let block = collect(group, &reduce_scatter, &cut, &src, elements).expect("all agree");
            assert_eq!(block.0, (me * elements..(me + 1) * elements).map(|k| sum(0..world, k)).collect::<Vec<_>>());
        }
    });
}

/// Who supposes that all blocks are as long as its own learns that they are not, and calls again.
#[test]
fn blocks_of_different_lengths_are_moved_in_a_second_call() {
    everywhere(|group| {
        let (world, me) = (group.world() as usize, group.rank() as usize);
        let counts: Vec<usize> = (0..world).map(|rank| 3000 * (rank % 3)).collect();
        let mine = brought(me, 0..counts[me]);
        let shape = [counts[me]];
        let all: Vec<i32> = (0..world).flat_map(|rank| brought(rank, 0..counts[rank])).collect();
        let mut edges = vec![0];
        counts.iter().for_each(|count| edges.push(edges[edges.len() - 1] + 4 * count));
        for collective in [Collective::AllGather { axis: 0 }, Collective::Gather { root: 1, axis: 0 }] {
            let gets =
                |all: usize| if collective == (Collective::Gather { root: 1, axis: 0 }) && me != 1 { 0 } else { all };
            let guess = Cut::new(even(counts[me], 1), even(counts[me], world));
            let count = gets(counts[me] * world);
            let (untouched, lengths) =
                collect(group, &call(collective, &shape), &guess, &mine, count).expect("a guess");
            assert_eq!(untouched, vec![-1; count]);
            assert_eq!(lengths, Some(counts.iter().map(|count| 4 * count).collect()));
            let known = Call { counts: &counts, ..call(collective, &shape) };
            let cut = Cut::new(even(counts[me], 1), Blocks::Cut(&edges));
            let gathered = collect(group, &known, &cut, &mine, gets(all.len())).expect("all agree");
            assert_eq!(gathered, (all[..gets(all.len())].to_vec(), None));
        }
    });
}

/// As `all_to_all` and `reduce_scatter` with counts: lengths differ, and some blocks are empty.
#[test]
fn counts_say_how_long_blocks_are() {
    everywhere(|group| {
        let (world, me) = (group.world() as usize, group.rank() as usize);
        let count = |from: usize, to: usize| (3 * from + 5 * to) % 4 * 500;
        let cut_of = |counts: Vec<usize>| {
            counts.iter().fold(vec![0], |mut edges, count| {
                edges.push(edges[edges.len() - 1] + 4 * count);
                edges
            })
        };
        let give = cut_of((0..world).map(|to| count(me, to)).collect());
        let take = cut_of((0..world).map(|from| count(from, me)).collect());
        let cut = Cut::new(Blocks::Cut(&give), Blocks::Cut(&take));
        let (src, gets) = (brought(me, 0..give[world] / 4), take[world] / 4);
        let all_to_all = Call { collective: Collective::AllToAll { counts: true }, ..call(Collective::Barrier, &[0]) };
        let exchanged = collect(group, &all_to_all, &cut, &src, gets).expect("all agree");
        let from = |rank: usize| {
            let first: usize = (0..me).map(|to| count(rank, to)).sum();
            brought(rank, first..first + count(rank, me))
        };
        assert_eq!(exchanged.0, (0..world).flat_map(from).collect::<Vec<_>>());

        let counts: Vec<usize> = (0..world).map(|rank| rank % 3 * 1000).collect();
        let edges = cut_of(counts.clone());
        let (total, own) = (edges[world] / 4, edges[me] / 4..edges[me + 1] / 4);
        let shape = [total];
        let reduce_scatter = Call { counts: &counts, ..call(Collective::ReduceScatter(ReduceOp::Max), &shape) };
        let cut = Cut::new(Blocks::Cut(&edges), even(own.len(), 1));
        let block = collect(group, &reduce_scatter, &cut, &brought(me, 0..total), own.len()).expect("all agree");
        assert_eq!(block.0, brought(world - 1, own));
    });
}

/// A mean is divided by the number of ranks wherever these are, also where it turns out that they share one host.
#[test]
fn an_average_is_divided_once() {
    everywhere(|group| {
        let (world, me) = (group.world() as f32, group.rank() as f32);
        let shape = [8];
        let average =
            Call { element: Element::Number(DType::Float32), ..call(Collective::AllReduce(ReduceOp::Avg), &shape) };
        let words: Vec<i32> = (0..8).map(|k| (me * 8.0 + k as f32).to_bits() as i32).collect();
        let cells: Vec<Cell<i32>> = words.into_iter().map(Cell::new).collect();
        let memory: Vec<Cell<u8>> = cells.iter().flat_map(|cell| cell.get().to_ne_bytes()).map(Cell::new).collect();
        let padded: Vec<Cell<u8>> = (0..memory.len() + 4).map(|_| Cell::new(0)).collect();
        let skip = padded.as_ptr().align_offset(4);
        let array = &padded[skip..skip + memory.len()];
        array.iter().zip(&memory).for_each(|(to, from)| to.set(from.get()));
        group.all_reduce(&average, array, array, &mut Plain).expect("all agree");
        let got: Vec<u8> = array.iter().map(Cell::get).collect();
        let means: Vec<f32> = got.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect();
        assert_eq!(means, (0..8).map(|k| (world - 1.0) * 4.0 + k as f32).collect::<Vec<_>>());
    });
}

/// Ranks that disagree raise, in this call or, if they were done before anybody knew, in the next.
#[test]
fn ranks_that_disagree_learn_it() {
    for (apart, length) in [(true, 4), (true, 30_000), (false, 4), (false, 30_000)] {
        group(3, apart, |group| {
            let odd = group.rank() == 1;
            let shape = [if odd { length } else { length + 1 }];
            let scan = call(Collective::Scan(ReduceOp::Sum), &shape);
            let cut = Cut::new(even(shape[0], 1), ONE);
            let first = collect(group, &scan, &cut, &brought(0, 0..shape[0]), shape[0]).err();
            let error = first.unwrap_or_else(|| group.barrier(&Call::barrier(None), &mut Plain).expect_err("closed"));
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
        });
    }
}
