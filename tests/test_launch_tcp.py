"""TCP inside one host, under every launcher: the ranks meet at a loopback address that no launcher tells them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import ARX
from test_launch_peers import LAUNCHERS, Job, left, start

CODE = """
import json, os, sys, time
import arx, numpy as np
folder, expected = sys.argv[1], int(sys.argv[2])
with arx.init(timeout=100) as world:
    x = np.arange(5, dtype=np.int64) * 10 + world.rank
    arx.all_reduce(x)
    y = np.full(300_000, 1 << world.rank, np.int64)
    arx.all_reduce(y)
    with open(f"{folder}/{os.getpid()}.part", "w") as file:
        json.dump({"rank": world.rank, "size": world.size, "sums": [*x.tolist(), *sorted(set(y.tolist()))]}, file)
    os.rename(f"{folder}/{os.getpid()}.part", f"{folder}/{os.getpid()}.json")
    while sum(name.endswith(".json") for name in os.listdir(folder)) < expected:
        time.sleep(0.01)
    arx.barrier()
"""


@pytest.mark.parametrize("name", [*LAUNCHERS, "slurm", "arx"])
def test_two_jobs_at_once_over_tcp(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARX_TRANSPORT", "tcp")
    program = [sys.executable, "-c", CODE, str(tmp_path), "6"]
    with ExitStack() as stack:
        jobs: list[Job] = []
        for step in (0, 1):
            own = (
                [Job([*ARX, "run", "-n", "3", *program])] if name == "arx" else start(name, 3, CODE, tmp_path, 6, step)
            )
            jobs += [stack.enter_context(job) for job in own]
        for job in jobs:
            job.succeed()
    found = sorted(left(tmp_path), key=lambda rank: rank["rank"])
    sums = [30 * i + 3 for i in range(5)] + [7]
    assert found == [{"rank": rank, "size": 3, "sums": sums} for rank in (0, 0, 1, 1, 2, 2)]
