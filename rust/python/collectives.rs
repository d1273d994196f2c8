//! The collectives as functions of the module, with the documentation that users read.

use pyo3::prelude::*;

use super::calls;
use super::explanation::Explanation;
use super::group::Group;
use super::options::Options;
use super::reduce::Reduce;
use super::world;

type Any<'py> = Bound<'py, PyAny>;

/// Combine `x` element by element over all ranks; every rank holds the result.
///
/// Works in place unless `out` is given, and returns the array that holds the result.
///
/// Parameters
/// ----------
/// x : array
///     CPU memory of any shape and layout: numpy (any strides, ml_dtypes too), a torch CPU tensor, a DLPack object or a
///     writable buffer. All ranks pass the same shape and dtype; layouts may differ, elements are matched by index.
/// op : str or ReduceOp, optional
///     "sum" (the default), "prod", "min", "max", "avg", "band", "bor", "bxor", "land" or "lor". Integer sums and products wrap as in
///     numpy; "avg" divides the sum by the group's size (floats and complex); float16 and bfloat16 are combined in float32
///     and rounded once; NaN wins in "min" and "max"; bool "sum" is or, "prod" is and.
/// out : array, optional
///     Receives the result; `x` stays as it is. The same dtype and shape as `x`; either exactly the same memory or none of it.
/// group : Group, optional
///     Instead of the world.
/// compression : str, codec or Pipeline, optional
///     How values travel between hosts, for sums and averages of floats: "fp16", "bf16", "int8", "int4", "topk:0.01", "auto" and more
///     (`arx.compression`). Inside a host nothing is compressed. What is left out is kept under `name`, and comes with the next call.
/// algo : str, optional
///     "auto" (the default, which `ARX_ALGO` may change) takes what is fastest (`explain` says what that is). By shared memory,
///     on one host: "lines" (up to 1 KiB), "staged", "symmetric". By messages among all ranks: "ring", "recursive", "doubling",
///     "tree", "chain", "k_ary:ARITY:PIECES", "double_tree:PIECES", "pairwise", "exchange",
///     "all_gather_reduce", "reduce_broadcast", "relay". Over several hosts: "hierarchical", shared memory within hosts and messages between
///     them, or "hierarchical+ring" and so on. Equal on all ranks.
/// timeout : float, optional
///     Seconds without progress after which waiting ends, instead of the group's.
/// name : str, optional
///     Part of what ranks must agree on; shown in errors. Of what a compressed call leaves out, whose it is.
/// async_op : bool, optional
///     Return a `Work` at once, whose `wait()` returns and raises what the call would. Calls of one group are done in the order in
///     which they are made. Until then the arrays belong to the call: do not touch them.
///
/// Returns
/// -------
/// `out` if given, else `x`: the same bits on every rank and from run to run.
///
/// Raises
/// ------
/// TypeError, ValueError
///     This rank's arguments are refused; every other rank gets `MismatchError`.
/// MismatchError
///     Ranks came with different calls. No data has moved, the group stays usable.
/// PeerLostError, CollectiveTimeout, AbortedError
///     A rank is gone, silent, or was interrupted. The content of the result is unspecified and the group is closed.
///
/// MPI: MPI_Allreduce (MPI 4.1, section 6.9.6).
///
/// Examples
/// --------
/// >>> x = np.arange(4.0) + arx.rank()
/// >>> arx.all_reduce(x)                                      # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (
    x, op = None, *, out = None, group = None, compression = None, algo = None, timeout = None, name = None, async_op = false
))]
#[expect(clippy::too_many_arguments, reason = "what users may pass")]
pub fn all_reduce<'py>(
    x: Any<'py>,
    op: Option<Any<'py>>,
    out: Option<Any<'py>>,
    group: Option<Any<'py>>,
    compression: Option<Any<'py>>,
    algo: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Any<'py>> {
    let options = Options { algo, compression, timeout, name, later: async_op };
    Group::combine(&world::resolve(x.py(), group)?, Reduce { x, op, out, options })
}

/// Copy `x` of rank `root` into `x` of every other rank.
///
/// Parameters
/// ----------
/// x : array
///     As in `all_reduce`, of any dtype without Python objects (structured, string and time types are copied byte by
///     byte). Read on the root, where it may be read-only; written elsewhere. Shape and dtype agree on all ranks.
/// root : int, optional
///     A rank of the group; 0 by default.
/// group, timeout, name, async_op
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `x`.
///
/// MPI: MPI_Bcast (MPI 4.1, section 6.4).
#[pyfunction]
#[pyo3(signature = (x, root = None, *, group = None, timeout = None, name = None, async_op = false))]
pub fn broadcast<'py>(
    x: Any<'py>,
    root: Option<Any<'py>>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    name: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let options = Options::new(timeout, name, async_op);
    let group = world::resolve(x.py(), group)?;
    Group::call(&group, async_op, |group| calls::broadcast(group, (&x, root.as_ref()), &options))
}

/// Return when every rank of the group has called it.
///
/// With `async_op` it returns a `Work` at once. MPI: MPI_Barrier (MPI 4.1, section 6.3). Errors as in `all_reduce`.
#[pyfunction]
#[pyo3(signature = (*, group = None, timeout = None, async_op = false))]
pub fn barrier<'py>(
    py: Python<'py>,
    group: Option<Any<'py>>,
    timeout: Option<Any<'py>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let options = Options::new(timeout, None, async_op);
    Group::call(&world::resolve(py, group)?, async_op, |_| calls::barrier(&options))
}

/// Which way `all_reduce` would take for `x`, and why: a local question, which moves no data and asks no other rank.
///
/// Parameters
/// ----------
/// x, op, group, compression, algo
///     As in `all_reduce`. The answer depends on size, dtype, operation and memory of `x`, not on its values.
///
/// Returns
/// -------
/// Explanation
///     With `algorithm` as `algo=` names it, `why`, the predicted `seconds` and the `candidates` with theirs; `print` it for a table.
///     Times are predicted between hosts only, by the model that was measured when the group formed. Short all-reduces have tried their
///     best algorithms after some hundred calls; `why` then says so.
///
/// Examples
/// --------
/// >>> print(arx.explain(np.zeros(1 << 20, np.float32)))      # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (x, op = None, *, group = None, compression = None, algo = None))]
pub fn explain<'py>(
    x: Any<'py>,
    op: Option<Any<'py>>,
    group: Option<Any<'py>>,
    compression: Option<Any<'py>>,
    algo: Option<Any<'py>>,
) -> PyResult<Explanation> {
    Group::explanation(&world::resolve(x.py(), group)?, (x, op), compression, algo)
}
