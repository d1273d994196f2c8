"""arx, in three ways: private arrays in place and with `out=`, and symmetric arrays in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arx
from workloads.method import Form


class Backend:
    def __init__(self, **place: Any) -> None:
        world = arx.init(timeout=60, **place)
        self.rank, self.size, self.barrier, self.close = world.rank, world.size, arx.barrier, arx.shutdown

    def from_first(self, number: int) -> int:
        return int(arx.broadcast(np.array([number]))[0])

    def slowest(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        return arx.all_reduce(times, "max")

    def all_reduce(self, dtype: np.dtype[Any], count: int, op: str, forms: Sequence[str]) -> Iterator[Form]:
        for form in forms:
            x = arx.empty(count, dtype) if form == "symmetric" else np.empty(count, dtype)
            if form == "out=":
                out = np.ones(count, dtype)
                yield Form(form, x, out, partial(arx.all_reduce, x, op, out=out))
            else:
                yield Form(form, x, x, partial(arx.all_reduce, x, op))
