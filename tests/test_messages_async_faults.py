"""Messages that do not wait, when something goes wrong or ends: every `Work` ends too, and says why."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hostranks import HostJob
from processes import Job, fault, stage, ticks

import arx

TCP = {"ARX_TRANSPORT": "tcp"}
LARGE = 4 << 20  # float64: more than any way holds


def joined(say, env, **options):
    os.environ |= env
    world = arx.init(**{"timeout": 100} | options)
    world.barrier()
    return world


def outstanding(peer):
    """A send that does not fit and receives of which nothing comes, all to and from that rank, and one of anybody."""
    return [
        arx.send(np.zeros(LARGE), peer, async_op=True),
        arx.recv(np.zeros(3), peer, async_op=True),
        arx.recv(np.zeros(3), peer, tag=3, async_op=True),
        arx.sendrecv(np.zeros(LARGE), peer, np.zeros(3), peer, async_op=True),
        arx.recv(np.zeros(3), async_op=True),
    ]


# A rank dies


def loses(say, env, how):
    world = joined(say, env)
    if world.rank == 2:
        world.barrier()
        say("ready")
        time.sleep(600)
    works = outstanding(2)
    world.barrier()
    say("ready")
    if how == "computing":
        while not all(work.done() for work in works):
            time.sleep(0.001)
    found = [fault(work.wait) for work in works] if how != "collective" else [fault(world.barrier)]
    return found + [fault(work.wait) for work in works] + [fault(arx.send, np.zeros(1), 0)]


def killed(env, how):
    with Job(3, loses, env, how) as job:
        job.hear("ready")
        job.signal(2, signal.SIGKILL)
        return job.ends([0, 1])


@pytest.mark.parametrize("how", ["waiting", "computing", "collective"])
@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_a_rank_that_dies_ends_all_that_is_outstanding(env, how):
    for end in stage(killed, env, how):
        for found in end.result:
            assert (found.kind, found.ranks) == ("PeerLostError", (2,)), end


def loses_between_hosts(say):
    world = arx.init(timeout=100)
    world.barrier()
    if world.rank == 1:
        world.barrier()
        signal.raise_signal(signal.SIGKILL)
    works = outstanding(1)
    world.barrier()
    return [fault(work.wait) for work in works]


def killed_between_hosts(site):
    with HostJob(site, loses_between_hosts) as job:
        return job.ends([0, 2])


def test_a_rank_of_another_host_that_dies(site):
    for end in stage(killed_between_hosts, site("h0 h1 h0")):
        assert [found.kind for found in end.result] == ["PeerLostError"] * 5, end


# Nothing comes


def too_late(say, env, computing):
    world = joined(say, env)
    if world.rank == 1:
        return fault(world.barrier, timeout=50)
    works = [arx.recv(np.zeros(1), 1, tag=8, timeout=0.3, async_op=True), arx.recv(np.zeros(1), 1, async_op=True)]
    while computing and not works[0].done():
        time.sleep(0.001)
    return [fault(work.wait) for work in reversed(works)] + [fault(arx.barrier)]


def timed_out(env, computing):
    with Job(2, too_late, env, computing) as job:
        return job.ends()


@pytest.mark.parametrize("computing", [False, True])
@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_a_time_out_closes_the_group(env, computing):
    first, second = stage(timed_out, env, computing)
    for found in first.result:
        assert (found.kind, found.ranks) == ("CollectiveTimeout", (1,)), first
        assert "recv(src=1, tag=8)" in found.text
    assert second.result.kind in ("CollectiveTimeout", "PeerLostError", "AbortedError"), second


# A rank leaves


def leaves(say, env, received):
    world = joined(say, env)
    if world.rank == 0:
        works = [arx.send(np.full(LARGE, 7.0), 1, async_op=True), arx.recv(np.zeros(3), 1, async_op=True)]
        say("begun")
        arx.shutdown()
        return works[0].wait(), fault(works[1].wait), fault(arx.send, np.zeros(1), 1, group=world, async_op=True)
    while not received.exists():
        time.sleep(0.01)
    out = np.zeros(LARGE)
    arx.recv(out, 0)
    return float(out.min()), float(out.max())


def left(env, received):
    with Job(2, leaves, env, received) as job:
        job.hear("begun", [0])
        time.sleep(0.1)  # so that it most likely waits
        received.touch()
        return [end.result for end in job.ends()]


@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_shutdown_sends_what_can_be_sent_and_cancels_what_cannot_come(env, tmp_path):
    (sent, cancelled, later), second = stage(left, env, tmp_path / "received")
    assert sent is None
    assert cancelled.kind == "AbortedError"
    assert "before a message came" in cancelled.text
    assert later.kind == "InitError"
    assert second == (7.0, 7.0)


def raises(say, env):
    world = joined(say, env)
    works = []
    try:
        with world:
            works = outstanding(1 - world.rank)
            raise RuntimeError
    except RuntimeError:
        return [fault(work.wait).kind for work in works]


def raising(env):
    with Job(2, raises, env) as job:
        return [end.result for end in job.ends()]


@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_who_leaves_with_an_exception_waits_for_nothing(env):
    for kinds in stage(raising, env):
        assert set(kinds) <= {"AbortedError", "PeerLostError"}, kinds


# Ctrl-C


def interrupted(say, env):
    world = joined(say, env)
    out = np.zeros(3)
    if world.rank == 1:
        world.barrier()
        world.send(np.ones(3), 0)
        return None
    work = arx.recv(out, 1, async_op=True)
    say("waits")
    first = fault(work.wait)
    world.barrier()
    return first.kind, work.wait().source, out[0]


def ctrl_c(env):
    with Job(2, interrupted, env) as job:
        job.hear("waits", [0])
        job.asleep([0])
        job.signal(0, signal.SIGINT)
        return job.ends()[0].result


@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_ctrl_c_ends_the_wait_and_not_the_message(env):
    assert stage(ctrl_c, env) == ("KeyboardInterrupt", 1, 1.0)


# Threads and processes


def forks(say):
    world = joined(say, {})
    other = 1 - world.rank
    out = np.zeros(LARGE)
    works = [arx.recv(out, other, async_op=True), arx.send(np.full(LARGE, 3.0), other, async_op=True)]
    child = os.fork()
    if child == 0:
        found = [fault(work.wait) for work in works]
        right = all(getattr(f, "kind", "InitError") == "InitError" for f in found)  # some may have been done before
        del works
        os._exit(0 if right else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    arx.wait_all(works)
    return status, float(out.min())


def forking():
    with Job(2, forks) as job:
        return [end.result for end in job.ends()]


def test_a_forked_child_has_no_part_in_it():
    assert stage(forking) == [(0, 3.0)] * 2


def native():
    """Names and numbers of the threads of this process."""
    return {path.name: (path / "comm").read_text().strip() for path in Path("/proc/self/task").iterdir()}


def one_thread(say):
    world = joined(say, {})
    other = 1 - world.rank
    before = [*native().values()].count("arx-letters")
    works = [arx.recv(np.zeros(3), other, tag=k, async_op=True) for k in range(10)]
    while "arx-letters" not in native().values():  # a thread gives itself its name
        time.sleep(0.001)
    during = [*native().values()].count("arx-letters")
    world.barrier()  # what is there already needs no thread
    for k in range(10):
        arx.send(np.zeros(3), other, tag=k)
    arx.wait_all(works)
    arx.shutdown()
    return before, during, [*native().values()].count("arx-letters")


def threads():
    with Job(2, one_thread) as job:
        return [end.result for end in job.ends()]


def test_one_thread_from_the_first_message_that_waits_until_the_group_is_left():
    assert stage(threads) == [(0, 1, 0)] * 2


def two_threads(say, env):
    """One waits for a message, the other posts what lets the first go on; a call that would wait is refused."""
    world = joined(say, env)
    other = 1 - world.rank
    out = np.zeros(3)
    work = arx.recv(out, other, async_op=True)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    time.sleep(0.2)  # so that it most likely waits
    refused = fault(arx.recv, np.zeros(1), other, tag=5, timeout=20)
    world.barrier()
    arx.send(np.full(3, 4.0), other, async_op=True)
    waiting.join()
    return getattr(refused, "kind", refused), out[0]


def in_two_threads(env):
    with Job(2, two_threads, env) as job:
        return [end.result for end in job.ends()]


@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_another_thread_may_begin_messages_and_not_wait_in_a_call(env):
    assert stage(in_two_threads, env) == [("RuntimeError", 4.0)] * 2


def waits_long(say, env, manner):
    """Processor time of the rank while it waits for one message that is outstanding, in five seconds."""
    world = joined(say, env)
    if world.rank == 1:
        world.barrier()
        time.sleep(5)
        arx.send(np.zeros(3), 0)
        return 0.0
    work = arx.recv(np.zeros(3), 1, async_op=True)
    world.barrier()
    time.sleep(0.2)
    before = ticks(os.getpid())
    if manner == "in the call":
        work.wait()
    else:
        while not work.done():
            time.sleep(0.1)
    return (ticks(os.getpid()) - before) / 100


def waiting(env, manner):
    with Job(2, waits_long, env, manner) as job:
        return job.ends()[0].result


@pytest.mark.parametrize("manner", ["in the call", "elsewhere"])
@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_waiting_costs_little(env, manner):
    assert stage(waiting, env, manner) < 0.05 * 4.8, "seconds of processor time"


def cannot_send(say, env):
    world = joined(say, env)
    if world.rank == 1:
        return fault(arx.barrier, timeout=50)
    works = outstanding(1)
    say("leaves")
    left = fault(arx.shutdown)
    return [left.kind, *(fault(work.wait).kind for work in works), fault(world.recv, np.zeros(1), 1).kind]


def interrupted_in_shutdown(env):
    with Job(2, cannot_send, env) as job:
        job.hear("leaves", [0])
        job.asleep([0])
        job.signal(0, signal.SIGINT)
        return [end.result for end in job.ends()]


@pytest.mark.parametrize("env", [{}, TCP], ids=["shared", "tcp"])
def test_ctrl_c_ends_a_shutdown_that_waits_for_what_nobody_takes(env):
    first, second = stage(interrupted_in_shutdown, env)
    assert first == ["KeyboardInterrupt", *["AbortedError"] * 6]
    assert second.kind in ("AbortedError", "PeerLostError"), second
