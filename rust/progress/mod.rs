//! Work that goes on while its caller does something else: one queue and one thread per group.
//!
//! ```text
//! push(job) ─► queue ─► run in order, one at a time ─► Ticket: done
//!                         by the group's thread, or by whoever waits for a job that nobody has begun
//! ```
//! The thread starts with the first job and ends with the group. It belongs to no interpreter: what a job holds of one is given
//! back to a caller, never dropped here (`Ticket::take`, `Progress::orphans`). A caller that waits runs what is in front of its
//! own job itself, so that short work does not pay for two changes of thread.
//!
//! Messages are no jobs: none waits for another, nor for the queue (`courier`).
//!
//! This room does not know what jobs do, only that they need the communicator.

mod courier;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crate::communicator::Waited;
pub use courier::{Courier, Message, Receipt};

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::wait::{Host, SLICE};

/// One call, or several that belong together.
pub trait Job: Send + 'static {
    fn run(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()>;
}

/// A job that was pushed.
#[derive(Debug)]
pub struct Ticket<J> {
    inner: Mutex<Inner<J>>,
    done: AtomicBool,
}

#[derive(Debug)]
struct Inner<J> {
    /// None while it runs, and after it was taken.
    job: Option<J>,
    outcome: Option<Result<()>>,
    /// To be called when it is done.
    then: Vec<Then>,
}

/// What somebody wants to happen when a job is done; it must not wait.
pub struct Then(pub Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Then {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Then")
    }
}

impl<J> Ticket<J> {
    /// Of a job that waits to be begun, or of one that runs already.
    fn new(job: Option<J>) -> Ticket<J> {
        let inner = Inner { job, outcome: None, then: Vec::new() };
        Ticket { inner: Mutex::new(inner), done: AtomicBool::new(false) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<J>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// How it ended; None before that.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.inner().outcome.clone()
    }

    /// The job, once, after it is done.
    pub fn take(&self) -> Option<J> {
        let mut inner = self.inner();
        if inner.outcome.is_some() { inner.job.take() } else { None }
    }

    /// Has `then` called when the job is done: by the thread that ends it, or at once.
    pub fn when_done(&self, then: Then) {
        let mut inner = self.inner();
        if inner.outcome.is_none() {
            inner.then.push(then);
            return;
        }
        drop(inner);
        then.0();
    }

    fn begin(&self) -> J {
        self.inner().job.take().expect("a job is begun once")
    }

    fn end(&self, job: J, outcome: Result<()>) {
        let mut inner = self.inner();
        inner.job = Some(job);
        inner.outcome = Some(outcome);
        let then = std::mem::take(&mut inner.then);
        self.done.store(true, Ordering::Release);
        drop(inner);
        then.into_iter().for_each(|Then(call)| call());
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
    /// Somebody has come to the queue, left it, or is done.
    changed: Condvar,
    /// Jobs that are not done.
    pending: AtomicUsize,
    /// The job that runs is to give up.
    abort: AtomicBool,
}

#[derive(Debug)]
struct State<J> {
    queue: VecDeque<Arc<Ticket<J>>>,
    /// Somebody runs the job that was first in the queue.
    running: bool,
    closing: bool,
    /// Done, and nobody holds their tickets.
    orphans: Vec<Ticket<J>>,
}

impl<J: Job> Progress<J> {
    pub fn new(communicator: Communicator) -> Progress<J> {
        let state = State { queue: VecDeque::new(), running: false, closing: false, orphans: Vec::new() };
        let shared = Shared {
            communicator: Mutex::new(communicator),
            state: Mutex::new(state),
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
        let ticket = Arc::new(Ticket::new(Some(job)));
        let mut state = self.shared.state();
        if state.closing {
            return Err(Error::Init("the group has been shut down".into()));
        }
        state.queue.push_back(Arc::clone(&ticket));
        self.shared.pending.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.shared.changed.notify_all();
        Ok(ticket)
    }

    /// Waits for a job. Without a limit the caller does what is to be done before it, and the job itself.
    pub fn wait(&self, ticket: &Ticket<J>, limit: Option<Duration>, host: &mut dyn Host) -> Waited {
        let until = limit.map(|limit| Instant::now() + limit.min(Duration::from_secs(1 << 30)));
        self.wait_until(|| ticket.is_done(), until, host)
    }

    /// Waits until no job is left that is not done.
    pub fn drain(&self, host: &mut dyn Host) -> Waited {
        self.wait_until(|| !self.is_busy(), None, host)
    }

    fn wait_until(&self, done: impl Fn() -> bool, until: Option<Instant>, host: &mut dyn Host) -> Waited {
        let mut state = self.shared.state();
        loop {
            if done() {
                return Waited::Done;
            }
            if until.is_none()
                && let Some(ticket) = state.next()
            {
                drop(state);
                self.shared.run(ticket, host);
                state = self.shared.state();
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Waited::TimedOut;
            }
            state = self.shared.sleep(state, left.unwrap_or(SLICE).min(SLICE));
            if host.interrupted() {
                return Waited::Interrupted;
            }
        }
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
        let dropped: Vec<_> = if abort { state.queue.drain(..).collect() } else { Vec::new() };
        drop(state);
        for ticket in dropped {
            let job = ticket.begin();
            ticket.end(job, Err(Error::Aborted("the group was shut down before this call began".into())));
            self.shared.pending.fetch_sub(1, Ordering::AcqRel);
        }
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

impl<J> State<J> {
    /// The job that may begin now, if there is one.
    fn next(&mut self) -> Option<Arc<Ticket<J>>> {
        if self.running {
            return None;
        }
        let ticket = self.queue.pop_front()?;
        self.running = true;
        Some(ticket)
    }
}

impl<J: Job> Shared<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State<J>>, time: Duration) -> MutexGuard<'a, State<J>> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The life of the thread.
    fn serve(&self) {
        let mut host = Background { abort: &self.abort };
        let mut state = self.state();
        loop {
            if let Some(ticket) = state.next() {
                drop(state);
                self.run(ticket, &mut host);
                state = self.state();
            } else if state.closing && state.queue.is_empty() {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Runs a job that `next` gave out.
    fn run(&self, ticket: Arc<Ticket<J>>, host: &mut dyn Host) {
        let mut job = ticket.begin();
        let outcome = job.run(&mut self.communicator.lock().unwrap_or_else(PoisonError::into_inner), host);
        // Whoever sees the job done finds the communicator free.
        self.pending.fetch_sub(1, Ordering::AcqRel);
        ticket.end(job, outcome);
        let mut state = self.state();
        state.running = false;
        state.orphans.extend(Arc::into_inner(ticket));
        drop(state);
        self.changed.notify_all();
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
