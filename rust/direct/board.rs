//! What ranks of one host show each other, and the only accessors of the memory in which they do.
//!
//! A **board** is what one rank writes and the others read: its arrival lines, its progress, its notes. All generations
//! of an arrival together are a few cache lines that are written in turn:
//!
//! ```text
//! head line (64 bytes):  sequence | fingerprint | code | 40 bytes: the payload, or where the array is
//! then:                  up to 1 KiB of payload that did not fit, contiguous, so that kernels read it in place
//! ```
//! The sequence number is stored last, with release; whoever loads it with acquire sees the rest of that arrival.
//!
//! **Why a generation is free again.** Every collective waits for the arrival of everybody. A rank that has completed
//! call `s` has therefore seen that all had arrived at `s`, which they do after they have left `s - 1`. So when a rank
//! writes arrival `s + 2`, nobody reads arrival `s` any more; two generations would do. A rank whose arguments were
//! refused arrives without waiting, twice at most in a row: hence four.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use crate::arena::segment::Shared;
use crate::arena::{Layout, Segment};
use crate::kernels::Bytes;
use crate::sync::{AtomicU64, Ordering, Padded};
use crate::wait::Bell;

/// Arrivals of one rank that may be looked at at the same time.
pub const GENERATIONS: u64 = 4;
/// Payload that travels in the head line itself.
pub const INLINE: usize = 40;
/// Payload that an arrival can carry.
pub const PAYLOAD: usize = 1024;
/// Longest note, in words of eight bytes.
const NOTE: usize = 64;

/// First line of an arrival.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Head {
    sequence: AtomicU64,
    fingerprint: AtomicU64,
    code: AtomicU64,
    body: [AtomicU64; INLINE / 8],
}

/// What a rank brings to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ready = 0,
    /// The caller's arguments were refused on this rank; its note says why.
    Refused = 1,
}

/// Where a rank's arrays are and how far it has staged them: the body of an arrival without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset in the segment of a symmetric input and output; `None` if either is private.
    pub symmetric: Option<(usize, usize)>,
    /// Ring position up to which this rank's input was staged before it arrived.
    pub staged: u64,
}

impl Head {
    /// Publishes arrival `sequence`; payload that belongs to it has been written before.
    #[inline]
    pub fn post(&self, sequence: u64, fingerprint: u64, code: Code) {
        self.fingerprint.store(fingerprint, Ordering::Relaxed);
        self.code.store(code as u64, Ordering::Relaxed);
        // publishes: fingerprint, code, body and payload of this arrival
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Whether the owner has arrived at `sequence` or beyond. Acquires what `post` published.
    #[inline]
    pub fn arrived(&self, sequence: u64) -> bool {
        self.sequence.load(Ordering::Acquire) >= sequence
    }

    /// Whether the owner came to the same call with arguments that were accepted. Only after `arrived`.
    #[inline]
    pub fn agrees(&self, fingerprint: u64) -> bool {
        self.fingerprint.load(Ordering::Relaxed) == fingerprint
            && self.code.load(Ordering::Relaxed) == Code::Ready as u64
    }

    /// Only after `arrived`.
    pub fn refused(&self) -> bool {
        self.code.load(Ordering::Relaxed) == Code::Refused as u64
    }

    #[inline]
    pub fn set_place(&self, place: Place) {
        let (input, output) = place.symmetric.map_or((0, 0), |(i, o)| (i as u64 + 1, o as u64 + 1));
        for (word, value) in self.body.iter().zip([input, output, place.staged]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Only after `arrived`.
    #[inline]
    pub fn place(&self) -> Place {
        let [input, output, staged] = [0, 1, 2].map(|k: usize| self.body[k].load(Ordering::Relaxed));
        let symmetric = (input > 0 && output > 0).then(|| (input as usize - 1, output as usize - 1));
        Place { symmetric, staged }
    }
}

/// One generation of a rank's arrivals.
#[repr(C, align(128))]
pub struct Arrival {
    pub head: Head,
    _payload: [AtomicU64; PAYLOAD / 8],
}

/// Positions in the stream of bytes that passes through the rings; they never go back.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Progress {
    /// My input is staged up to here.
    pub staged: Padded<AtomicU64>,
    /// My part of the result is in my ring up to here.
    pub reduced: Padded<AtomicU64>,
    /// I have read what I need of everybody's ring up to here.
    pub read: Padded<AtomicU64>,
    /// I have written my part into everybody's symmetric array in this call.
    pub wrote: Padded<AtomicU64>,
}

/// Text for the others: what I called, or why my arguments were refused.
#[repr(C, align(128))]
pub struct Note {
    sequence: AtomicU64,
    length: AtomicU64,
    words: [AtomicU64; NOTE],
}

impl Note {
    pub fn write(&self, sequence: u64, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(NOTE * 8)];
        for (word, piece) in self.words.iter().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..piece.len()].copy_from_slice(piece);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
        self.length.store(bytes.len() as u64, Ordering::Relaxed);
        // publishes: length and text
        self.sequence.store(sequence, Ordering::Release);
    }

    pub fn written(&self, sequence: u64) -> bool {
        self.sequence.load(Ordering::Acquire) >= sequence
    }

    /// Only after `written`. Bytes that are no text (a cut character) are replaced.
    pub fn read(&self) -> String {
        let length = (self.length.load(Ordering::Relaxed) as usize).min(NOTE * 8);
        let bytes: Vec<u8> =
            self.words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).take(length).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What one rank writes and the others read.
#[repr(C, align(4096))]
pub struct Board {
    arrivals: [Arrival; GENERATIONS as usize],
    pub progress: Progress,
    notes: [Note; GENERATIONS as usize],
}

impl Board {
    #[inline]
    pub fn arrival(&self, sequence: u64) -> &Arrival {
        &self.arrivals[(sequence % GENERATIONS) as usize]
    }

    pub fn note(&self, sequence: u64) -> &Note {
        &self.notes[(sequence % GENERATIONS) as usize]
    }
}

/// Where the ranks of a crowd meet: the last to arrive does the work for all.
#[repr(C, align(128))]
pub struct Meeting {
    /// Arrivals so far, over all calls of this generation.
    pub arrived: Padded<AtomicU64>,
    /// Sequence number and verdict of the call that is done.
    pub done: Head,
    _result: [AtomicU64; PAYLOAD / 8],
}

/// What all ranks write.
#[repr(C)]
pub struct Control {
    pub bell: Bell,
    /// Advances with every death, departure and abort.
    pub alarm: Padded<AtomicU64>,
    meetings: [Meeting; GENERATIONS as usize],
}

impl Control {
    #[inline]
    pub fn meeting(&self, sequence: u64) -> &Meeting {
        &self.meetings[(sequence % GENERATIONS) as usize]
    }
}

// SAFETY: made of atomics only.
unsafe impl Shared for Board {}
// SAFETY: made of atomics only.
unsafe impl Shared for Control {}

/// The boards, rings and arrays of a job, as one rank sees them.
#[derive(Debug, Clone)]
pub struct Boards {
    segment: Arc<Segment>,
    layout: Layout,
}

impl Boards {
    pub fn new(segment: Arc<Segment>, layout: Layout) -> Boards {
        Boards { segment, layout }
    }

    pub fn world(&self) -> usize {
        self.layout.world
    }

    #[inline]
    pub fn control(&self) -> &Control {
        self.segment.at(0)
    }

    #[inline]
    pub fn of(&self, rank: usize) -> &Board {
        self.segment.at(self.layout.board_of(rank))
    }

    /// Payload of an arrival, `len` bytes. Written before `Head::post`, read after `Head::arrived`.
    #[inline]
    pub fn payload(&self, rank: usize, sequence: u64, len: usize) -> Bytes<'_> {
        let at = self.layout.board_of(rank) + (sequence % GENERATIONS) as usize * size_of::<Arrival>();
        self.segment.cells(at + payload_start(len), len)
    }

    /// Result of a meeting, `len` bytes.
    #[inline]
    pub fn result(&self, sequence: u64, len: usize) -> Bytes<'_> {
        let at = std::mem::offset_of!(Control, meetings) + (sequence % GENERATIONS) as usize * size_of::<Meeting>();
        self.segment.cells(at + std::mem::offset_of!(Meeting, done) + payload_start(len), len)
    }

    /// `len` bytes of a rank's ring at `position` of the stream. Written before `Progress::staged` or `reduced` is
    /// advanced past them, read after that was seen.
    #[inline]
    pub fn ring(&self, rank: usize, position: u64, len: usize) -> Bytes<'_> {
        let at = (position % self.layout.ring as u64) as usize;
        assert!(at + len <= self.layout.ring, "a piece of the ring never wraps");
        self.segment.cells(self.layout.ring_of(rank) + at, len)
    }

    pub fn ring_len(&self) -> usize {
        self.layout.ring
    }

    /// `len` bytes of a symmetric array of another rank, whose arrival said where it is.
    #[inline]
    pub fn array(&self, offset: usize, len: usize) -> &[Cell<u8>] {
        self.segment.cells(offset, len)
    }

    /// Where `array` lies in the segment, if it is a symmetric one.
    #[inline]
    pub fn offset_of(&self, array: Bytes<'_>) -> Option<usize> {
        self.segment.offset_of(array)
    }
}

/// Within a head line and the payload behind it, where `len` bytes of payload start.
#[inline]
fn payload_start(len: usize) -> usize {
    debug_assert!(len <= PAYLOAD);
    if len <= INLINE { std::mem::offset_of!(Head, body) } else { size_of::<Head>() }
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(std::mem::offset_of!(Head, body) + INLINE == 64);
    assert!(std::mem::offset_of!(Arrival, _payload) == 64);
    assert!(std::mem::offset_of!(Meeting, _result) == std::mem::offset_of!(Meeting, done) + 64);
    assert!(std::mem::offset_of!(Board, arrivals) == 0);
};
