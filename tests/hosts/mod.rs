//! Ranks that are threads of one test, on several hosts: a shared memory with pipes for the ranks of each host, TCP between hosts.

#![allow(dead_code, reason = "not every test file needs all of it")]

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use arx::arena::{Layout, Segment};
use arx::direct::{Algorithm as Path, Board, Boards, Control, Direct, MEASURE, NEVER, Tuning, Turn};
use arx::engine::{Halt, Header};
use arx::error::Rank;
use arx::hierarchy::{Hosts, Session};
use arx::kernels::Bytes;
use arx::messages::{Messages, Opener};
use arx::transport::shm::ring::Ring;
use arx::transport::{Link, shm, tcp};
use arx::wait::{Patience, Plain, Wait};

/// A case takes milliseconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(60);

/// Bytes of a pipe: far fewer than those of most arrays here.
const PIPE: usize = 4 << 10;

/// Hands out sockets that were connected before, and pipes to the ranks of the same host.
#[derive(Default)]
struct Connected {
    sockets: HashMap<Rank, TcpStream>,
    pipes: HashMap<Rank, Link>,
}

impl Opener for Connected {
    fn open(&mut self, peer: Rank, _wait: &mut Wait<'_>) -> Result<Link, Halt> {
        if let Some(link) = self.pipes.remove(&peer) {
            return Ok(link);
        }
        let socket = self.sockets.remove(&peer).expect("one link to each peer");
        socket.set_nodelay(true).expect("TCP");
        socket.set_nonblocking(true).expect("a socket");
        Ok(tcp::link(peer, vec![OwnedFd::from(socket)]))
    }

    fn alert(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn connect_all(world: usize) -> Vec<Connected> {
    let mut ends: Vec<Connected> = (0..world).map(|_| Connected::default()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    for a in 0..world {
        for b in a + 1..world {
            let one = TcpStream::connect(address).expect("loopback");
            let (other, _) = listener.accept().expect("it has called");
            ends[a].sockets.insert(b as Rank, one);
            ends[b].sockets.insert(a as Rank, other);
        }
    }
    ends
}

/// The pipes of the rank at `place` of a host.
fn pipes(segment: &Arc<Segment>, layout: Layout, on_host: &[Rank], place: usize) -> HashMap<Rank, Link> {
    let ring = |reader, writer| Ring::new(Arc::clone(segment), layout.pipe_of(reader, writer).0, PIPE, 0);
    let others = on_host.iter().copied().enumerate().filter(|(other, _)| *other != place);
    let link = |(other, peer)| {
        let tx = Box::new(shm::Writer::new(ring(other, place), peer));
        (peer, Link { tx, rx: Box::new(shm::Reader::new(ring(place, other), peer)) })
    };
    others.map(link).collect()
}

/// One rank of a job.
pub struct Member {
    pub rank: Rank,
    hosts: Hosts,
    direct: Direct,
    messages: Messages,
    wide: Vec<Cell<u8>>,
    sequence: u64,
}

impl Member {
    pub fn session<T>(&mut self, work: impl FnOnce(&mut Session<'_, '_>) -> Result<T, Halt>) -> T {
        self.sequence += 1;
        let boards = self.direct.boards().clone();
        let mut wait = Wait {
            bell: &boards.control().bell,
            alarm: &boards.control().alarm,
            gone: &|| false,
            patience: Patience { spin: Duration::ZERO, limit: HANG },
            host: &mut Plain,
        };
        let mut session = Session {
            hosts: &self.hosts,
            direct: &mut self.direct,
            messages: &mut self.messages,
            wide: &mut self.wide,
            turn: Turn { sequence: self.sequence, fingerprint: 7, algorithm: Path::Auto },
            header: Header { kind: 0, sequence: self.sequence, fingerprint: 7, bytes: 0 },
            wait: &mut wait,
        };
        work(&mut session).unwrap_or_else(|halt| panic!("rank {}: {halt:?}", self.rank))
    }
}

/// Runs `work` on every rank of a job whose hosts have these ranks; returns what each returned, by rank.
pub fn job<T: Send>(members: &[Vec<Rank>], crowd: bool, work: impl Fn(&mut Member) -> T + Sync) -> Vec<T> {
    let world: usize = members.iter().map(Vec::len).sum();
    let mut links: Vec<Option<Connected>> = connect_all(world).into_iter().map(Some).collect();
    let tuning = Tuning { chunk: 256, round: 4096, symmetric: MEASURE, kernel: NEVER };
    let mut ranks = Vec::new();
    for on_host in members {
        let (control, board, pipe) = (size_of::<Control>(), size_of::<Board>(), Ring::size(PIPE));
        let layout = Layout::new(on_host.len(), control, board, 64 << 10, pipe, 1 << 20);
        let segment = Arc::new(Segment::create(layout.total()).expect("memory").0);
        for (place, rank) in on_host.iter().enumerate() {
            let boards = Boards::new(Arc::clone(&segment), layout);
            let mut opener = links[*rank as usize].take().expect("taken once");
            opener.pipes = pipes(&segment, layout, on_host, place);
            ranks.push(Member {
                rank: *rank,
                hosts: Hosts::new(members.to_vec(), *rank),
                direct: Direct::new(boards, place, crowd, tuning),
                messages: Messages::new(world, Box::new(opener)),
                wide: Vec::new(),
                sequence: 0,
            });
        }
    }
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..world).map(|_| None).collect());
    let (sender, ended) = channel::<()>();
    thread::scope(|scope| {
        for mut member in ranks {
            let (sender, work, results) = (sender.clone(), &work, &results);
            scope.spawn(move || {
                let result = work(&mut member);
                results.lock().expect("no rank panicked")[member.rank as usize] = Some(result);
                drop(sender);
            });
        }
        drop(sender);
        if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("hangs: {members:?}");
            std::process::abort();
        }
    });
    results.into_inner().expect("no rank panicked").into_iter().map(|r| r.expect("every rank ended")).collect()
}

/// All shapes of jobs that these tests look at.
pub fn shapes() -> Vec<Vec<Vec<Rank>>> {
    vec![
        vec![vec![0], vec![1]],
        vec![vec![0], vec![1], vec![2]],
        vec![vec![0], vec![1], vec![2], vec![3], vec![4]],
        vec![vec![0, 1], vec![2, 3]],
        vec![vec![0, 2], vec![1, 3]],
        vec![vec![0, 1, 2], vec![3], vec![4, 5]],
        vec![vec![0, 3, 4], vec![1, 5, 6], vec![2, 7, 8]],
        vec![vec![0, 1, 2, 3], vec![4, 5]],
        vec![vec![0, 3, 5], vec![1], vec![2, 4]],
        vec![vec![0, 1, 2]],
    ]
}

/// What a rank brings: distinct by rank and element, small enough for sums to be exact.
pub fn value(rank: Rank, k: usize) -> i64 {
    ((k * 37 + 11 * rank as usize * (k % 5 + 1)) % 251) as i64 - 125
}

pub fn bytes_of<const N: usize>(count: usize, element: impl Fn(usize) -> [u8; N]) -> Vec<u8> {
    (0..count).flat_map(element).collect()
}

/// `bytes` in memory that is aligned.
pub struct Array(Vec<Cell<u8>>, usize, usize);

impl Array {
    pub fn new(bytes: &[u8]) -> Array {
        let memory = vec![Cell::new(0); bytes.len() + 64];
        let skip = memory.as_ptr().align_offset(64);
        memory[skip..].iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        Array(memory, skip, bytes.len())
    }

    pub fn cells(&self) -> Bytes<'_> {
        &self.0[self.1..self.1 + self.2]
    }

    pub fn read(&self) -> Vec<u8> {
        self.cells().iter().map(Cell::get).collect()
    }
}
