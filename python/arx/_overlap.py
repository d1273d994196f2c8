"""Whether arrays that one call is to combine have memory in common: each would undo what was done to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Arrays = Sequence[NDArray[Any] | None]


def overlapping(written: Arrays, read: Arrays = ()) -> tuple[int, int] | None:
    """Return the numbers of two that may not go together; None if all may.

    Number k writes `written[k]` and, if there is one, reads `read[k]` before that. What one writes no other may write
    or read: not a single element, though views that interleave without one in common are allowed.
    """
    import numpy as np

    items = [(number, x, True) for number, x in enumerate(written) if x is not None]
    items += [(number, x, False) for number, x in enumerate(read) if x is not None]
    # Arrays that own their memory share it only with themselves. Most lists end here, 20 times sooner.
    if all(x.base is None for _, x, _ in items) and len({id(x) for _, x, _ in items}) == len(items):
        return None
    spans = sorted((*_span(x), k) for k, (_, x, _) in enumerate(items) if x.size)
    before: list[tuple[int, int]] = []  # where those that begin earlier end, if that is not before this one
    for low, high, k in spans:
        before = [(end, other) for end, other in before if end > low]
        number, x, is_written = items[k]
        for _, other in before:
            theirs, y, also_written = items[other]
            if theirs != number and (is_written or also_written) and np.shares_memory(x, y):
                return min(number, theirs), max(number, theirs)
        before.append((high, k))
    return None


def ensure_apart(what: str, arrays: Arrays, names: Sequence[object] | None = None) -> None:
    """Raise ValueError, which says which two, if arrays that `what` was given have memory in common."""
    pair = overlapping(arrays)
    if pair is not None:
        one, other = (k if names is None else repr(names[k]) for k in pair)
        msg = f"{what}: arrays {one} and {other} have memory in common: each result would spoil the other"
        raise ValueError(msg)


def _span(x: NDArray[Any]) -> tuple[int, int]:
    """Return the addresses of the first byte and behind the last."""
    low: int = x.__array_interface__["data"][0]
    if x.flags.c_contiguous:
        return low, low + x.nbytes
    reach = [stride * (count - 1) for stride, count in zip(x.strides, x.shape, strict=True)]
    return low + sum(r for r in reach if r < 0), low + sum(r for r in reach if r > 0) + x.itemsize
