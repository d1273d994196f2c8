"""How a collective is timed: the same for every library, so nothing here knows one.

    barriers for a while: of four ranks that have just started three may share a core, and one have another to itself
    check the values once
    warm up; rank 0 estimates how many calls fit into the time given, and all ranks take its word
    a quarter as many calls untimed: processes that have just started do not lie as the scheduler will have them
    for each call: (above 64 KiB: barrier;) read the clock, call, read the clock
    the time of a call is that of its slowest rank; the result is the median, and the minimum, over all calls
    and, as other benchmarks report it, the mean: what all calls took the slowest rank, divided by their number

Segments of TCP are counted meanwhile, over all processes that see the same network: a library that is told to use TCP
may quietly do something else.

Without a barrier the small calls follow one another as they do in a loop of a program; its cost would exceed theirs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

APART = 64 << 10  # bytes; above this a barrier stands before each call
SETTLE = 0.3  # seconds
WARM_UP = 5  # calls
FEWEST, MOST = 10, 20_000  # calls that are timed


@dataclass(frozen=True)
class Plan:
    """What the ranks of one launch are to measure; travels to them as JSON."""

    collective: str  # a module of this package
    sizes: list[int]  # bytes
    seconds: float  # for each size and form
    dtype: str
    op: str
    forms: list[str]  # of arx; for the others all are tried, and the fastest counts
    timeout: float  # after so many seconds a rank ends itself


class Form(NamedTuple):
    """One way to say the call: `call` reads `x` and leaves what it computes in `result`, which may be `x`."""

    name: str
    x: NDArray[Any]
    result: NDArray[Any]
    call: Callable[[], object]


class Backend(Protocol):
    """What a library must offer beside its collectives, which are methods called like the modules of this package."""

    rank: int
    size: int

    def barrier(self) -> object: ...
    def from_first(self, number: int) -> int: ...  # rank 0's
    def slowest(self, times: NDArray[np.float64]) -> NDArray[np.float64]: ...  # maximum over ranks, element by element
    def close(self) -> object: ...


@dataclass(frozen=True)
class Case:
    """One form at one size."""

    form: str
    call: Callable[[], object]
    check: Callable[[], None]  # makes one call and raises if the result is wrong
    refill: Callable[[], None]
    period: int  # calls after which the arrays must be filled anew, for their values would overflow


def settle(backend: Backend) -> None:
    """Do something together until the system has settled which ranks share which cores."""
    end = time.perf_counter() + SETTLE
    while backend.from_first(int(time.perf_counter() < end)):
        for _ in range(100):
            backend.barrier()


def measure(backend: Backend, case: Case, nbytes: int, seconds: float) -> dict[str, Any]:
    case.check()
    case.refill()
    for _ in range(WARM_UP):
        case.call()
    calls = backend.from_first(_calls(backend, case, seconds))
    case.refill()
    for k in range(calls // 4):
        if k % case.period == case.period - 1:
            case.refill()
        case.call()
    segments = _segments()
    own = _timed(backend, case, calls, nbytes > APART)
    segments = _segments() - segments
    times = backend.slowest(np.array(own, np.float64)) / 1e3
    median, least = round(float(np.median(times)), 3), round(float(times.min()), 3)
    mean = round(float(backend.slowest(np.array([sum(own)], np.float64))[0]) / 1e3 / calls, 3)
    sample = {"form": case.form, "bytes": nbytes, "median_us": median, "min_us": least, "mean_us": mean}
    return sample | {"calls": calls, "segments": round(segments / calls, 1)}


def _segments() -> int:
    """How many segments of TCP this host has sent; 0 where that cannot be known."""
    try:
        with open("/proc/net/snmp") as file:
            names, values = (line.split() for line in file if line.startswith("Tcp:"))
    except (OSError, ValueError):
        return 0
    return int(values[names.index("OutSegs")])


def _calls(backend: Backend, case: Case, seconds: float) -> int:
    backend.barrier()
    times = []
    for _ in range(WARM_UP):
        began = time.perf_counter()
        case.call()
        times.append(time.perf_counter() - began)
    return int(max(FEWEST, min(MOST, seconds / statistics.median(times))))


def _timed(backend: Backend, case: Case, calls: int, apart: bool) -> list[int]:
    """Returns this rank's nanoseconds, call by call."""
    call, barrier, clock = case.call, backend.barrier, time.perf_counter_ns
    times = [0] * calls
    backend.barrier()
    for first in range(0, calls, case.period):
        case.refill()
        for k in range(first, min(first + case.period, calls)):
            if apart:
                barrier()
            began = clock()
            call()
            times[k] = clock() - began
    return times
