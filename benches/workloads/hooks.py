"""torch's own communication hooks, over gloo: hooks.py SETTINGS OUTPUT. Ranks are told their places by variables.

A model of one large matrix, so that there is one bucket. What is timed is forward and backward; how long these take
without communication is measured too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

HOOKS: dict[str, Any] = {
    "all-reduce": None,
    "fp16_compress_hook": default_hooks.fp16_compress_hook,
    "quantization_perchannel_hook": quantization_hooks.quantization_perchannel_hook,
}


def _step(model: torch.nn.Module, x: torch.Tensor) -> float:
    dist.barrier()
    began = time.perf_counter()
    model(x).sum().backward()
    took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took) * 1e6


def main(side: int, rounds: int, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    x = torch.ones(1, side)
    rows = []
    for name, hook in HOOKS.items():
        model = DistributedDataParallel(torch.nn.Linear(side, side, bias=False), bucket_cap_mb=4 * side * side >> 19)
        if hook is not None:
            model.register_comm_hook(None, hook)
        times = [_step(model, x) for _ in range(rounds + 2)][2:]  # torch arranges its buckets after the first step
        with model.no_sync():
            alone = [_step(model, x) for _ in range(rounds)]
        rows.append({"hook": name, "bytes": 4 * side * side, "us": times, "alone": alone})
    if dist.get_rank() == 0:
        with open(output, "w") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    main(settings["side"], settings["rounds"], sys.argv[2])
