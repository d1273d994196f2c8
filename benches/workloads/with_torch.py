"""torch.distributed with gloo, started by torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from workloads.method import Form

OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


class Backend:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size, self.barrier = dist.get_rank(), dist.get_world_size(), dist.barrier
        self.close = dist.destroy_process_group

    def from_first(self, number: int) -> int:
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor.item())

    def slowest(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        dist.all_reduce(torch.from_numpy(times), dist.ReduceOp.MAX)
        return times

    def all_reduce(self, dtype: np.dtype[Any], count: int, op: str, forms: Sequence[str]) -> Iterator[Form]:
        del forms
        tensor = torch.ones(count, dtype=getattr(torch, dtype.name))
        x = tensor.numpy()  # the same memory
        yield Form("in place", x, x, partial(dist.all_reduce, tensor, OPS[op]))

    def family(
        self, collective: str, dtype: np.dtype[Any], counts: tuple[int, int], op: str, forms: Sequence[str]
    ) -> Iterator[Form]:
        """What gloo has of it."""
        del forms
        a, b = (torch.ones(n, dtype=getattr(torch, dtype.name)) for n in counts)
        calls = {
            "broadcast": partial(dist.broadcast, a, 0),
            "all_gather": partial(dist.all_gather_into_tensor, b, a),
        }
        if collective in calls:
            yield Form("tensors", a.numpy(), (a if collective == "broadcast" else b).numpy(), calls[collective])
