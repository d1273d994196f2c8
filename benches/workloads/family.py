"""The other collectives: which values the ranks bring, and what must come out.

A size is that of the longest array of a call: all blocks together where there are blocks, one array else. Blocks are
equal. The arrays are not filled anew while the clock runs, so no reduction is done in place. The root is rank 0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.all_reduce import OPS
from workloads.method import Case, Form, Plan

Array = NDArray[Any]
# Number of elements of what a rank brings and gets, if the longest array has n: by collective, with (n, size, rank).
SHAPES: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "reduce": lambda n, p, r: (n, n if r == 0 else 0),
    "broadcast": lambda n, p, r: (n, n),
    "all_gather": lambda n, p, r: (n // p, n),
    "gather": lambda n, p, r: (n // p, n if r == 0 else 0),
    "scatter": lambda n, p, r: (n if r == 0 else 0, n // p),
    "reduce_scatter": lambda n, p, r: (n, n // p),
    "all_to_all": lambda n, p, r: (n, n),
    "scan": lambda n, p, r: (n, n),
    "exscan": lambda n, p, r: (n, n),
    "ping_pong": lambda n, p, r: (n, n),
}
COLLECTIVES = tuple(SHAPES)


def cases(backend: Any, plan: Plan, nbytes: int) -> Iterator[Case]:
    dtype = np.dtype(plan.dtype)
    size, rank = backend.size, backend.rank
    if plan.collective == "ping_pong" and size != 2:
        return
    count = max(1, nbytes // dtype.itemsize // size) * size
    source, target = SHAPES[plan.collective](count, size, rank)
    for form in backend.family(plan.collective, dtype, (source, target), plan.op, plan.forms):
        form.x[:] = _brought(plan.op, rank, dtype, source)
        expected = partial(_expected, plan, (count, size, rank), dtype)
        yield Case(form.name, form.call, partial(_check, form, plan, expected), _nothing, sys.maxsize)


def _nothing() -> None:
    pass


def _brought(op: str, rank: int, dtype: np.dtype[Any], count: int) -> Array:
    """What a rank brings: its own values, and small whole numbers, so that results are exact."""
    k = np.arange(61)
    period = (1 + (k + rank) % 3 // 2 if op == "prod" else 1 + (3 * k + 17 * rank) % 61).astype(dtype)
    return np.resize(period, count)


def _expected(plan: Plan, place: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    count, size, rank = place
    block, op = count // size, OPS[plan.op]
    mine = slice(rank * block, (rank + 1) * block)

    def brought(r: int) -> Array:
        return _brought(plan.op, r, dtype, SHAPES[plan.collective](count, size, r)[0])

    def combined(ranks: range) -> Array:
        return functools.reduce(op, map(brought, ranks))

    match plan.collective:
        case "reduce":
            return combined(range(size)) if rank == 0 else np.empty(0, dtype)
        case "reduce_scatter":
            return combined(range(size))[mine]
        case "all_gather" | "gather":
            whole = np.concatenate([brought(r) for r in range(size)])
            return whole if rank == 0 or plan.collective == "all_gather" else whole[:0]
        case "broadcast":
            return brought(0)
        case "scatter":
            return brought(0)[mine]
        case "all_to_all":
            return np.concatenate([brought(r)[mine] for r in range(size)])
        case "scan":
            return combined(range(rank + 1))
        case "exscan":  # rank 0 is left out: MPI does not say what it gets
            return combined(range(rank)) if rank else np.empty(0, dtype)
        case _:  # ping_pong: what the other one sends
            return brought(1 - rank)


def _check(form: Form, plan: Plan, expected: Callable[[], Array]) -> None:
    form.call()
    want = expected()
    found = form.result[: want.size]
    wrong = np.flatnonzero(found != want)
    if wrong.size:
        k = int(wrong[0])
        raise AssertionError(f"{plan.collective} ({form.name}): element {k} is {found[k]}, not {want[k]}")
