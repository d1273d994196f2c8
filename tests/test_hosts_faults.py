"""Groups on several hosts, and over TCP on one, whose ranks die or leave: what every rank makes of it.

Latencies are printed, never asserted: the time-outs of the groups here are far beyond the watchdog, so that a rank
which noticed nothing fails the test anyway.
"""

import gc
import os
import random
import signal
import sys
import time

import numpy as np
import pytest
from hostfaults import CALLS, LARGE, SITES, WATCHDOG, assert_all, calls_without_end, joined, until_fault
from hostranks import HostJob, free_port
from processes import Fault, fault, stage
from rankside import check_usable

import arx

# Ranks that are killed


def killing(site, parties):
    """In one job after the other, of a kind of calls each, ranks are killed."""
    stories = []
    for kind, victims in parties:
        with HostJob(site, calls_without_end, kind, port=free_port()) as job:
            job.hear("joined")
            time.sleep(random.uniform(0.02, 0.06))
            at = [job.signal(victim, signal.SIGKILL) for victim in victims][-1]
            stories.append((at, job.ends([rank for rank in range(site.size) if rank not in victims])))
    return stories


@pytest.mark.parametrize("victim", [2, 0])
@pytest.mark.parametrize("where", SITES)
def test_a_killed_rank_is_named_by_all(site, where, victim):
    parties = [(kind, [victim]) for kind in CALLS]
    for (kind, _), (at, ends) in zip(parties, stage(killing, site(where), parties, timeout=WATCHDOG), strict=True):
        words = [f"rank {victim} lost", "gone", "The group is closed"]
        assert_all(ends, "PeerLostError", (victim,), *words, case=kind)
        assert len({end.result[0].text for end in ends}) == 1, "all say the same"
        latency = (max(end.result[0].at for end in ends) - at) * 1e3
        print(f"{kind}: kill of rank {victim} was known to all after {latency:.1f} ms")


@pytest.mark.parametrize("where", SITES)
def test_two_killed_ranks(site, where):
    """Whoever dies later than the verdict about the first is not in it; that all name the same stays true.

    Also where rank 0 dies while it says so, and some have heard it and some have not.
    """
    parties = [("large", (1, 2)), ("small", (3, 0)), ("barrier", (2, 1))]
    for (kind, victims), (_, ends) in zip(parties, stage(killing, site(where), parties, timeout=WATCHDOG), strict=True):
        blamed = {end.result[0].ranks for end in ends}
        assert len(blamed) == 1, ends
        for end in ends:
            assert_all([end], "PeerLostError", end.result[0].ranks, case=kind)
            assert end.result[0].ranks, end
            assert set(end.result[0].ranks) <= set(victims), end


def left_in_the_middle(site, cases):
    """Rank 2 ends by itself, in a way of its own, after so many calls."""
    stories = []
    for ending, kind in cases:
        with HostJob(site, calls_then_ends, kind, ending, port=free_port()) as job:
            stories.append(job.ends([rank for rank in range(site.size) if rank != 2]))
    return stories


ENDINGS = {
    "returns": lambda: None,
    "exits": lambda: sys.exit(3),
    "vanishes": lambda: os._exit(4),
    "shuts down and sleeps": lambda: (arx.shutdown(), time.sleep(600)),
}


def calls_then_ends(say, kind, ending):
    world = joined(say)
    for _ in range(3):
        CALLS[kind]()
    if world.rank == 2:
        ENDINGS[ending]()
        return None
    # A broadcast may reach a rank that needs nothing of rank 2.
    return until_fault("barrier" if kind == "broadcast" else kind)


@pytest.mark.parametrize("where", SITES)
def test_a_rank_that_ends_is_named(site, where):
    cases = list(zip(ENDINGS, CALLS, strict=True))
    for (ending, kind), ends in zip(cases, stage(left_in_the_middle, site(where), cases), strict=True):
        words = ["gone"] if ending == "vanishes" else ["rank 2 finished after call #5", "#6"]
        assert_all(ends, "PeerLostError", (2,), *words, case=f"{ending}, {kind}")


def raises_in_with(say):
    say("joined")
    try:
        with arx.init(timeout=300) as world:
            check_usable()
            if world.rank == 1:
                raise ZeroDivisionError("a mistake")
            return fault(arx.barrier), fault(arx.barrier)
    except ZeroDivisionError:
        time.sleep(0.5)  # it leaves the group at once, and not only with the process
        return None


def raising(site):
    with HostJob(site, raises_in_with) as job:
        ends = job.ends()
        return [ends[rank] for rank in range(site.size) if rank != 1]


@pytest.mark.parametrize("where", SITES)
def test_an_exception_in_a_with_statement_is_told_to_the_others(site, where):
    assert_all(stage(raising, site(where)), "PeerLostError", (1,), "rank 1 left the group with an exception")


def interrupting(site, victim):
    """All but the last rank wait for it; one of them gets Ctrl-C."""
    last = site.size - 1
    with HostJob(site, waits_for_the_last_rank) as job:
        job.hear("waits")
        job.asleep(range(last))
        at = job.signal(victim, signal.SIGINT)
        job.hear("left", [victim])
        job.signal(last, signal.SIGUSR1)
        return at, job.ends()


def waits_for_the_last_rank(say):
    """It comes when it is told to."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    world = joined(say)
    x = np.full(LARGE, world.rank, np.float32)
    say("waits")
    if world.rank == world.size - 1:
        signal.sigwait({signal.SIGUSR1})
    first = fault(arx.all_reduce, x)
    say("left")
    return first, fault(arx.barrier)


@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("where", SITES)
def test_ctrl_c_leaves_the_wait_and_the_others_say_why(site, where, victim):
    at, ends = stage(interrupting, site(where), victim)
    first, later = ends.pop(victim).result
    assert first.kind == "KeyboardInterrupt", first
    assert (later.kind, "this rank" in later.text) == ("AbortedError", True), later
    assert_all(ends, "AbortedError", (), f"rank {victim} was interrupted")
    print(f"Ctrl-C on rank {victim} left its wait after {(first.at - at) * 1e3:.1f} ms")


# Children


def forks_and_dies(say):
    """Rank 1 has a child that tries to communicate, and lives on when its parent is killed."""
    world = joined(say)
    if world.rank == 1:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            tried = [fault(call) for call in (world.barrier, arx.barrier, arx.init)]
            os.write(writer, "\n".join(f"{error.kind} {error.text}" for error in tried).encode())
            os.close(writer)
            gc.collect()
            time.sleep(600)
        os.close(writer)
        say((child, os.fdopen(reader).read().splitlines()))
    check_usable()
    say("undisturbed")
    if world.rank == 1:
        # The others might be done with any number of calls before it is stopped.
        time.sleep(600)
    return fault(arx.barrier), fault(arx.barrier)


def forking(site):
    with HostJob(site, forks_and_dies) as job:
        job.hear("undisturbed")
        child, tried = next(word for word in job.ranks[1].said if isinstance(word, tuple))
        try:
            job.signal(1, signal.SIGSTOP)
            job.stopped(1)
            job.signal(1, signal.SIGKILL)
            return tried, job.ends([rank for rank in range(site.size) if rank != 1])
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("where", SITES)
def test_a_child_may_not_communicate_and_does_not_hide_the_death_of_its_parent(site, where):
    tried, ends = stage(forking, site(where))
    assert [line.split()[0] for line in tried] == ["InitError"] * 3, tried
    for end in ends:
        for lost in end.result:
            assert (lost.kind, lost.ranks) == ("PeerLostError", (1,)), end


# At random


def joins_and_calls(say, kind):
    error = fault(arx.init, timeout=3)
    if not isinstance(error, Fault):
        say("joined")
        while not isinstance(error, Fault):
            error = fault(CALLS[kind])
    return error


def kills(site, seed, count):
    """Jobs of which one rank is killed at a random moment."""
    dice, stories = random.Random(seed), []
    for k in range(count):
        victim, in_init = dice.randrange(site.size), dice.random() < 0.3
        kind, moment = dice.choice([*CALLS]), dice.uniform(0, 0.06 if in_init else 0.03)
        with HostJob(site, joins_and_calls, kind, port=free_port()) as job:
            if not in_init:
                job.hear("joined")
            time.sleep(moment)
            job.signal(victim, signal.SIGKILL)
            when = f"{moment * 1e3:.1f} ms after {'the start' if in_init else 'init'}"
            story = f"seed {seed}, job {k}, {kind}: rank {victim} killed {when}"
            stories.append((story, victim, job.ends(), "joined" in job.ranks[victim].said))
    return stories


@pytest.mark.parametrize("where", SITES)
def test_kills_at_random_moments(site, where):
    for story, victim, ends, was_in in stage(kills, site(where), 41, 8, timeout=WATCHDOG):
        assert ends.pop(victim).code == -signal.SIGKILL, story
        for end in ends:
            assert end.code == 0, f"{story}: {end}"
            if end.result.kind == "RendezvousError" and not was_in:
                # It died before it had said who it is, or this rank came when the meeting was over.
                assert f"rank {victim}" in end.result.text or "rank 0" in end.result.text, f"{story}: {end}"
            else:
                assert (end.result.kind, end.result.ranks) == ("PeerLostError", (victim,)), f"{story}: {end}"
