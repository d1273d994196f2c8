"""Any MPI, through mpi4py: two arrays, and one in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
