"""Processes that a rank starts: none of them is a rank, and none of them disturbs the group by living or dying."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import Job, fault, stage
from rankside import check_usable

import arx
from arx.testing import run_ranks


def in_a_child(work):
    """``work()`` in a fork, which ends as a program does; the exit status."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ends_of_children():
    """Children that exit, crash, drop the group or are killed: the group of the parent goes on after each of them."""
    world = arx.init(timeout=300)
    x = arx.empty(1000)
    endings = []
    works = [
        lambda: 0,
        lambda: 1 / 0,
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: os.abort(),
        lambda: world.__exit__(None, None, None),  # as when a with statement ends
    ]
    for work in works:
        x[...] = world.rank
        endings.append(in_a_child(work))
        check_usable()
        arx.all_reduce(x)
        assert x.tolist() == [3] * 1000
    return endings


def test_the_end_of_a_child_is_not_the_end_of_the_rank():
    for endings in run_ranks(ends_of_children, 3):
        assert endings == [0, 99, -signal.SIGKILL, -signal.SIGABRT, 0]


def dropping():
    """A child that tries everything, and drops all that it has inherited."""
    world = arx.init(timeout=300)
    arrays = [arx.zeros(1000)]
    reader, writer = os.pipe()

    def tries():
        calls = (world.barrier, arx.barrier, arx.init, lambda: arx.empty(1000), world.shutdown, arx.shutdown)
        errors = [fault(call) for call in calls]
        arrays.clear()
        gc.collect()
        os.write(writer, "\n".join(f"{error.kind}: {error.text}" if error else "done" for error in errors).encode())

    code = in_a_child(tries)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    check_usable()
    return code, lines


def test_a_child_that_tries_everything_disturbs_nobody():
    for code, lines in run_ranks(dropping, 2):
        assert code == 0, lines
        assert [line.split(":")[0] for line in lines] == ["InitError"] * 4 + ["done"] * 2
        assert all("fork" in line or "inherited" in line for line in lines[:4])


def square(x):
    return x * x, arx.is_initialized()


def pool(method):
    """A pool beside the group, as a data loader has one; with calls before, while and after it lives."""
    arx.init(timeout=300)
    check_usable()
    with multiprocessing.get_context(method).Pool(2) as workers:
        pending = workers.map_async(square, range(20))
        check_usable()
        squares = pending.get(60)
    check_usable()
    return squares


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_multiprocessing(method):
    for squares in run_ranks(pool, 2, method):
        assert squares == [(x * x, False) for x in range(20)]


def joins_too(queue):
    queue.put(fault(arx.init, timeout=5))


def child_that_joins(method):
    """A worker that calls arx.init itself, as code without a main guard does."""
    context = multiprocessing.get_context(method)
    with arx.init(timeout=300):
        queue = context.Queue()
        child = context.Process(target=joins_too, args=(queue,))
        child.start()
        error = queue.get(timeout=60)
        child.join()
        check_usable()
        return error, os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_wants_to_be_a_rank_is_refused(method):
    for error, pid in run_ranks(child_that_joins, 2, method):
        assert error.kind == "InitError", error
        assert str(pid) in error.text, "it names the process that has the rank"


def worker(rank, queue, raises):
    """A rank that multiprocessing has started; rank 1 ends without a word."""
    arx.init(rank=rank, world_size=2, job_id="workers", timeout=50)
    check_usable()
    if rank == 1:
        if raises:
            raise ValueError(raises)
        return
    queue.put(fault(arx.barrier))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_that_multiprocessing_starts_leave_when_they_end(method, raises):
    with arx.init(rank=0, world_size=1):
        pass  # what their parent has been before is no matter
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    ranks = [context.Process(target=worker, args=(rank, queue, raises)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    error = queue.get(timeout=100)
    for rank in ranks:
        rank.join(100)
    assert [rank.exitcode for rank in ranks] == [0, int(raises)]
    assert (error.kind, error.ranks) == ("PeerLostError", (1,)), error
    assert ("with an exception" if raises else "rank 1 finished after call") in error.text, error


def outlived(folder):
    """Rank 0 is killed while a child of it lives on, with all that it inherited."""
    world = arx.init(timeout=300)
    check_usable()
    if world.rank == 0:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        fork = os.fork()
        if fork == 0:
            time.sleep(600)
        (folder / "children").write_text(f"{child.pid} {fork}")
        os.kill(os.getpid(), signal.SIGKILL)
    return fault(arx.all_reduce, np.ones(3))


def test_children_that_outlive_a_killed_rank_do_not_hide_its_death(tmp_path):
    try:
        for error in run_ranks(outlived, 3, tmp_path, expect={0: -9})[1:]:
            assert (error.kind, error.ranks) == ("PeerLostError", (0,))
    finally:
        # The runner ends them with the rank; this is for when it could not.
        for pid in (tmp_path / "children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def commands():
    """Programs that a rank runs: they get no descriptor of arx's."""
    arx.init(timeout=300)
    done = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True)
    check_usable()
    return done.stdout


def test_programs_inherit_no_descriptor_of_arx():
    for text in run_ranks(commands, 2):
        assert " 0 -> " in text, "the list is there"
        for word in ("memfd", "pidfd", "eventfd"):
            assert word not in text


def forks_a_worker(say):
    """Rank 0 has a worker, as a data loader starts one; it lives on when the rank is killed."""
    if arx.init(timeout=300).rank == 0:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        say(pid)
    say("joined")
    time.sleep(600)


def joins_and_leaves(say):
    with arx.init(timeout=20) as world:
        check_usable()
        return world.size


def restarted():
    """A job that is killed while a worker of rank 0 lives on, and started again under its name."""
    with Job(2, forks_a_worker) as job:
        job.hear("joined")
        worker = job.ranks[0].said[0]
        for rank in (0, 1):
            job.signal(rank, signal.SIGKILL)
        job.ends()
        try:
            with Job(3, joins_and_leaves, job_id=job.id) as again:
                return [end.result for end in again.ends()]
        finally:
            os.kill(worker, signal.SIGKILL)


def test_orphaned_workers_do_not_keep_the_name_of_a_job():
    assert stage(restarted) == [3, 3, 3]
