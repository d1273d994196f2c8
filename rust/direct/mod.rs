//! The direct path: collectives among ranks that can read each other's memory. Arrive, read, leave; no messages.
//!
//! ```text
//! arrive:  write what I bring (payload, or where my array is) and a fingerprint of the call into my arrival line
//!          wait for everybody's line; if one differs, nobody moves any data
//! then, by size and by where the arrays are:
//!   lines      up to 1 KiB: the payload came with the arrival; every rank combines all of them, in rank order
//!   staged     private arrays: chunk by chunk through each rank's staging ring, copying one chunk while the next is reduced
//!   symmetric  large arrays made by `arx.empty`: each rank combines its part straight out of, and into, everybody's array
//!   shards     a host's part in a collective that spans hosts
//! all other collectives are one: who shows what to whom, and what is taken of it (`deal`), through the same lines, rings
//!   (`rounds`) and arrays (`in_place`); what is only moved also straight out of other ranks' own memory (`by_kernel`):
//!   which way is the fastest is found out (`trials`)
//! in a crowd (more ranks than cores) the last to arrive looks at all lines, and combines arrays up to 32 KiB, for everybody
//! ```
//! Every path combines contributions in rank order and computes each element either once, or on every rank by the same
//! instructions in the same order, so that all ranks hold the same bits.
//!
//! `words` holds all words that ranks share, and why a line or a ring may be written again; `board` says where they lie,
//! and the bytes that they guard; `peers` whose own memory can be read. This room knows neither Python nor how ranks found each other; it is told by [`Wait`] when
//! to give up, and leaves to the communicator what to say then.

pub mod board;
mod by_kernel;
mod calibrate;
mod crowd;
mod deal;
mod exchange;
mod in_place;
mod lines;
mod peers;
mod ring;
mod rounds;
mod shards;
mod staged;
mod symmetric;
mod trials;
mod ways;
pub mod words;

use std::cell::Cell;
use std::ops::Range;

use crate::kernels::{Bytes, Reducer};
use crate::wait::{Stop, Wait};

pub use board::Boards;
pub use deal::{Deal, Seat};
pub use exchange::Dealt;
pub use peers::{Known, Peers};
pub use shards::{Parts, Pieces, Shards};
pub use words::{Board, Code, Control, PAYLOAD, Place};

use trials::Trials;
use words::{Mark, Progress};

/// Sizes at which one way becomes better than another, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Two ranks: unit in which an array passes through the ring.
    pub chunk: usize,
    /// Three ranks and more: bytes of the array per round, all parts together.
    pub round: usize,
    /// From here on symmetric arrays are combined in place. `MEASURE` until that is found out (`calibrate`).
    pub symmetric: usize,
    /// From here on private blocks that are only moved are read by the kernel; `NEVER` if not at all, `MEASURE` if that shall be
    /// tried (`trials`).
    pub kernel: usize,
}

/// For `Tuning::symmetric` and `Tuning::kernel`: to be found out on the first arrays for which it matters.
pub const MEASURE: usize = 0;

/// For `Tuning::kernel`.
pub const NEVER: usize = usize::MAX;

/// Which way a call takes; all ranks come to the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// By size and memory.
    Auto,
    Lines,
    Staged,
    Symmetric,
}

impl Algorithm {
    pub const ALL: [Algorithm; 4] = [Algorithm::Auto, Algorithm::Lines, Algorithm::Staged, Algorithm::Symmetric];

    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Lines => "lines",
            Algorithm::Staged => "staged",
            Algorithm::Symmetric => "symmetric",
        }
    }

    pub fn parse(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// One collective call, as far as ranks must agree on it.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Number of the call in its group, from 1.
    pub sequence: u64,
    /// Equal on two ranks exactly when they made the same call (up to hash collisions of 64 bits).
    pub fingerprint: u64,
    pub algorithm: Algorithm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Agreed,
    /// Somebody came with another call, or refused; no data has moved.
    Differs,
}

/// One rank's end of the direct path.
#[derive(Debug)]
pub struct Direct {
    boards: Boards,
    me: usize,
    world: usize,
    /// More ranks than cores.
    crowd: bool,
    tuning: Tuning,
    /// The other ranks, as far as their own memory can be read.
    peers: Peers,
    /// Where in the stream through the rings the next call begins; the same on every rank between calls.
    position: u64,
    /// Up to here my ring may be written: everybody has read what was there before.
    free_until: u64,
    /// Operations on others' arrays so far, and votes; the same on every rank between calls.
    writes: u64,
    votes: u64,
    /// Of the ways to move blocks.
    trials: Trials,
    /// Whether what is long is written past the caches, in the deal that is being done.
    past_caches: bool,
}

impl Direct {
    pub fn new(boards: Boards, me: usize, crowd: bool, tuning: Tuning) -> Direct {
        let largest =
            tuning.chunk.max(tuning.round.div_ceil(boards.world()).next_multiple_of(64) * (boards.world() + 1));
        assert!(boards.ring_len() >= 4 * largest, "a ring has room for a piece written, one read and one between them");
        let free_until = boards.ring_len() as u64;
        let (world, peers) = (boards.world(), Peers::none(boards.world()));
        let (position, writes, votes, trials) = (0, 0, 0, Trials::default());
        Direct {
            boards,
            me,
            world,
            crowd,
            tuning,
            peers,
            position,
            free_until,
            writes,
            votes,
            trials,
            past_caches: true,
        }
    }

    /// The same of a rank that can read the memory of `peers`.
    pub fn reading(self, peers: Peers) -> Direct {
        Direct { peers, ..self }
    }

    pub fn boards(&self) -> &Boards {
        &self.boards
    }

    pub fn is_crowd(&self) -> bool {
        self.crowd
    }

    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The ranks whose own memory this one can read.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// All ranks have arrived when this returns.
    pub fn barrier(&self, turn: &Turn, wait: &mut Wait<'_>) -> Result<Verdict, Stop> {
        self.arrive(turn, Place::private(0));
        self.gather(turn, wait)
    }

    /// `dst` = combination of everybody's `src`, on every rank. `dst` may be `src`.
    pub fn all_reduce(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        match turn.algorithm {
            Algorithm::Auto | Algorithm::Lines if src.len() <= PAYLOAD => {
                if self.crowd {
                    self.all_reduce_crowd(turn, wait, reducer, dst, src)
                } else {
                    self.all_reduce_lines(turn, wait, reducer, dst, src)
                }
            }
            Algorithm::Auto if self.is_combined_by_last(src.len()) => {
                self.all_reduce_crowd_ring(turn, wait, reducer, dst, src)
            }
            _ => self.all_reduce_large(turn, wait, reducer, dst, src),
        }
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        root: usize,
        array: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        match self.deal(turn, wait, &Deal::broadcast(self.me, root, array))? {
            Dealt::Done => Ok(Verdict::Agreed),
            Dealt::Differs => Ok(Verdict::Differs),
            Dealt::Uneven(_) => unreachable!("ranks agree on the length of whole arrays"),
        }
    }

    fn all_reduce_large(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        let [input, output] = [src, dst].map(|array| self.boards.offset_of(array));
        let place = Place { input, output, ..Place::private(self.position) };
        if !self.wants_symmetric(turn, src.len()) || place.symmetric().is_none() {
            return self.all_reduce_staged(turn, wait, reducer, dst, src);
        }
        self.arrive(turn, place);
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        if (0..self.world).any(|rank| self.place(turn, rank).symmetric().is_none()) {
            return self.all_reduce_staged_rest(turn, wait, reducer, dst, src, None);
        }
        if self.tuning.symmetric == MEASURE {
            self.tuning.symmetric = self.calibrate(turn, wait)?;
        }
        if self.wants_symmetric(turn, src.len()) {
            self.all_reduce_symmetric(turn, wait, reducer, dst, src)
        } else {
            self.all_reduce_staged_rest(turn, wait, reducer, dst, src, None)
        }
    }

    fn wants_symmetric(&self, turn: &Turn, len: usize) -> bool {
        match turn.algorithm {
            Algorithm::Symmetric => true,
            Algorithm::Auto => len >= self.tuning.symmetric,
            Algorithm::Lines | Algorithm::Staged => false,
        }
    }

    /// Publishes this rank's arrival, without waiting for anybody.
    #[inline]
    fn arrive(&self, turn: &Turn, place: Place) {
        let head = &self.boards.of(self.me).arrival(turn.sequence).head;
        head.set_place(place);
        head.post(turn.sequence, turn.fingerprint, Code::Ready);
        self.after_arrival(turn);
    }

    /// Waits for everybody's arrival.
    #[inline]
    fn gather(&self, turn: &Turn, wait: &mut Wait<'_>) -> Result<Verdict, Stop> {
        if self.crowd {
            return self.await_meeting(turn, wait);
        }
        let mut agreed = true;
        // Starting with the right neighbour, so that not all ranks look at the same line at the same time.
        for rank in (self.me + 1..self.world).chain(0..self.me) {
            let head = &self.boards.of(rank).arrival(turn.sequence).head;
            wait.until(|| head.arrived(turn.sequence))?;
            agreed &= head.agrees(turn.fingerprint);
        }
        Ok(if agreed { Verdict::Agreed } else { Verdict::Differs })
    }

    /// Arrives at call `sequence` with nothing but a reason for not taking part. Does not wait, so that the caller can
    /// report the mistake at once.
    pub fn refuse(&self, sequence: u64, reason: &str) {
        let board = self.boards.of(self.me);
        board.note(sequence).write(sequence, reason);
        board.arrival(sequence).head.post(sequence, 0, Code::Refused);
        self.after_arrival(&Turn { sequence, fingerprint: 0, algorithm: Algorithm::Auto });
    }

    /// Tells the others what this rank called, once it is clear that calls differ.
    pub fn note(&self, sequence: u64, text: &str) {
        self.boards.of(self.me).note(sequence).write(sequence, text);
        self.boards.control().bell.ring();
    }

    fn after_arrival(&self, turn: &Turn) {
        if self.crowd {
            self.enter_meeting(turn);
        } else {
            self.boards.control().bell.ring();
        }
    }

    #[inline]
    fn place(&self, turn: &Turn, rank: usize) -> Place {
        self.boards.of(rank).arrival(turn.sequence).head.place()
    }

    /// Stores this rank's progress and tells those who wait for it.
    #[inline]
    fn advance(&self, mark: impl Fn(&Progress) -> &Mark, position: u64) {
        mark(&self.boards.of(self.me).progress).advance(position);
        self.boards.control().bell.ring();
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        (self.me + 1..self.world).chain(0..self.me)
    }

    /// Runs `f` on one source a rank, in rank order.
    #[inline]
    fn sources<'a>(&self, of: impl Fn(usize) -> Bytes<'a>, f: impl FnOnce(&[Bytes<'a>])) {
        sources(0..self.world, of, f);
    }
}

/// Runs `f` on one source for each of `ranks`, in their order.
#[inline]
fn sources<'a>(ranks: Range<usize>, of: impl Fn(usize) -> Bytes<'a>, f: impl FnOnce(&[Bytes<'a>])) {
    const FEW: usize = 8;
    let count = ranks.len();
    if count <= FEW {
        let none: Bytes<'a> = &[] as &[Cell<u8>];
        let mut few = [none; FEW];
        for (slot, rank) in few.iter_mut().zip(ranks) {
            *slot = of(rank);
        }
        f(&few[..count]);
    } else {
        f(&ranks.map(of).collect::<Vec<_>>());
    }
}
