//! Ranks that are threads of one test, connected by pipes as small as wanted.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use arx::kernels::Bytes;
use arx::transport::{Link, mem};
use arx::wait::{Bell, Patience, Plain, Wait, raise};

/// A call of these tests takes milliseconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(60);

/// What one rank has.
pub struct Rank {
    pub rank: usize,
    pub links: Vec<Option<Link>>,
    pub group: Arc<Group>,
}

/// What all of them share.
#[derive(Default)]
pub struct Group {
    pub bell: Arc<Bell>,
    pub alarm: AtomicU64,
    /// A rank has panicked.
    pub failed: AtomicBool,
}

impl Rank {
    /// Waits as ranks that outnumber the cores do.
    pub fn waiting<R>(&self, limit: Duration, work: impl FnOnce(&mut Wait<'_>) -> R) -> R {
        work(&mut Wait {
            bell: &self.group.bell,
            alarm: &self.group.alarm,
            gone: &|| self.group.failed.load(Ordering::SeqCst),
            patience: Patience { spin: Duration::ZERO, limit },
            host: &mut Plain,
        })
    }
}

/// Wakes the others when a rank panics, so that they come to an end too.
struct Last(Arc<Group>);

impl Drop for Last {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
            raise(&self.0.alarm, &self.0.bell);
        }
    }
}

/// A world of ranks, each pair of them connected by pipes of `capacity` bytes, and the bell that they ring.
pub fn world(size: usize, capacity: usize) -> Vec<Rank> {
    let group = Arc::new(Group::default());
    let mut links: Vec<Vec<Option<Link>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for a in 0..size {
        for b in 0..a {
            let (left, right) = mem::pair([a as u32, b as u32], capacity, &group.bell);
            (links[a][b], links[b][a]) = (Some(left), Some(right));
        }
    }
    links.into_iter().enumerate().map(|(rank, links)| Rank { rank, links, group: Arc::clone(&group) }).collect()
}

/// Runs `work` on every rank, each in a thread, and returns what they return. `what` is shown if they hang.
pub fn run<R: Send + 'static>(
    what: String,
    ranks: Vec<Rank>,
    work: impl Fn(Rank) -> R + Send + Sync + 'static,
) -> Vec<R> {
    // Ranks keep all cores busy already.
    static BUSY: Mutex<()> = Mutex::new(());
    let _busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    let work = Arc::new(work);
    let (sender, ended) = channel::<()>();
    let start = |rank: Rank| {
        let (work, sender) = (Arc::clone(&work), sender.clone());
        thread::spawn(move || {
            let (_last, _sender) = (Last(Arc::clone(&rank.group)), sender);
            work(rank)
        })
    };
    let threads: Vec<_> = ranks.into_iter().map(start).collect();
    drop(sender);
    if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
        let ended: Vec<_> = threads.iter().map(|thread| thread.is_finished()).collect();
        // Past the test harness, which would keep what a test prints until its end.
        let _ = writeln!(std::io::stderr().lock(), "hangs: {what}; which ranks have ended: {ended:?}");
        std::process::abort();
    }
    threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
}

/// Memory aligned as an array is.
pub struct Array {
    memory: Vec<Cell<u8>>,
    at: usize,
    len: usize,
}

impl Array {
    pub fn new(bytes: &[u8]) -> Array {
        let memory = vec![Cell::new(0xa5); bytes.len() + 64];
        let at = memory.as_ptr().align_offset(64);
        let array = Array { memory, at, len: bytes.len() };
        array.bytes().iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        array
    }

    pub fn bytes(&self) -> Bytes<'_> {
        &self.memory[self.at..self.at + self.len]
    }

    pub fn content(&self) -> Vec<u8> {
        self.bytes().iter().map(Cell::get).collect()
    }
}
