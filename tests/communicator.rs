//! Groups of threads in one process: what only a whole `Communicator` does, without Python and without other processes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use arx::communicator::{Call, Collective, Communicator, Config, Element};
use arx::direct::Algorithm;
use arx::dtype::{DType, ReduceOp};
use arx::error::Error;
use arx::kernels::{Bytes, Reducer};
use arx::wait::Plain;

/// A group that does not form, or a call that does not end, within this long is a failure; arx itself ends the wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `rank` in a group of `world` threads.
fn group(world: u32, tune: &str, rank: impl Fn(&mut Communicator) + Copy + Send + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = format!("test-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let config = |me| Config {
        rank: me,
        world,
        job_id: job.clone(),
        generation: 0,
        timeout: PATIENCE,
        spin: None,
        tune: Some(tune.into()),
    };
    thread::scope(|scope| {
        for me in 0..world {
            let config = config(me);
            scope.spawn(move || {
                let mut group = Communicator::connect(&config, &mut Plain).expect("the group forms");
                rank(&mut group);
                group.shutdown();
            });
        }
    });
}

fn sum(group: &mut Communicator, x: &mut [i64]) -> Result<(), Error> {
    reduce(group, ReduceOp::Sum, x)
}

fn reduce(group: &mut Communicator, op: ReduceOp, x: &mut [i64]) -> Result<(), Error> {
    let mut bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
    bytes.extend([0; 8]);
    let skip = bytes.as_ptr().align_offset(8);
    bytes.rotate_right(skip);
    let array: Bytes<'_> = &Cell::from_mut(&mut bytes[..]).as_slice_of_cells()[skip..skip + 8 * x.len()];
    let call = Call {
        collective: Collective::AllReduce(op),
        element: Element::Number(DType::Int64),
        shape: &[x.len()],
        algorithm: Algorithm::Auto,
        name: None,
        timeout: None,
    };
    let reducer = Reducer::of(DType::Int64, op).expect("int64 has it");
    group.all_reduce(&call, reducer, array, array, &mut Plain)?;
    for (x, eight) in x.iter_mut().zip(array.chunks_exact(8)) {
        let eight: Vec<u8> = eight.iter().map(Cell::get).collect();
        *x = i64::from_ne_bytes(eight.try_into().expect("eight bytes"));
    }
    Ok(())
}

fn expect_sum(group: &mut Communicator, len: usize) {
    let world = i64::from(group.world());
    let mine = i64::from(group.rank());
    let mut x: Vec<i64> = (0..len as i64).map(|k| 1000 * k + mine).collect();
    sum(group, &mut x).expect("all called the same");
    assert!((0..).zip(&x).all(|(k, x)| *x == world * 1000 * k + world * (world - 1) / 2), "rank {mine}: {x:?}");
}

fn sums_of_many_lengths(tune: &str) {
    for world in 1..=9 {
        group(world, tune, |group| {
            for len in [1, 5, 6, 128, 129, 5000, 40_000] {
                expect_sum(group, len);
            }
        });
    }
}

#[test]
fn every_world_sums() {
    sums_of_many_lengths("ring=1048576,chunk=4096,round=4096");
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
                assert!(matches!(&error, Error::Mismatch(text) if text.contains(&format!("(reason {call})"))), "{error}");
                assert_eq!(x, [7, 8, 9]);
            }
            expect_sum(group, 2000);
        });
    }
}

#[test]
fn an_operation_means_the_same_in_a_world_of_one() {
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::LOr, ReduceOp::LAnd] {
        let one_and_neutral = |world| {
            let result = AtomicU32::new(0);
            group(world, "", |group| {
                let neutral = i64::from(op == ReduceOp::Prod || op == ReduceOp::LAnd);
                let mut x = [if group.rank() == 0 { 5 } else { if op == ReduceOp::Min { 9 } else { neutral } }];
                reduce(group, op, &mut x).expect("all called the same");
                result.store(x[0] as u32, Ordering::Relaxed);
            });
            result.into_inner()
        };
        assert_eq!(one_and_neutral(1), one_and_neutral(2), "{op}");
    }
}
