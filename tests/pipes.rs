//! Groups on one host whose calls name an algorithm of the message path: it runs through pipes in the memory that the ranks share.
//! Ranks are threads. Every number here is whole and small, so that results are exact in any order.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use arx::communicator::{Algorithm, Call, Collective, Communicator, Config, Element};
use arx::dtype::{DType, ReduceOp};
use arx::error::Error;
use arx::kernels::Bytes;
use arx::schedule;
use arx::wait::{Host, Plain};

/// A world takes seconds at most; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(120);

/// Every algorithm, and some of those that are hard to tell from others by name.
const NAMES: [&str; 14] = [
    "ring",
    "recursive",
    "doubling",
    "all_gather_reduce",
    "reduce_broadcast",
    "relay",
    "tree",
    "chain",
    "k_ary:3",
    "k_ary:2:5",
    "double_tree",
    "double_tree:3",
    "pairwise",
    "exchange",
];

/// Runs `rank` on every rank of a group of threads, and returns what each returned.
fn group<T: Send>(world: u32, tune: &str, rank: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = format!("pipes-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let config = |me| Config {
        rank: me,
        world,
        job_id: job.clone(),
        generation: 0,
        timeout: HANG,
        spin: None,
        tune: Some(tune.into()),
        across: None,
    };
    let (sender, ended) = channel::<()>();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|me| {
                let (config, sender, rank) = (config(me), sender.clone(), &rank);
                scope.spawn(move || {
                    let _ends = sender;
                    let mut group = Communicator::connect(config, &mut Plain).expect("the group forms");
                    let result = rank(&mut group);
                    group.shutdown(false);
                    result
                })
            })
            .collect();
        drop(sender);
        if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("hangs: {world} ranks, {tune}");
            std::process::abort();
        }
        ranks.into_iter().map(|rank| rank.join().expect("no rank panicked")).collect()
    })
}

/// One kind of call.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    dtype: DType,
    op: ReduceOp,
}

impl Kind {
    fn call<'a>(&self, shape: &'a [usize]) -> Call<'a> {
        Call {
            collective: Collective::AllReduce(self.op),
            element: Element::Number(self.dtype),
            shape,
            counts: &[],
            algorithm: Algorithm::parse(self.name).unwrap_or_else(|| panic!("{}", self.name)),
            compression: None,
            name: None,
            timeout: None,
        }
    }

    fn encode(&self, value: f64) -> Vec<u8> {
        match self.dtype {
            DType::Int8 => (value as i8).to_le_bytes().to_vec(),
            DType::UInt8 => (value as u8).to_le_bytes().to_vec(),
            DType::Int32 => (value as i32).to_le_bytes().to_vec(),
            DType::Int64 => (value as i64).to_le_bytes().to_vec(),
            DType::Float16 => half::f16::from_f32(value as f32).to_le_bytes().to_vec(),
            DType::BFloat16 => half::bf16::from_f32(value as f32).to_le_bytes().to_vec(),
            DType::Float32 => (value as f32).to_le_bytes().to_vec(),
            DType::Float64 => value.to_le_bytes().to_vec(),
            DType::Complex64 => [(value as f32).to_le_bytes(), (-value as f32).to_le_bytes()].concat(),
            other => panic!("not used here: {other:?}"),
        }
    }

    /// What a rank brings: distinct by rank and element within short distances, and such that sums fit an int8.
    fn value(rank: u32, k: usize) -> f64 {
        ((k * 5 + rank as usize * (k % 3 + 1)) % 13) as f64
    }

    fn result(&self, world: u32, k: usize) -> f64 {
        let values = (0..world).map(|rank| Kind::value(rank, k));
        match self.op {
            ReduceOp::Sum => values.sum(),
            // A quotient of floats is rounded once, in their own type; halves are divided as float32.
            ReduceOp::Avg if self.dtype == DType::Float64 => values.sum::<f64>() / f64::from(world),
            ReduceOp::Avg => f64::from(values.sum::<f64>() as f32 / world as f32),
            ReduceOp::Max => values.fold(f64::MIN, f64::max),
            ReduceOp::Min => values.fold(f64::MAX, f64::min),
            ReduceOp::BXor => f64::from(values.fold(0, |x, value| x ^ value as u32)),
            other => panic!("not used here: {other}"),
        }
    }

    fn array(&self, len: usize, element: impl Fn(usize) -> f64) -> Array {
        Array::new(&(0..len).flat_map(|k| self.encode(element(k))).collect::<Vec<u8>>())
    }

    /// One call on arrays of `len` elements; `apart` if the result goes to another array.
    fn expect(&self, group: &mut Communicator, len: usize, apart: bool) {
        let (rank, world) = (group.rank(), group.world());
        let src = self.array(len, |k| Kind::value(rank, k));
        let dst = if apart { Array::new(&vec![0xa5; src.bytes().len()]) } else { self.array(0, |_| 0.0) };
        let target = if apart { dst.bytes() } else { src.bytes() };
        group.all_reduce(&self.call(&[len]), target, src.bytes(), &mut Plain).expect("all called the same");
        let expected = self.array(len, |k| self.result(world, k));
        assert!(read(target) == read(expected.bytes()), "rank {rank} of {world}, {len} elements, {self:?}");
        if apart {
            assert!(read(src.bytes()) == read(self.array(len, |k| Kind::value(rank, k)).bytes()), "{self:?}: src");
        }
    }
}

/// Bytes in memory that is aligned.
struct Array(Vec<Cell<u8>>, usize, usize);

impl Array {
    fn new(bytes: &[u8]) -> Array {
        let memory = vec![Cell::new(0); bytes.len() + 64];
        let skip = memory.as_ptr().align_offset(64);
        memory[skip..].iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        Array(memory, skip, bytes.len())
    }

    fn bytes(&self) -> Bytes<'_> {
        &self.0[self.1..self.1 + self.2]
    }
}

fn read(bytes: Bytes<'_>) -> Vec<u8> {
    bytes.iter().map(Cell::get).collect()
}

const KINDS: [(DType, ReduceOp); 14] = [
    (DType::Int8, ReduceOp::Sum),
    (DType::UInt8, ReduceOp::BXor),
    (DType::Int32, ReduceOp::Min),
    (DType::Int64, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Sum),
    (DType::Float16, ReduceOp::Avg),
    (DType::BFloat16, ReduceOp::Avg),
    (DType::BFloat16, ReduceOp::Max),
    (DType::Float32, ReduceOp::Sum),
    (DType::Float32, ReduceOp::Avg),
    (DType::Float64, ReduceOp::Avg),
    (DType::Float64, ReduceOp::Max),
    (DType::Complex64, ReduceOp::Sum),
    (DType::Int32, ReduceOp::BXor),
];

#[test]
fn the_names_are_all_there_are() {
    let known = |name: &str| name.split(':').next().expect("a name").to_owned();
    let mut all: Vec<String> = NAMES.iter().map(|name| known(name)).collect();
    all.dedup();
    assert_eq!(all, schedule::Algorithm::NAMES.iter().map(|name| known(name)).collect::<Vec<_>>());
}

/// In pipes of two cache lines everything wraps, waits for room and splits its elements at once.
#[test]
fn every_algorithm_world_and_type_in_the_smallest_pipes() {
    for world in 1..=9 {
        let cores = if world % 2 == 0 { ",cores=64" } else { "" };
        group(world, &format!("pipe=128{cores}"), |group| {
            let p = group.world() as usize;
            for name in NAMES {
                for (n, (dtype, op)) in KINDS.into_iter().enumerate() {
                    let kind = Kind { name, dtype, op };
                    for len in [0, 1, p - 1, p, p + 1, if n % 4 == 0 { 1000 } else { 90 }] {
                        kind.expect(group, len, (n + len) % 2 == 0);
                    }
                }
            }
        });
    }
}

#[test]
fn arrays_that_are_longer_than_a_pipe() {
    for world in [2, 3, 5] {
        group(world, "pipe=65536", |group| {
            for name in NAMES {
                Kind { name, dtype: DType::Float32, op: ReduceOp::Sum }.expect(group, 150_007, false);
                Kind { name, dtype: DType::Float16, op: ReduceOp::Avg }.expect(group, 150_007, true);
            }
        });
    }
}

#[test]
fn calls_of_all_ways_follow_each_other() {
    group(3, "pipe=4096", |group| {
        for round in 0..200 {
            let names =
                ["auto", "ring", "staged", "exchange", "hierarchical", "tree", "hierarchical+ring", "recursive"];
            let kind = Kind { name: names[round * 5 % 8], dtype: DType::Int64, op: ReduceOp::Sum };
            kind.expect(group, [1, 90, 2000, 40_000][round % 4], round % 3 == 0);
        }
    });
}

/// 2048 + 1 + 1 + ... in float16 is 2048 if it is rounded at every step.
#[test]
fn halves_are_rounded_once() {
    for world in [2, 3, 4, 7] {
        group(world, "", |group| {
            let (rank, p) = (group.rank() as usize, group.world() as usize);
            for name in NAMES {
                let kind = Kind { name, dtype: DType::Float16, op: ReduceOp::Sum };
                let brings = |rank: usize, k: usize| if rank == k % p { 2048.0 } else { (1 + (k + rank) % 3) as f64 };
                let x = kind.array(2500, |k| brings(rank, k));
                group.all_reduce(&kind.call(&[2500]), x.bytes(), x.bytes(), &mut Plain).expect("all called the same");
                let expected = kind.array(2500, |k| (0..p).map(|rank| brings(rank, k)).sum());
                assert!(read(x.bytes()) == read(expected.bytes()), "rank {rank} of {p}, {name}");
            }
        });
    }
}

#[test]
fn who_disagrees_or_refuses_is_told_before_data_moves() {
    for world in [2, 4] {
        group(world, "pipe=128", |group| {
            let rank = group.rank();
            for (n, name) in NAMES.into_iter().enumerate() {
                let kind = Kind { name, dtype: DType::Int64, op: ReduceOp::Sum };
                // Another length, then another algorithm, then arguments that are refused.
                let other = Kind { name: NAMES[(n + 1) % NAMES.len()], ..kind };
                let calls = [(kind, 1000 + usize::from(rank == 1)), (if rank == 1 { other } else { kind }, 1000)];
                for (own, len) in calls {
                    let x = own.array(len, |k| Kind::value(rank, k));
                    let error =
                        group.all_reduce(&own.call(&[len]), x.bytes(), x.bytes(), &mut Plain).expect_err("differs");
                    let words =
                        [format!("algo={}", own.call(&[len]).algorithm), "rank 1 called".into(), "No data".into()];
                    assert!(
                        matches!(&error, Error::Mismatch(text) if words.iter().all(|w| text.contains(w))),
                        "{error}"
                    );
                    assert!(
                        read(x.bytes()) == read(own.array(len, |k| Kind::value(rank, k)).bytes()),
                        "data has moved"
                    );
                    kind.expect(group, 1000, false);
                }
                if rank == 1 {
                    group.refuse("not today", &mut Plain).expect("the group stays open");
                } else {
                    let x = kind.array(5, |_| 1.0);
                    let error =
                        group.all_reduce(&kind.call(&[5]), x.bytes(), x.bytes(), &mut Plain).expect_err("refused");
                    assert!(matches!(&error, Error::Mismatch(text) if text.contains("(not today)")), "{error}");
                }
                kind.expect(group, 1000, true);
            }
        });
    }
}

/// A program that is interrupted when it has waited so often, for the first time or in the middle of its data.
struct Impatient(u32);

impl Host for Impatient {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        if self.0 > 0 {
            self.0 -= 1;
            wait();
        }
    }

    fn interrupted(&mut self) -> bool {
        self.0 == 0
    }
}

/// Calls follow each other until rank 2 has waited so often: it leaves in the first wait, for the others' arrival, or later, for
/// their data.
#[test]
fn a_rank_that_leaves_in_a_call_is_named_by_all_others() {
    const LEN: usize = 20_000;
    for (waits, name) in [0, 1, 5, 20].into_iter().flat_map(|waits| NAMES.map(|name| (waits, name))) {
        let kind = Kind { name, dtype: DType::Float32, op: ReduceOp::Sum };
        let errors = group(4, "pipe=1024,cores=1", |group| {
            kind.expect(group, 100, false);
            let (mut impatient, mut plain) = (Impatient(waits), Plain);
            let host: &mut dyn Host = if group.rank() == 2 { &mut impatient } else { &mut plain };
            let error = loop {
                let x = kind.array(LEN, |_| 1.0);
                if let Err(error) = group.all_reduce(&kind.call(&[LEN]), x.bytes(), x.bytes(), host) {
                    break error;
                }
            };
            [error, group.barrier(&Call::barrier(None), &mut Plain).expect_err("the group is closed")]
        });
        for (rank, [error, again]) in errors.into_iter().enumerate() {
            let told = |error: &Error| match error {
                Error::Interrupted => rank == 2,
                Error::Aborted(text) if rank == 2 => text.contains("this rank (2) was interrupted"),
                Error::Aborted(text) => text.contains("rank 2 was interrupted"),
                _ => false,
            };
            assert!(told(&error) && told(&again), "{name} after {waits} waits, rank {rank}: {error}; then {again}");
        }
    }
}
