//! What sleepers sleep on.
//!
//! The publisher of a word that others wait for stores it and then rings the bell. Ringing costs one fence and one load
//! of a line that nobody writes as long as nobody sleeps: the wake-up call is made only when a waiter is registered.
//! Both sides follow Dekker's pattern (store, full fence, load the other's word), so one of them always sees the other.
//!
//! Futexes here are shared ones (no `FUTEX_PRIVATE_FLAG`): waiter and waker are different processes.

use std::time::Duration;

use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded, fence};
use futex::Futex;

/// Longest sleep. The peer that should ring may be dead and the signal may have come just before the sleep, so both
/// are looked at this often: 50 ms is a quarter of the promised reaction time and costs 20 wake-ups a second.
pub const SLICE: Duration = Duration::from_millis(50);

/// Sleepers of a group meet here. Lives in shared memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Bell {
    waiters: Padded<AtomicU32>,
    events: Padded<Futex>,
}

impl Bell {
    /// To be called after the store that others may wait for.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.events.advance();
        }
    }

    /// Wakes everybody, whether or not a waiter is registered: for events that must not be missed.
    pub fn ring_all(&self) {
        fence(Ordering::SeqCst);
        self.events.advance();
    }

    /// Sleeps until the bell rings, `SLICE` has passed or a signal arrives, unless `ready` already holds. Whether it was
    /// a signal.
    pub fn sleep(&self, ready: &mut dyn FnMut() -> bool) -> bool {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let seen = self.events.current();
        fence(Ordering::SeqCst);
        let signal = !ready() && self.events.wait(seen);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        signal
    }
}

/// Advances the alarm and wakes everybody who waits: somebody has left the group, whose state says so already.
pub fn raise(alarm: &AtomicU64, bell: &Bell) {
    // publishes: the state of who left
    alarm.fetch_add(1, Ordering::SeqCst);
    bell.ring_all();
}

#[cfg(not(loom))]
mod futex {
    use super::{AtomicU32, Ordering, SLICE};
    use rustix::io::Errno;
    use rustix::thread::futex;

    /// A counter that can be slept on.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        pub fn current(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }

        pub fn advance(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            // A wake can only fail for an address that is not mapped; this one is borrowed.
            let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
        }

        /// Sleeps while the counter still is `seen`, at most `SLICE`. Whether a signal ended it; every other way to come
        /// back (rung, changed before, time over) means the same: look again.
        pub fn wait(&self, seen: u32) -> bool {
            let slice = futex::Timespec { tv_sec: 0, tv_nsec: SLICE.as_nanos() as _ };
            futex::wait(&self.0, futex::Flags::empty(), seen, Some(&slice)) == Err(Errno::INTR)
        }
    }
}

#[cfg(loom)]
mod futex {
    use super::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    /// loom's model of a futex: the compare and the sleep are one step, as in the kernel, and nothing wakes by time, so
    /// that a lost wake-up is a deadlock which loom reports.
    #[derive(Debug, Default)]
    pub struct Futex {
        count: AtomicU32,
        lock: Mutex<()>,
        awake: Condvar,
    }

    impl Futex {
        pub fn current(&self) -> u32 {
            self.count.load(Ordering::SeqCst)
        }

        pub fn advance(&self) {
            self.count.fetch_add(1, Ordering::SeqCst);
            let _held = self.lock.lock().expect("loom locks are not poisoned");
            self.awake.notify_all();
        }

        pub fn wait(&self, seen: u32) -> bool {
            let held = self.lock.lock().expect("loom locks are not poisoned");
            if self.count.load(Ordering::SeqCst) == seen {
                drop(self.awake.wait(held).expect("loom locks are not poisoned"));
            }
            false
        }
    }
}
