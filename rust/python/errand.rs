//! What a group's thread does.

use pyo3::prelude::*;

use super::buckets::Round;
use super::task::Task;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::progress::Job;
use crate::wait::Host;

pub enum Errand {
    /// One collective call.
    Call(Box<Task>),
    /// Buckets of gradients, as they become ready.
    Round(Round),
}

impl Errand {
    /// What the caller gets, once it is done.
    pub fn finish(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Errand::Call(task) => task.finish(py),
            Errand::Round(_) => Ok(py.None()),
        }
    }
}

impl Job for Errand {
    fn run(&mut self, communicator: &mut Communicator, host: &mut dyn Host) -> Result<()> {
        match self {
            Errand::Call(task) => task.run(communicator, host),
            Errand::Round(round) => round.run(communicator, host),
        }
    }

    fn is_short(&self) -> bool {
        match self {
            Errand::Call(task) => task.is_short(),
            Errand::Round(round) => round.is_short(),
        }
    }
}
