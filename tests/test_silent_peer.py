"""A peer that lives but does not come: how a call ends then, what waiting costs, and that a pause is forgiven."""

import contextlib
import random
import signal
import time

import numpy as np
from processes import Fault, Job, fault, stage
from rankside import check_usable

import arx

LARGE = 4 << 20  # elements of float32: 16 MiB
DESCRIPTIONS = {
    "large": "all_reduce(op=max, dtype=float32, shape=(4, 1048576))",
    "small": "all_reduce(op=max, dtype=float32, shape=(4, 1))",
    "broadcast": "broadcast(root=2, dtype=float32, shape=(4, 1))",
    "large from 0": "broadcast(root=0, dtype=float32, shape=(4, 1048576))",
    "large from 2": "broadcast(root=2, dtype=float32, shape=(4, 1048576))",
    "barrier": "barrier()",
}


def call(kind, number, limit):
    x = np.full((4, LARGE // 4 if "large" in kind else 1), arx.rank() + number, np.float32)
    if kind == "barrier":
        arx.barrier(timeout=limit)
    elif kind in ("large", "small"):
        arx.all_reduce(x, "max", timeout=limit)
        assert (x == arx.size() - 1 + number).all()
    else:
        root = 0 if kind == "large from 0" else 2
        arx.broadcast(x, root, timeout=limit)
        assert (x == root + number).all()


def calls_until_silence(say, kind, limit):
    """The fault, the number of the call in which it came, and which part of a core that call has used."""
    arx.init(timeout=300)
    number, error = 0, None
    while not isinstance(error, Fault):
        number += 1
        if number == 5:
            say("running")
        clocks = time.monotonic(), time.process_time()
        error = fault(call, kind, number, limit)
    wall, busy = time.monotonic() - clocks[0], time.process_time() - clocks[1]
    return error, number, busy / wall, [fault(arx.barrier), fault(arx.all_reduce, np.ones(3))]


def stopped_in_its_calls(running, kinds, fn, *args):
    """A job of each kind, the rank 2 of which has been stopped, wherever it was."""
    jobs = []
    for kind in kinds:
        # One after the other: a job that waits leaves the cores to the next.
        jobs.append(running.enter_context(Job(4, fn, kind, *args)))
        jobs[-1].hear("running")
        time.sleep(random.uniform(0, 0.01))
        jobs[-1].signal(2, signal.SIGSTOP)
        jobs[-1].stopped(2)
    return jobs


def silence(kinds, limit):
    """How the others end, and how rank 2 does when it wakes after that."""
    with contextlib.ExitStack() as running:
        jobs = stopped_in_its_calls(running, kinds, calls_until_silence, limit)
        others = [job.ends([0, 1, 3]) for job in jobs]
        for job in jobs:
            job.signal(2, signal.SIGCONT)
        return [(ends, *job.ends([2])) for ends, job in zip(others, jobs, strict=True)]


def test_a_stopped_rank_is_named_by_all_after_the_timeout():
    kinds = [*DESCRIPTIONS] * 2
    for kind, (others, late) in zip(kinds, stage(silence, kinds, 1), strict=True):
        for end in others:
            error, number, busy, again = end.result
            assert (error.kind, error.ranks) == ("CollectiveTimeout", (2,)), f"{kind}: {end}"
            for words in ("rank 2", f"#{number} {DESCRIPTIONS[kind]}"):
                assert words in error.text
            assert busy < 0.05
            assert [(later.kind, later.ranks) for later in again] == [("CollectiveTimeout", (2,))] * 2
        assert any("1.00 s" in end.result[0].text for end in others), "whoever gave up says how long it waited"
        # Those who gave up have closed the group: the sleeper learns that in its next call at the latest.
        assert late.result[0].kind == "CollectiveTimeout", late
        assert "gave up waiting for rank 2" in late.result[0].text


def pausing(kinds):
    """Rank 2 of each job is stopped for two seconds, less than anybody's patience."""
    with contextlib.ExitStack() as running:
        jobs = stopped_in_its_calls(running, kinds, many_calls)
        time.sleep(2)
        for job in jobs:
            job.signal(2, signal.SIGCONT)
        return [job.ends() for job in jobs]


def many_calls(say, kind):
    arx.init(timeout=300)
    for number in range(10 if "large" in kind else 3000):
        if number == 3:
            say("running")
        call(kind, number, 300)
    check_usable()
    return "right"


def test_a_pause_shorter_than_the_timeout_changes_nothing():
    kinds = ["large", "small", "barrier", "large from 2"]
    for kind, ends in zip(kinds, stage(pausing, kinds), strict=True):
        assert [(end.result, end.code) for end in ends] == [("right", 0)] * 4, kind


def busy_elsewhere(say, folder):
    """Rank 0 computes for longer than the others want to wait; the time-out is that of the call."""
    rank = arx.init(timeout=300).rank
    check_usable()
    if rank == 0:
        while not (folder / "over").exists():
            time.sleep(0.01)
        return fault(arx.barrier, timeout=300), None
    waited = time.monotonic()
    error = fault(arx.all_reduce, np.ones((2, 3), np.int16), "min", timeout=0.5, name="weights")
    return error, time.monotonic() - waited


def absence(folder):
    with Job(3, busy_elsewhere, folder) as job:
        others = job.ends([1, 2])
        (folder / "over").touch()
        return [*job.ends([0]), *others]


def test_a_busy_rank_is_named_with_what_it_did_last(tmp_path):
    busy, *others = stage(absence, tmp_path)
    for error, waited in (end.result for end in others):
        assert (error.kind, error.ranks) == ("CollectiveTimeout", (0,))
        assert "#3 all_reduce(op=min, dtype=int16, shape=(2, 3), name='weights')" in error.text
        assert waited > 0.4, "not before its time"
    texts = [end.result[0].text for end in others]
    assert any("0.50 s" in text and "the last call it completed is #2" in text for text in texts), texts
    assert busy.result[0].kind == "CollectiveTimeout"


def one_does_not_come(say):
    arx.init(timeout=60)
    arx.monitored_barrier(timeout=30)
    if arx.rank() == 2:
        say("away")
        time.sleep(60)
    return fault(arx.monitored_barrier, 0.5)


def monitoring():
    with Job(4, one_does_not_come) as job:
        return [end.result for end in job.ends([0, 1, 3])]


def test_a_monitored_barrier_names_who_is_missing():
    for found in stage(monitoring):
        assert found.kind == "CollectiveTimeout"
        assert found.ranks == (2,)
