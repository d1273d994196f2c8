//! Groups of threads in one process: what only a whole `Communicator` does, without Python and without other processes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use arx::communicator::{Algorithm, Call, Collective, Communicator, Config, Element};

use arx::dtype::{DType, ReduceOp};
use arx::error::Error;
use arx::kernels::Bytes;
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
        across: None,
    };
    thread::scope(|scope| {
        for me in 0..world {
            let config = config(me);
            scope.spawn(move || {
                let mut group = Communicator::connect(config, &mut Plain).expect("the group forms");
                rank(&mut group);
                group.shutdown(false);
            });
        }
    });
}

/// Sums in place.
fn sum(group: &mut Communicator, x: &mut [i64]) -> Result<(), Error> {
    let mut buffer = vec![0; 8 * x.len() + 8];
    let skip = buffer.as_ptr().align_offset(8);
    let array: Bytes<'_> = Cell::from_mut(&mut buffer[skip..skip + 8 * x.len()]).as_slice_of_cells();
    for (eight, x) in array.chunks_exact(8).zip(x.iter()) {
        eight.iter().zip(x.to_ne_bytes()).for_each(|(cell, byte)| cell.set(byte));
    }
    let call = Call {
        collective: Collective::AllReduce(ReduceOp::Sum),
        element: Element::Number(DType::Int64),
        shape: &[x.len()],
        counts: &[],
        algorithm: Algorithm::Auto,
        name: None,
        timeout: None,
    };
    group.all_reduce(&call, array, array, &mut Plain)?;
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
