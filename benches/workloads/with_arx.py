"""arx, in three ways: private arrays in place and with `out=`, and symmetric arrays in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    def family(
        self, collective: str, dtype: np.dtype[Any], counts: tuple[int, int], op: str, forms: Sequence[str]
    ) -> Iterator[Form]:
        # In the same order on all ranks, so no set: those of strings differ from process to process.
        for form in dict.fromkeys("symmetric" if form == "symmetric" else "out=" for form in forms):
            x, y = (arx.empty(n, dtype) if form == "symmetric" else np.ones(n, dtype) for n in counts)
            yield Form(form, x, x if collective == "broadcast" else y, self._call(collective, x, y, op))

    def _call(self, collective: str, x: NDArray[Any], y: NDArray[Any], op: str) -> Callable[[], object]:
        match collective:
            case "broadcast":
                return partial(arx.broadcast, x)
            case "reduce":
                return partial(arx.reduce, x, 0, op, out=y)
            case "scan" | "exscan" | "reduce_scatter":
                return partial(getattr(arx, collective), x, op, out=y)
            case "ping_pong":
                return partial(_ping_pong, arx.send, arx.recv, x, y, self.rank)
            case _:
                return partial(getattr(arx, collective), x, out=y)


def _ping_pong(
    send: Callable[..., object], recv: Callable[..., object], x: NDArray[Any], y: NDArray[Any], rank: int
) -> None:
    if rank == 0:
        send(x, 1)
        recv(y, 1)
    else:
        recv(y, 0)
        send(x, 0)
