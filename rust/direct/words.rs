//! The words that ranks show each other, and every step that publishes or awaits something through them.
//!
//! A **board** is what one rank writes and the others read: its arrival lines, its progress, its notes. All generations
//! of an arrival together are a few cache lines that are written in turn:
//!
//! ```text
//! head line (64 bytes):  sequence | fingerprint | code | length | 32 bytes: the payload, or where the arrays are
//! then:                  up to 1 KiB of payload that did not fit, contiguous, so that kernels read it in place
//! ```
//! The sequence number is stored last, with release; whoever loads it with acquire sees the rest of that arrival.
//!
//! **Why a generation is free again.** A rank arrives at a call after its last look at the arrivals of the call before, and
//! waits for everybody's arrival in each call, except that it may refuse up to `AHEAD` calls in a row without waiting. So
//! whoever writes arrival `s` has seen everybody arrive at `s - 1 - AHEAD` or later, and nobody looks at arrival
//! `s - 2 - AHEAD` any more, nor at the note and the meeting of that call: `AHEAD + 2` generations are enough.
//!
//! **Why a ring may be written again.** Bytes of a ring are announced by `staged` or `reduced`, and everybody moves its
//! `read` past them when its last load is done. What one turn of the ring ago was at the same place is free once
//! everybody's `read` has passed it.
//!
//! All of this is safe code on borrowed words, so that the models in `tests/loom_*.rs` run the same lines as production.
//! Where the words and the bytes that they guard lie in memory is the business of `board`.

use crate::sync::{AtomicU64, Ordering, Padded};
use crate::wait::Bell;

/// Calls in a row that a rank may refuse before it has to see that the others have come along.
pub const AHEAD: u64 = 2;
/// Arrivals of one rank that may be looked at at the same time.
pub const GENERATIONS: u64 = AHEAD + 2;
/// Payload that travels in the head line itself.
pub const INLINE: usize = 32;
/// Payload that an arrival can carry.
pub const PAYLOAD: usize = 1024;
/// Longest note, in words of eight bytes.
const NOTE: usize = if cfg!(loom) { 2 } else { 64 };

/// Payload behind a head line. It is read and written as plain bytes, through `board` only.
#[cfg(not(loom))]
pub(super) type Payload = [AtomicU64; PAYLOAD / 8];
/// Models bring payload of their own, which loom watches.
#[cfg(loom)]
pub(super) type Payload = ();

/// First line of an arrival.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Head {
    sequence: AtomicU64,
    fingerprint: AtomicU64,
    code: AtomicU64,
    length: AtomicU64,
    pub(super) body: [AtomicU64; INLINE / 8],
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
    /// Offset in the segment of what this rank brings; `None` if that is private.
    pub input: Option<usize>,
    /// The same of where its result goes.
    pub output: Option<usize>,
    /// Ring position up to which this rank's input was staged before it arrived.
    pub staged: u64,
    /// Address, in this rank's own process, of what it brings, if all may read it there and this rank can read the others'.
    pub address: Option<usize>,
}

impl Place {
    /// Of private arrays.
    pub fn private(staged: u64) -> Place {
        Place { input: None, output: None, staged, address: None }
    }

    /// Of input and output, if neither is private.
    #[inline]
    pub fn symmetric(&self) -> Option<(usize, usize)> {
        self.input.zip(self.output)
    }
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
        let [input, output, address] =
            [place.input, place.output, place.address].map(|at| at.map_or(0, |at| at as u64 + 1));
        for (word, value) in self.body.iter().zip([input, output, place.staged, address]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Only after `arrived`.
    #[inline]
    pub fn place(&self) -> Place {
        let [input, output, staged, address] = [0, 1, 2, 3].map(|k: usize| self.body[k].load(Ordering::Relaxed));
        let [input, output, address] = [input, output, address].map(|at| (at as usize).checked_sub(1));
        Place { input, output, staged, address }
    }

    /// Bytes of the block that the owner brings, in calls in which ranks do not know that of each other.
    #[inline]
    pub fn set_length(&self, length: usize) {
        self.length.store(length as u64, Ordering::Relaxed);
    }

    /// Only after `arrived`, in a call in which it was set.
    #[inline]
    pub fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed) as usize
    }
}

/// One generation of a rank's arrivals.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Debug, Default))]
pub struct Arrival {
    pub head: Head,
    pub(super) _payload: Payload,
}

/// A position that its owner moves forward, never back, and others wait for.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Mark(Padded<AtomicU64>);

impl Mark {
    /// By the owner only.
    #[inline]
    pub fn advance(&self, position: u64) {
        // publishes: that the owner's loads and stores of bytes before `position` are done
        self.0.store(position, Ordering::Release);
    }

    #[inline]
    pub fn reached(&self, position: u64) -> bool {
        self.position() >= position
    }

    #[inline]
    pub fn position(&self) -> u64 {
        // acquires what `advance` published
        self.0.load(Ordering::Acquire)
    }
}

/// How far a rank has come. The first three are positions in the stream of bytes that passes through the rings.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Progress {
    /// My input is staged up to here.
    pub staged: Mark,
    /// My part of the result is in my ring up to here.
    pub reduced: Mark,
    /// I have read what I need of everybody's ring up to here.
    pub read: Mark,
    /// Number of operations on others' arrays in which I have read and written all that I have to.
    pub wrote: Mark,
    /// The last of these in which the kernel did not let me read. Before `wrote`, which publishes it.
    pub refused: Mark,
    /// When I came to the last call whose time is taken, in nanoseconds of the clock that all have. Before my arrival there.
    pub began: Mark,
    /// One more than the core on which this rank arrived last, in a crowd. A hint.
    pub core: AtomicU64,
    /// Rank 0's: what it has decided for all so far (`calibrate`, `trials`).
    pub vote: Mark,
}

impl Progress {
    /// Whether this rank has read what another rank's ring of `ring` bytes held where `[.., end)` is to be written.
    #[inline]
    pub fn has_left(&self, end: u64, ring: u64) -> bool {
        self.read.reached(end.saturating_sub(ring))
    }
}

/// Where `size` bytes go in the stream through a ring of `ring` bytes, at `position` or behind it: a piece never wraps.
pub fn place(position: u64, size: usize, ring: usize) -> (u64, u64) {
    let rest = ring as u64 - position % ring as u64;
    let start = if size as u64 > rest { position + rest } else { position };
    (start, start + (size as u64).next_multiple_of(64))
}

/// Text for the others: what I called, or why my arguments were refused.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Debug, Default))]
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

    /// Acquires what `write` published.
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

/// A word of a rank's private memory, by which the others find out whether they can read there (`peers`).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Sample {
    pid: AtomicU64,
    address: AtomicU64,
    value: AtomicU64,
}

impl Sample {
    pub fn show(&self, pid: u32, address: usize, value: u64) {
        self.address.store(address as u64, Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        // publishes: address and value
        self.pid.store(u64::from(pid), Ordering::Release);
    }

    /// Process, address and value; none before they have been shown.
    pub fn shown(&self) -> Option<(u32, usize, u64)> {
        // acquires what `show` published
        let pid = u32::try_from(self.pid.load(Ordering::Acquire)).ok().filter(|pid| *pid != 0)?;
        Some((pid, self.address.load(Ordering::Relaxed) as usize, self.value.load(Ordering::Relaxed)))
    }
}

/// What one rank writes and the others read.
#[repr(C, align(4096))]
#[cfg_attr(loom, derive(Debug, Default))]
pub struct Board {
    pub(super) arrivals: [Arrival; GENERATIONS as usize],
    pub progress: Progress,
    notes: [Note; GENERATIONS as usize],
    pub sample: Sample,
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
#[cfg_attr(loom, derive(Debug, Default))]
pub struct Meeting {
    /// Arrivals so far, over all calls of this generation.
    arrived: Padded<AtomicU64>,
    /// Sequence number and verdict of the call that is done.
    pub done: Head,
    pub(super) _result: Payload,
}

impl Meeting {
    /// Counts a rank in, whose arrival has been posted. The last of `world` looks whether all `agree`, which includes doing
    /// the work if they do, and closes the meeting; whether this rank was the last.
    #[inline]
    pub fn enter(&self, sequence: u64, fingerprint: u64, world: usize, agree: impl FnOnce() -> bool) -> bool {
        // acquires what the others published before they were counted, and publishes my arrival to the last one
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        let last = arrived.is_multiple_of(world as u64);
        if last {
            let code = if agree() { Code::Ready } else { Code::Refused };
            self.done.post(sequence, fingerprint, code);
        }
        last
    }
}

/// What all ranks write.
#[repr(C)]
#[cfg_attr(loom, derive(Debug, Default))]
pub struct Control {
    pub bell: Bell,
    /// Advances with every death, departure and abort.
    pub alarm: Padded<AtomicU64>,
    pub(super) meetings: [Meeting; GENERATIONS as usize],
}

impl Control {
    #[inline]
    pub fn meeting(&self, sequence: u64) -> &Meeting {
        &self.meetings[(sequence % GENERATIONS) as usize]
    }
}
