//! Work that goes on while its caller does something else: one queue and one thread per group.
//!
//! ```text
//! push(job) ─► queue ─► run in order, one at a time ─► Ticket: done
//!                         by the group's thread, or by whoever waits for a job that nobody has begun
//! ```
//! The thread starts with the first job and ends with the group. It belongs to no interpreter: what a job holds of one is given
//! back to a caller, never dropped here (`Ticket::take`, `Progress::orphans`).
//!
//! **Who runs a job.** A caller that waits runs what is in front of its own job itself, so that short work does not pay for two
//! changes of thread. Therefore the thread leaves short jobs to their caller for a moment (`NAP`), and all jobs to a caller that
//! waits already. It is called only if it sleeps, and only for a job that nobody else is about to run.
//!
//! Messages are no jobs: none waits for another, nor for the queue (`courier`).
//!
//! This room does not know what jobs do, only that they need the communicator.

mod courier;
mod ticket;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crate::communicator::Waited;
pub use courier::{Courier, Message, Receipt};
pub use ticket::{Then, Ticket};

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::wait::{Host, SLICE};

/// For so long the thread leaves a short job to the caller that has brought it and may be about to wait for it. Without that
/// the two met in some of the calls: 8 bytes took 6 us or 40 instead of 1, and 100 such calls six times as long as a loop.
const NAP: Duration = Duration::from_micros(50);

/// So many naps at most while a caller brings one job after the other and waits for none.
const NAPS: usize = 10;

/// One call, or several that belong together.
pub trait Job: Send + 'static {
    fn run(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()>;

    /// Whether it takes no longer than two changes of thread, once the others are there.
    fn is_short(&self) -> bool {
        false
    }
}

/// A group's communicator, and the work that waits for it.
#[derive(Debug)]
pub struct Progress<J: Job> {
    shared: Arc<Shared<J>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Process that has the thread; a fork of it has none.
    owner: u32,
}

#[derive(Debug)]
struct Shared<J> {
    communicator: Mutex<Communicator>,
    state: Mutex<State<J>>,
    /// The thread is to look at the queue.
    work: Condvar,
    /// A job is done, or callers may go on with the next.
    changed: Condvar,
    /// Jobs that are not done.
    pending: AtomicUsize,
    /// The job that runs is to give up.
    abort: AtomicBool,
}

#[derive(Debug)]
struct State<J> {
    queue: VecDeque<Arc<Ticket<J>>>,
    /// Jobs in it that are not short.
    long: usize,
    /// Somebody runs the job that was first in the queue.
    running: bool,
    /// Callers that run what comes until their own job is done.
    helpers: usize,
    /// Callers that sleep.
    sleepers: usize,
    /// Jobs that were begun so far, and pushed.
    begun: u64,
    pushed: u64,
    thread: Thread,
    closing: bool,
    /// Done, and nobody holds their tickets.
    orphans: Vec<Ticket<J>>,
}

impl<J: Job> Progress<J> {
    pub fn new(communicator: Communicator) -> Progress<J> {
        let state = State {
            queue: VecDeque::new(),
            long: 0,
            running: false,
            helpers: 0,
            sleepers: 0,
            begun: 0,
            pushed: 0,
            thread: Thread::Awake,
            closing: false,
            orphans: Vec::new(),
        };
        let shared = Shared {
            communicator: Mutex::new(communicator),
            state: Mutex::new(state),
            work: Condvar::new(),
            changed: Condvar::new(),
            pending: AtomicUsize::new(0),
            abort: AtomicBool::new(false),
        };
        Progress { shared: Arc::new(shared), thread: Mutex::new(None), owner: std::process::id() }
    }

    /// The communicator, if nobody is in a call; jobs that wait count as calls.
    #[inline]
    pub fn enter(&self) -> Option<MutexGuard<'_, Communicator>> {
        if self.is_busy() {
            return None;
        }
        match self.shared.communicator.try_lock() {
            Ok(communicator) => Some(communicator),
            Err(TryLockError::Poisoned(broken)) => Some(broken.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether there are jobs that are not done.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.shared.pending.load(Ordering::Acquire) > 0
    }

    /// Puts a job behind all others.
    pub fn push(&self, job: J) -> Result<Arc<Ticket<J>>> {
        self.ensure_thread()?;
        let short = job.is_short();
        let ticket = Arc::new(Ticket::new(Some(job), short));
        let mut state = self.shared.state();
        if state.closing {
            return Err(Error::Init("the group has been shut down".into()));
        }
        state.queue.push_back(Arc::clone(&ticket));
        state.pushed += 1;
        state.long += usize::from(!short);
        self.shared.pending.fetch_add(1, Ordering::AcqRel);
        let called = state.haste();
        self.shared.call_thread(&mut state, called);
        Ok(ticket)
    }

    /// Waits for a job. Without a limit the caller does what is to be done before it, and the job itself.
    pub fn wait(&self, ticket: &Ticket<J>, limit: Option<Duration>, host: &mut dyn Host) -> Waited {
        let until = limit.map(|limit| Instant::now() + limit.min(Duration::from_secs(1 << 30)));
        self.wait_until(|| ticket.is_done(), until, host)
    }

    /// Nobody is about to wait for what is in the queue: the thread begins at once.
    pub fn hurry(&self) {
        self.shared.call_thread(&mut self.shared.state(), Thread::Awake);
    }

    /// Waits until no job is left that is not done.
    pub fn drain(&self, host: &mut dyn Host) -> Waited {
        self.wait_until(|| !self.is_busy(), None, host)
    }

    fn wait_until(&self, done: impl Fn() -> bool, until: Option<Instant>, host: &mut dyn Host) -> Waited {
        let mut state = self.shared.state();
        if done() {
            return Waited::Done;
        }
        let helps = until.is_none();
        if helps {
            state.helpers += 1;
        } else {
            // Nobody but the thread will do it.
            self.shared.call_thread(&mut state, Thread::Awake);
        }
        let (mut state, waited) = loop {
            if done() {
                break (state, Waited::Done);
            }
            if helps && let Some(ticket) = state.next() {
                drop(state);
                state = self.shared.run(ticket, host);
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break (state, Waited::TimedOut);
            }
            state = self.shared.sleep(state, left.unwrap_or(SLICE).min(SLICE));
            if host.interrupted() {
                break (state, Waited::Interrupted);
            }
        };
        state.helpers -= usize::from(helps);
        // What this caller leaves behind.
        let called = state.haste();
        self.shared.call_thread(&mut state, called);
        waited
    }

    /// What was done for callers who do not want to know any more: to be dropped by a caller.
    pub fn orphans(&self) -> Vec<Ticket<J>> {
        std::mem::take(&mut self.shared.state().orphans)
    }

    /// Ends the thread, after all jobs or, if `abort`, without them. No job is taken any more.
    pub fn close(&self, abort: bool) {
        self.shared.abort.fetch_or(abort, Ordering::AcqRel);
        let mut state = self.shared.state();
        state.closing = true;
        let dropped = if abort { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        state.long *= usize::from(!abort);
        drop(state);
        for ticket in dropped {
            let job = ticket.begin();
            ticket.end(job, Err(Error::Aborted("the group was shut down before this call began".into())));
            self.shared.pending.fetch_sub(1, Ordering::AcqRel);
        }
        self.shared.work.notify_all();
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }

    fn ensure_thread(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new().name("arx-progress".into()).stack_size(512 << 10);
            let started = started.spawn(move || shared.serve());
            *thread = Some(started.map_err(|e| Error::os("cannot start the progress thread", e))?);
        }
        Ok(())
    }
}

impl<J: Job> Drop for Progress<J> {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.close(true);
            return;
        }
        // The thread lives in the parent only: to wait for it would take for ever, and it may have held any lock.
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        std::mem::forget((thread, Arc::clone(&self.shared)));
    }
}

/// What the group's thread does, by how soon it looks at the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thread {
    Sleeps,
    Naps,
    Awake,
}

impl<J> State<J> {
    /// How soon the thread is to look at the queue.
    fn haste(&self) -> Thread {
        if self.long == 0 { Thread::Naps } else { Thread::Awake }
    }

    /// The job that may begin now, if there is one.
    fn next(&mut self) -> Option<Arc<Ticket<J>>> {
        if self.running {
            return None;
        }
        let ticket = self.queue.pop_front()?;
        self.running = true;
        self.begun += 1;
        self.long -= usize::from(!ticket.short);
        Some(ticket)
    }
}

impl<J: Job> Shared<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller sleeps until something has changed.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State<J>>, time: Duration) -> MutexGuard<'a, State<J>> {
        state.sleepers += 1;
        let mut state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        state.sleepers -= 1;
        state
    }

    /// Wakes the thread, or calls it for soon, if there is something for it to do: a job that nobody else is about to run, or its own
    /// end, which waits for a queue that others may have emptied.
    fn call_thread(&self, state: &mut State<J>, called: Thread) {
        let needed = !state.running && state.helpers == 0 && !state.queue.is_empty();
        if (needed || state.closing) && state.thread < called {
            state.thread = called;
            self.work.notify_one();
        }
    }

    /// The life of the thread.
    fn serve(&self) {
        let mut host = Background { abort: &self.abort };
        let mut state = self.state();
        loop {
            if state.helpers == 0
                && let Some(ticket) = state.next()
            {
                drop(state);
                state = self.run(ticket, &mut host);
            } else if state.closing && state.queue.is_empty() {
                return;
            } else {
                state.thread = Thread::Sleeps;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state = self.nap(state);
                state.thread = Thread::Awake;
            }
        }
    }

    /// The thread, called for something short, sleeps on while callers begin jobs, and for some naps while they push more.
    fn nap<'a>(&self, mut state: MutexGuard<'a, State<J>>) -> MutexGuard<'a, State<J>> {
        let mut naps = 0;
        while state.thread == Thread::Naps && !state.closing {
            let (begun, pushed) = (state.begun, state.pushed);
            state = self.work.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
            naps = if state.begun == begun { naps + 1 } else { 0 };
            if naps == NAPS || naps > 0 && state.pushed == pushed {
                break;
            }
        }
        state
    }

    /// Runs a job that `next` gave out.
    fn run(&self, ticket: Arc<Ticket<J>>, host: &mut dyn Host) -> MutexGuard<'_, State<J>> {
        let mut job = ticket.begin();
        let outcome = job.run(&mut self.communicator.lock().unwrap_or_else(PoisonError::into_inner), host);
        // Whoever sees the job done finds the communicator free.
        self.pending.fetch_sub(1, Ordering::AcqRel);
        ticket.end(job, outcome);
        let mut state = self.state();
        state.running = false;
        state.orphans.extend(Arc::into_inner(ticket));
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
        state
    }
}

/// The thread as the host of a wait: it has no signals, and leaves the cores to those who compute.
struct Background<'a> {
    abort: &'a AtomicBool,
}

impl Host for Background<'_> {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }

    fn interrupted(&mut self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    fn spins(&self) -> bool {
        false
    }
}
