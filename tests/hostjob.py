"""A rank's program for tests over several hosts, and what the tests read off it.

Each rank leaves one file: the place that it found, and sums of arrays over all ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launching import ARX
from netlab import Lab

WATCHDOG = 120.0  # seconds; ends a test that hangs

PROGRAM = """
import hashlib, json, os, socket, sys
import numpy as np, arx
from arx import _world

found = {}
with arx.init(timeout=100) as world:
    place = _world._place
    x = np.arange(5, dtype=np.int64) * 10 + world.rank
    arx.all_reduce(x)
    y = np.full(300_000, 1 << world.rank, np.int64)
    arx.all_reduce(y)
    found["sums"] = [*x.tolist(), *sorted(set(y.tolist()))]
    arx.barrier()
mark = None if place.secret is None else hashlib.sha256(place.secret.encode()).hexdigest()
names = ("rank", "world_size", "local_rank", "local_size", "node_rank", "num_nodes", "job_id", "source", "master")
found |= {name: getattr(place, name) for name in names}
found |= {"secret": mark, "host": socket.gethostname(), "folder": os.getcwd()}
path = f"{sys.argv[1]}/{place.rank}"
with open(path + ".part", "w") as file:
    json.dump(found, file)
os.rename(path + ".part", path + ".json")
"""


def program(folder: Path) -> list[str]:
    """The command of a rank; the files come to `folder`."""
    path = folder / "hostjob.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path), str(folder)]


def found(folder: Path) -> list[dict[str, Any]]:
    """What the ranks left, in order."""
    ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(ranks, key=lambda rank: int(rank["rank"]))


def check(folder: Path, hosts: list[str], source: str) -> list[dict[str, Any]]:
    """All ranks were there, each on its host; they agree on job, master and secret, and summed if they can."""
    ranks, world = found(folder), len(hosts)
    assert [(rank["rank"], rank["host"]) for rank in ranks] == list(enumerate(hosts))
    for rank in ranks:
        assert rank["world_size"] == world
        assert rank["source"] == source
        mates = [mate["rank"] for mate in ranks if mate["host"] == rank["host"]]
        assert (rank["local_rank"], rank["local_size"]) == (mates.index(rank["rank"]), len(mates))
    for what in ("job_id", "master", "secret"):
        assert len({rank[what] for rank in ranks}) == 1, what
        assert ranks[0][what]
    sums = [world * 10 * i + world * (world - 1) // 2 for i in range(5)]
    assert [rank["sums"] for rank in ranks] == [[*sums, (1 << world) - 1]] * world
    return ranks


def run(argv: list[str], env: dict[str, str] | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Runs a launcher to its end, which must be a good one."""
    done = subprocess.run(
        argv,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
        **settings,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Launcher:
    """`arx run` on h0 of a lab, with an rsh that enters the other hosts."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.rsh = str(lab.rsh(folder))

    def command(self, *args: object) -> list[str]:
        return [*self.lab.enter("h0"), *ARX, "run", "--rsh", self.rsh, *map(str, args)]

    def __call__(self, *args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": WATCHDOG, "cwd": self.folder}
        return subprocess.run(
            self.command(*args), env=os.environ | (env or {}), stdin=subprocess.DEVNULL, check=False, **settings
        )

    def start(self, *args: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
        )
