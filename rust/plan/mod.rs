//! A schedule bound to a length. What one rank does becomes two programs, each run in order, tied together by gates:
//!
//! ```text
//! outbound  │ send a..b to 1 │ send c..d to 1 │ ...       position: bytes sent so far
//! inbound   │ receive c..d   │ receive e..f   │ combine   position: bytes received or combined so far
//!                   └── gate of "send c..d": byte i may go once inbound has passed byte i of "receive c..d"
//! ```
//! Gates come from what touches the same bytes of the array or of the scratch memory, in the order of the schedule:
//!
//! * *read after write:* what is sent has been received or combined before;
//! * *write after read:* what is overwritten has been sent before. The two halves of one exchange count as sent first, received
//!   second, so an exchange in place is possible, byte behind byte;
//! * *write after write:* all writes are in the inbound program, whose order is that of the schedule.
//!
//! Nothing else waits for anything: a step does not wait for the step before it, so what arrives is passed on while the rest of
//! it still arrives, whatever the algorithm. Every gate waits for something that comes earlier in the schedule, so it cannot close
//! a circle that `verify` did not see.
//!
//! **Tiles.** A long array may be cut into tiles, each of which runs the whole schedule. Then the scratch memory of two tiles is
//! all that is needed, and it stays in the cache; one tile's first steps overlap with the last ones of the tile before.
//!
//! **Homes.** Chunks of the array may instead be of any lengths and lie anywhere: in the array, in the memory of what the rank
//! brings, which is only read, or nowhere, if a rank only passes them on. A collective on blocks needs no copy of them for that.
//!
//! **Frames.** What goes to one peer in one call is a stream that starts with a header and is padded to a multiple of 64 bytes, so
//! that the next one starts aligned. The first and the last move of each stream carry these.
//!
//! `layout` says where chunks lie. This room knows neither addresses nor links; the same arguments give the same plan.

mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::schedule::{Apply, Rank, Schedule, Span, Step};
use layout::{Layout, Piece};

/// Streams are padded to a multiple of this, and start at one: a cache line, and so no element lies in two.
pub const ALIGN: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub outbound: Vec<Move>,
    pub inbound: Vec<Move>,
    /// What `Job::Combine` names.
    pub sources: Vec<Place>,
    /// Bytes of temporary memory.
    pub scratch: usize,
    /// Most sources of a move.
    pub widest: usize,
}

/// Which memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Where the result goes.
    Array,
    /// What the rank brings, where that is not in the array; only read.
    Source,
    /// Temporary memory.
    Scratch,
}

/// Where a run of bytes starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub area: Area,
    pub at: usize,
}

/// One chunk of an array that is not cut evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub home: Home,
    /// Bytes.
    pub len: usize,
}

/// Where a chunk lies on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// From this byte of the array on.
    Array(usize),
    /// From this byte on of what the rank brings.
    Source(usize),
    /// In temporary memory: it only passes through this rank.
    Passing,
}

/// A run of bytes that goes from one place to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub job: Job,
    /// What is sent, or where it goes.
    pub place: Place,
    pub len: usize,
    /// Position of its first byte in its program.
    pub start: u64,
    pub gate: Gate,
}

impl Move {
    /// The other end, if there is one.
    pub fn peer(&self) -> Option<Rank> {
        match self.job {
            Job::Send { peer, .. } | Job::Receive { peer, .. } => Some(peer),
            Job::Combine { .. } => None,
        }
    }

    /// What surrounds it on the wire.
    #[inline]
    pub fn frame(&self) -> Frame {
        match self.job {
            Job::Send { frame, .. } | Job::Receive { frame, .. } => frame,
            Job::Combine { .. } => Frame::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    Send {
        peer: Rank,
        frame: Frame,
    },
    Receive {
        peer: Rank,
        frame: Frame,
        apply: Apply,
    },
    /// `sources` of the plan, in that order.
    Combine {
        sources: Range<usize>,
        finish: bool,
    },
}

/// Of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The first move of a stream: the header goes before it.
    pub head: bool,
    /// Bytes of padding after the last one.
    pub pad: usize,
}

/// What a move waits for: its byte `i` may go when the other program has passed `from + i`, or has reached `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub from: i64,
    pub until: u64,
}

impl Gate {
    pub const OPEN: Gate = Gate { from: i64::MIN, until: 0 };

    /// How many of the `len` bytes of its move may go when the other program is at `position`.
    #[inline]
    pub fn opened(&self, len: usize, position: u64) -> usize {
        if position >= self.until {
            len
        } else {
            (position as i64).saturating_sub(self.from).clamp(0, len as i64) as usize
        }
    }

    /// Also waits, from its byte `offset` on, byte by byte for what the other program does at `other`.
    fn behind(&mut self, offset: usize, other: &Range<u64>) {
        self.from = self.from.max(other.start as i64 - offset as i64);
        self.until = self.until.max(other.end);
    }
}

impl Plan {
    /// Everybody to whom or from whom something goes.
    pub fn peers(&self) -> BTreeSet<Rank> {
        self.outbound.iter().chain(&self.inbound).filter_map(Move::peer).collect()
    }
}

/// Binds `schedule` to an array of `bytes` bytes of elements of `elem` bytes, in tiles of about `tile` bytes (`usize::MAX`: one).
/// All ranks of a call must use the same numbers.
///
/// # Panics
/// When a schedule uses a scratch chunk without a `Local` step that shows how long it is, or combines chunks of different lengths.
pub fn compile(schedule: &Schedule, bytes: usize, elem: usize, tile: usize) -> Plan {
    assert!(bytes.is_multiple_of(elem), "{bytes} bytes are no whole number of {elem}-byte elements");
    bind(schedule, &Layout::even(schedule, bytes / elem, elem, tile))
}

/// Binds `schedule` to an array whose chunks these are, in tiles of about `tile` bytes of every chunk. All ranks of a call must
/// use the same lengths for what goes from one to the other; where it lies is each rank's own affair.
///
/// # Panics
/// As `compile`, and when a schedule writes to a chunk that is only read.
pub fn compile_cut(schedule: &Schedule, chunks: &[Chunk], elem: usize, tile: usize) -> Plan {
    assert_eq!(chunks.len(), schedule.chunks as usize, "a schedule for another number of chunks");
    let whole = chunks.iter().all(|chunk| chunk.len.is_multiple_of(elem));
    assert!(whole, "a chunk is no whole number of {elem}-byte elements");
    bind(schedule, &Layout::cut(schedule, chunks, elem, tile))
}

fn bind(schedule: &Schedule, layout: &Layout) -> Plan {
    let mut compiler = Compiler::new(layout);
    for tile in 0..layout.tiles() {
        compiler.touched.next_tile(layout.chunks);
        for step in &schedule.steps {
            match step {
                Step::Exchange { send, recv } => compiler.exchange(tile, send, recv),
                Step::Local { dst, srcs, finish } => compiler.local(tile, dst, srcs, *finish),
            }
        }
    }
    compiler.finish()
}

/// For each chunk of memory, where in its program it was last written (inbound) and last sent (outbound). Programs only advance, so
/// whoever waits for the last time has waited for all before it.
struct Touched {
    written: Vec<Range<u64>>,
    sent: Vec<Range<u64>>,
}

impl Touched {
    fn new(cells: usize) -> Touched {
        Touched { written: vec![0..0; cells], sent: vec![0..0; cells] }
    }

    /// Another tile is other memory of the array; scratch memory comes back.
    fn next_tile(&mut self, chunks: usize) {
        self.written[..chunks].fill(0..0);
        self.sent[..chunks].fill(0..0);
    }
}

/// What goes to or comes from one peer.
#[derive(Default)]
struct Stream {
    bytes: usize,
    /// Index of the last move.
    last: usize,
}

struct Compiler<'a> {
    layout: &'a Layout,
    plan: Plan,
    touched: Touched,
    /// How far each program has come.
    sent: u64,
    received: u64,
    to: BTreeMap<Rank, Stream>,
    from: BTreeMap<Rank, Stream>,
}

impl<'a> Compiler<'a> {
    fn new(layout: &'a Layout) -> Compiler<'a> {
        let touched = Touched::new(layout.chunks + layout.halves() * layout.slots());
        let plan = Plan { scratch: layout.scratch(), ..Plan::default() };
        Compiler { layout, plan, touched, sent: 0, received: 0, to: BTreeMap::new(), from: BTreeMap::new() }
    }

    fn exchange(&mut self, tile: usize, send: &Option<(Rank, Span)>, recv: &Option<(Rank, Span, Apply)>) {
        let layout = self.layout;
        if let Some((peer, span)) = *send {
            for run in runs(layout.pieces(tile, span)) {
                self.send(peer, &run);
            }
        }
        if let Some((peer, span, apply)) = *recv {
            for run in runs(layout.pieces(tile, span)) {
                self.receive(peer, &run, apply);
            }
        }
    }

    fn send(&mut self, peer: Rank, run: &[Piece]) {
        let (gate, len) = self.gate(run, |touched, cell| &touched.written[cell]);
        let Some(frame) = next_frame(&mut self.to, peer, len, self.plan.outbound.len()) else { return };
        let job = Job::Send { peer, frame };
        self.plan.outbound.push(Move { job, place: run[0].place, len, start: self.sent, gate });
        for piece in run {
            self.touched.sent[piece.cell] = self.sent..self.sent + piece.len as u64;
            self.sent += piece.len as u64;
        }
    }

    fn receive(&mut self, peer: Rank, run: &[Piece], apply: Apply) {
        let (gate, len) = self.gate(run, |touched, cell| &touched.sent[cell]);
        let Some(frame) = next_frame(&mut self.from, peer, len, self.plan.inbound.len()) else { return };
        let job = Job::Receive { peer, frame, apply };
        self.plan.inbound.push(Move { job, place: run[0].place, len, start: self.received, gate });
        run.iter().for_each(|piece| self.write(piece));
    }

    fn local(&mut self, tile: usize, dst: &Span, srcs: &[Span], finish: bool) {
        for i in 0..dst.hi - dst.lo {
            let layout = self.layout;
            let piece = |span: &Span| layout.piece(tile, span.buf, (span.lo + i) as usize);
            let dst = piece(dst);
            if dst.len == 0 {
                continue;
            }
            let first = self.plan.sources.len();
            for src in srcs.iter().map(piece) {
                assert_eq!(src.len, dst.len, "a Local step combines chunks of different lengths");
                self.plan.sources.push(src.place);
            }
            let (gate, len) = self.gate(std::slice::from_ref(&dst), |touched, cell| &touched.sent[cell]);
            let job = Job::Combine { sources: first..self.plan.sources.len(), finish };
            self.plan.inbound.push(Move { job, place: dst.place, len, start: self.received, gate });
            self.plan.widest = self.plan.widest.max(srcs.len());
            self.write(&dst);
        }
    }

    fn write(&mut self, piece: &Piece) {
        assert!(piece.place.area != Area::Source, "a schedule that writes to what is only read");
        self.touched.written[piece.cell] = self.received..self.received + piece.len as u64;
        self.received += piece.len as u64;
    }

    /// What a move over `run` waits for, and how long it is.
    fn gate(&self, run: &[Piece], last: impl Fn(&Touched, usize) -> &Range<u64>) -> (Gate, usize) {
        let (mut gate, mut len) = (Gate::OPEN, 0);
        for piece in run {
            let other = last(&self.touched, piece.cell);
            if piece.len > 0 && !other.is_empty() {
                gate.behind(len, other);
            }
            len += piece.len;
        }
        (gate, len)
    }

    fn finish(mut self) -> Plan {
        for (streams, moves) in [(self.to, &mut self.plan.outbound), (self.from, &mut self.plan.inbound)] {
            for stream in streams.values() {
                if let Job::Send { frame, .. } | Job::Receive { frame, .. } = &mut moves[stream.last].job {
                    frame.pad = stream.bytes.next_multiple_of(ALIGN) - stream.bytes;
                }
            }
        }
        self.plan
    }
}

/// Pieces that follow each other in memory, together.
fn runs(pieces: impl Iterator<Item = Piece>) -> Vec<Vec<Piece>> {
    let mut runs: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.precedes(&piece)) => run.push(piece),
            _ => runs.push(vec![piece]),
        }
    }
    runs
}

impl Piece {
    fn precedes(&self, next: &Piece) -> bool {
        self.place.area == next.place.area && self.place.at + self.len == next.place.at
    }
}

/// Appends `len` bytes, as move number `index`, to a stream. None if there is nothing to do: a stream without any bytes still has
/// its header.
fn next_frame(streams: &mut BTreeMap<Rank, Stream>, peer: Rank, len: usize, index: usize) -> Option<Frame> {
    let head = !streams.contains_key(&peer);
    if len == 0 && !head {
        return None;
    }
    let stream = streams.entry(peer).or_default();
    stream.bytes += len;
    stream.last = index;
    Some(Frame { head, pad: 0 })
}
