//! How a rank waits for another: spin, yield, sleep. The only room that blocks once a group is connected.
//!
//! ```text
//! until(ready):
//!     spin while the peer is probably running on another core        (in a crowd: if no peer may need this one, for a moment)
//!     a few sched_yield: the peer is probably runnable on this core
//!     repeat: sleep on the bell, at most SLICE; look at ready, the alarm, signals, the deadline
//! ```
//! This room knows neither ranks nor calls: what to wait for, and whether waiting still makes sense, are closures.

mod bell;

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering, spin};

pub use bell::{Bell, SLICE, raise};

/// How often a long wait asks `gone` though no alarm has called it.
const AGAIN: Duration = Duration::from_secs(1);

/// Between looks at the clock while spinning, for attempts that only look at memory.
const SPINS_PER_LOOK: u32 = 32;

/// Measured with 4 and 8 ranks on 2 cores: fewer yields sleep too early, more only delay the sleep.
/// None in models: loom takes a yield as a promise that others go on first, and so never looks at what happens otherwise.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };

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

/// A condition that others bring about and ring the bell for, and whether any of them may need this core.
struct Condition<F, G>(F, G);

impl<F: FnMut() -> bool, G: Fn() -> bool> Task for Condition<F, G> {
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
        self.on(&mut Condition(ready, || true))
    }

    /// The same in a crowd, where `shares` says whether somebody who is waited for may need this core.
    #[inline]
    pub fn until_in_crowd(&mut self, ready: impl FnMut() -> bool, shares: impl Fn() -> bool) -> Result<(), Stop> {
        self.on(&mut Condition(ready, shares))
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

/// The core that runs this thread at the moment.
#[inline]
pub fn core() -> usize {
    rustix::thread::sched_getcpu()
}

fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often a wait steps aside.
    #[derive(Default)]
    struct Counting(u32);

    impl Host for Counting {
        fn aside(&mut self, wait: &mut dyn FnMut()) {
            self.0 += 1;
            wait();
        }
        fn interrupted(&mut self) -> bool {
            false
        }
    }

    #[test]
    fn a_crowd_spins_only_where_nobody_needs_the_core() {
        // More looks than yields, fewer than a spin has.
        let steps_aside = |shares: bool| {
            let (bell, alarm, mut host, mut looks) = (Bell::default(), AtomicU64::new(0), Counting::default(), 0);
            let patience = Patience { spin: Duration::ZERO, limit: SLICE * 100 };
            let mut wait = Wait { bell: &bell, alarm: &alarm, gone: &|| false, patience, host: &mut host };
            let ready = || {
                looks += 1;
                looks > 2 * YIELDS
            };
            assert_eq!(wait.until_in_crowd(ready, || shares), Ok(()));
            host.0
        };
        assert_eq!(steps_aside(false), 0);
        assert!(steps_aside(true) > 0);
    }
}
