//! The direct path as a whole: worlds of threads in one process over one segment, with rings of a few lines, so that
//! wrapping and waiting for room happen at once. Every result is compared bit by bit with all inputs combined in rank
//! order by one call of the scalar kernel.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use arx::arena::{Layout, Segment};
use arx::direct::words::AHEAD;
use arx::direct::{Algorithm, Board, Boards, Control, Direct, Shards, Tuning, Turn, Verdict};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Isa, Reducer};
use arx::wait::{Patience, Plain, Stop, Wait, raise};
use proptest::prelude::*;

/// Longest array of these tests, in bytes.
const MOST: usize = 16 << 10;
/// A call of these tests takes milliseconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum What {
    Reduce(DType, ReduceOp),
    /// Into so many shards, and gathered again: what a host does in a collective that spans hosts.
    Shards(DType, ReduceOp, usize),
    Broadcast {
        root: usize,
    },
    Barrier,
    /// One rank comes with another call.
    Disagree {
        rank: usize,
    },
    /// One rank refuses its arguments, and does not wait.
    Refuse {
        rank: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    algorithm: Algorithm,
    elements: usize,
    /// One bit for each rank: whether its arrays lie in the segment, and whether its output is its input.
    symmetric: u32,
    in_place: u32,
}

#[derive(Clone, Debug)]
struct Case {
    world: usize,
    crowd: bool,
    tuning: Tuning,
    steps: Vec<Step>,
}

impl Case {
    /// Three rounds are under way at the same time, and one more may be skipped where the ring ends.
    fn ring(&self) -> usize {
        let part = self.tuning.round.div_ceil(self.world).next_multiple_of(64);
        4 * self.tuning.chunk.max((self.world + 1) * part)
    }
}

/// What the ranks of a case share.
struct Job {
    case: Case,
    segment: Arc<Segment>,
    layout: Layout,
    /// By rank: the step that it is in.
    at: Vec<AtomicUsize>,
    failed: AtomicBool,
}

impl Job {
    fn new(case: Case) -> Job {
        let layout = Layout::new(case.world, size_of::<Control>(), size_of::<Board>(), case.ring(), 0, 2 * MOST);
        let segment = Arc::new(Segment::create(layout.total()).expect("memory").0);
        let at = (0..case.world).map(|_| AtomicUsize::new(0)).collect();
        Job { case, segment, layout, at, failed: AtomicBool::new(false) }
    }

    fn boards(&self) -> Boards {
        Boards::new(Arc::clone(&self.segment), self.layout)
    }

    /// Where every rank stands, for a test that hangs.
    fn show(&self) {
        let boards = self.boards();
        // Past the test harness, which would keep what a test prints until its end.
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "hangs: {:?}, ring of {} bytes", self.case, self.layout.ring);
        for (rank, at) in self.at.iter().enumerate() {
            let sequence = at.load(Ordering::Relaxed) as u64 + 1;
            let board = boards.of(rank);
            let [staged, reduced, read, wrote] =
                [&board.progress.staged, &board.progress.reduced, &board.progress.read, &board.progress.wrote]
                    .map(|mark| mark.position());
            let arrived = board.arrival(sequence).head.arrived(sequence);
            let _ = writeln!(
                out,
                "rank {rank}: call {sequence}, arrived: {arrived}, staged {staged}, reduced {reduced}, read {read}, wrote {wrote}"
            );
        }
    }
}

/// Tells the watchdog that a rank has come to its end, and the other ranks if that was a panic.
struct Last<'a>(&'a Job, #[allow(dead_code, reason = "dropping it is the message")] Sender<()>);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
            let boards = self.0.boards();
            raise(&boards.control().alarm, &boards.control().bell);
        }
    }
}

fn run(case: Case) {
    let job = Arc::new(Job::new(case));
    let (sender, ended) = channel();
    let start = |me| {
        let (job, sender) = (Arc::clone(&job), sender.clone());
        thread::spawn(move || {
            let _last = Last(&job, sender);
            Rank::new(&job, me).run();
        })
    };
    let ranks: Vec<_> = (0..job.case.world).map(start).collect();
    drop(sender);
    if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
        job.show();
        std::process::abort();
    }
    let panicked = ranks.into_iter().map(|rank| rank.join()).filter(|ended| ended.is_err()).count();
    assert_eq!(panicked, 0, "ranks panicked");
}

struct Rank<'a> {
    job: &'a Job,
    me: usize,
    direct: Direct,
}

impl<'a> Rank<'a> {
    fn new(job: &'a Job, me: usize) -> Rank<'a> {
        Rank { job, me, direct: Direct::new(job.boards(), me, job.case.crowd, job.case.tuning) }
    }

    fn run(&mut self) {
        for (at, step) in self.job.case.steps.iter().enumerate() {
            self.job.at[self.me].store(at, Ordering::Relaxed);
            if self.take(at as u64 + 1, step) == Err(Stop::Gone) {
                return; // another rank has failed, and says how
            }
        }
    }

    fn take(&mut self, sequence: u64, step: &Step) -> Result<(), Stop> {
        if matches!(step.what, What::Refuse { rank } if rank == self.me) {
            self.direct.refuse(sequence, "not today");
            return Ok(());
        }
        let dtype = match step.what {
            What::Reduce(dtype, _) | What::Shards(dtype, ..) => dtype,
            _ => DType::Complex128,
        };
        let len = step.elements * dtype.size();
        let bit = |mask: u32| mask >> self.me & 1 == 1;
        let (mut one, mut other) = (vec![0; len + 64], vec![0; len + 64]);
        let heap = self.job.layout.heap_of(self.me);
        let shared = bit(step.symmetric);
        let src = if shared { self.job.segment.cells(heap, len) } else { aligned(&mut one, len) };
        let dst = match bit(step.in_place) {
            true => src,
            false if shared => self.job.segment.cells(heap + MOST, len),
            false => aligned(&mut other, len),
        };
        fill(dst, &input(self.me + 100, sequence, len, dtype));
        fill(src, &input(self.me, sequence, len, dtype));
        let before = read(dst);
        let verdict = self.call(sequence, step, dst, src)?;
        let differs = matches!(step.what, What::Disagree { .. } | What::Refuse { .. });
        assert_eq!(verdict == Verdict::Differs, differs, "rank {} call {sequence}", self.me);
        let expected = match step.what {
            What::Reduce(_, op) | What::Shards(_, op, _) => combined(self.job.case.world, sequence, len, dtype, op),
            What::Broadcast { root } => input(root, sequence, len, dtype),
            _ => before,
        };
        let result = if matches!(step.what, What::Broadcast { .. }) { src } else { dst };
        assert_eq!(read(result), expected, "rank {} call {sequence}", self.me);
        Ok(())
    }

    fn call(&mut self, sequence: u64, step: &Step, dst: Bytes<'_>, src: Bytes<'_>) -> Result<Verdict, Stop> {
        let odd = matches!(step.what, What::Disagree { rank } if rank == self.me);
        let turn = Turn { sequence, fingerprint: 2 * sequence + u64::from(odd), algorithm: step.algorithm };
        let boards = self.direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| self.job.failed.load(Ordering::SeqCst),
            patience: Patience { spin: Duration::ZERO, limit: Duration::MAX },
            host: &mut Plain,
        };
        match step.what {
            What::Broadcast { root } => self.direct.broadcast(&turn, &mut wait, root, src),
            What::Barrier => self.direct.barrier(&turn, &mut wait),
            What::Reduce(dtype, op) => {
                let reducer = Reducer::of(dtype, op).expect("a pair that goes together");
                self.direct.all_reduce(&turn, &mut wait, reducer, dst, src)
            }
            What::Shards(dtype, op, streams) => {
                let reducer = Reducer::of(dtype, op).expect("a pair that goes together");
                let shards = Shards { len: src.len(), count: streams };
                let verdict = self.direct.reduce_scatter(&turn, &mut wait, &reducer, (dst, src), &shards)?;
                if streams % 2 == 1 {
                    self.direct.regroup(&mut wait)?;
                }
                self.direct.all_gather(&turn, &mut wait, dst, &shards)?;
                Ok(verdict)
            }
            What::Disagree { .. } | What::Refuse { .. } => {
                let reducer = Reducer::of(DType::UInt8, ReduceOp::Sum).expect("a pair that goes together");
                self.direct.all_reduce(&turn, &mut wait, reducer, dst, src)
            }
        }
    }
}

/// `len` bytes of `buffer`, as private arrays lie in memory.
fn aligned(buffer: &mut [u8], len: usize) -> Bytes<'_> {
    let skip = buffer.as_ptr().align_offset(64);
    Cell::from_mut(&mut buffer[skip..skip + len]).as_slice_of_cells()
}

fn fill(cells: Bytes<'_>, bytes: &[u8]) {
    cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
}

fn read(cells: Bytes<'_>) -> Vec<u8> {
    cells.iter().map(Cell::get).collect()
}

/// What `rank` brings to a call: all bits of every element vary, with rank and position.
fn input(rank: usize, sequence: u64, len: usize, dtype: DType) -> Vec<u8> {
    let byte = |k: usize| {
        let z = ((rank as u64) << 48 | sequence << 32 | k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let byte = (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56;
        if dtype == DType::Bool { byte as u8 & 1 } else { byte as u8 }
    };
    (0..len).map(byte).collect()
}

/// All ranks' inputs, combined in rank order.
fn combined(world: usize, sequence: u64, len: usize, dtype: DType, op: ReduceOp) -> Vec<u8> {
    let mut inputs: Vec<Vec<u8>> =
        (0..world).map(|rank| [input(rank, sequence, len, dtype), vec![0; 64]].concat()).collect();
    for (rank, buffer) in inputs.iter_mut().enumerate() {
        fill(aligned(buffer, len), &input(rank, sequence, len, dtype));
    }
    let mut result = vec![0; len + 64];
    let sources: Vec<Bytes<'_>> = inputs.iter_mut().map(|buffer| aligned(buffer, len)).collect();
    let dst = aligned(&mut result, len);
    Reducer::with_isa(dtype, op, Isa::Scalar).expect("a pair that goes together").run(dst, &sources);
    read(dst)
}

fn pairs() -> Vec<What> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| op.check(*dtype).is_ok()).map(|(dtype, op)| What::Reduce(dtype, op)).collect()
}

fn step(world: usize) -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        8 => prop::sample::select(pairs()),
        4 => (prop::sample::select(pairs()), 1..=world).prop_map(|(what, streams)| match what {
            What::Reduce(dtype, op) => What::Shards(dtype, op, streams),
            other => other,
        }),
        2 => (0..world).prop_map(|root| What::Broadcast { root }),
        1 => Just(What::Barrier),
        1 => (0..world).prop_map(|rank| What::Disagree { rank }),
        1 => (0..world).prop_map(|rank| What::Refuse { rank }),
    ];
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    let elements = prop_oneof![1..80usize, 1..=MOST / 16];
    // All private, all in the segment, or each rank as it likes.
    let symmetric = || prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    (what, algorithm, elements, symmetric(), symmetric()).prop_map(
        |(what, algorithm, elements, symmetric, in_place)| Step { what, algorithm, elements, symmetric, in_place },
    )
}

fn case() -> impl Strategy<Value = Case> {
    (2..=9usize).prop_flat_map(|world| {
        let tuning = (1..=8usize, 1..=16usize, prop_oneof![Just(256), Just(usize::MAX)])
            .prop_map(|(chunk, round, symmetric)| Tuning { chunk: 64 * chunk, round: 64 * round, symmetric });
        let steps = prop::collection::vec(step(world), 1..8);
        (any::<bool>(), tuning, steps).prop_map(move |(crowd, tuning, mut steps)| {
            rest_after_refusals(&mut steps);
            Case { world, crowd, tuning, steps }
        })
    })
}

/// A rank that refuses does not wait; this is what `Communicator::refuse` sees to.
fn rest_after_refusals(steps: &mut [Step]) {
    let mut row = 0;
    for step in steps {
        row = if matches!(step.what, What::Refuse { .. }) { row + 1 } else { 0 };
        if row > AHEAD {
            (step.what, row) = (What::Barrier, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_ends_with_the_bits_of_the_oracle(case in case()) {
        one_at_a_time(case);
    }
}

/// Cases keep all cores busy already.
fn one_at_a_time(case: Case) {
    static BUSY: Mutex<()> = Mutex::new(());
    let _busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    run(case);
}

/// Lengths at which something changes: elements, lines of the head, the payload, chunks, rounds and turns of the ring.
fn lengths(world: usize, ring: usize) -> Vec<usize> {
    let mut lengths = vec![1, world - 1, world, world + 1, 10, 11, 256, 257, 1000, ring / 4 + 1, 2 * ring / 4 + 3];
    lengths.retain(|n| *n > 0 && 4 * n <= MOST);
    lengths
}

fn every_length(algorithm: Algorithm, symmetric: u32, crowd: bool) {
    for world in 2..=9 {
        let tuning = Tuning { chunk: 256, round: 192, symmetric: 0 };
        let mut case = Case { world, crowd, tuning, steps: Vec::new() };
        let step = |elements| Step {
            what: What::Reduce(DType::Float32, ReduceOp::Sum),
            algorithm,
            elements,
            symmetric,
            in_place: 0b0101_0101,
        };
        case.steps = lengths(world, case.ring()).into_iter().map(step).collect();
        one_at_a_time(case);
    }
}

#[test]
fn lines_at_every_length() {
    every_length(Algorithm::Lines, 0, false);
}

#[test]
fn staged_at_every_length() {
    every_length(Algorithm::Staged, 0, false);
}

#[test]
fn symmetric_at_every_length() {
    every_length(Algorithm::Symmetric, u32::MAX, false);
}

#[test]
fn some_arrays_symmetric_some_private_at_every_length() {
    every_length(Algorithm::Symmetric, 0b0011_0110, false);
}

#[test]
fn a_crowd_at_every_length() {
    every_length(Algorithm::Auto, 0, true);
}
