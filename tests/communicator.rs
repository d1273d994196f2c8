//! Groups of threads in one process: what only a whole `Communicator` does, without Python and without other processes.

mod members;

use std::cell::Cell;

use arx::blocks::Blocks;
use arx::communicator::{Algorithm, Call, Collective, Communicator, Cut, Element};
use arx::dtype::{DType, ReduceOp};
use arx::error::Error;
use arx::kernels::Bytes;
use arx::wait::Plain;
use members::Meet;

/// Runs `rank` in a group of `world` threads.
fn group(world: u32, tune: &str, rank: impl Fn(&mut Communicator) + Copy + Send + Sync) {
    members::group(world, Meet::Here, tune, rank);
}

/// Numbers in memory as a caller has them.
struct Array {
    memory: Vec<Cell<u8>>,
    skip: usize,
}

impl Array {
    fn new(numbers: &[i64]) -> Array {
        let memory = vec![Cell::new(0); 8 * numbers.len() + 8];
        let skip = memory.as_ptr().align_offset(8);
        let array = Array { memory, skip };
        for (eight, x) in array.bytes().chunks_exact(8).zip(numbers) {
            eight.iter().zip(x.to_ne_bytes()).for_each(|(cell, byte)| cell.set(byte));
        }
        array
    }

    fn bytes(&self) -> Bytes<'_> {
        &self.memory[self.skip..self.skip + self.memory.len() - 8]
    }

    fn numbers(&self) -> Vec<i64> {
        let number = |eight: &[Cell<u8>]| {
            let eight: Vec<u8> = eight.iter().map(Cell::get).collect();
            i64::from_ne_bytes(eight.try_into().expect("eight bytes"))
        };
        self.bytes().chunks_exact(8).map(number).collect()
    }
}

fn call<'a>(collective: Collective, shape: &'a [usize], counts: &'a [usize]) -> Call<'a> {
    let element = Element::Number(DType::Int64);
    Call {
        collective,
        element,
        shape,
        counts,
        algorithm: Algorithm::Auto,
        compression: None,
        name: None,
        timeout: None,
    }
}

/// Sums in place.
fn sum(group: &mut Communicator, x: &mut [i64]) -> Result<(), Error> {
    let array = Array::new(x);
    let shape = [x.len()];
    let call = call(Collective::AllReduce(ReduceOp::Sum), &shape, &[]);
    group.all_reduce(&call, array.bytes(), array.bytes(), &mut Plain)?;
    x.copy_from_slice(&array.numbers());
    Ok(())
}

fn expect_sum(group: &mut Communicator, len: usize) {
    let world = i64::from(group.world());
    let mine = i64::from(group.rank());
    let mut x: Vec<i64> = (0..len as i64).map(|k| 1000 * k + mine).collect();
    sum(group, &mut x).expect("all called the same");
    assert!((0..).zip(&x).all(|(k, x)| *x == world * 1000 * k + world * (world - 1) / 2), "rank {mine}: {x:?}");
}

#[test]
fn every_world_sums() {
    for world in 1..=9 {
        group(world, "ring=1048576,chunk=4096,round=4096", |group| {
            for len in [1, 5, 6, 128, 129, 5000, 40_000] {
                expect_sum(group, len);
            }
        });
    }
}

#[test]
fn a_rank_that_refuses_again_and_again_stays_in_step() {
    const CALLS: usize = 7;
    for tune in ["cores=1", "cores=64"] {
        group(3, tune, |group| {
            expect_sum(group, 3);
            for call in 0..CALLS {
                if group.rank() == 1 {
                    group.refuse(&format!("reason {call}"), &mut Plain).expect("the group stays open");
                    continue;
                }
                let mut x = [7, 8, 9];
                let error = sum(group, &mut x).expect_err("rank 1 refuses");
                assert!(
                    matches!(&error, Error::Mismatch(text) if text.contains(&format!("(reason {call})"))),
                    "{error}"
                );
                assert_eq!(x, [7, 8, 9]);
            }
            expect_sum(group, 2000);
        });
    }
}

/// What a rank gives and takes in a collective, and how that is cut; all in numbers.
struct Part {
    collective: Collective,
    src: Vec<i64>,
    /// What must come out; its length is that of the output.
    dst: Vec<i64>,
    give: Vec<usize>,
    take: Vec<usize>,
    counts: Vec<usize>,
}

fn edges(lengths: &[usize]) -> Vec<usize> {
    (0..=lengths.len()).map(|k| 8 * lengths[..k].iter().sum::<usize>()).collect()
}

/// Calls, and returns the output, or the lengths if those differ.
fn collect(group: &mut Communicator, part: &Part) -> Result<Result<Vec<i64>, Vec<usize>>, Error> {
    let (src, dst) = (Array::new(&part.src), Array::new(&vec![-1; part.dst.len()]));
    let (give, take) = (edges(&part.give), edges(&part.take));
    let cut = Cut::new(Blocks::Cut(&give), Blocks::Cut(&take));
    let shape = [part.src.len()];
    // Where the root's array says how long blocks are, others have none to show.
    let shape = if matches!(part.collective, Collective::Scatter { .. }) { &[][..] } else { &shape[..] };
    let call = call(part.collective, shape, &part.counts);
    let lengths = group.collect(&call, &cut, (dst.bytes(), src.bytes()), &mut Plain)?;
    assert_eq!(src.numbers(), part.src, "{:?} changes its input", part.collective);
    Ok(lengths.map_or_else(|| Ok(dst.numbers()), Err))
}

/// Number `k` of what `rank` has.
fn number(rank: usize, k: usize) -> i64 {
    (1000 * k + rank * rank + 1) as i64
}

fn numbers(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|k| number(rank, k)).collect()
}

/// Every collective, with blocks of `len` numbers.
fn parts(me: usize, world: usize, len: usize, root: usize) -> Vec<Part> {
    let sums = |ranks: std::ops::Range<usize>, count: usize| -> Vec<i64> {
        (0..count).map(|k| ranks.clone().map(|rank| number(rank, k)).sum()).collect()
    };
    let on_root = |array: Vec<i64>| if me == root { array } else { Vec::new() };
    let blocks = vec![len; world];
    let all: Vec<i64> = (0..world).flat_map(|rank| numbers(rank, len)).collect();
    let block = |of: usize| numbers(of, world * len)[me * len..(me + 1) * len].to_vec();
    let part = |collective, src, dst, give: &[usize], take: &[usize]| Part {
        collective,
        src,
        dst,
        give: give.to_vec(),
        take: take.to_vec(),
        counts: vec![],
    };
    let (op, axis, root_rank, one) = (ReduceOp::Sum, 0, root as u32, [len]);
    let (mine, many) = (|| numbers(me, len), || numbers(me, world * len));
    let sum_of_mine = sums(0..world, world * len)[me * len..(me + 1) * len].to_vec();
    vec![
        part(Collective::Reduce { op, root: root_rank }, mine(), on_root(sums(0..world, len)), &one, &one),
        part(Collective::AllGather { axis }, mine(), all.clone(), &one, &blocks),
        part(Collective::Gather { root: root_rank, axis }, mine(), on_root(all), &one, &blocks),
        part(Collective::Scatter { root: root_rank }, on_root(many()), block(root), &blocks, &one),
        part(Collective::ReduceScatter(op), many(), sum_of_mine, &blocks, &one),
        part(Collective::AllToAll { counts: false }, many(), (0..world).flat_map(block).collect(), &blocks, &blocks),
        part(Collective::Scan(op), mine(), sums(0..me + 1, len), &one, &one),
        part(Collective::Exscan(op), mine(), sums(0..me, len), &one, &one),
    ]
}

#[test]
fn every_world_does_every_collective() {
    for world in 1..=9 {
        for tune in ["cores=1", "cores=64"] {
            group(world, tune, |group| {
                let (me, world) = (group.rank() as usize, group.world() as usize);
                for (root, len) in [0, 1, 7, 200, 20_000].into_iter().enumerate() {
                    for part in parts(me, world, len, root % world) {
                        let found = collect(group, &part).expect("all called the same");
                        assert_eq!(found, Ok(part.dst), "{:?} of {len} on rank {me} of {world}", part.collective);
                    }
                }
            });
        }
    }
}

#[test]
fn blocks_of_unequal_length_are_gathered_once_all_lengths_are_known() {
    for world in 2..=9 {
        group(world, "", |group| {
            let (me, world) = (group.rank() as usize, group.world() as usize);
            for unit in [1, 100, 5000] {
                let lengths: Vec<usize> = (0..world).map(|rank| (rank + 1) % 3 * unit).collect();
                let all: Vec<i64> = (0..world).flat_map(|rank| numbers(rank, lengths[rank])).collect();
                let guess = vec![lengths[me]; world];
                let guessed = Part {
                    collective: Collective::AllGather { axis: 0 },
                    src: numbers(me, lengths[me]),
                    dst: vec![0; world * lengths[me]],
                    give: vec![lengths[me]],
                    take: guess,
                    counts: vec![],
                };
                let bytes: Vec<usize> = lengths.iter().map(|n| 8 * n).collect();
                assert_eq!(collect(group, &guessed).expect("all called the same"), Err(bytes));
                let known = Part { dst: all.clone(), take: lengths.clone(), counts: lengths, ..guessed };
                assert_eq!(collect(group, &known).expect("all called the same"), Ok(all));
            }
        });
    }
}

#[test]
fn ranks_in_different_collectives_are_told_so_and_go_on() {
    for tune in ["cores=1", "cores=64"] {
        group(3, tune, |group| {
            let me = group.rank() as usize;
            for len in [1, 500] {
                let parts = parts(me, 3, len, 0);
                let (scan, exscan) = (&parts[6], &parts[7]);
                let error = collect(group, if me == 1 { exscan } else { scan }).expect_err("rank 1 strays");
                let text = format!(
                    "ranks 0 and 2 called scan(op=sum, dtype=int64, shape=({len},)); \
                     rank 1 called exscan(op=sum, dtype=int64, shape=({len},))"
                );
                assert!(matches!(&error, Error::Mismatch(found) if found.contains(&text)), "{error}");
                assert_eq!(collect(group, scan).expect("all called the same"), Ok(scan.dst.clone()));
            }
        });
    }
}
