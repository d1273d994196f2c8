"""Forming a job when ranks die, are missing, come twice or disagree, with strangers at the door and few descriptors."""

import contextlib
import os
import re
import resource
import secrets
import signal
import socket
import time
from pathlib import Path

import pytest
from processes import Fault, Job, fault, stage
from rankside import check_usable

import arx


def joins(say, limit):
    """Join, be of use, leave."""
    say("started")
    error = fault(arx.init, timeout=limit)
    if isinstance(error, Fault):
        return error
    say("joined")
    check_usable()
    arx.barrier()
    arx.shutdown()
    return f"rank {os.environ['ARX_RANK']} of {os.environ['ARX_WORLD_SIZE']}"


def knocked(job, count):
    """Return once rank 0 has opened its socket and ``count`` others have connected to it."""
    while True:
        sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if f"-{job}-" in line]
        if len(sockets) == 1 + count:
            return sockets[0][-1].replace("@", "\0", 1)
        time.sleep(0.002)


# A rank that is missing.


def incomplete(places, world):
    with Job(world, joins, 0.7, places=places) as job:
        return job.id, job.ends()


@pytest.mark.parametrize(("places", "missing"), [([0, 1], "rank 2 "), ([0, 2], "ranks 1 and 3 "), ([1, 2], "rank 0 ")])
def test_a_rank_that_does_not_come_is_named_by_all(places, missing):
    job, ends = stage(incomplete, places, 4 if "and" in missing else 3)
    for end in ends:
        assert end.result.kind == "RendezvousError", end
        assert missing in end.result.text
        assert job in end.result.text
        assert "0.70 s" in end.result.text


# Ranks that die or are interrupted while the others wait in init.


def leaving_early(places, victim, number):
    """The last rank is missing; ``victim`` gets a signal when all the others have knocked."""
    with Job(4, joins, 300, places=places) as job:
        knocked(job.id, 2)
        time.sleep(0.05)
        at = job.signal(victim, number)
        return at, job.ends()


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_killed_while_the_job_forms_is_named_by_all(victim):
    at, ends = stage(leaving_early, [0, 1, 2], victim, signal.SIGKILL)
    assert ends.pop(victim).code == -signal.SIGKILL
    for end in ends:
        assert (end.result.kind, end.result.ranks) == ("PeerLostError", (victim,)), end
        assert f"rank {victim}" in end.result.text
    print(f"kill of rank {victim} known after {(max(end.result.at for end in ends) - at) * 1e3:.1f} ms")


@pytest.mark.parametrize("victim", [1, 0])
def test_ctrl_c_leaves_init(victim):
    at, ends = stage(leaving_early, [0, 1, 2], victim, signal.SIGINT)
    interrupted = ends.pop(victim)
    assert interrupted.result.kind == "KeyboardInterrupt", interrupted
    for end in ends:
        assert end.result.kind in ("AbortedError", "RendezvousError"), end
        assert f"rank {victim} was interrupted" in end.result.text
        assert f"rank {victim}" in end.result.text
    print(f"Ctrl-C on rank {victim} took {(interrupted.result.at - at) * 1e3:.1f} ms")


def handled(say):
    """A handler that returns lets init go on."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    say("started")
    arx.init(timeout=300)
    check_usable()
    return len(seen)


def late_third():
    with Job(3, handled, places=[0, 1]) as early:
        knocked(early.id, 1)
        for rank in (0, 1):
            early.signal(rank, signal.SIGUSR1)
        time.sleep(0.1)
        with Job(3, handled, places=[2], job_id=early.id) as late:
            return early.ends() + late.ends()


def test_signals_that_are_handled_do_not_disturb_init():
    assert [(end.result, end.code) for end in stage(late_third)] == [(1, 0), (1, 0), (0, 0)]


# Ranks that come twice, and ranks that were told different things.


def twice(number, formed):
    """Rank ``number`` comes a second time, while the job waits for rank 2 or when it has formed."""
    with Job(3, holds, places=[0, 1]) as job, contextlib.ExitStack() as later:
        knocked(job.id, 1)
        others = [job]
        if formed:
            others.append(later.enter_context(Job(3, holds, places=[2], job_id=job.id)))
            job.hear("joined")
        double = later.enter_context(Job(3, joins, 5, places=[number], job_id=job.id)).ends()[0]
        if not formed:
            others.append(later.enter_context(Job(3, holds, places=[2], job_id=job.id)))
        for other in others:
            other.hear("joined")
            for rank in range(len(other.ranks)):
                other.signal(rank, signal.SIGUSR1)
        return double, [end for other in others for end in other.ends()], job.ranks[number].pid


def holds(say):
    """A rank that goes on when it is told to."""
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    arx.init(timeout=300)
    say("joined")
    while not told:
        time.sleep(0.002)
    check_usable()
    arx.barrier()
    return "undisturbed"


@pytest.mark.parametrize("formed", [False, True], ids=["forming", "formed"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_comes_twice_is_refused_and_the_job_goes_on(number, formed):
    double, ends, pid = stage(twice, number, formed)
    assert double.result.kind == "InitError", double
    assert f"rank {number} of job" in double.result.text
    assert "already taken" in double.result.text
    if formed and number:
        assert str(pid) in double.result.text
    assert [(end.result, end.code) for end in ends] == [("undisturbed", 0)] * 3


def told_differently():
    with Job(2, joins, 5, places=[0]) as two, Job(3, joins, 5, places=[1], job_id=two.id) as three:
        return two.ends() + three.ends()


def test_different_world_sizes_are_an_error_that_shows_both():
    for end in stage(told_differently):
        assert isinstance(end.result, Fault)
        assert end.result.kind in ("RendezvousError", "InitError")
        assert re.search(r"rank 0 was told 2.*rank 1 was told 3", end.result.text), end


# Several jobs, and one job again and again.


def side_by_side(count):
    with contextlib.ExitStack() as running:
        jobs = [running.enter_context(Job(2 + k % 3, joins, 60)) for k in range(count)]
        return [[end.result for end in job.ends()] for job in jobs]


def test_jobs_of_one_host_do_not_meet():
    for k, results in enumerate(stage(side_by_side, 6)):
        assert results == [f"rank {rank} of {2 + k % 3}" for rank in range(2 + k % 3)]


def again_and_again(times):
    """All ranks of a job are killed, and at once it is started anew under the same name."""
    job_id, results = f"nightly-{secrets.token_hex(4)}", []
    for k in range(times):
        with Job(4, holds, job_id=job_id) as job:
            job.hear("joined")
            for rank in range(4):
                job.signal(rank, signal.SIGKILL)
            job.ends()
        p = 2 + k % 3
        with Job(p, joins, 60, job_id=job_id) as job:
            results.append([end.result for end in job.ends()] == [f"rank {rank} of {p}" for rank in range(p)])
    return results


def test_a_killed_job_can_be_started_again_at_once_under_its_name():
    assert stage(again_and_again, 20) == [True] * 20


# Strangers at the door.


def disturbed():
    """While a job forms somebody else connects and says nothing, talks nonsense, or hangs up."""
    with Job(3, joins, 60, places=[0]) as zero:
        name = knocked(zero.id, 0)
        strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
        for k, stranger in enumerate(strangers):
            stranger.connect(name)
            with contextlib.suppress(BrokenPipeError):
                stranger.send((b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"arx\0\0\0\x01\0")[k % 3]) if k % 4 else None
            if k % 2:
                stranger.close()
        with Job(3, joins, 60, places=[1, 2], job_id=zero.id) as others:
            ends = zero.ends() + others.ends()
        for stranger in strangers:
            stranger.close()
        return ends


def test_strangers_do_not_keep_a_job_from_forming():
    assert [end.result for end in stage(disturbed)] == [f"rank {rank} of 3" for rank in range(3)]


# Many ranks, few descriptors.


def modest(say, files, limit):
    """A rank that may open few files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    return joins(say, limit)


def many(world, files, limit):
    # This process itself holds two descriptors for each rank.
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    with Job(world, modest, files, limit) as job:
        return [end.result for end in job.ends()]


@pytest.mark.parametrize(("world", "files"), [(9, 64), (128, 256)])
def test_many_ranks_with_few_descriptors(world, files):
    assert stage(many, world, files, 100, timeout=120) == [f"rank {rank} of {world}" for rank in range(world)]


def test_too_few_descriptors_are_an_error_that_says_so():
    for error in stage(many, 70, 64, 10):
        assert error.kind == "InitError", error
        assert "descriptors" in error.text
        assert "64" in error.text
