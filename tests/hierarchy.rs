//! Collectives over several hosts: threads as ranks, a shared memory with pipes for the ranks of each host, TCP between hosts.
//! Results are exact, equal on every rank, and for halves rounded once, whatever the hosts look like.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use arx::arena::{Layout, Segment};
use arx::direct::{Algorithm as Path, Board, Boards, Control, Direct, MEASURE, Tuning, Turn, Verdict};
use arx::dtype::{DType, ReduceOp};
use arx::engine::{Halt, Header};
use arx::error::Rank;
use arx::hierarchy::{Hosts, Session, Way};
use arx::kernels::{Bytes, Isa, Reducer, widen_with};
use arx::messages::{Messages, Opener};
use arx::schedule::Algorithm;
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
struct Member {
    rank: Rank,
    hosts: Hosts,
    direct: Direct,
    messages: Messages,
    wide: Vec<Cell<u8>>,
    sequence: u64,
}

impl Member {
    fn session<T>(&mut self, work: impl FnOnce(&mut Session<'_, '_>) -> Result<T, Halt>) -> T {
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
fn job<T: Send>(members: &[Vec<Rank>], crowd: bool, work: impl Fn(&mut Member) -> T + Sync) -> Vec<T> {
    let world: usize = members.iter().map(Vec::len).sum();
    let mut links: Vec<Option<Connected>> = connect_all(world).into_iter().map(Some).collect();
    let tuning = Tuning { chunk: 256, round: 4096, symmetric: MEASURE };
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
fn shapes() -> Vec<Vec<Vec<Rank>>> {
    vec![
        vec![vec![0], vec![1]],
        vec![vec![0], vec![1], vec![2]],
        vec![vec![0], vec![1], vec![2], vec![3], vec![4]],
        vec![vec![0, 1], vec![2, 3]],
        vec![vec![0, 2], vec![1, 3]],
        vec![vec![0, 1, 2], vec![3], vec![4, 5]],
        vec![vec![0, 3, 4], vec![1, 5, 6], vec![2, 7, 8]],
        vec![vec![0, 1, 2, 3], vec![4, 5]],
    ]
}

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Ring,
    Algorithm::Recursive,
    Algorithm::Tree,
    Algorithm::Pairwise,
    Algorithm::Exchange,
    Algorithm::DoubleTree { pieces: 3 },
];

/// What a rank brings: distinct by rank and element, small enough for sums to be exact.
fn value(rank: Rank, k: usize) -> i64 {
    ((k * 37 + 11 * rank as usize * (k % 5 + 1)) % 251) as i64 - 125
}

fn bytes_of<const N: usize>(count: usize, element: impl Fn(usize) -> [u8; N]) -> Vec<u8> {
    (0..count).flat_map(element).collect()
}

/// `bytes` in memory that is aligned.
struct Array(Vec<Cell<u8>>, usize, usize);

impl Array {
    fn new(bytes: &[u8]) -> Array {
        let memory = vec![Cell::new(0); bytes.len() + 64];
        let skip = memory.as_ptr().align_offset(64);
        memory[skip..].iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        Array(memory, skip, bytes.len())
    }

    fn cells(&self) -> Bytes<'_> {
        &self.0[self.1..self.1 + self.2]
    }

    fn read(&self) -> Vec<u8> {
        self.cells().iter().map(Cell::get).collect()
    }
}

#[test]
fn every_shape_and_algorithm_sums_exactly() {
    for members in shapes() {
        let world: Rank = members.iter().map(|ranks| ranks.len() as Rank).sum();
        let lengths = [1, 5, 16, 1000, 20_000, 60_000];
        for crowd in [false, true] {
            let results = job(&members, crowd, |member| {
                let mut all = Vec::new();
                for algorithm in ALGORITHMS {
                    for way in [Way::Hierarchical(algorithm), Way::Flat(algorithm)] {
                        for len in lengths {
                            let x = Array::new(&bytes_of(len, |k| (value(member.rank, k) as i32).to_le_bytes()));
                            let kind = (DType::Int32, ReduceOp::Sum);
                            let verdict = member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells()));
                            assert_eq!(verdict, Verdict::Agreed);
                            all.push((way, len, x.read()));
                        }
                    }
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (way, len, got) in all {
                    let sum = |k| (0..world).map(|r| value(r, k)).sum::<i64>() as i32;
                    assert!(got == bytes_of(len, |k| sum(k).to_le_bytes()), "rank {rank} {members:?} {way:?} {len}");
                }
            }
        }
    }
}

/// Sums whose order matters: the bits need not be those of another order, but must be the same on all ranks.
#[test]
fn floats_have_the_same_bits_on_every_rank() {
    for members in shapes() {
        let results = job(&members, false, |member| {
            let mut all = Vec::new();
            for algorithm in ALGORITHMS {
                for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
                    let float = |k: usize| value(member.rank, k) as f32 * 1.7e-3 + 1e3 / (k + 1) as f32;
                    let x = Array::new(&bytes_of(17_001, |k| float(k).to_le_bytes()));
                    let y = Array::new(&vec![0; 4 * 17_001]);
                    let kind = (DType::Float32, op);
                    let way = Way::Hierarchical(algorithm);
                    assert_eq!(member.session(|s| s.all_reduce(way, kind, y.cells(), x.cells())), Verdict::Agreed);
                    all.push(y.read());
                }
            }
            all
        });
        assert!(results.iter().all(|r| *r == results[0]), "{members:?}");
        // An average is the sum divided once.
        let world: usize = members.iter().map(Vec::len).sum();
        for pair in results[0].chunks(3) {
            for (sum, avg) in pair[0].as_chunks::<4>().0.iter().zip(pair[1].as_chunks::<4>().0) {
                assert_eq!(f32::from_le_bytes(*sum) / world as f32, f32::from_le_bytes(*avg));
            }
        }
    }
}

/// 2048 + 1 + 1 + ... in float16 is 2048 if it is rounded at every step.
#[test]
fn halves_are_rounded_once_wherever_the_ranks_are() {
    for members in shapes() {
        let world: usize = members.iter().map(Vec::len).sum();
        for dtype in [DType::Float16, DType::BFloat16] {
            let half = |x: f32| match dtype {
                DType::Float16 => half::f16::from_f32(x).to_le_bytes(),
                _ => half::bf16::from_f32(x).to_le_bytes(),
            };
            let big = if dtype == DType::Float16 { 2048.0 } else { 256.0 };
            let brings = |rank: usize, k: usize| if rank == k % world { big } else { (1 + (k + rank) % 3) as f32 };
            let results = job(&members, false, |member| {
                let mut all = Vec::new();
                for algorithm in ALGORITHMS {
                    for way in [Way::Hierarchical(algorithm), Way::Flat(algorithm)] {
                        for op in [ReduceOp::Sum, ReduceOp::Avg] {
                            let x = Array::new(&bytes_of(2500, |k| half(brings(member.rank as usize, k))));
                            let kind = (dtype, op);
                            assert_eq!(
                                member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells())),
                                Verdict::Agreed
                            );
                            all.push((way, op, x.read()));
                        }
                    }
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (way, op, got) in all {
                    // Whole numbers: float32 adds them exactly, in any order.
                    let sum = |k| (0..world).map(|r| brings(r, k)).sum::<f32>();
                    let expected = |k| half(if op == ReduceOp::Avg { sum(k) / world as f32 } else { sum(k) });
                    assert!(got == bytes_of(2500, expected), "rank {rank} {members:?} {way:?} {dtype} {op}");
                }
            }
        }
    }
}

/// Where every rank has a host of its own and the algorithm brings values together, they are combined in rank order.
#[test]
fn exchange_and_pairwise_combine_halves_in_rank_order() {
    let members: Vec<Vec<Rank>> = (0..4).map(|rank| vec![rank]).collect();
    let input = |rank: Rank| bytes_of(3000, |k| half::f16::from_f32(value(rank, k) as f32 / 7.0).to_le_bytes());
    let arrays: Vec<Array> = (0..4).map(|rank| Array::new(&input(rank))).collect();
    let operands: Vec<Bytes<'_>> = arrays.iter().map(Array::cells).collect();
    let expected = Array::new(&vec![0; 6000]);
    let kernel = Reducer::with_isa(DType::Float16, ReduceOp::Sum, Isa::Scalar).expect("it has sums");
    kernel.run(expected.cells(), &operands);
    let expected = expected.read();
    for algorithm in [Algorithm::Exchange, Algorithm::Pairwise] {
        let results = job(&members, false, |member| {
            let x = Array::new(&input(member.rank));
            let kind = (DType::Float16, ReduceOp::Sum);
            let way = Way::Hierarchical(algorithm);
            assert_eq!(member.session(|s| s.all_reduce(way, kind, x.cells(), x.cells())), Verdict::Agreed);
            x.read()
        });
        assert!(results.iter().all(|r| *r == expected), "{algorithm}");
    }
    // The test would not see an order if float16 sums had none.
    let wide = Array::new(&vec![0; 12_000]);
    widen_with(Isa::Scalar, DType::Float16, wide.cells(), Array::new(&expected).cells());
    assert_ne!(wide.read(), vec![0; 12_000]);
}

#[test]
fn every_root_broadcasts_and_barriers_end() {
    for members in shapes() {
        let world: Rank = members.iter().map(|ranks| ranks.len() as Rank).sum();
        for crowd in [false, true] {
            let results = job(&members, crowd, |member| {
                let mut all = Vec::new();
                for root in 0..world {
                    for (len, algorithm) in [(1, Algorithm::Tree), (3000, Algorithm::Tree), (200_000, Algorithm::Ring)]
                    {
                        let x = Array::new(&bytes_of(len, |k| [(value(member.rank, k) + 130) as u8]));
                        assert_eq!(member.session(|s| s.broadcast(algorithm, root, x.cells())), Verdict::Agreed);
                        all.push((root, len, x.read()));
                    }
                    assert_eq!(member.session(|s| s.barrier(Algorithm::Exchange)), Verdict::Agreed);
                }
                all
            });
            for (rank, all) in results.into_iter().enumerate() {
                for (root, len, got) in all {
                    let expected = bytes_of(len, |k| [(value(root, k) + 130) as u8]);
                    assert!(got == expected, "rank {rank} {members:?} root {root} {len}");
                }
            }
        }
    }
}
