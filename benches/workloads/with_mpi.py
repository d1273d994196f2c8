"""Any MPI, through mpi4py: two arrays, and one in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from workloads.method import Form

OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


class Backend:
    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank, self.size, self.barrier, self.close = self.comm.rank, self.comm.size, self.comm.Barrier, MPI.Finalize

    def from_first(self, number: int) -> int:
        return int(self.comm.bcast(number, 0))

    def slowest(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        result = np.empty_like(times)
        self.comm.Allreduce(times, result, op=MPI.MAX)
        return result

    def all_reduce(self, dtype: np.dtype[Any], count: int, op: str, forms: Sequence[str]) -> Iterator[Form]:
        del forms
        x, y = np.ones(count, dtype), np.ones(count, dtype)
        yield Form("x, y", x, y, partial(self.comm.Allreduce, x, y, OPS[op]))
        yield Form("IN_PLACE", x, x, partial(self.comm.Allreduce, MPI.IN_PLACE, x, OPS[op]))

    def family(
        self, collective: str, dtype: np.dtype[Any], counts: tuple[int, int], op: str, forms: Sequence[str]
    ) -> Iterator[Form]:
        del forms
        x, y = (np.ones(n, dtype) for n in counts)
        yield Form("x, y", x, x if collective == "broadcast" else y, self._call(collective, x, y, op))

    def _call(self, collective: str, x: NDArray[Any], y: NDArray[Any], op: str) -> Callable[[], object]:
        comm, root = self.comm, self.rank == 0
        match collective:
            case "broadcast":
                return partial(comm.Bcast, x)
            case "reduce":
                return partial(comm.Reduce, x, y if root else None, OPS[op])
            case "gather":
                return partial(comm.Gather, x, y if root else None)
            case "scatter":
                return partial(comm.Scatter, x if root else None, y)
            case "all_gather":
                return partial(comm.Allgather, x, y)
            case "all_to_all":
                return partial(comm.Alltoall, x, y)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, x, y, OPS[op])
            case "scan":
                return partial(comm.Scan, x, y, OPS[op])
            case "exscan":
                return partial(comm.Exscan, x, y, OPS[op])
            case _:
                return self._ping_pong(x, y)

    def _ping_pong(self, x: NDArray[Any], y: NDArray[Any]) -> Callable[[], object]:
        comm = self.comm

        def first() -> None:
            comm.Send(x, 1)
            comm.Recv(y, 1)

        def second() -> None:
            comm.Recv(y, 0)
            comm.Send(x, 0)

        return first if self.rank == 0 else second
