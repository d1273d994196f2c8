"""`arx tune`: measures the network between the hosts of a job carefully, and keeps what it found.

    arx run --hosts h0:2,h1:2 -m arx tune

Runs as a program of the job, on all of its ranks. A group measures the network by itself when it forms, in a few tens
of milliseconds; this takes longer, compares predictions with times, and writes the numbers where `init()` on this host,
as rank 0 of any job, finds them and does not measure again. Delete the file, or set `ARX_TUNE`, to undo that.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

import arx
from arx._world import tune_file

SIZES = (8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes
_SECONDS = 0.2  # for each size and algorithm
_BEST = 4  # algorithms that are tried at each size


def main(rounds: int, keep: bool) -> int:
    """Tunes the job that this process is a rank of; returns the exit code."""
    with arx.init() as world:
        say = print if world.rank == 0 else _nothing
        found = world._survey(rounds)
        if found is None:
            say(
                "arx tune: all ranks are on one host, where nothing is predicted. Start it on several:", file=sys.stderr
            )
            say("    arx run --hosts h0:1,h1:1 -m arx tune", file=sys.stderr)
            return 2
        latency, message, send, combine, rooted = found
        say(f"{world.size} ranks on {world.num_nodes} hosts")
        say(f"latency {latency * 1e6:.1f} us, {message * 1e6:.1f} us a message, {8e-9 / send:.3f} Gb/s, ", end="")
        say(f"combining {1e-9 / combine:.1f} GB/s")
        _compare(say)
        units = {
            "alpha_ns": latency * 1e9,
            "overhead_ns": message * 1e9,
            "beta_fs": send * 1e15,
            "gamma_fs": combine * 1e15,
            "rooted_pct": rooted * 100,
        }
        line = ",".join(f"{name}={round(value)}" for name, value in units.items())
        say(f"ARX_TUNE={line}")
        if keep and world.rank == 0:
            os.makedirs(os.path.dirname(tune_file()), exist_ok=True)
            with open(tune_file(), "w", encoding="ascii") as file:
                file.write(line + "\n")
            say(f"written to {tune_file()}")
    return 0


def _nothing(*_: object, **__: object) -> None:
    pass


def _compare(say: Callable[..., None]) -> None:
    """Prints predicted and measured times of the algorithms that are predicted to be fastest."""
    say(f"{'bytes':>10}  {'predicted':>12}  {'measured':>12}  algorithm (us; * fastest)")
    for nbytes in SIZES:
        x = np.ones(max(1, nbytes // 4), np.float32)
        best = dict(list(arx.explain(x).candidates.items())[:_BEST])
        measured = {name: _time(x, name, predicted) for name, predicted in best.items()}
        fastest = min(measured, key=lambda name: measured[name])
        for name, predicted in best.items():
            mark = "*" if name == fastest else ""
            say(f"{nbytes:>10}  {predicted * 1e6:>12.1f}  {measured[name] * 1e6:>12.1f}  {name}{mark}")


def _time(x: np.ndarray, algo: str, predicted: float) -> float:
    """Seconds of a call on the slowest rank, the median of several."""
    calls = int(max(5, min(500, _SECONDS / max(predicted, 1e-6))))
    times: Sequence[float] = [_once(x, algo) for _ in range(calls)]
    slowest = arx.all_reduce(np.array(times), "max")
    return float(statistics.median(slowest.tolist()))


def _once(x: np.ndarray, algo: str) -> float:
    began = time.perf_counter()
    arx.all_reduce(x, "max", algo=algo)
    return time.perf_counter() - began
