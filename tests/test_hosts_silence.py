"""Groups on several hosts with ranks that do not come in time and hosts that vanish, and what waiting costs."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hostfaults import (
    CALLS,
    LARGE,
    SITES,
    WATCHDOG,
    assert_all,
    calls_until_told,
    calls_without_end,
    joined,
)
from hostranks import HostJob, at_home, enter, free_port, on_hosts
from processes import Fault, fault, stage
from rankside import check_usable

import arx

# Ranks that do not come


def stopping(site, jobs, limit):
    """In jobs of each kind a rank is stopped, wherever it is; how the others end, and how it ends when it wakes."""
    with contextlib.ExitStack() as running:
        started = []
        for k, (kind, victim) in enumerate(jobs):
            port = free_port() if site.master is None else 29600 + k
            job = running.enter_context(HostJob(site, calls_until_silence, kind, limit, port=port))
            job.hear("joined")
            time.sleep(random.uniform(0.02, 0.05))
            job.signal(victim, signal.SIGSTOP)
            job.stopped(victim)
            started.append((job, victim))
        others = [job.ends([r for r in range(site.size) if r != victim]) for job, victim in started]
        for job, victim in started:
            job.signal(victim, signal.SIGCONT)
        return [(ends, job.ends([victim])[0]) for ends, (job, victim) in zip(others, started, strict=True)]


def calls_until_silence(say, kind, limit):
    world = joined(say)
    x = np.full(LARGE if kind == "large" else 4, world.rank, np.float32)
    first = None
    while not isinstance(first, Fault):
        call = arx.barrier if kind == "barrier" else lambda timeout: arx.all_reduce(x, timeout=timeout)
        first = fault(call, timeout=limit)
    return first, fault(arx.barrier), fault(arx.all_reduce, x)


@pytest.mark.parametrize("where", SITES)
def test_a_stopped_rank_is_named_by_all_after_the_timeout_and_nobody_is_lost(site, where):
    jobs = [("large", 2), ("small", 2), ("barrier", 3), ("large", 0), ("small", 0)]
    for (kind, victim), (others, late) in zip(
        jobs, stage(stopping, site(where), jobs, 1, timeout=WATCHDOG), strict=True
    ):
        assert_all(others, "CollectiveTimeout", (victim,), f"rank {victim}", "1.00 s")
        assert [error.kind for error in late.result] == ["CollectiveTimeout"] * 3, (kind, late)


def absent(site, kind):
    with HostJob(site, one_stays_away, kind) as job:
        return job.ends()


def one_stays_away(say, kind):
    world = joined(say)
    if world.rank == 1:
        time.sleep(2.5)
        return fault(CALLS[kind]), fault(arx.barrier)
    x = np.ones(LARGE if kind == "large" else 4, np.int16)
    return fault(arx.all_reduce, x, "min", timeout=1, name="weights"), fault(arx.barrier)


@pytest.mark.parametrize("kind", ["large", "small"])
@pytest.mark.parametrize("where", SITES)
def test_a_busy_rank_is_named_with_what_it_did_last(site, where, kind):
    ends = stage(absent, site(where), kind)
    shape = "(4194304,)" if kind == "large" else "(4,)"
    words = ["1.00 s", f"#3 all_reduce(op=min, dtype=int16, shape={shape}, name='weights')", "completed is #2"]
    assert_all(ends, "CollectiveTimeout", (1,), *words)


def late_by(say, pause):
    """Rank 1 comes later than a host may be silent, while the others' data fill its sockets."""
    world = joined(say)
    for count in (4, LARGE):
        if world.rank == 1:
            time.sleep(pause)
        x = np.full(count, world.rank, np.float32)
        arx.all_reduce(x)
        assert (x == world.size * (world.size - 1) / 2).all()
    check_usable()
    return "right"


def patience(sites, pause):
    """A rank that is late, and one that is stopped, in jobs of each site."""
    with contextlib.ExitStack() as running:
        late = [running.enter_context(HostJob(site, late_by, pause, port=29600 + k)) for k, site in enumerate(sites)]
        stopped = [running.enter_context(HostJob(site, many_large, port=29700 + k)) for k, site in enumerate(sites)]
        for job in stopped:
            job.hear("joined")
            time.sleep(0.05)
            job.signal(1, signal.SIGSTOP)
        time.sleep(pause)
        for job in stopped:
            job.signal(1, signal.SIGCONT)
        return [end for job in late + stopped for end in job.ends()]


def many_large(say):
    joined(say)
    for k in range(6):
        x = np.full(LARGE, arx.rank() + k, np.float32)
        arx.all_reduce(x)
        assert (x == arx.size() * (arx.size() - 1) / 2 + arx.size() * k).all()
    return "right"


def test_a_rank_that_is_late_or_stopped_for_longer_than_a_host_may_be_silent_is_waited_for(lab):
    for end in stage(patience, [on_hosts(lab, "h0 h1"), on_hosts(lab, "h0 h1 h0 h1")], 8, timeout=WATCHDOG):
        assert tuple(end) == ("right", 0)


# Hosts that vanish


def cutting(lab, jobs):
    """One host is unplugged while jobs of several placements run."""
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(HostJob(on_hosts(lab, where), calls_without_end, kind, port=29600 + k))
            for k, (where, kind) in enumerate(jobs)
        ]
        for job in started:
            job.hear("joined")
        time.sleep(0.2)
        at = time.monotonic()
        lab.cut("h1")
        try:
            return at, [job.ends() for job in started]
        finally:
            lab.mend("h1")


def test_a_host_that_vanishes_is_named_by_all(lab):
    jobs = [("h0 h1 h1 h2", "large"), ("h0 h1 h0 h1", "barrier"), ("h1 h0 h1 h2", "small")]
    at, results = stage(cutting, lab, jobs, timeout=WATCHDOG)
    for (where, kind), ends in zip(jobs, results, strict=True):
        hosts = where.split()
        zeros = tuple(rank for rank, host in enumerate(hosts) if host == hosts[0])
        beyond = tuple(rank for rank, host in enumerate(hosts) if (host == "h1") != (hosts[0] == "h1"))
        # For who can no longer reach rank 0, its host is the one that has vanished.
        assert_all([ends[rank] for rank in beyond], "PeerLostError", zeros, "has not answered for", case=where)
        near = [end for rank, end in enumerate(ends) if rank not in beyond]
        (blamed,) = {end.result[0].ranks for end in near}
        assert_all(near, "PeerLostError", blamed, "has not answered for", case=where)
        # If it was rank 0's host that was unplugged, all others vanish for it, one of them first.
        assert blamed == beyond if hosts[0] != "h1" else set(blamed) <= set(beyond), where
        last = max(end.result[0].at for end in ends) - at
        print(f"{where}, {kind}: the loss of h1 was known to all after {last:.2f} s")


def unplugged_for(lab, seconds):
    with HostJob(on_hosts(lab, "h0 h1 h1 h2"), calls_until_told) as job:
        job.hear("joined")
        time.sleep(0.2)
        lab.cut("h1")
        time.sleep(seconds)
        lab.mend("h1")
        time.sleep(0.5)
        for rank in range(4):
            job.signal(rank, signal.SIGUSR1)
        return [tuple(end) for end in job.ends()]


def test_a_cable_that_is_out_for_two_seconds_is_no_loss(lab):
    assert stage(unplugged_for, lab, 2, timeout=WATCHDOG) == [("undisturbed", 0)] * 4


# What is left, and what waiting costs


def comes_and_goes(say):
    """Descriptors and threads before and after, twice."""

    def held():
        descriptors = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
        return descriptors, sorted(os.listdir("/proc/self/task"))

    before = held()
    for _ in range(2):
        with arx.init(timeout=60):
            check_usable()
            arx.barrier()
        assert held() == before
    return "clean"


def _is_open(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}") != f"/proc/{os.getpid()}/fd"
    except OSError:
        return False


# States of a socket that a process holds: established, connecting, closed by the other end, listening. The kernel alone
# sees to the end of others.
HELD = ("01", "02", "03", "08", "0A")


def left_behind(site):
    """How the ranks end, and how many sockets are held on each of their hosts then."""
    with HostJob(site, comes_and_goes) as job:
        ends = [tuple(end) for end in job.ends()]
    open_sockets = []
    for host, namespace in set(zip(site.hosts, site.namespaces, strict=True)):
        pid = os.fork()
        if pid == 0:
            enter(namespace, host)
            tables = [Path(f"/proc/self/net/{name}") for name in ("tcp", "tcp6")]
            rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
            os._exit(len([row for row in rows if row[3] in HELD]))
        open_sockets.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return ends, open_sockets


def test_nothing_is_left_behind(lab):
    ends, open_sockets = stage(left_behind, on_hosts(lab, "h0 h1 h0 h2"))
    assert ends == [("clean", 0)] * 4
    assert open_sockets == [0, 0, 0]


def test_nothing_is_left_behind_at_home():
    assert stage(left_behind, at_home(3))[0] == [("clean", 0)] * 3


LONG = 5  # seconds


def spends(say, kind):
    """Rank 0 comes so late, or nobody calls anything; the processor time of that on each rank."""
    world = joined(say)
    arx.barrier()
    before = time.process_time()
    if kind == "idle" or world.rank == 0:
        time.sleep(LONG)
    if kind != "idle":
        CALLS[kind]()
    spent = time.process_time() - before
    arx.barrier()
    return spent if world.rank or kind == "idle" else 0.0


def spending(site, kinds):
    with contextlib.ExitStack() as running:
        ports = [free_port() if site.master is None else 29600 + k for k in range(len(kinds))]
        jobs = [
            running.enter_context(HostJob(site, spends, kind, port=port))
            for kind, port in zip(kinds, ports, strict=True)
        ]
        return [[end.result for end in job.ends()] for job in jobs]


@pytest.mark.parametrize("where", ["3", "h0 h1 h0 h1"])
def test_waiting_leaves_the_cores_to_others(site, where):
    kinds = ["idle", "barrier", "small", "large"]
    for kind, spent in zip(kinds, stage(spending, site(where), kinds), strict=True):
        print(f"{kind}: {max(spent) * 1e3:.0f} ms of processor time in {LONG} s")
        # The large array is reduced in that time, too.
        assert max(spent) < (0.05 if kind != "large" else 0.15) * LONG
