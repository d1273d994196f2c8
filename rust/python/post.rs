//! Sending and receiving, as Python asks for them.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments;
use super::arrays::{Array, Packed};
use super::group::{Group, LONG, perform};
use super::message::{Letter, Memory, Message};
use super::subgroups::index;
use super::world;
use crate::communicator::{self, Exchange, Give, Tag, Take};
use crate::kernels::Bytes;

/// Any rank, or any tag.
#[pyclass(frozen, name = "_Any", module = "arx")]
pub struct Any;

#[pymethods]
impl Any {
    fn __repr__(&self) -> &'static str {
        "arx.ANY"
    }

    fn __reduce__(&self) -> &'static str {
        "ANY"
    }
}

/// What has been received: from whom, with which tag, and how many bytes.
#[pyclass(frozen, module = "arx")]
pub struct Status {
    pub status: communicator::Status,
}

#[pymethods]
impl Status {
    /// Rank of the group that sent it.
    #[getter]
    fn source(&self) -> u32 {
        self.status.peer
    }

    #[getter]
    fn tag(&self) -> Tag {
        self.status.tag
    }

    /// Bytes of the message; `out` may have room for more.
    #[getter]
    fn nbytes(&self) -> usize {
        self.status.len
    }

    /// How many elements of `dtype` that is.
    ///
    /// Raises `ValueError` if it is not a whole number of them.
    fn count(&self, dtype: Bound<'_, PyAny>) -> PyResult<usize> {
        let dtype = dtype.py().import("numpy")?.call_method1("dtype", (dtype,))?;
        let item: usize = dtype.getattr("itemsize")?.extract()?;
        if item == 0 || !self.status.len.is_multiple_of(item) {
            let text = format!("{} bytes are no whole number of elements of dtype {}", self.status.len, dtype.str()?);
            return Err(PyValueError::new_err(text));
        }
        Ok(self.status.len / item)
    }

    fn __repr__(&self) -> String {
        let communicator::Status { peer, tag, len } = self.status;
        format!("Status(source={peer}, tag={tag}, nbytes={len})")
    }
}

/// Send `x` to rank `dst`, which receives it with `recv`.
///
/// Returns when `x` may be used again. That may be before it has been received: short messages are on their way at once, and
/// whoever waits in any `send` or `recv` takes in what arrives. So two ranks may send to each other before either receives.
///
/// Parameters
/// ----------
/// x : array
///     As in `all_reduce`, of any dtype without Python objects, read-only or not. What travels is its bytes, in C order.
/// dst : int
///     A rank of the group; a rank may send to itself.
/// tag : int, optional
///     From 0 to 2**32 - 1; 0 by default. Messages with different tags may be received in another order than they were sent.
/// group, timeout
///     As in `all_reduce`. The time-out is for waiting without any progress.
/// async_op : bool, optional
///     Return a `Work` at once, whose result is what this call returns, and whose errors come when it is asked for. Any number of
///     messages may be under way, and none waits for another, nor for a collective. They go on while the program waits for any of
///     them, and by a thread while it does something else. `x` must stay as it is until then.
///
/// Returns
/// -------
/// None or Work
///
/// Raises
/// ------
/// TypeError, ValueError
///     This rank's arguments are refused. No other rank hears of it.
/// PeerLostError, CollectiveTimeout, AbortedError
///     The other rank is gone, or does not take what is sent. The group is closed.
///
/// Notes
/// -----
/// It does not count as a call of the group: ranks that take part in collectives only need not know of it.
///
/// MPI: MPI_Send, MPI_Isend (MPI 4.1, sections 3.2 and 3.7).
///
/// Examples
/// --------
/// >>> if arx.rank() == 0: arx.send(x, 1, tag=5)              # doctest: +SKIP
/// >>> if arx.rank() == 1: arx.recv(x, 0, tag=5)              # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (x, dst, *, tag = None, group = None, timeout = None, async_op = false))]
pub fn send<'py>(
    x: Bound<'py, PyAny>,
    dst: Bound<'py, PyAny>,
    tag: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let group = of(x.py(), group)?;
    send_in(&group, Outgoing { x, dst, tag }, timeout, async_op)
}

/// Receive into `out` what rank `src` sends to this one.
///
/// Messages of one sender with one tag are received in the order in which they were sent. With `ANY`, the one that came first.
///
/// Parameters
/// ----------
/// out : array
///     As in `all_reduce`, writable, of any dtype without Python objects. The message may be shorter: then its bytes fill the
///     beginning, in C order, and the rest stays as it is.
/// src : int or ANY, optional
///     A rank of the group, or `arx.ANY`, the default: whoever sends first.
/// tag : int or ANY, optional
///     As given to `send`, or `arx.ANY`, the default.
/// group, timeout, async_op
///     As in `send`. Messages are received in the order in which they were asked for, by whatever call: what is asked for first gets
///     the first that fits.
///
/// Returns
/// -------
/// Status or Work
///     `source`, `tag`, `nbytes` and `count(dtype)` of the message.
///
/// Raises
/// ------
/// MismatchError
///     The message is longer than `out`. It is dropped; the group stays usable.
/// ValueError
///     Also: it would have to come from this rank itself, which has sent none.
/// PeerLostError, CollectiveTimeout, AbortedError
///     The sender is gone, or everybody who could send; nothing has come. The group is closed.
///
/// MPI: MPI_Recv, MPI_Irecv (MPI 4.1, sections 3.2 and 3.7).
///
/// Examples
/// --------
/// >>> work = arx.recv(x, 0, async_op=True)                   # doctest: +SKIP
/// >>> arx.all_reduce(y); status = work.wait()                # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (out, src = None, *, tag = None, group = None, timeout = None, async_op = false))]
pub fn recv<'py>(
    out: Bound<'py, PyAny>,
    src: Option<Bound<'py, PyAny>>,
    tag: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let group = of(out.py(), group)?;
    recv_in(&group, Incoming { out, src, tag }, timeout, async_op)
}

/// Send `x` to `dst` and receive into `out` from `src`, both at the same time.
///
/// Parameters and errors are those of `send` and `recv`. `out` may be `x`, or overlap it. `recv_tag` is `tag` unless it is given.
///
/// Returns
/// -------
/// Status or Work
///     Of what was received.
///
/// MPI: MPI_Sendrecv, MPI_Sendrecv_replace, MPI_Isendrecv (MPI 4.1, sections 3.7 and 3.10).
///
/// Examples
/// --------
/// Pass an array on to the right, in a ring of all ranks.
///
/// >>> p, r = arx.size(), arx.rank()                          # doctest: +SKIP
/// >>> arx.sendrecv(x, (r + 1) % p, x, (r - 1) % p)           # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (x, dst, out, src = None, *, tag = None, recv_tag = None, group = None, timeout = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "as Python has them")]
pub fn sendrecv<'py>(
    x: Bound<'py, PyAny>,
    dst: Bound<'py, PyAny>,
    out: Bound<'py, PyAny>,
    src: Option<Bound<'py, PyAny>>,
    tag: Option<Bound<'py, PyAny>>,
    recv_tag: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let group = of(x.py(), group)?;
    let recv_tag = recv_tag.or_else(|| tag.clone());
    sendrecv_in(&group, (Outgoing { x, dst, tag }, Incoming { out, src, tag: recv_tag }), timeout, async_op)
}

/// The group that a call names. Unlike a collective, it is nobody else's business if that is none.
fn of<'py>(py: Python<'py>, group: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, Group>> {
    let Some(group) = group else { return world::world(py) };
    group.cast_into::<Group>().map_err(|error| {
        let got = error.into_inner().get_type().name().map_or_else(|_| "another type".into(), |name| name.to_string());
        PyTypeError::new_err(format!("group must be an arx.Group, not {got}"))
    })
}

/// What is to be sent, as it was passed.
pub struct Outgoing<'py> {
    pub x: Bound<'py, PyAny>,
    pub dst: Bound<'py, PyAny>,
    pub tag: Option<Bound<'py, PyAny>>,
}

/// What is to be received, as it was passed.
pub struct Incoming<'py> {
    pub out: Bound<'py, PyAny>,
    pub src: Option<Bound<'py, PyAny>>,
    pub tag: Option<Bound<'py, PyAny>>,
}

/// The same, checked.
struct Sent<'py> {
    to: u32,
    tag: Tag,
    array: Array<'py>,
    packed: Option<Packed>,
}

struct Received<'py> {
    from: Option<u32>,
    tag: Option<Tag>,
    array: Array<'py>,
    packed: Option<Packed>,
}

impl<'py> Outgoing<'py> {
    fn check(&self, group: &Group) -> PyResult<Sent<'py>> {
        let array = Array::of(&self.x)?;
        let packed = (!array.contiguous).then(|| Packed::of(&array));
        let tag = self.tag.as_ref().map_or(Ok(0), tag)?;
        Ok(Sent { to: peer("dst", &self.dst, group)?, tag, array, packed })
    }
}

impl Sent<'_> {
    fn give(&self) -> Give<'_> {
        let array = self.packed.as_ref().map_or_else(|| self.array.bytes(), Packed::bytes);
        Give { to: self.to, tag: self.tag, array }
    }

    /// For a call that outlives this one.
    fn letter(self) -> Letter<u32, Tag> {
        Letter { rank: self.to, tag: self.tag, array: Memory::of(self.array, self.packed) }
    }

    /// A copy is sent if the memory may be written meanwhile.
    fn apart_from(&mut self, other: &Received<'_>) {
        let ((a0, a1), (b0, b1)) = (self.array.bounds(), other.array.bounds());
        if self.packed.is_none() && a0 < b1 && b0 < a1 {
            self.packed = Some(Packed::of(&self.array));
        }
    }
}

impl<'py> Incoming<'py> {
    fn check(&self, group: &Group) -> PyResult<Received<'py>> {
        let from = named(self.src.as_ref()).map(|src| peer("src", src, group)).transpose()?;
        let tag = named(self.tag.as_ref()).map(tag).transpose()?;
        let array = arguments::output(&self.out)?;
        arguments::writeable(&array, "out")?;
        let packed = (!array.contiguous).then(|| Packed::of(&array));
        Ok(Received { from, tag, array, packed })
    }
}

impl Received<'_> {
    fn bytes(&self) -> Bytes<'_> {
        self.packed.as_ref().map_or_else(|| self.array.bytes(), Packed::bytes)
    }

    fn take(&self) -> Take<'_> {
        Take { from: self.from, tag: self.tag, array: self.bytes() }
    }

    /// For a call that outlives this one.
    fn letter(self) -> Letter<Option<u32>, Option<Tag>> {
        Letter { rank: self.from, tag: self.tag, array: Memory::Array(self.array.hold()) }
    }

    fn finish(self, py: Python<'_>, status: Option<communicator::Status>) -> PyResult<Py<PyAny>> {
        if let Some(packed) = &self.packed {
            packed.unpack(self.array.view());
        }
        Ok(Py::new(py, Status { status: status.expect("something was to be received") })?.into_any())
    }
}

pub fn send_in(
    group: &Bound<'_, Group>,
    outgoing: Outgoing<'_>,
    timeout: Option<Bound<'_, PyAny>>,
    later: bool,
) -> PyResult<Py<PyAny>> {
    let sent = outgoing.check(group.get())?;
    let timeout = arguments::timeout(timeout.as_ref())?;
    if later {
        return Message::new(Some(sent.letter()), None, timeout).begin(group);
    }
    exchange(group, &Exchange { give: Some(sent.give()), take: None, timeout })?;
    Ok(group.py().None())
}

pub fn recv_in(
    group: &Bound<'_, Group>,
    incoming: Incoming<'_>,
    timeout: Option<Bound<'_, PyAny>>,
    later: bool,
) -> PyResult<Py<PyAny>> {
    let received = incoming.check(group.get())?;
    let timeout = arguments::timeout(timeout.as_ref())?;
    if later {
        return Message::new(None, Some(received.letter()), timeout).begin(group);
    }
    let status = exchange(group, &Exchange { give: None, take: Some(received.take()), timeout })?;
    received.finish(group.py(), status)
}

pub fn sendrecv_in(
    group: &Bound<'_, Group>,
    (outgoing, incoming): (Outgoing<'_>, Incoming<'_>),
    timeout: Option<Bound<'_, PyAny>>,
    later: bool,
) -> PyResult<Py<PyAny>> {
    let (mut sent, received) = (outgoing.check(group.get())?, incoming.check(group.get())?);
    sent.apart_from(&received);
    let timeout = arguments::timeout(timeout.as_ref())?;
    if later {
        return Message::new(Some(sent.letter()), Some(received.letter()), timeout).begin(group);
    }
    let call = Exchange { give: Some(sent.give()), take: Some(received.take()), timeout };
    let status = exchange(group, &call)?;
    received.finish(group.py(), status)
}

fn exchange(group: &Bound<'_, Group>, call: &Exchange<'_>) -> PyResult<Option<communicator::Status>> {
    let py = group.py();
    let mut communicator = group.get().enter(py)?;
    let long = call.give.map_or(0, |give| give.array.len()) + call.take.map_or(0, |take| take.array.len()) > LONG;
    let mut status = None;
    perform(py, long, |host| {
        status = communicator.exchange(call, host)?;
        Ok(())
    })?;
    Ok(status)
}

/// None for `arx.ANY`, and for what is not given.
fn named<'a, 'py>(value: Option<&'a Bound<'py, PyAny>>) -> Option<&'a Bound<'py, PyAny>> {
    value.filter(|value| !value.is_instance_of::<Any>())
}

fn peer(what: &str, value: &Bound<'_, PyAny>, group: &Group) -> PyResult<u32> {
    let number = index(what, value)?;
    u32::try_from(number).ok().filter(|rank| *rank < group.size).ok_or_else(|| {
        let last = group.size - 1;
        PyValueError::new_err(format!("{what} {number} is not a rank of this group: they go from 0 to {last}"))
    })
}

fn tag(value: &Bound<'_, PyAny>) -> PyResult<Tag> {
    let number = index("tag", value)?;
    Tag::try_from(number).map_err(|_| PyValueError::new_err(format!("tag {number} is not in 0 to {}", Tag::MAX)))
}
