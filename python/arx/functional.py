"""Collectives as pure functions: they return a new value, leave their input alone, and take Python scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from arx import _arx

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bool, int, float, complex)


@overload
def all_reduce(
    x: Scalar,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
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
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> NDArray[Any]: ...
def all_reduce(
    x: Any,
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
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
    import numpy as np  # not at the top: the launcher imports arx and needs no numpy

    value = x.clone() if hasattr(x, "data_ptr") and hasattr(x, "clone") else _new_array(x)
    result = _arx.all_reduce(value, op, group=group, algo=algo, timeout=timeout, name=name)
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
