//! The other collectives as functions of the module, with the documentation that users read.

use pyo3::prelude::*;

use super::axes;
use super::calls::{self, Which};
use super::group::Group;
use super::options::Options;
use super::reduce::Reduce;
use super::world;

type Any<'py> = Bound<'py, PyAny>;

/// Combine `x` element by element over all ranks; the rank `root` holds the result.
///
/// Parameters
/// ----------
/// x, op, algo
///     As in `all_reduce`. On other ranks than the root `x` is only read.
/// root : int, optional
///     A rank of the group; 0 by default.
/// out : array, optional
///     On the root: receives the result, instead of `x`. Ignored elsewhere.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// On the root `out` if given, else `x`; None elsewhere.
///
/// MPI: MPI_Reduce (MPI 4.1, section 6.9.1).
#[pyfunction]
#[pyo3(signature = (x, root = None, op = None, *, out = None, algo = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn reduce<'py>(
    py: Python<'py>,
    x: Any<'py>,
    root: Option<Any<'py>>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    algo: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options { algo, timeout, name, later: async_op, ..Options::default() };
    Group::combine_some(slf, Which::Root(root.as_ref()), Reduce { x, op, out, options }).map(Bound::unbind)
}

/// Join the arrays of all ranks, in rank order, along one axis; every rank holds the result.
///
/// Parameters
/// ----------
/// x : array
///     This rank's block, of any dtype without Python objects. Ranks agree on dtype and on all lengths but that of `axis`, which may
///     differ. 0-d arrays count as arrays of one element.
/// out : array, optional
///     Receives the result; may contain `x`, exactly where this rank's block belongs. By default a new array is made, which costs
///     more than the transfer when it is large.
/// axis : int, optional
///     The axis to join along; 0 by default, the same on all ranks.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `out` if given, else a new array: of shape `(sum of the lengths, ...)`; `(size,)` for 0-d arrays.
///
/// MPI: MPI_Allgather and MPI_Allgatherv (MPI 4.1, section 6.7).
#[pyfunction]
#[pyo3(signature = (x, *, out = None, axis = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn all_gather<'py>(
    py: Python<'py>,
    x: Any<'py>,
    out: Option<Any<'py>>,
    axis: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    axes::all_gather(slf, (x, out, axis), &options)
}

/// Join the arrays of all ranks, in rank order, along one axis; the rank `root` holds the result.
///
/// Parameters
/// ----------
/// x, axis
///     As in `all_gather`.
/// root : int, optional
///     A rank of the group; 0 by default.
/// out : array, optional
///     As in `all_gather`, on the root. Ignored elsewhere.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// As `all_gather` on the root; None elsewhere.
///
/// MPI: MPI_Gather and MPI_Gatherv (MPI 4.1, section 6.5).
#[pyfunction]
#[pyo3(signature = (x, root = None, *, out = None, axis = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn gather<'py>(
    py: Python<'py>,
    x: Any<'py>,
    root: Option<Any<'py>>,
    out: Option<Any<'py>>,
    axis: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    axes::gather(slf, root, (x, out, axis), &options)
}

/// Cut `x` of the rank `root` into equal blocks along its first axis; every rank gets one, in rank order.
///
/// Parameters
/// ----------
/// x : array
///     On the root: its first length is a multiple of the group's size. Not looked at elsewhere, where it may be left out or None.
/// root : int, optional
///     A rank of the group; 0 by default.
/// out : array, optional
///     Receives this rank's block. Either all ranks pass one, or none does: then the root first tells the others what to expect, which
///     costs one more message.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors. With `async_op` the ranks must pass `out`.
///
/// Returns
/// -------
/// `out` if given, else a new array.
///
/// MPI: MPI_Scatter (MPI 4.1, section 6.6).
#[pyfunction]
#[pyo3(signature = (x = None, root = None, *, out = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn scatter<'py>(
    py: Python<'py>,
    x: Option<Any<'py>>,
    root: Option<Any<'py>>,
    out: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    axes::scatter(slf, (x, root, out), &options)
}

/// Combine `x` element by element over all ranks, and cut the result into blocks along the first axis: every rank gets one.
///
/// Parameters
/// ----------
/// x, op
///     As in `all_reduce`. Not 0-d.
/// out : array, optional
///     Receives this rank's block; may be exactly that part of `x`.
/// counts : sequence of int, optional
///     Rows of each rank's block, the same on all ranks. Without it the blocks are equal, and the first length must be a multiple of
///     the group's size.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `out` if given, else a new array. On one host its bits are those of the same part of `all_reduce`.
///
/// MPI: MPI_Reduce_scatter_block and MPI_Reduce_scatter (MPI 4.1, section 6.10).
#[pyfunction]
#[pyo3(signature = (x, op = None, *, out = None, counts = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn reduce_scatter<'py>(
    py: Python<'py>,
    x: Any<'py>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    counts: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    Group::call(slf, async_op, |group| {
        calls::reduce_scatter(group, (&x, op.as_ref(), out.as_ref(), counts.as_ref()), &options)
    })
}

/// Send a block of `x` to every rank, and get one from each: block `r` of the result is what rank `r` had for this rank.
///
/// Parameters
/// ----------
/// x : array
///     Cut along its first axis, of any dtype without Python objects. Not 0-d.
/// out : array, optional
///     Receives the blocks; shares no memory with `x`.
/// send_counts : sequence of int, optional
///     Rows of `x` for each rank. Without it the blocks are equal.
/// recv_counts : sequence of int, optional
///     Rows expected from each rank, which is checked. With `send_counts` only; ranks tell each other their counts in any case.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `out` if given, else a new array.
///
/// MPI: MPI_Alltoall and MPI_Alltoallv (MPI 4.1, section 6.8).
#[pyfunction]
#[pyo3(signature = (x, *, out = None, send_counts = None, recv_counts = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn all_to_all<'py>(
    py: Python<'py>,
    x: Any<'py>,
    out: Option<Any<'py>>,
    send_counts: Option<Any<'py>>,
    recv_counts: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    Group::call(slf, async_op, |group| {
        calls::all_to_all(group, (&x, out.as_ref()), (send_counts.as_ref(), recv_counts.as_ref()), &options)
    })
}

/// Combine `x` element by element over this rank and all before it.
///
/// Parameters
/// ----------
/// x, op, out
///     As in `all_reduce`; "avg" is refused.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `out` if given, else `x`: on rank r the combination of ranks 0 to r, in that order.
///
/// MPI: MPI_Scan (MPI 4.1, section 6.11.1).
#[pyfunction]
#[pyo3(signature = (x, op = None, *, out = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn scan<'py>(
    py: Python<'py>,
    x: Any<'py>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    Group::combine_some(slf, Which::UpToMine, Reduce { x, op, out, options }).map(Bound::unbind)
}

/// Combine `x` element by element over all ranks before this one.
///
/// Parameters
/// ----------
/// x, op, out
///     As in `all_reduce`; "avg" is refused.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `out` if given, else `x`: on rank r the combination of ranks 0 to r - 1, in that order. Rank 0, for which MPI leaves it open, gets what
/// changes nothing: 0 for "sum", 1 for "prod", the largest value for "min" and so on.
///
/// MPI: MPI_Exscan (MPI 4.1, section 6.11.2).
#[pyfunction]
#[pyo3(signature = (x, op = None, *, out = None, group = None, timeout = None, name = None, async_op = false))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn exscan<'py>(
    py: Python<'py>,
    x: Any<'py>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let slf = &world::resolve(py, group)?;
    let options = Options::new(timeout, name, async_op);
    Group::combine_some(slf, Which::BeforeMine, Reduce { x, op, out, options }).map(Bound::unbind)
}
