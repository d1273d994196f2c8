"""A peer that lives but does not come: how a call ends then, what waiting costs, and that a pause is forgiven."""

import contextlib
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
    "barrier": "barrier()",
}


def call(kind, number):
    x = np.full((4, LARGE // 4 if kind == "large" else 1), arx.rank() + number, np.float32)
    if kind in ("large", "small"):
        arx.all_reduce(x, "max")
        assert (x == arx.size() - 1 + number).all()
    elif kind == "broadcast":
        arx.broadcast(x, 2)
        assert (x == 2 + number).all()
    else:
        arx.barrier()


def calls_until_silence(say, kind, limit):
    """The fault, the number of the call in which it came, and which part of a core that call has used."""
    arx.init(timeout=limit)
    for number in range(1, 1 << 60):
        if number == 5:
            say("running")
        clocks = time.monotonic(), time.process_time()
        error = fault(call, kind, number)
        if isinstance(error, Fault):
            wall, busy = time.monotonic() - clocks[0], time.process_time() - clocks[1]
            return error, number, busy / wall, [fault(arx.barrier), fault(arx.all_reduce, np.ones(3))]


def silence(kinds, limit):
    """Rank 2 of each job is stopped in its calls; when all have given up it wakes."""
    with contextlib.ExitStack() as running:
        jobs = [running.enter_context(Job(4, calls_until_silence, kind, limit)) for kind in kinds]
        for job in jobs:
            job.hear("running")
            job.signal(2, signal.SIGSTOP)
        others = [job.ends([0, 1, 3]) for job in jobs]
        for job in jobs:
            job.signal(2, signal.SIGCONT)
        return [(ends, *job.ends([2])) for ends, job in zip(others, jobs, strict=True)]


def test_a_stopped_rank_is_named_by_all_after_the_timeout():
    for kind, (others, late) in zip(DESCRIPTIONS, stage(silence, list(DESCRIPTIONS), 1.5), strict=True):
        for end in others:
            error, number, busy, again = end.result
            assert (error.kind, error.ranks) == ("CollectiveTimeout", (2,)), f"{kind}: {end}"
            for words in ("rank 2", f"#{number} {DESCRIPTIONS[kind]}"):
                assert words in error.text
            assert busy < 0.05
            assert [(later.kind, later.ranks) for later in again] == [("CollectiveTimeout", (2,))] * 2
        assert any("1.50 s" in end.result[0].text for end in others), "whoever gave up says how long it waited"
        # Those who gave up have closed the group: the sleeper learns that in its next call at the latest.
        assert late.result[0].kind == "CollectiveTimeout", late
        assert "gave up waiting for rank 2" in late.result[0].text


def pausing(kinds):
    """Rank 2 of each job is stopped for two seconds, of which the group's time-out knows nothing."""
    with contextlib.ExitStack() as running:
        jobs = [running.enter_context(Job(4, many_calls, kind)) for kind in kinds]
        for job in jobs:
            job.hear("running")
            job.signal(2, signal.SIGSTOP)
            job.stopped(2)
        time.sleep(2)
        for job in jobs:
            job.signal(2, signal.SIGCONT)
        return [job.ends() for job in jobs]


def many_calls(say, kind):
    arx.init(timeout=300)
    for number in range(15 if kind == "large" else 3000):
        if number == 3:
            say("running")
        call(kind, number)
    check_usable()
    return "right"


def test_a_pause_shorter_than_the_timeout_changes_nothing():
    for kind, ends in zip(DESCRIPTIONS, stage(pausing, list(DESCRIPTIONS)), strict=True):
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
