"""Ctrl-C and other signals while a rank waits."""

import signal
import time

import numpy as np
import pytest
from processes import Job, fault, stage
from rankside import check_usable

import arx

LARGE = 4 << 20  # elements of float32: 16 MiB
WAITS = {
    "barrier": arx.barrier,
    "small": lambda: arx.all_reduce(np.ones(3)),
    "large": lambda: arx.all_reduce(np.ones(LARGE, np.float32)),
    "broadcast": lambda: arx.broadcast(np.ones(3), 0),
}


class Mine(Exception):
    """What a handler raises."""


def waits_for_rank_0(say, kind, on_signal):
    """Rank 0 stays away until it is sent SIGUSR1; the others wait, and rank 1 is sent SIGINT."""
    rank = arx.init(timeout=300).rank
    check_usable()
    seen = []
    signal.signal(signal.SIGINT, (lambda *_: on_signal(seen)) if on_signal else signal.default_int_handler)
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("come"))
        say("waits")
        while not seen:
            time.sleep(0.002)
    else:
        say("waits")
    result = fault(WAITS[kind])
    again = fault(WAITS[kind])
    return result, again, seen


def interrupting(kinds, on_signal, times):
    """Rank 1 is interrupted so often while all but rank 0 wait, which comes only then."""
    outcomes = []
    for kind in kinds:
        with Job(3, waits_for_rank_0, kind, on_signal) as job:
            job.hear("waits")
            job.asleep([1, 2])
            for _ in range(times):
                at = job.signal(1, signal.SIGINT)
                time.sleep(0.02)
            if on_signal is not returns:
                job.ends([1, 2])
            job.signal(0, signal.SIGUSR1)
            outcomes.append((at, job.ends()))
    return outcomes


def returns(seen):
    seen.append("signal")


def raises(seen):
    seen.append("signal")
    raise Mine("no more")


@pytest.mark.parametrize(
    ("on_signal", "kind"), [(None, "KeyboardInterrupt"), (raises, "Mine")], ids=["ctrl-c", "handler"]
)
def test_an_exception_of_a_signal_handler_ends_the_wait(on_signal, kind):
    for name, (at, ends) in zip(WAITS, stage(interrupting, list(WAITS), on_signal, 1), strict=True):
        assert [end.code for end in ends] == [0, 0, 0]
        zero, one, two = (end.result for end in ends)
        assert one[0].kind == kind, f"{name}: {one}"
        # Rank 1 had arrived before it left: where that was all that rank 0 needed of it, its first call succeeds.
        for error in (two[0], zero[1]):
            assert error.kind == "AbortedError", f"{name}: {error}"
            assert "rank 1 was interrupted" in error.text
        assert [again.kind for _, again, _ in (zero, one, two)] == ["AbortedError"] * 3
        assert "interrupted" in one[1].text
        latencies = [(error[0].at - at) * 1e3 for error in (one, two)]
        print(f"{name}: {kind} after {latencies[0]:.1f} ms, AbortedError on another rank after {latencies[1]:.1f} ms")


def test_a_handler_that_returns_lets_the_call_go_on():
    for name, (_, ends) in zip(WAITS, stage(interrupting, list(WAITS), returns, 3), strict=True):
        for rank, (result, again, seen) in enumerate(end.result for end in ends):
            for value in (result, again):
                assert name == "barrier" or (value == (1 if name == "broadcast" else 3)).all(), f"{name}: {value}"
            assert bool(seen) == (rank < 2), f"{name}: the handler of rank {rank} saw {seen}"


def computes_and_calls(say, rounds):
    """Calls under a rain of signals: whatever system call they hit, the values are right."""
    arx.init(timeout=300)
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for k in range(rounds):
        x = np.full((3, 5000, 200_000)[k % 3], float(arx.rank() + k))
        arx.all_reduce(x)
        assert (x == 3 + 3 * k).all(), k
    signal.setitimer(signal.ITIMER_REAL, 0)
    return len(hits)


def rain():
    with Job(3, computes_and_calls, 150) as job:
        return job.ends()


def test_values_are_right_under_a_rain_of_signals():
    for end in stage(rain):
        assert end.code == 0, end
        assert end.result > 0, "no signal came"
