//! The collectives as functions of the module, with the documentation that users read.

use pyo3::prelude::*;

use super::group::{Reduce, Spread};
use super::world;

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
/// algo : str, optional
///     Equal on all ranks: "auto" (the default, which `ARX_ALGO` may change); or, to force a way through shared memory, one of
///     "lines" (up to 1 KiB), "staged", "symmetric"; or an algorithm by messages, among ranks of one host too: "ring",
///     "recursive", "doubling", "tree", "chain", "k_ary:ARITY:PIECES", "double_tree:PIECES", "pairwise", "exchange".
///     "hierarchical" and "hierarchical+NAME" use messages between hosts only.
/// timeout : float, optional
///     Seconds without progress after which waiting ends, instead of the group's.
/// name : str, optional
///     Part of what ranks must agree on; shown in errors.
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
#[pyo3(signature = (x, op = None, *, out = None, group = None, algo = None, timeout = None, name = None))]
pub fn all_reduce<'py>(
    x: Bound<'py, PyAny>,
    op: Option<Bound<'py, PyAny>>,
    out: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    algo: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
    name: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    world::resolve(x.py(), group)?.get().reduce(Reduce { x, op, out, algo, timeout, name })
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
/// group, timeout, name
///     As in `all_reduce`, which also lists the errors.
///
/// Returns
/// -------
/// `x`.
///
/// MPI: MPI_Bcast (MPI 4.1, section 6.4).
#[pyfunction]
#[pyo3(signature = (x, root = None, *, group = None, timeout = None, name = None))]
pub fn broadcast<'py>(
    x: Bound<'py, PyAny>,
    root: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
    name: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    world::resolve(x.py(), group)?.get().spread(Spread { x, root, timeout, name })
}

/// Return when every rank of the group has called it.
///
/// MPI: MPI_Barrier (MPI 4.1, section 6.3). Errors as in `all_reduce`.
#[pyfunction]
#[pyo3(signature = (*, group = None, timeout = None))]
pub fn barrier<'py>(
    py: Python<'py>,
    group: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    world::resolve(py, group)?.get().barrier(py, timeout)
}
