"""What the tests of faults over hosts share: calls, ranks that make them, and what all of them must say in the end."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
from processes import End, Fault, fault
from rankside import check_usable

import arx

WATCHDOG = 150  # seconds; ends a scene that hangs
SITES = ["4", "h0 h1 h0 h1", "h1 h0 h0 h2"]
LARGE = 4 << 20  # elements of float32: 16 MiB
CALLS = {
    "large": lambda: arx.all_reduce(np.full(LARGE, arx.rank(), np.float32)),
    "small": lambda: arx.all_reduce(np.full(4, arx.rank(), np.float32)),
    "broadcast": lambda: arx.broadcast(np.full(4, arx.rank(), np.float32), 3),
    "barrier": arx.barrier,
}


def joined(say: Any) -> arx.Group:
    """A rank of a group that works."""
    world = arx.init(timeout=300)
    check_usable()
    say("joined")
    return world


def until_fault(kind: str) -> tuple[Fault, ...]:
    """The fault that ends so many calls, and what comes after it."""
    first = None
    while not isinstance(first, Fault):
        first = fault(CALLS[kind])
    return first, fault(CALLS[kind]), fault(arx.barrier)


def calls_without_end(say: Any, kind: str) -> tuple[Fault, ...]:
    joined(say)
    return until_fault(kind)


def calls_until_told(say: Any) -> str:
    """Calls until every rank has been sent SIGUSR1."""
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    joined(say)
    over = np.zeros(1, np.int32)
    while not over[0]:
        check_usable()
        over[0] = len(told) > 0
        arx.all_reduce(over, "min")
    return "undisturbed"


def assert_all(ends: list[End], kind: str, blamed: tuple[int, ...], *words: str, case: str = "") -> None:
    """Every rank raised that, in every call from then on."""
    for end in ends:
        assert end.code == 0, f"{case}: {end}"
        for error in end.result:
            assert isinstance(error, Fault), f"{case}: {end}"
            assert (error.kind, error.ranks) == (kind, blamed), f"{case}: {error}"
            for word in words:
                assert word in error.text, f"{case}: {error}"
