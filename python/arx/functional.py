"""Collectives as pure functions: they return a new value, leave their input alone, and take Python scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from arx import _arx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bool, int, float, complex)


@overload
def all_reduce(
    x: Scalar,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    compression: Any = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Scalar: ...
@overload
def all_reduce(
    x: Any,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    compression: Any = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> NDArray[Any]: ...
def all_reduce(
    x: Any,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    compression: Any = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return the combination of every rank's `x`, as `arx.all_reduce` computes it, in a new array.

    A Python `bool`, `int`, `float` or `complex` comes back as the same type (an `int` travels as int64), a numpy scalar
    as a numpy scalar, an array or sequence as a numpy array, a torch tensor as a tensor. Errors are those of
    `arx.all_reduce`.

    >>> arx.functional.all_reduce(1.5, "max")  # doctest: +SKIP
    1.5
    """
    settings = {"compression": compression, "algo": algo, "timeout": timeout, "name": name}
    return _as_given(x, _arx.all_reduce(_copied(x), op, group=group, **settings))


def reduce(
    x: Any,
    root: int = 0,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return what `all_reduce` would return on rank `root`; None elsewhere."""
    result = _arx.reduce(_copied(x), root, op, group=group, algo=algo, timeout=timeout, name=name)
    return None if result is None else _as_given(x, result)


def broadcast(
    x: Any,
    root: int = 0,
    *,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return what `x` is on rank `root`, of the kind that this rank's `x` is; dtype and shape agree on all ranks."""
    return _as_given(x, _arx.broadcast(_copied(x), root, group=group, timeout=timeout, name=name))


def all_gather(
    x: Any,
    *,
    axis: int = 0,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return the arrays of all ranks, joined along `axis`; of scalars, an array of one per rank."""
    return _arx.all_gather(_array(x), axis=axis, group=group, timeout=timeout, name=name)


def gather(
    x: Any,
    root: int = 0,
    *,
    axis: int = 0,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return what `all_gather` returns on rank `root`; None elsewhere."""
    return _arx.gather(_array(x), root, axis=axis, group=group, timeout=timeout, name=name)


def scatter(
    x: Any = None,
    root: int = 0,
    *,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return this rank's block of what rank `root` has, as `arx.scatter`."""
    here = _arx.world() if group is None else group
    return here.scatter(_array(x) if here.rank == root else None, root, timeout=timeout, name=name)


def reduce_scatter(
    x: Any,
    op: str = "sum",
    *,
    counts: Sequence[int] | None = None,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return this rank's block of the combination of every rank's `x`, as `arx.reduce_scatter`."""
    return _arx.reduce_scatter(_array(x), op, counts=counts, group=group, timeout=timeout, name=name)


def all_to_all(
    x: Any,
    *,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return the blocks that all ranks have for this one, as `arx.all_to_all`."""
    return _arx.all_to_all(
        _array(x), send_counts=send_counts, recv_counts=recv_counts, group=group, timeout=timeout, name=name
    )


def scan(
    x: Any,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return the combination of the `x` of this rank and of all before it, of the kind that `all_reduce` returns."""
    return _as_given(x, _arx.scan(_copied(x), op, group=group, timeout=timeout, name=name))


def exscan(
    x: Any,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Return the combination of the `x` of all ranks before this one, of the kind that `all_reduce` returns.

    Rank 0 gets what changes nothing, as from `arx.exscan`.

    >>> start = arx.functional.exscan(len(my_part))  # where this rank's part begins  # doctest: +SKIP
    """
    return _as_given(x, _arx.exscan(_copied(x), op, group=group, timeout=timeout, name=name))


def _copied(x: Any) -> Any:
    """Return `x` as a new array, or tensor, that a call may overwrite."""
    return x.clone() if hasattr(x, "data_ptr") and hasattr(x, "clone") else _new_array(x)


def _array(x: Any) -> Any:
    """Return `x` itself if it is an array, else as one."""
    return x if hasattr(x, "shape") and hasattr(x, "ndim") else _copied(x)


def _as_given(x: Any, result: Any) -> Any:
    """Return `result` as a Python or numpy scalar if `x` is one."""
    import numpy as np  # not at the top: the launcher imports arx and needs no numpy

    if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
        return type(x)(result.item())
    return result[()] if isinstance(x, np.generic) else result


def _new_array(x: Any) -> NDArray[Any]:
    """Return a copy that numpy owns; what has none becomes an object array, which is refused on all ranks alike."""
    import numpy as np

    try:
        return np.array(x, dtype=np.int64 if type(x) is int else None, order="C", copy=True, subok=True)
    except (OverflowError, ValueError, TypeError):
        return np.array(None, dtype=object)
