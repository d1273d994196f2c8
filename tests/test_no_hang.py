"""No call outlives its peers: ranks that are killed, that end, that leave, at any moment.

Latencies are printed, never asserted: the time-outs of the groups here are far beyond the watchdog, so that a rank
which noticed nothing fails the test anyway.
"""

import contextlib
import os
import random
import signal
import sys
import time

import numpy as np
import pytest
from processes import Fault, Job, fault, stage
from rankside import check_usable

import arx
from arx.testing import run_ranks

LARGE = 4 << 20  # elements of float32: 16 MiB


def endless(kind, folder=None):
    """One call after another."""
    x = np.full(LARGE if kind == "large" else 4, arx.rank(), np.float32)
    while True:
        if kind == "idle":
            time.sleep(1)
        if kind == "between":
            while not (folder / "call").exists():
                time.sleep(0.002)
        if kind in ("large", "small"):
            arx.all_reduce(x)
        else:
            arx.barrier()


def survive(say, kind, victims, folder):
    """What a rank sees of the death of others; that it rests then; that it can go on with those who are left."""
    world = arx.init(timeout=300)
    old, others = world.rank, [rank for rank in range(world.size) if rank not in victims]
    check_usable()
    say("ready")
    first = fault(endless, kind, folder)
    again = [fault(arx.barrier), fault(arx.all_reduce, np.ones(3))]
    before = time.process_time()
    time.sleep(0.4)
    busy = time.process_time() - before
    arx.shutdown()
    arx.init(rank=others.index(old), world_size=len(others), job_id=os.environ["ARX_JOB_ID"] + "-next", timeout=60)
    check_usable()
    return first, again, busy


def killing(kind, parties, folder):
    ends = []
    for k, victims in enumerate(parties):
        with Job(4, survive, kind, victims, folder / str(k)) as job:
            job.hear("ready")
            time.sleep(0.05)
            (folder / str(k)).mkdir()
            at = [job.signal(victim, signal.SIGKILL) for victim in victims][-1]
            job.ends(victims)
            (folder / str(k) / "call").touch()
            ends.append((at, job.ends([rank for rank in range(4) if rank not in victims])))
    return ends


@pytest.mark.parametrize("kind", ["large", "small", "barrier", "between", "idle"])
def test_every_survivor_names_the_killed(kind, tmp_path):
    parties = [(2,), (0,), (1, 2), (3, 0)]
    for victims, (at, ends) in zip(parties, stage(killing, kind, parties, tmp_path), strict=True):
        assert [end.code for end in ends] == [0] * len(ends)
        for first, again, busy in (end.result for end in ends):
            assert first.kind == "PeerLostError", first
            assert set(first.ranks) <= set(victims)
            assert first.text.startswith(
                f"rank{'s' * (len(first.ranks) > 1)} {' and '.join(map(str, first.ranks))} lost"
            )
            assert [(later.kind, later.ranks) for later in again] == [("PeerLostError", first.ranks)] * 2
            assert busy < 0.02, "5 % of a core after the failure"
        assert len({end.result[0].ranks for end in ends}) == 1, f"survivors name different ranks: {ends}"
        if kind != "idle":
            latency = max(end.result[0].at for end in ends) - at
            print(f"{kind}: kill of {victims} was known to all after {latency * 1e3:.1f} ms")


def calls_until_killed(say, kind, go):
    while not go.exists():
        time.sleep(0.001)
    error = fault(arx.init, timeout=1)
    if not isinstance(error, Fault):
        say("joined")
        error = fault(endless, kind)
    return error


def kill_one(dice, job, go):
    """Kill a rank while the job forms, or in its calls; which one, and the time just before."""
    victim, in_init = dice.randrange(len(job.ranks)), dice.random() < 0.3
    moment = dice.uniform(0, 0.06 if in_init else 0.02)
    go.touch()
    if not in_init:
        job.hear("joined")
    time.sleep(moment)
    at = job.signal(victim, signal.SIGKILL)
    return (
        victim,
        f"rank {victim} killed {moment * 1e3:.1f} ms after {'the start' if in_init else 'all had joined'}",
        at,
    )


def kills(seed, jobs, folder):
    """Jobs of which one rank is killed at a random moment; five at a time, which keep each other from their cores."""
    dice = random.Random(seed)
    stories = []
    for first in range(0, jobs, 5):
        with contextlib.ExitStack() as running:
            started = []
            for k in range(first, first + 5):
                go, p, kind = folder / str(k), dice.randint(2, 5), dice.choice(["large", "small", "barrier"])
                job = running.enter_context(Job(p, calls_until_killed, kind, go))
                victim, story, at = kill_one(dice, job, go)
                started.append((job, victim, f"seed {seed}, job {k}, {p} ranks, {kind}: {story}", at))
            stories += [(story, victim, at, job.ends(), job.ranks[victim].said) for job, victim, story, at in started]
    return stories


def test_a_hundred_kills_at_random_moments(tmp_path):
    latencies, early = [], 0
    for story, victim, at, ends, said in stage(kills, 29, 100, tmp_path):
        assert ends.pop(victim).code == -signal.SIGKILL, story
        for end in ends:
            assert end.code == 0, f"{story}: {end}"
            if end.result.kind == "RendezvousError" and not said:
                # The job had not formed, and this rank came to the meeting when it was over.
                assert f"rank {victim}" in end.result.text or "rank 0" in end.result.text, f"{story}: {end}"
                early += 1
            else:
                assert (end.result.kind, end.result.ranks) == ("PeerLostError", (victim,)), f"{story}: {end}"
                latencies.append(end.result.at - at)
    assert len(latencies) > early
    latencies.sort()
    print(f"{len(latencies)} times PeerLostError, after {latencies[len(latencies) // 2] * 1e3:.1f} ms in the median,")
    print(
        f"{latencies[-1] * 1e3:.1f} ms at most; {early} times RendezvousError, of a rank that came too late to be told"
    )


ENDINGS = {
    "returns": lambda: None,
    "exits": lambda: sys.exit(3),
    "raises": lambda: {}["a mistake"],
    "vanishes": lambda: os._exit(4),
    "shuts down and sleeps": lambda: (arx.shutdown(), time.sleep(600)),
}


def ten_and_eleven(say, ending):
    """Rank 0 makes ten calls and ends; the others want eleven."""
    rank = arx.init(timeout=300).rank
    for _ in range(10):
        check_usable()
    if rank == 0:
        ENDINGS[ending]()
        return None
    return fault(arx.all_reduce, np.ones(3)), fault(arx.barrier)


def leaving(ending):
    with Job(3, ten_and_eleven, ending) as job:
        return job.ends([1, 2])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_that_ends_is_named_at_once(ending):
    for end in stage(leaving, ending):
        first, again = end.result
        assert end.code == 0
        assert (first.kind, first.ranks) == ("PeerLostError", (0,)), first
        assert (again.kind, again.ranks) == ("PeerLostError", (0,)), again
        assert "rank 0" in first.text
        assert "#21" in first.text, "check_usable makes two calls"
        assert ("gone" if ending == "vanishes" else "finished") in first.text


def one_call_more():
    """As programs do it: rank 0 returns from main, the others want more."""
    rank = arx.init(timeout=300).rank
    for _ in range(10):
        arx.barrier()
    return fault(arx.barrier) if rank else None


def test_uneven_numbers_of_calls_end_cleanly_everywhere():
    zero, *others = run_ranks(one_call_more, 3)
    assert zero is None
    assert [(error.kind, error.ranks) for error in others] == [("PeerLostError", (0,))] * 2


def late(say):
    """Rank 0 leaves in a call that the others had completed with it: that is no failure of theirs."""
    rank = arx.init(timeout=300).rank
    for _ in range(5):
        x = np.full(LARGE, float(rank))
        arx.all_reduce(x)
        assert x[0] == x[-1] == 3.0
    return rank


def even():
    with Job(3, late) as job:
        return job.ends()


def test_ranks_that_leave_after_the_same_number_of_calls_do_not_disturb_each_other():
    assert [(end.result, end.code) for end in stage(even)] == [(0, 0), (1, 0), (2, 0)]
