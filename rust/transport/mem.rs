//! A pipe within one process, for tests and for ranks that are threads. As small as wanted, so that full and empty happen at once;
//! no faster than a lock and two copies.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Broken, Link, Rx, Tx};
use crate::error::Rank;
use crate::kernels::Bytes;
use crate::wait::Bell;

/// Links between two ranks: the end of the first, the end of the second. `capacity`: bytes under way in each direction, at least 64.
/// `bell`: where both wait.
pub fn pair(ranks: [Rank; 2], capacity: usize, bell: &Arc<Bell>) -> (Link, Link) {
    let (tx0, rx1) = pipe(ranks, capacity, bell);
    let (tx1, rx0) = pipe([ranks[1], ranks[0]], capacity, bell);
    (Link { tx: Box::new(tx0), rx: Box::new(rx0) }, Link { tx: Box::new(tx1), rx: Box::new(rx1) })
}

fn pipe([from, to]: [Rank; 2], capacity: usize, bell: &Arc<Bell>) -> (Writer, Reader) {
    assert!(capacity >= 64, "a reader may ask for 64 bytes at once");
    let pipe = Arc::new(Pipe { state: Mutex::default(), capacity, bell: Arc::clone(bell) });
    let reader = Reader { pipe: Arc::clone(&pipe), peer: from, window: Window::new(capacity) };
    (Writer { pipe, peer: to }, reader)
}

struct Pipe {
    state: Mutex<State>,
    capacity: usize,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Bytes that the reader has taken out and not consumed.
    held: usize,
    closed: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.bell.ring();
    }
}

fn gone(rank: Rank) -> Broken {
    Broken { rank, why: "the other end of the pipe was closed".to_owned() }
}

struct Writer {
    pipe: Arc<Pipe>,
    peer: Rank,
}

impl Tx for Writer {
    fn write(&mut self, head: &[u8], body: Bytes<'_>, tail: &[u8]) -> Result<usize, Broken> {
        let mut state = self.pipe.lock();
        if state.closed {
            return Err(gone(self.peer));
        }
        let room = self.pipe.capacity - state.bytes.len() - state.held;
        let all = head.iter().copied().chain(body.iter().map(Cell::get)).chain(tail.iter().copied());
        let before = state.bytes.len();
        state.bytes.extend(all.take(room));
        let n = state.bytes.len() - before;
        drop(state);
        if n > 0 {
            self.pipe.bell.ring();
        }
        Ok(n)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.pipe.close();
    }
}

struct Reader {
    pipe: Arc<Pipe>,
    peer: Rank,
    window: Window,
}

impl Rx for Reader {
    fn peek(&mut self, enough: usize) -> Result<Bytes<'_>, Broken> {
        if self.window.len < enough {
            let mut state = self.pipe.lock();
            self.window.append(&mut state.bytes);
            state.held = self.window.len;
            if state.closed && self.window.len + state.bytes.len() < enough {
                return Err(gone(self.peer));
            }
        }
        Ok(self.window.bytes())
    }

    fn consume(&mut self, n: usize) {
        self.window.consume(n);
        self.pipe.lock().held = self.window.len;
        self.pipe.bell.ring();
    }

    fn is_closed(&self) -> bool {
        self.pipe.lock().closed
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.pipe.close();
    }
}

/// Bytes in one piece, at an address that is their position in the stream, modulo `ALIGN`.
struct Window {
    memory: Vec<Cell<u8>>,
    /// First aligned byte of the memory.
    origin: usize,
    at: usize,
    len: usize,
    position: usize,
}

const ALIGN: usize = 64;

impl Window {
    fn new(capacity: usize) -> Window {
        let memory = vec![Cell::new(0); capacity + 2 * ALIGN];
        let origin = memory.as_ptr().align_offset(ALIGN);
        Window { memory, origin, at: origin, len: 0, position: 0 }
    }

    fn bytes(&self) -> Bytes<'_> {
        &self.memory[self.at..self.at + self.len]
    }

    /// Moves everything in here, behind what is there.
    fn append(&mut self, more: &mut VecDeque<u8>) {
        let start = self.origin + self.position % ALIGN;
        for i in 0..self.len {
            self.memory[start + i].set(self.memory[self.at + i].get());
        }
        self.at = start;
        for byte in more.drain(..) {
            self.memory[self.at + self.len].set(byte);
            self.len += 1;
        }
    }

    fn consume(&mut self, n: usize) {
        assert!(n <= self.len, "consumed more than was there");
        self.at += n;
        self.len -= n;
        self.position += n;
    }
}
