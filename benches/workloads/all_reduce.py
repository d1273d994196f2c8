"""All-reduce: which values the ranks bring, what must come out, and what the arrays hold while the clock runs."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.method import Case, Form, Plan

OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
# The values repeat after so many elements: a prime, so that no piece of an array looks like another piece.
PATTERN = 61


def cases(backend: Any, plan: Plan, nbytes: int) -> Iterator[Case]:
    dtype = np.dtype(plan.dtype)
    for form in backend.all_reduce(dtype, max(1, nbytes // dtype.itemsize), plan.op, plan.forms):
        yield Case(
            form.name,
            form.call,
            partial(_check, form, plan.op, backend.rank, backend.size),
            partial(_refill, form.x, plan.op),
            _period(plan.op, dtype, backend.size) if form.result is form.x else sys.maxsize,
        )


def _brought(op: str, rank: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """One period of what a rank brings: its own values, and small whole numbers, so that results are exact."""
    k = np.arange(PATTERN)
    return (1 + (k + rank) % 3 // 2 if op == "prod" else 1 + (3 * k + 17 * rank) % PATTERN).astype(dtype)


def _check(form: Form, op: str, rank: int, size: int) -> None:
    dtype, count = form.x.dtype, form.x.size
    form.x[:] = np.resize(_brought(op, rank, dtype), count)
    form.call()
    period = functools.reduce(OPS[op], (_brought(op, r, dtype) for r in range(size)))
    block = np.tile(period, 1024)  # compares a large array without a second one of its size
    for first in range(0, count, block.size):
        part = form.result[first : first + block.size]
        wrong = np.flatnonzero(part != block[: part.size])
        if wrong.size:
            k = int(wrong[0])
            text = f"all_reduce {op} of {count} {dtype} ({form.name}): element {first + k} is {part[k]}, not {block[k]}"
            raise AssertionError(text)


def _refill(x: NDArray[Any], op: str) -> None:
    # Not zeros, for which some processors skip the write to memory, nor numbers so small that they take the slow path.
    x[:] = np.finfo(x.dtype).tiny if op == "sum" and x.dtype.kind == "f" else 1


def _period(op: str, dtype: np.dtype[Any], size: int) -> int:
    """A sum in place multiplies what `_refill` wrote by `size`, call after call, until it leaves the dtype's range."""
    if op != "sum" or size == 1:
        return sys.maxsize
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return int((info.maxexp - 1 - info.minexp) / math.log2(size))
    return int((8 * dtype.itemsize - 2) / math.log2(size))
