"""Symmetric arrays: ordinary numpy arrays whose memory the other ranks of the host can read."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from arx import _arx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    Shape = int | Sequence[int]


def empty(shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
    """Return a new C-ordered array in memory that all ranks of the host share: the fastest kind for large collectives.

    Every rank makes its own; nothing is communicated. The memory lives as long as the array or a view of it, also after
    `arx.shutdown`. Its first content is zeros.

    Raises:
        InitError: before `arx.init`.
        TypeError: for a dtype that holds Python objects.
        MemoryError: when the shared heap has no room.
    """
    import numpy as np  # not at the top: the launcher imports arx and needs no numpy

    dtype = np.dtype(dtype)
    if dtype.hasobject:
        msg = f"dtype '{dtype}' holds Python objects, which cannot lie in shared memory"
        raise TypeError(msg)
    dims = tuple(map(operator.index, shape)) if hasattr(shape, "__iter__") else (operator.index(shape),)
    if any(n < 0 for n in dims):
        msg = f"negative dimensions are not allowed: {dims}"
        raise ValueError(msg)
    try:
        block = _arx.world()._allocate(math.prod(dims) * dtype.itemsize)
    except OverflowError:
        msg = f"an array of shape {dims} and dtype '{dtype}' is larger than any memory"
        raise MemoryError(msg) from None
    return np.ndarray(dims, dtype, buffer=block)


def zeros(shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
    """Like `empty`, which happens to return zeros too; here they are promised."""
    return empty(shape, dtype)


def empty_like(x: Any, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Return a symmetric array of the shape and dtype of `x` (or of another `dtype`), C-ordered."""
    import numpy as np

    return empty(np.shape(x), x.dtype if dtype is None else dtype)
