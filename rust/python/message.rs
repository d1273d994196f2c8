//! One message that outlives the call by which it was begun: what is sent and received, and the memory of both.

use std::time::Duration;

use pyo3::prelude::*;

use super::arrays::{Array, Packed};
use super::group::{Group, LONG, perform};
use super::held::Held;
use super::post::Status;
use super::work::Work;
use crate::communicator::{self, Exchange, Give, Tag, Take};
use crate::kernels::Bytes;
use crate::progress;

/// Where the bytes lie.
pub enum Memory {
    Array(Held),
    /// What was in the array when it was passed: its elements do not lie one behind the other, or are overwritten meanwhile.
    Copy(Packed),
}

impl Memory {
    /// Of something that is sent.
    pub fn of(array: Array<'_>, packed: Option<Packed>) -> Memory {
        packed.map_or_else(|| Memory::Array(array.hold()), Memory::Copy)
    }

    fn bytes(&self) -> Bytes<'_> {
        match self {
            Memory::Array(held) => held.bytes(),
            Memory::Copy(packed) => packed.bytes(),
        }
    }
}

/// One direction: the other rank, the tag, and the array.
pub struct Letter<R, T> {
    pub rank: R,
    pub tag: T,
    pub array: Memory,
}

/// Something to be sent, received, or both.
pub struct Message {
    give: Option<Letter<u32, Tag>>,
    take: Option<Letter<Option<u32>, Option<Tag>>>,
    timeout: Option<Duration>,
    status: Option<communicator::Status>,
}

impl Message {
    pub fn new(
        give: Option<Letter<u32, Tag>>,
        take: Option<Letter<Option<u32>, Option<Tag>>>,
        timeout: Option<Duration>,
    ) -> Message {
        if let Some(Letter { array: Memory::Array(held), .. }) = &take {
            // What the message is too short for stays as it is.
            held.pack();
        }
        Message { give, take, timeout, status: None }
    }

    /// The `Work` that stands for it.
    pub fn begin(self, group: &Bound<'_, Group>) -> PyResult<Py<PyAny>> {
        let (py, courier) = (group.py(), group.get().courier()?);
        drop(courier.orphans());
        let bytes = |array: &Memory| array.bytes().len();
        let long = self.give.as_ref().map_or(0, |give| bytes(&give.array))
            + self.take.as_ref().map_or(0, |take| bytes(&take.array));
        let mut receipt = None;
        perform(py, long > LONG, |host| {
            receipt = Some(courier.post(self, host)?);
            Ok(())
        })?;
        let work = Work::of_message(group.clone().unbind(), receipt.expect("it was begun"));
        Ok(Py::new(py, work)?.into_any())
    }

    /// What the caller gets, once it is done.
    pub fn finish(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.status {
            Some(status) => Ok(Py::new(py, Status { status })?.into_any()),
            None => Ok(py.None()),
        }
    }
}

impl progress::Message for Message {
    fn call(&self) -> Exchange<'_> {
        let give = self.give.as_ref().map(|l| Give { to: l.rank, tag: l.tag, array: l.array.bytes() });
        let take = self.take.as_ref().map(|l| Take { from: l.rank, tag: l.tag, array: l.array.bytes() });
        Exchange { give, take, timeout: self.timeout }
    }

    fn done(&mut self, status: Option<communicator::Status>) {
        self.status = status.filter(|_| self.take.is_some());
        if let Some(Letter { array: Memory::Array(held), .. }) = &self.take {
            held.unpack();
        }
    }
}
