//! What a caller holds of a job: whether it is done, how it ended, and the job itself, to be taken apart.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// A job that was pushed.
#[derive(Debug)]
pub struct Ticket<J> {
    inner: Mutex<Inner<J>>,
    done: AtomicBool,
    /// `Job::is_short`.
    pub(super) short: bool,
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
    pub(super) fn new(job: Option<J>, short: bool) -> Ticket<J> {
        let inner = Inner { job, outcome: None, then: Vec::new() };
        Ticket { inner: Mutex::new(inner), done: AtomicBool::new(false), short }
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

    pub(super) fn begin(&self) -> J {
        self.inner().job.take().expect("a job is begun once")
    }

    pub(super) fn end(&self, job: J, outcome: Result<()>) {
        let mut inner = self.inner();
        inner.job = Some(job);
        inner.outcome = Some(outcome);
        let then = std::mem::take(&mut inner.then);
        self.done.store(true, Ordering::Release);
        drop(inner);
        then.into_iter().for_each(|Then(call)| call());
    }
}
