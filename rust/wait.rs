//! How a rank waits for another: spin, yield, sleep. The only room that blocks once a group is connected.
//!
//! ```text
//! until(ready):
//!     spin while the peer is probably running on another core        (nobody spins in a crowd)
//!     a few sched_yield: the peer is probably runnable on this core
//!     repeat: sleep on the bell, at most SLICE; look at ready, the alarm, signals, the deadline
//! ```
//! The publisher of a word that others wait for stores it and then rings the bell. Ringing costs one fence and one load
//! of a line that nobody writes as long as nobody sleeps: the wake-up call is made only when a waiter is registered.
//! Both sides follow Dekker's pattern (store, full fence, load the other's word), so one of them always sees the other.
//!
//! Futexes here are shared ones (no `FUTEX_PRIVATE_FLAG`): waiter and waker are different processes.
//!
//! This room knows neither ranks nor calls: what to wait for, and whether waiting still makes sense, are closures.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded, fence, spin};

/// How often a long wait asks `gone` though no alarm has called it.
const AGAIN: Duration = Duration::from_secs(1);

/// Longest sleep. The peer that should ring may be dead and the signal may have come just before the sleep, so both
/// are looked at this often: 50 ms is a quarter of the promised reaction time and costs 20 wake-ups a second.
pub const SLICE: Duration = Duration::from_millis(50);

/// Between looks at the clock while spinning, for attempts that only look at memory.
const SPINS_PER_LOOK: u32 = 32;

/// Measured with 4 and 8 ranks on 2 cores: fewer yields sleep too early, more only delay the sleep.
/// None in models: loom takes a yield as a promise that others go on first, and so never looks at what happens otherwise.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };

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

use futex::Futex;

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

/// The program in which a rank lives: it may have to let others run while this thread waits (Python's GIL), and it may
/// want to be interrupted (Ctrl-C).
pub trait Host {
    /// Runs `wait` so that the rest of the program can go on meanwhile.
    fn aside(&mut self, wait: &mut dyn FnMut());
    /// Called during `aside`, after a signal and at least once per [`SLICE`].
    fn interrupted(&mut self) -> bool;
    /// Whether a wait may keep a core busy for a moment, because the caller has nothing else to do.
    fn spins(&self) -> bool {
        true
    }
}

/// A host that needs neither: Rust tests and tools.
#[derive(Debug, Default)]
pub struct Plain;

impl Host for Plain {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }
    fn interrupted(&mut self) -> bool {
        false
    }
}

/// Why a wait ended without its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Somebody who is needed is gone.
    Gone,
    /// Nothing happened for so long.
    Timeout,
    Interrupted,
}

/// How long to try what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Zero where ranks outnumber cores.
    pub spin: Duration,
    /// Of one wait: every sign of progress starts it anew.
    pub limit: Duration,
}

impl Patience {
    /// Of a caller who is ready to spin for so long, unless it has better to do.
    pub fn of(host: &dyn Host, spin: Duration, limit: Duration) -> Patience {
        Patience { spin: if host.spins() { spin } else { Duration::ZERO }, limit }
    }
}

/// Something to be waited for that takes an effort of its own, and knows better than the bell what to sleep on.
pub trait Task {
    /// Tries to get on. Whether it did.
    fn attempt(&mut self) -> bool;

    /// Whether an attempt is a call of the system. Then each is followed by a yield: with four ranks of other hosts' networks on
    /// two cores, 32 attempts in a row kept the others from coming, and a call of 8 bytes took 150 us instead of 60.
    fn is_system_call(&self) -> bool {
        false
    }

    /// Whether somebody whom this waits for may need this very core, so that spinning would keep them from coming. Asked where
    /// ranks outnumber cores.
    fn shares_core(&self) -> bool {
        true
    }

    /// Sleeps until another attempt may help, `stop` says so, a signal arrives, or `SLICE` has passed. Whether it was a
    /// signal.
    fn rest(&mut self, bell: &Bell, stop: &dyn Fn() -> bool) -> bool;
}

/// A condition that others bring about and ring the bell for.
struct Condition<F>(F);

impl<F: FnMut() -> bool> Task for Condition<F> {
    fn attempt(&mut self) -> bool {
        (self.0)()
    }
    fn rest(&mut self, bell: &Bell, stop: &dyn Fn() -> bool) -> bool {
        bell.sleep(&mut || (self.0)() || stop())
    }
}

/// The same, and whether those whom it waits for share this core.
struct Shared<F, G>(F, G);

impl<F: FnMut() -> bool, G: Fn() -> bool> Task for Shared<F, G> {
    fn attempt(&mut self) -> bool {
        (self.0)()
    }
    fn shares_core(&self) -> bool {
        (self.1)()
    }
    fn rest(&mut self, bell: &Bell, stop: &dyn Fn() -> bool) -> bool {
        bell.sleep(&mut || (self.0)() || stop())
    }
}

/// One call's way of waiting.
pub struct Wait<'a> {
    pub bell: &'a Bell,
    /// Advances with every death, departure and abort; `gone` is asked when it has moved, and once a second.
    pub alarm: &'a AtomicU64,
    /// Whether somebody without whom this call cannot end is gone.
    pub gone: &'a dyn Fn() -> bool,
    pub patience: Patience,
    pub host: &'a mut dyn Host,
}

impl Wait<'_> {
    /// Returns once `ready` holds.
    #[inline]
    pub fn until(&mut self, ready: impl FnMut() -> bool) -> Result<(), Stop> {
        self.on(&mut Condition(ready))
    }

    /// The same in a crowd, where `shares` says whether somebody who is waited for may need this core.
    #[inline]
    pub fn until_in_crowd(&mut self, ready: impl FnMut() -> bool, shares: impl Fn() -> bool) -> Result<(), Stop> {
        self.on(&mut Shared(ready, shares))
    }

    /// Returns once `task` has got on.
    #[inline]
    pub fn on(&mut self, task: &mut impl Task) -> Result<(), Stop> {
        if task.attempt() {
            return Ok(());
        }
        // A short spin keeps the clock and the host out of the usual case. In a crowd it may only take the place of somebody's turn
        // on this core if nobody needs one.
        let brief = match self.patience.spin.is_zero() {
            false if task.is_system_call() => 0,
            false => 2 * SPINS_PER_LOOK,
            true if task.shares_core() => 0,
            true => 4 * SPINS_PER_LOOK,
        };
        for _ in 0..brief {
            spin();
            if task.attempt() {
                return Ok(());
            }
        }
        self.long(task)
    }

    /// For work that takes long and waits for nobody: whether it still makes sense.
    pub fn check(&self) -> Result<(), Stop> {
        if (self.gone)() { Err(Stop::Gone) } else { Ok(()) }
    }

    /// The same, for work so short that asking would show: it asks only if somebody has ever left.
    #[inline]
    pub fn check_alarm(&self) -> Result<(), Stop> {
        // acquires: the state of who left, and so all that it had done before
        match self.alarm.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => self.check(),
        }
    }

    #[cold]
    fn long(&mut self, task: &mut dyn Task) -> Result<(), Stop> {
        let Wait { bell, alarm, gone, patience, host } = self;
        let mut nap = Nap {
            bell,
            alarm,
            gone: *gone,
            limit: patience.limit,
            seen: None,
            asked: Duration::ZERO,
            waited: Duration::ZERO,
        };
        let mut awake = Some(patience.spin);
        if patience.spin.is_zero() {
            // Some microseconds, in which stepping aside would cost more than it gives.
            if spin_or_yield(Duration::ZERO, task) {
                return Ok(());
            }
            awake = None;
        }
        loop {
            let mut end = None;
            host.aside(&mut || {
                end = match awake.take() {
                    Some(spin) if spin_or_yield(spin, task) => Some(Ok(())),
                    _ => nap.until_host(task),
                }
            });
            if let Some(end) = end {
                return end;
            }
            if host.interrupted() {
                return Err(Stop::Interrupted);
            }
        }
    }
}

/// The sleeping phase of one wait.
struct Nap<'a> {
    bell: &'a Bell,
    alarm: &'a AtomicU64,
    gone: &'a dyn Fn() -> bool,
    limit: Duration,
    /// Alarm that was last looked into.
    seen: Option<u64>,
    /// How long this had waited when `gone` was asked last.
    asked: Duration,
    waited: Duration,
}

impl Nap<'_> {
    /// Sleeps until the condition or a reason to give up has come; `None` when it is time to ask the host.
    fn until_host(&mut self, task: &mut dyn Task) -> Option<Result<(), Stop>> {
        let mut unasked = Duration::ZERO;
        loop {
            let alarm = self.alarm.load(Ordering::Acquire);
            if self.seen != Some(alarm) || self.waited >= self.asked + AGAIN {
                (self.seen, self.asked) = (Some(alarm), self.waited);
                // Asked once more afterwards: a peer may have published its part and left in between.
                if (self.gone)() && !task.attempt() {
                    return Some(Err(Stop::Gone));
                }
            }
            let from = Instant::now();
            let signal = task.rest(self.bell, &|| self.alarm.load(Ordering::SeqCst) != alarm);
            if task.attempt() {
                return Some(Ok(()));
            }
            // A stopped process (Ctrl-Z, SIGSTOP, a suspended machine) does not use up its patience.
            let slept = from.elapsed().min(2 * SLICE);
            self.waited += slept;
            unasked += slept;
            if self.waited >= self.limit {
                return Some(Err(Stop::Timeout));
            }
            if signal || unasked >= SLICE {
                return None;
            }
        }
    }
}

/// The phases before sleeping.
fn spin_or_yield(budget: Duration, task: &mut dyn Task) -> bool {
    if !budget.is_zero() {
        let (from, attempts) = (Instant::now(), if task.is_system_call() { 1 } else { SPINS_PER_LOOK });
        while from.elapsed() < budget {
            for _ in 0..attempts {
                if task.attempt() {
                    return true;
                }
                spin();
            }
            // The peer may be runnable on this very core, where spinning keeps it from coming: with the other core busy
            // elsewhere, two ranks took 110 us for a call of 8 bytes instead of 1. On a core of one's own a yield is 0.3 us.
            yield_now();
        }
    }
    for _ in 0..YIELDS {
        if task.attempt() {
            return true;
        }
        yield_now();
    }
    task.attempt()
}

fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}
