//! Plans, byte by byte: every gate is compared with what the schedule says about the memory that its move touches.

use std::collections::HashMap;

use arx::plan::{self, ALIGN, Area, Chunk, Frame, Gate, Home, Job, Move, Place, Plan};
use arx::schedule::{Algorithm, Apply, Buf, Collective, Schedule, Span, Step};

const ALGORITHMS: [Algorithm; 12] = [
    Algorithm::Ring,
    Algorithm::Recursive,
    Algorithm::Doubling,
    Algorithm::AllGatherReduce,
    Algorithm::ReduceBroadcast,
    Algorithm::Relay,
    Algorithm::Tree,
    Algorithm::CHAIN,
    Algorithm::KAry { arity: 2, pieces: 3 },
    Algorithm::DoubleTree { pieces: 2 },
    Algorithm::Pairwise,
    Algorithm::Exchange,
];

/// Every algorithm, collective, world up to 9 and rank. Not the all-to-all, whose chunks must be of the same length.
fn schedules() -> impl Iterator<Item = (String, Schedule)> {
    let collectives = |world: u32| {
        use Collective::*;
        let roots = (0..world).flat_map(|root| [Broadcast(root), Reduce(root), Gather(root), Scatter(root)]);
        [AllReduce, ReduceScatter, AllGather, Scan, Exscan].into_iter().chain(roots)
    };
    let jobs = move |world| ALGORITHMS.into_iter().flat_map(move |a| collectives(world).map(move |c| (world, a, c)));
    (1..=9).flat_map(jobs).flat_map(|(world, algorithm, collective)| {
        (0..world).filter_map(move |rank| {
            let schedule = algorithm.schedule(collective, rank, world)?;
            Some((format!("{algorithm} {collective:?}, rank {rank} of {world}"), schedule))
        })
    })
}

/// A byte of memory: of the array, or of a chunk of scratch that tile `t` and tile `t + 2` share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Byte {
    Data(usize),
    Scratch { half: usize, chunk: usize, at: usize },
}

/// What a byte of a program must wait for: how far the other program must have come, and how far it may be asked to come.
#[derive(Clone, Copy)]
struct Wanted {
    least: u64,
    most: u64,
}

/// The two programs of a schedule, byte by byte.
#[derive(Default)]
struct Oracle {
    outbound: Vec<Wanted>,
    inbound: Vec<Wanted>,
    written: HashMap<Byte, u64>,
    sent: HashMap<Byte, u64>,
}

impl Oracle {
    fn new(schedule: &Schedule, elements: usize, elem: usize, per_tile: usize) -> Oracle {
        let mut oracle = Oracle::default();
        for (tile, first) in (0..elements).step_by(per_tile).enumerate() {
            let len = per_tile.min(elements - first);
            let bytes = |span: Span| bytes(schedule, span, tile, first, len, elem);
            for step in &schedule.steps {
                match step {
                    Step::Exchange { send, recv } => {
                        send.iter().for_each(|(_, span)| oracle.send(&bytes(*span)));
                        recv.iter().for_each(|(_, span, _)| oracle.write(&bytes(*span)));
                    }
                    Step::Local { dst, .. } => oracle.write(&bytes(*dst)),
                }
            }
        }
        oracle
    }

    fn send(&mut self, bytes: &[Byte]) {
        let most = self.inbound.len() as u64;
        for byte in bytes {
            self.sent.insert(*byte, self.outbound.len() as u64 + 1);
            let least = self.written.get(byte).copied().unwrap_or(0);
            self.outbound.push(Wanted { least, most });
        }
    }

    fn write(&mut self, bytes: &[Byte]) {
        let most = self.outbound.len() as u64;
        for byte in bytes {
            self.written.insert(*byte, self.inbound.len() as u64 + 1);
            let least = self.sent.get(byte).copied().unwrap_or(0);
            self.inbound.push(Wanted { least, most });
        }
    }
}

/// The memory of a span, in order.
fn bytes(schedule: &Schedule, span: Span, tile: usize, first: usize, len: usize, elem: usize) -> Vec<Byte> {
    let chunks = schedule.chunks as usize;
    let start = |k: usize| k * (len / chunks) + k.min(len % chunks);
    let of = |k: usize| (start(k) * elem)..(start(k + 1) * elem);
    let twins = schedule.stands_for();
    (span.lo as usize..span.hi as usize)
        .flat_map(|chunk| match span.buf {
            Buf::Data => of(chunk).map(|at| Byte::Data(first * elem + at)).collect::<Vec<_>>(),
            Buf::Scratch => {
                let twin = of(twins[chunk].expect("a combined chunk") as usize);
                (0..twin.len()).map(|at| Byte::Scratch { half: tile % 2, chunk, at }).collect()
            }
        })
        .collect()
}

/// How far the other program must be before byte `i` of a move may go.
fn needs(m: &Move, i: usize, most: u64) -> u64 {
    (0..=most).find(|position| m.gate.opened(m.len, *position) > i).unwrap_or(u64::MAX)
}

fn check(what: &str, moves: &[Move], wanted: &[Wanted], exact: bool) {
    let mut position = 0;
    for m in moves {
        assert_eq!(m.start, position, "{what}");
        position += m.len as u64;
        for i in 0..m.len {
            let Wanted { least, most } = wanted[m.start as usize + i];
            let needs = needs(m, i, most);
            assert!(needs >= least, "{what}: byte {i} of {m:?} goes at {needs}, before {least}");
            assert!(needs <= most, "{what}: byte {i} of {m:?} waits for a later step, {needs} after {most}");
            assert!(!exact || needs == least, "{what}: byte {i} of {m:?} goes at {needs}, not at {least}");
        }
    }
    assert_eq!(position, wanted.len() as u64, "{what}");
}

#[test]
fn gates_wait_for_what_touches_the_same_bytes_and_never_for_later_steps() {
    for (name, schedule) in schedules() {
        for (elements, elem, per_tile) in [(0, 4, 1), (1, 2, 1), (8, 1, 8), (23, 2, 23), (23, 2, 5), (31, 1, 11)] {
            let what = format!("{name}, {elements} elements of {elem} in tiles of {per_tile}");
            let plan = plan::compile(&schedule, elements * elem, elem, per_tile * elem);
            let oracle = Oracle::new(&schedule, elements, elem, per_tile);
            // Where every move is one chunk, each waits exactly for its own bytes.
            let single = |step: &Step| match step {
                Step::Exchange { send, recv } => {
                    send.is_none_or(|(_, span)| span.len() == 1) && recv.is_none_or(|(_, span, _)| span.len() == 1)
                }
                Step::Local { .. } => true,
            };
            let exact = schedule.steps.iter().all(single) && per_tile >= elements;
            check(&what, &plan.outbound, &oracle.outbound, exact);
            check(&what, &plan.inbound, &oracle.inbound, exact);
        }
    }
}

#[test]
fn every_stream_has_one_header_and_is_padded() {
    for (name, schedule) in schedules() {
        for (elements, tile) in [(0, usize::MAX), (1, usize::MAX), (7, usize::MAX), (100, usize::MAX), (100, 36)] {
            let plan = plan::compile(&schedule, elements * 4, 4, tile);
            for moves in [&plan.outbound, &plan.inbound] {
                let mut streams: HashMap<u32, Vec<&Move>> = HashMap::new();
                for m in moves {
                    m.peer().into_iter().for_each(|peer| streams.entry(peer).or_default().push(m));
                }
                for stream in streams.values() {
                    let heads: Vec<_> = stream.iter().map(|m| m.frame().head).collect();
                    assert_eq!(heads, [vec![true], vec![false; heads.len() - 1]].concat(), "{name}");
                    let bytes: usize = stream.iter().map(|m| m.len + m.frame().pad).sum();
                    assert!(bytes.is_multiple_of(ALIGN), "{name}");
                    let pads: Vec<_> = stream.iter().map(|m| m.frame().pad).collect();
                    assert!(pads.iter().all(|pad| *pad < ALIGN) && pads[..pads.len() - 1].iter().all(|pad| *pad == 0));
                    assert!(stream[1..].iter().all(|m| m.len > 0), "{name}: a move of nothing");
                }
            }
        }
    }
}

#[test]
fn places_stay_within_their_memory() {
    for (name, schedule) in schedules() {
        for (elements, tile) in [(0, 8), (1, 8), (23, 24), (23, 1000), (100, 52)] {
            let plan = plan::compile(&schedule, elements * 8, 8, tile);
            // Chunks that are sent together are packed.
            let aligned = if name.starts_with("all_gather_reduce") { 8 } else { 64 };
            let fits = |place: Place, len| match place.area {
                Area::Array => place.at + len <= elements * 8,
                Area::Source => false,
                Area::Scratch => place.at.is_multiple_of(aligned) && place.at + len <= plan.scratch,
            };
            for m in plan.outbound.iter().chain(&plan.inbound) {
                assert!(fits(m.place, m.len), "{name}: {m:?}");
                if let Job::Combine { sources, .. } = &m.job {
                    assert!(plan.sources[sources.clone()].iter().all(|place| fits(*place, m.len)), "{name}: {m:?}");
                }
            }
        }
    }
}

/// Rank 1 of 3, 10 elements of 4 bytes: chunks of 16, 12 and 12 bytes.
#[test]
fn a_ring_is_two_programs() {
    let schedule = Algorithm::Ring.schedule(Collective::AllReduce, 1, 3).expect("served");
    let plan = plan::compile(&schedule, 40, 4, usize::MAX);
    let data = |at| Place { area: Area::Array, at };
    let behind = |from, len: u64| Gate { from, until: from as u64 + len };
    let send = |at, len, start, gate, head, pad| {
        let job = Job::Send { peer: 2, frame: Frame { head, pad } };
        Move { job, place: data(at), len, start, gate }
    };
    let receive = |at, len, start, apply, gate, head, pad| {
        let job = Job::Receive { peer: 0, frame: Frame { head, pad }, apply };
        Move { job, place: data(at), len, start, gate }
    };
    // 52 bytes go to rank 2, 56 come from rank 0.
    let expected = Plan {
        outbound: vec![
            send(0, 16, 0, Gate::OPEN, true, 0),
            send(28, 12, 16, behind(0, 12), false, 0),
            send(16, 12, 28, behind(12, 12), false, 0),
            send(0, 16, 40, behind(24, 16), false, 8),
        ],
        inbound: vec![
            receive(28, 12, 0, Apply::Reduce, Gate::OPEN, true, 0),
            receive(16, 12, 12, Apply::Finish, Gate::OPEN, false, 0),
            receive(0, 16, 24, Apply::Store, behind(0, 16), false, 0),
            receive(28, 12, 40, Apply::Store, behind(16, 12), false, 12),
        ],
        ..Plan::default()
    };
    assert_eq!(plan, expected);
}

/// Rank 0 of 3, 5 elements of 4 bytes in tiles of 2: two halves of scratch memory, used in turn.
#[test]
fn tiles_take_turns_with_the_scratch_memory() {
    let schedule = Algorithm::Exchange.schedule(Collective::AllReduce, 0, 3).expect("served");
    let plan = plan::compile(&schedule, 20, 4, 8);
    assert_eq!(plan.scratch, 2 * 2 * 64);
    assert_eq!(plan.widest, 3);
    let combined: Vec<Vec<Place>> = plan
        .inbound
        .iter()
        .filter_map(|m| {
            if let Job::Combine { sources, .. } = &m.job { Some(plan.sources[sources.clone()].to_vec()) } else { None }
        })
        .collect();
    let sources = |tile: usize| {
        let scratch = |k: usize| Place { area: Area::Scratch, at: 128 * (tile % 2) + 64 * k };
        vec![Place { area: Area::Array, at: 8 * tile }, scratch(0), scratch(1)]
    };
    assert_eq!(combined, [sources(0), sources(1), sources(2)]);
    // What the first tile has combined is not waited for: nothing of it is sent again.
    assert!(plan.outbound.iter().all(|m| m.gate == Gate::OPEN));
}

/// Rank 2 of 4, 8 bytes: its own to rank 3, then its own and that of rank 3 to rank 0, in one message.
#[test]
fn scratch_chunks_that_leave_together_lie_together() {
    let schedule = Algorithm::AllGatherReduce.schedule(Collective::AllReduce, 2, 4).expect("served");
    let plan = plan::compile(&schedule, 8, 8, usize::MAX);
    let sent: Vec<_> = plan.outbound.iter().map(|m| (m.peer(), m.place, m.len)).collect();
    let (own, pair) = (Place { area: Area::Array, at: 0 }, Place { area: Area::Scratch, at: 16 });
    assert_eq!(sent, [(Some(3), own, 8), (Some(0), pair, 16)]);
    assert_eq!(plan.scratch, 4 * 8);
}

/// Where chunks lie as an even cut has them, it makes no difference how that was said.
#[test]
fn an_even_cut_may_be_said_chunk_by_chunk() {
    for (name, schedule) in schedules() {
        for elements in [0, 1, 23, 64] {
            let count = schedule.chunks as usize;
            let start = |k: usize| 4 * (k * (elements / count) + k.min(elements % count));
            let chunk = |k: usize| Chunk { home: Home::Array(start(k)), len: start(k + 1) - start(k) };
            let chunks: Vec<Chunk> = (0..count).map(chunk).collect();
            let said = plan::compile_cut(&schedule, &chunks, 4, usize::MAX);
            assert_eq!(said, plan::compile(&schedule, 4 * elements, 4, usize::MAX), "{name}, {elements}");
        }
    }
}

/// Four ranks gather for rank 0: a rank's own chunk is read where it lies, and rank 2 passes on that of rank 3.
#[test]
fn what_only_passes_through_lies_in_temporary_memory() {
    let schedule = |rank| Algorithm::Tree.schedule(Collective::Gather(0), rank, 4).expect("served");
    let cut = |me: usize| -> Vec<Chunk> {
        let home = |k| if k == me { Home::Source(0) } else { Home::Passing };
        [12, 8, 0, 20].into_iter().enumerate().map(|(k, len)| Chunk { home: home(k), len }).collect()
    };
    let leaf = plan::compile_cut(&schedule(1), &cut(1), 4, usize::MAX);
    assert_eq!((leaf.scratch, leaf.outbound[0].place), (0, Place { area: Area::Source, at: 0 }));
    let inner = plan::compile_cut(&schedule(2), &cut(2), 4, usize::MAX);
    assert_eq!(inner.scratch, 20);
    let passing = Place { area: Area::Scratch, at: 0 };
    assert_eq!(inner.inbound.iter().map(|m| (m.place, m.len)).collect::<Vec<_>>(), [(passing, 20)]);
    // Its own chunk is empty, and begins the stream.
    let sent: Vec<_> = inner.outbound.iter().map(|m| (m.place.area, m.len, m.frame().head)).collect();
    assert_eq!(sent, [(Area::Source, 0, true), (Area::Scratch, 20, false)]);
    assert_eq!(inner.outbound[1].gate, Gate { from: 0, until: 20 });
}

/// Rank 0 of 2 combines chunks of 5 and 2 elements in tiles of 2: the longest decides how many there are.
#[test]
fn tiles_are_slices_of_every_chunk() {
    let schedule = Algorithm::Pairwise.schedule(Collective::ReduceScatter, 0, 2).expect("served");
    let chunks = [Chunk { home: Home::Array(0), len: 20 }, Chunk { home: Home::Source(40), len: 8 }];
    let plan = plan::compile_cut(&schedule, &chunks, 4, 8);
    let sent: Vec<_> = plan.outbound.iter().map(|m| (m.place, m.len)).collect();
    assert_eq!(sent, [(Place { area: Area::Source, at: 40 }, 8)], "the second chunk ends with the first tile");
    let slices = |combined: bool| -> Vec<_> {
        let moves = plan.inbound.iter().filter(|m| matches!(m.job, Job::Combine { .. }) == combined);
        moves.map(|m| (m.place, m.len)).collect()
    };
    let at = |area, places: [usize; 3]| {
        places.into_iter().zip([8, 8, 4]).map(|(at, len)| (Place { area, at }, len)).collect::<Vec<_>>()
    };
    assert_eq!(slices(false), at(Area::Scratch, [0, 64, 0]));
    assert_eq!(slices(true), at(Area::Array, [0, 8, 16]));
    assert_eq!(plan.scratch, 2 * 64);
}

#[test]
#[should_panic(expected = "only read")]
fn what_is_only_read_is_not_written_to() {
    let schedule = Algorithm::Ring.schedule(Collective::ReduceScatter, 0, 3).expect("served");
    let chunks = [0, 4, 8].map(|at| Chunk { home: Home::Source(at), len: 4 });
    plan::compile_cut(&schedule, &chunks, 4, usize::MAX);
}

#[test]
fn a_gate_opens_byte_by_byte_up_to_its_end() {
    let gate = Gate { from: 10, until: 15 };
    let opened: Vec<_> = (9..17).map(|position| gate.opened(8, position)).collect();
    assert_eq!(opened, [0, 0, 1, 2, 3, 4, 8, 8]);
    let gate = Gate { from: -3, until: 2 };
    assert_eq!([0, 1, 2].map(|position| gate.opened(8, position)), [3, 4, 8]);
    assert_eq!(Gate::OPEN.opened(8, 0), 8);
    assert_eq!(Gate { from: 0, until: u64::MAX }.opened(8, 1 << 62), 8);
}
