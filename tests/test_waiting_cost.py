"""Waiting leaves the cores to others, and an idle group costs nothing. Processor time, not time by the clock."""

import contextlib
import time
from pathlib import Path

import numpy as np
from processes import Job, fault, stage

import arx

LONG = 20  # seconds


def waits(call):
    """Rank 0 comes so late; the processor time of the call on the others."""
    if arx.rank() == 0:
        time.sleep(LONG)
    before = time.process_time()
    call()
    return time.process_time() - before if arx.rank() else 0.0


def in_barrier(say):
    arx.init(timeout=300)
    return waits(arx.barrier)


def in_all_reduce(say):
    arx.init(timeout=300)
    x = np.ones(4 << 20, np.float32)
    arx.all_reduce(x)
    return waits(lambda: arx.all_reduce(x))


def in_broadcast(say):
    arx.init(timeout=300)
    x = np.ones(3)
    return waits(lambda: arx.broadcast(x))


def does_nothing(say):
    arx.init(timeout=300)
    arx.barrier()
    before = time.process_time()
    time.sleep(LONG)
    spent = time.process_time() - before
    arx.barrier()
    return spent


def in_init(say):
    before = time.process_time()
    error = fault(arx.init, timeout=LONG)
    assert error.kind == "RendezvousError", error
    return time.process_time() - before


def all_at_once():
    """Each kind of waiting in a job of its own, all of them at the same time."""
    with contextlib.ExitStack() as running:
        jobs = [
            *(running.enter_context(Job(3, wait)) for wait in (in_barrier, in_all_reduce, in_broadcast, does_nothing)),
            running.enter_context(Job(3, in_init, places=[0, 1])),
            running.enter_context(Job(3, in_init, places=[1, 2])),
        ]
        return [[end.result for end in job.ends()] for job in jobs]


def test_twenty_seconds_of_waiting():
    barrier, all_reduce, broadcast, nothing, hub, knocking = stage(all_at_once)
    for spent in (barrier, all_reduce, broadcast, hub, knocking):
        assert max(spent) < 1, "seconds of processor time in 20 s"
    assert max(nothing) < 0.05
    table = {"barrier": barrier, "all_reduce": all_reduce, "broadcast": broadcast, "idle": nothing, "init": hub}
    for name, spent in (table | {"init without rank 0": knocking}).items():
        print(f"{name}: {max(spent) * 1e3:.0f} ms of processor time in {LONG} s")


def threads(say):
    """Names of the threads that arx starts, and whether any of them runs while nothing is asked of it."""
    before = set(Path("/proc/self/task").iterdir())
    arx.init(timeout=60)
    arx.all_reduce(np.ones(1 << 20))
    started = [(task / "comm").read_text().strip() for task in set(Path("/proc/self/task").iterdir()) - before]
    arx.barrier()
    arx.shutdown()
    return started, set(Path("/proc/self/task").iterdir()) == before


def helpers():
    with Job(2, threads) as job:
        return [end.result for end in job.ends()]


def test_one_helper_thread_until_shutdown():
    assert stage(helpers) == [(["arx-watcher"], True)] * 2
