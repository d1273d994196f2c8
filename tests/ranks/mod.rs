//! Ranks that are threads of one test, connected by any medium, as narrow as wanted.

#![allow(dead_code, reason = "not every test file needs all of it")]

pub mod case;
#[path = "../tcp/ends.rs"]
mod ends;

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use arx::arena::Segment;
use arx::kernels::Bytes;
use arx::transport::shm::ring::Ring;
use arx::transport::{Link, mem, shm, tcp};
use arx::wait::{Bell, Host, Patience, Wait, raise};

/// A call of these tests takes milliseconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(60);

/// What connects two ranks; in each direction about so many bytes may be under way.
#[derive(Clone, Copy, Debug)]
pub enum Medium {
    Pipes(usize),
    Rings(usize),
    Sockets(usize),
    /// Pipes and sockets in turn.
    Both(usize),
}

/// What one rank has.
pub struct Rank {
    pub rank: usize,
    pub links: Vec<Option<Link>>,
    pub group: Arc<Group>,
}

/// What all of them share.
#[derive(Default)]
pub struct Group {
    bell: Arc<Bell>,
    /// Where the rings are, and then the bell.
    segment: Option<Arc<Segment>>,
    alarm: AtomicU64,
    /// A rank has panicked.
    failed: AtomicBool,
}

impl Group {
    fn bell(&self) -> &Bell {
        self.segment.as_ref().map_or(&self.bell, |segment| segment.at(0))
    }

    /// One of the ranks is gone.
    pub fn lose(&self) {
        self.failed.store(true, Ordering::SeqCst);
        raise(&self.alarm, self.bell());
    }

    /// The links between two ranks, which are pair number `index`.
    fn pair(&self, medium: Medium, ranks: [u32; 2], index: usize) -> (Link, Link) {
        match (medium, &self.segment) {
            (Medium::Rings(capacity), Some(segment)) => {
                let ring = |k: usize| {
                    let at = ring_at(capacity, 2 * index + k);
                    Ring::new(Arc::clone(segment), at, capacity, 0)
                };
                let link = |out, inn, peer| Link {
                    tx: Box::new(shm::Writer::new(ring(out), peer)),
                    rx: Box::new(shm::Reader::new(ring(inn), peer)),
                };
                (link(0, 1, ranks[1]), link(1, 0, ranks[0]))
            }
            (Medium::Sockets(buffer), _) => sockets(ranks, buffer),
            (Medium::Both(buffer), _) if index % 2 == 1 => sockets(ranks, buffer),
            (Medium::Pipes(capacity) | Medium::Rings(capacity) | Medium::Both(capacity), _) => {
                mem::pair(ranks, capacity, &self.bell)
            }
        }
    }
}

fn sockets(ranks: [u32; 2], buffer: usize) -> (Link, Link) {
    let (here, there) = ends::connections(ends::V4, 1, Some(buffer));
    (tcp::link(ranks[1], here), tcp::link(ranks[0], there))
}

/// Where ring number `k` is; the bell comes first.
fn ring_at(capacity: usize, k: usize) -> usize {
    let unit = Ring::size(capacity).next_multiple_of(Ring::ALIGN);
    size_of::<Bell>().next_multiple_of(Ring::ALIGN) + k * unit
}

impl Rank {
    /// Waits as ranks that outnumber the cores do.
    pub fn waiting<R>(&self, limit: Duration, host: &mut dyn Host, work: impl FnOnce(&mut Wait<'_>) -> R) -> R {
        work(&mut Wait {
            bell: self.group.bell(),
            alarm: &self.group.alarm,
            gone: &|| self.group.failed.load(Ordering::SeqCst),
            patience: Patience { spin: Duration::ZERO, limit },
            host,
        })
    }
}

/// Wakes the others when a rank panics, so that they come to an end too.
struct Last(Arc<Group>);

impl Drop for Last {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lose();
        }
    }
}

/// A world of ranks, each pair of them connected.
pub fn world(size: usize, medium: Medium) -> Vec<Rank> {
    let segment = match medium {
        Medium::Rings(capacity) => {
            let (segment, _) = Segment::create(ring_at(capacity, size * size)).expect("memory");
            Some(Arc::new(segment))
        }
        _ => None,
    };
    let group = Arc::new(Group { segment, ..Group::default() });
    let mut links: Vec<Vec<Option<Link>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    let pairs = (0..size).flat_map(|a| (0..a).map(move |b| (a, b)));
    for (index, (a, b)) in pairs.enumerate() {
        let (left, right) = group.pair(medium, [a as u32, b as u32], index);
        (links[a][b], links[b][a]) = (Some(left), Some(right));
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
