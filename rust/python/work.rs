//! `Work`: a call that goes on while its caller does something else.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use super::arguments;
use super::errand::Errand;
use super::group::Group;
use super::host::{Detached, detach};
use super::message::Message;
use crate::error::{Error, seconds};
use crate::progress::{Receipt, Then, Ticket, Waited};

/// A call that was begun with `async_op=True`.
///
/// It keeps its arrays alive. Dropping it neither cancels the call nor leaks anything.
#[pyclass(frozen, module = "arx")]
pub struct Work {
    group: Py<Group>,
    due: Due,
    /// How it ended, once somebody has asked.
    settled: Mutex<Option<Result<Py<PyAny>, PyErr>>>,
    callbacks: Mutex<Vec<Py<PyAny>>>,
}

/// What it stands for.
enum Due {
    Call(Arc<Ticket<Errand>>),
    Message(Receipt<Message>),
}

impl Due {
    fn is_done(&self) -> bool {
        match self {
            Due::Call(ticket) => ticket.is_done(),
            Due::Message(receipt) => receipt.ticket.is_done(),
        }
    }

    fn when_done(&self, then: Then) {
        match self {
            Due::Call(ticket) => ticket.when_done(then),
            Due::Message(receipt) => receipt.ticket.when_done(then),
        }
    }
}

/// What was done, with all that it holds; once.
fn done<J>(ticket: &Ticket<J>) -> PyResult<J> {
    match (ticket.outcome(), ticket.take()) {
        (Some(Ok(())), Some(job)) => Ok(job),
        (Some(Err(error)), _) => Err(error.into()),
        _ => Err(Error::Init("the call was not begun".into()).into()),
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    pub fn new(group: Py<Group>, ticket: Arc<Ticket<Errand>>) -> Work {
        Work::due(group, Due::Call(ticket))
    }

    pub fn of_message(group: Py<Group>, receipt: Receipt<Message>) -> Work {
        Work::due(group, Due::Message(receipt))
    }

    fn due(group: Py<Group>, due: Due) -> Work {
        Work { group, due, settled: Mutex::new(None), callbacks: Mutex::new(Vec::new()) }
    }

    /// Waits until it is done, `limit` at most.
    fn finish(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<()> {
        if self.due.is_done() {
            return Ok(());
        }
        let (progress, courier) = (self.group.get().progress()?, self.group.get().courier()?);
        let mut host = Detached::default();
        let waited = detach(py, || match &self.due {
            Due::Call(ticket) => progress.wait(ticket, limit, &mut host),
            Due::Message(receipt) => courier.wait(receipt, limit, &mut host),
        });
        match (waited, host.raised) {
            (_, Some(exception)) => Err(exception),
            (Waited::Done, None) => Ok(()),
            (Waited::Interrupted, None) => Err(Error::Interrupted.into()),
            (Waited::TimedOut, None) => Err(PyTimeoutError::new_err(format!(
                "the call is not done after {}; it goes on, and may be waited for again",
                seconds(limit.unwrap_or_default())
            ))),
        }
    }

    fn settle(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut settled = held(&self.settled);
        let result = settled.get_or_insert_with(|| match &self.due {
            Due::Call(ticket) => done(ticket).and_then(|errand| errand.finish(py)),
            Due::Message(receipt) => done(&receipt.ticket).and_then(|message| message.finish(py)),
        });
        match result {
            Ok(object) => Ok(object.clone_ref(py)),
            Err(error) => Err(error.clone_ref(py)),
        }
    }
}

#[pymethods]
impl Work {
    /// Wait until the call is done and return what it would have returned; raise what it would have raised.
    ///
    /// Ctrl-C leaves the wait. A `timeout` in seconds ends the wait with `TimeoutError`, not the call.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        self.finish(py, arguments::timeout(timeout.as_ref())?)?;
        self.settle(py)
    }

    /// As `wait`, under the name that `concurrent.futures` uses.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        self.wait(py, timeout)
    }

    /// Whether the call is done, well or not. Never waits.
    fn done(&self) -> bool {
        self.due.is_done()
    }

    /// Wait until the call is done and return its exception, None if it has none.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        self.finish(py, arguments::timeout(timeout.as_ref())?)?;
        Ok(self.settle(py).err().map(|error| error.into_value(py).into_any()))
    }

    /// Call `fn(work)` when the call is done: at once if it is, else in a thread that is there for that.
    ///
    /// What it raises is printed and otherwise ignored.
    fn add_done_callback(slf: &Bound<'_, Self>, r#fn: Py<PyAny>) -> PyResult<()> {
        let this = slf.get();
        let progress = this.group.get().progress()?;
        slf.py().import("arx._work")?.call_method0("ensure_caller")?;
        held(&this.callbacks).push(r#fn);
        let work = slf.clone().unbind();
        this.due.when_done(Then(Box::new(move || FINISHED.push(work))));
        progress.hurry();
        Ok(())
    }

    /// The callbacks that have not been called.
    fn _callbacks(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut *held(&self.callbacks))
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("arx._work")?.call_method1("awaited", (slf,))
    }

    fn __repr__(&self) -> &'static str {
        if self.due.is_done() { "<arx.Work: done>" } else { "<arx.Work: not done>" }
    }
}

/// Works whose callbacks are due. Filled by any thread, emptied by the one that calls them.
struct Finished {
    works: Mutex<(Vec<Py<Work>>, bool)>,
    changed: Condvar,
}

static FINISHED: Finished = Finished { works: Mutex::new((Vec::new(), false)), changed: Condvar::new() };

impl Finished {
    fn push(&self, work: Py<Work>) {
        held(&self.works).0.push(work);
        self.changed.notify_all();
    }
}

/// Waits for works whose callbacks are due; None when there will be no more. For the thread that calls them.
#[pyfunction]
#[pyo3(name = "_finished")]
pub fn finished(py: Python<'_>) -> Option<Vec<Py<Work>>> {
    py.detach(|| {
        let mut works = held(&FINISHED.works);
        while works.0.is_empty() && !works.1 {
            works = FINISHED.changed.wait(works).unwrap_or_else(PoisonError::into_inner);
        }
        if works.0.is_empty() { None } else { Some(std::mem::take(&mut works.0)) }
    })
}

/// Opens or closes the source of `_finished`.
#[pyfunction]
#[pyo3(name = "_finish")]
pub fn finish(closed: bool) {
    held(&FINISHED.works).1 = closed;
    FINISHED.changed.notify_all();
}
