//! The ranks of one host as threads of one test: each has its end of the direct path, over one segment.

#![allow(dead_code, reason = "not every test file needs all of it")]

pub mod family;

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use arx::arena::{Layout, Segment};
use arx::direct::{Board, Boards, Control, Direct, Known, Peers, Tuning};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Isa, Reducer};
use arx::wait::{Patience, Plain, Stop, Wait, raise};

/// A call of these tests takes milliseconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(60);

/// What ranks are told.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub world: usize,
    pub crowd: bool,
    pub tuning: Tuning,
    /// Bytes of memory that each rank has for symmetric arrays.
    pub heap: usize,
}

impl Terms {
    /// Three rounds are under way at the same time, and one more may be skipped where the ring ends.
    pub fn ring(&self) -> usize {
        let part = self.tuning.round.div_ceil(self.world).next_multiple_of(64);
        4 * self.tuning.chunk.max((self.world + 1) * part)
    }
}

/// What the ranks share.
struct Job {
    terms: Terms,
    segment: Arc<Segment>,
    layout: Layout,
    /// By rank: the call that it is in.
    at: Vec<AtomicU64>,
    failed: AtomicBool,
    /// All ranks are one process, which can read itself.
    known: Known,
}

impl Job {
    fn new(terms: Terms) -> Job {
        let layout = Layout::new(terms.world, size_of::<Control>(), size_of::<Board>(), terms.ring(), 0, terms.heap);
        let segment = Arc::new(Segment::create(layout.total()).expect("memory").0);
        let at = (0..terms.world).map(|_| AtomicU64::new(0)).collect();
        let known = Known::new().expect("random numbers");
        let job = Job { terms, segment, layout, at, failed: AtomicBool::new(false), known };
        (0..terms.world).for_each(|rank| job.known.show(&job.boards(), rank));
        job
    }

    fn boards(&self) -> Boards {
        Boards::new(Arc::clone(&self.segment), self.layout)
    }

    /// Where every rank stands, for a test that hangs.
    fn show(&self, what: &str) {
        let boards = self.boards();
        // Past the test harness, which would keep what a test prints until its end.
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "hangs: {:?}, ring of {} bytes: {what}", self.terms, self.layout.ring);
        for (rank, at) in self.at.iter().enumerate() {
            let sequence = at.load(Ordering::Relaxed);
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

/// Runs `work` on every rank, each in a thread. `what` is shown if they hang.
pub fn run(what: String, terms: Terms, work: impl Fn(&mut Rank<'_>) -> Result<(), Stop> + Send + Sync + 'static) {
    // Ranks keep all cores busy already.
    static BUSY: Mutex<()> = Mutex::new(());
    let _busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    let (job, work) = (Arc::new(Job::new(terms)), Arc::new(work));
    let (sender, ended) = channel();
    let start = |me| {
        let (job, work, sender) = (Arc::clone(&job), Arc::clone(&work), sender.clone());
        thread::spawn(move || {
            let _last = Last(&job, sender);
            // `Gone`: another rank has failed, and says how.
            let ended = work(&mut Rank::new(&job, me));
            assert!(matches!(ended, Ok(()) | Err(Stop::Gone)), "rank {me}: {ended:?}");
        })
    };
    let ranks: Vec<_> = (0..terms.world).map(start).collect();
    drop(sender);
    if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
        job.show(&what);
        std::process::abort();
    }
    let panicked = ranks.into_iter().map(|rank| rank.join()).filter(|ended| ended.is_err()).count();
    assert_eq!(panicked, 0, "ranks panicked: {what}");
}

/// One rank in its thread.
pub struct Rank<'a> {
    job: &'a Job,
    pub me: usize,
    pub world: usize,
    pub direct: Direct,
}

impl<'a> Rank<'a> {
    fn new(job: &'a Job, me: usize) -> Rank<'a> {
        let Terms { world, crowd, tuning, .. } = job.terms;
        let boards = job.boards();
        let peers = Peers::find(&boards, None);
        Rank { job, me, world, direct: Direct::new(boards, me, crowd, tuning).reading(peers) }
    }

    /// Finds out anew whose memory it can read. Before its first call.
    pub fn find_peers(&mut self) {
        *self = Rank::new(self.job, self.me);
    }

    /// Runs call `sequence`, which waits as ranks that outnumber the cores do.
    pub fn call<R>(&mut self, sequence: u64, work: impl FnOnce(&mut Direct, &mut Wait<'_>) -> R) -> R {
        self.job.at[self.me].store(sequence, Ordering::Relaxed);
        let boards = self.direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| self.job.failed.load(Ordering::SeqCst),
            patience: Patience { spin: Duration::ZERO, limit: Duration::MAX },
            host: &mut Plain,
        };
        work(&mut self.direct, &mut wait)
    }

    /// `len` bytes of this rank's symmetric memory.
    pub fn symmetric(&self, at: usize, len: usize) -> Bytes<'a> {
        assert!(at + len <= self.job.terms.heap, "the heap of this test is too small");
        self.job.segment.cells(self.job.layout.heap_of(self.me) + at, len)
    }
}

/// Room that `aligned` needs besides.
pub const SLACK: usize = 64;

/// `len` bytes of `buffer`, as private arrays lie in memory.
pub fn aligned(buffer: &mut [u8], len: usize) -> Bytes<'_> {
    let skip = buffer.as_ptr().align_offset(SLACK);
    Cell::from_mut(&mut buffer[skip..skip + len]).as_slice_of_cells()
}

pub fn fill(cells: Bytes<'_>, bytes: &[u8]) {
    assert_eq!(cells.len(), bytes.len());
    cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
}

pub fn read(cells: Bytes<'_>) -> Vec<u8> {
    cells.iter().map(Cell::get).collect()
}

/// What `rank` brings to a call: all bits of every element vary, with rank and position.
pub fn input(rank: usize, sequence: u64, len: usize, dtype: DType) -> Vec<u8> {
    let byte = |k: usize| {
        let z = ((rank as u64) << 48 | sequence << 32 | k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let byte = (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56;
        if dtype == DType::Bool { byte as u8 & 1 } else { byte as u8 }
    };
    (0..len).map(byte).collect()
}

/// Arrays combined in their order by one call of the scalar kernel.
pub fn combined(inputs: &[Vec<u8>], dtype: DType, op: ReduceOp) -> Vec<u8> {
    let len = inputs[0].len();
    let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|_| vec![0; len + SLACK]).collect();
    for (buffer, input) in buffers.iter_mut().zip(inputs) {
        fill(aligned(buffer, len), input);
    }
    let mut result = vec![0; len + SLACK];
    let sources: Vec<Bytes<'_>> = buffers.iter_mut().map(|buffer| aligned(buffer, len)).collect();
    let dst = aligned(&mut result, len);
    Reducer::with_isa(dtype, op, Isa::Scalar).expect("a pair that goes together").run(dst, &sources);
    read(dst)
}

pub fn reducer(dtype: DType, op: ReduceOp) -> Reducer {
    Reducer::of(dtype, op).expect("a pair that goes together")
}

/// All that can be reduced.
pub fn pairs() -> Vec<(DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| op.check(*dtype).is_ok()).collect()
}
