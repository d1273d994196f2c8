"""The life of a group: init, shutdown, again; a world of one; threads and forks; what a process keeps afterwards."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import oracle
import psutil
import pytest
from rankside import Refusal, assert_refused, check_usable, outcome

import arx
from arx.testing import run_ranks

ALONE = {
    f"ARX_{name}": None for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NNODES", "JOB_ID")
}

# For programs that a test starts by itself.
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


def places():
    world = arx.init()
    return (
        (arx.rank(), arx.size(), arx.local_rank(), arx.local_size(), arx.node_rank(), arx.num_nodes()),
        (world.rank, world.size, list(world.ranks)),
    )


@pytest.mark.parametrize("p", [1, 2, 5])
def test_everyone_knows_its_place(p):
    assert run_ranks(places, p) == [((r, p, r, p, 0, 1), (r, p, list(range(p)))) for r in range(p)]


def twice():
    first = arx.init()
    assert arx.init() is first
    assert arx.world() is first
    assert arx.is_initialized()
    check_usable()
    return isinstance(first.name, str), type(first) is arx.Group, str(first.rank) in repr(first)


def test_init_is_idempotent():
    assert run_ranks(twice, 2) == [(True, True, True)] * 2


def before_and_after():
    """Without a group every call says so."""
    calls = [
        arx.world,
        arx.rank,
        arx.size,
        lambda: arx.all_reduce(np.ones(3)),
        lambda: arx.broadcast(np.ones(3)),
        arx.barrier,
    ]
    assert not arx.is_initialized()
    before = [outcome(call) for call in calls]
    arx.shutdown()  # nothing to shut down: harmless
    group = arx.init()
    assert arx.is_initialized()
    arx.shutdown()
    assert not arx.is_initialized()
    after = [outcome(call) for call in calls]
    closed = [
        outcome(lambda: group.all_reduce(np.ones(3))),
        outcome(lambda: group.broadcast(np.ones(3))),
        outcome(group.barrier),
        outcome(lambda: arx.all_reduce(np.ones(3), group=group)),
    ]
    arx.shutdown()
    return before + after, closed


def test_calls_before_init_and_after_shutdown_are_clean_errors():
    for without, closed in run_ranks(before_and_after, 2):
        for refusal in without:
            assert_refused(refusal, "ArxError", "init")
        for refusal in closed:
            assert_refused(refusal, "ArxError", "clos" if "clos" in refusal.text else "shut")


def again():
    """A second and a third life of the same job, and both forms of with."""
    totals = []
    for k in range(3):
        with arx.init() as world:
            x = np.full(3, float(world.rank + k))
            world.all_reduce(x)
            totals.append(x[0])
        assert not arx.is_initialized()
    return totals


def test_init_again_after_shutdown():
    assert run_ranks(again, 3) == [[3.0, 6.0, 9.0]] * 3


def with_an_exception():
    try:
        with arx.init():
            raise KeyError("mine")
    except KeyError:
        return arx.is_initialized()


def test_with_lets_exceptions_through_and_closes():
    assert run_ranks(with_an_exception, 2) == [False, False]


def alone():
    """Every call works in a world of one, and leaves the array as it is."""
    world = arx.init()
    place = (world.rank, world.size, arx.local_rank(), arx.local_size(), arx.node_rank(), arx.num_nodes())
    for name in oracle.DTYPES:
        for op in oracle.OPS:
            x = oracle.values(name, 1000, 0)
            if oracle.allowed(op, name) and op not in ("land", "lor"):
                before = x.tobytes()
                assert arx.all_reduce(x, op) is x
                assert x.tobytes() == before, f"{op} of {name}"
    out = np.zeros(3)
    arx.all_reduce(np.arange(3.0), out=out)
    assert arx.broadcast(out) is out
    arx.barrier()
    refusals = [outcome(arx.all_reduce, 3.0), outcome(arx.broadcast, out, 1), outcome(arx.all_reduce, out, "summ")]
    arx.shutdown()
    return place, out.tolist(), refusals


def test_a_world_of_one_needs_no_launcher():
    ((place, out, refusals),) = run_ranks(alone, 1, env=ALONE)
    assert place == (0, 1, 0, 1, 0, 1)
    assert out == [0.0, 1.0, 2.0]
    for refusal, kind in zip(refusals, ["TypeError", "ValueError", "ValueError"], strict=True):
        assert_refused(refusal, kind)


def test_import_has_no_side_effect():
    script = (
        "import os, numpy\n"
        "def state():\n"
        "    files, tasks = os.listdir('/proc/self/fd'), os.listdir('/proc/self/task')\n"
        "    return len(files), len(tasks), os.sched_getaffinity(0), dict(os.environ)\n"
        "before = state()\n"
        "import arx\n"
        "assert state() == before, (before, state())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | PATHS)


def state():
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), process.memory_info().rss


def cycles(count):
    """Groups made and given up in a row; what the process holds after a few, and after all."""
    history = []
    for k in range(count):
        with arx.init() as world:
            x = np.full(1000, float(world.rank + k))
            world.all_reduce(x)
            assert x[0] == sum(range(world.size)) + world.size * k
        if k % 25 == 24:
            history.append(state())
    return history


@pytest.mark.timeout(600)
def test_groups_made_in_a_loop_leave_nothing_behind():
    for history in run_ranks(cycles, 2, 500, timeout=500):
        (fds, threads, rss), (last_fds, last_threads, last_rss) = history[1], history[-1]
        assert (last_fds, last_threads) == (fds, threads)
        # A leak of one page per group would be 1.8 MB.
        assert last_rss - rss < 1.5e6


def surroundings():
    """What belongs to the caller. ARX_TAKEN, by which a child learns that it is no rank, is the library's own."""
    return os.sched_getaffinity(0), {key: value for key, value in os.environ.items() if key != "ARX_TAKEN"}


def affinity(cores):
    """Mask and environment before, during and after; and in a thread that starts meanwhile."""
    if cores is not None:
        os.sched_setaffinity(0, cores)
    found = [surroundings()]
    with arx.init():
        arx.all_reduce(np.ones(100_000))
        found.append(surroundings())
        thread = threading.Thread(target=lambda: found.append(surroundings()))
        thread.start()
        thread.join()
        check_usable()
    found.append(surroundings())
    return [later == found[0] for later in found[1:]]


@pytest.mark.parametrize("p", [1, 2, 4])
def test_affinity_and_environment_stay_as_they_were(p):
    first = min(os.sched_getaffinity(0))
    assert run_ranks(affinity, p, None) == [[True] * 3] * p
    assert run_ranks(affinity, p, {first}) == [[True] * 3] * p


def leave_a_waiting_peer():
    with arx.init() as world:
        check_usable()
        if world.rank == 0:
            return outcome(arx.barrier)
        time.sleep(0.3)
        return arx.shutdown(), arx.shutdown()


def test_a_rank_that_shuts_down_is_named_to_those_who_wait_for_it():
    waiting, left = run_ranks(leave_a_waiting_peer, 2)
    assert left == (None, None)
    assert_refused(waiting, "PeerLostError", "rank 1", "barrier")


def in_order():
    """Calls of every kind in one order: each meets its own counterpart."""
    world = arx.world()
    for k in range(1000):
        kind = int(oracle.bits(1, "kind", k)[0] % 3)
        count = int(oracle.bits(1, "count", k)[0] % 3000)
        x = oracle.values("int32", count, world.rank, seed=k % 32)
        if kind == 0:
            arx.all_reduce(x)
            oracle.check(x, oracle.reduced("sum", "int32", count, world.size, seed=k % 32), f"call {k}")
        elif kind == 1:
            arx.broadcast(x, k % world.size)
            oracle.check(x, oracle.values("int32", count, k % world.size, seed=k % 32), f"call {k}")
        else:
            arx.barrier()


@pytest.mark.parametrize("p", [2, 4])
def test_collectives_run_in_call_order(ranks, p):
    ranks(p).run(in_order)


def two_threads(folder):
    """Rank 0 waits in a call of one thread and tries another from a second thread; rank 1 comes only after that."""
    with arx.init() as world:
        tried = folder / "tried"
        if world.rank == 1:
            while not tried.exists():
                time.sleep(0.01)
            arx.barrier()
            check_usable()
            return None
        results = []
        waiting = threading.Thread(target=lambda: results.append(outcome(arx.barrier)))
        waiting.start()
        time.sleep(0.5)
        refusals = [outcome(arx.all_reduce, np.ones(3)), outcome(arx.barrier)]
        tried.touch()
        waiting.join()
        assert results == [None], f"the call that was first goes on: {results}"
        check_usable()
        return refusals


def test_two_threads_in_one_group_get_an_error_that_says_so(tmp_path):
    refusals, _ = run_ranks(two_threads, 2, tmp_path)
    for refusal in refusals:
        assert_refused(refusal, "RuntimeError", "thread")


def one_thread_after_another():
    """Threads that take turns are no trouble."""
    world = arx.world()
    for k in range(50):
        x = np.full(3, float(world.rank + k))
        thread = threading.Thread(target=arx.all_reduce, args=(x,))
        thread.start()
        thread.join()
        assert x[0] == sum(range(world.size)) + world.size * k


def test_threads_that_take_turns(ranks):
    ranks(2).run(one_thread_after_another)


def other_threads_run():
    """While one thread waits for a peer, another one gets on: the interpreter is free."""
    with arx.init() as world:
        counted = 0
        if world.rank == 0:
            time.sleep(1)
            arx.barrier()
        else:
            waiting = threading.Thread(target=arx.barrier)
            waiting.start()
            while waiting.is_alive():
                counted += 1
                time.sleep(0.0001)
        return counted


def test_waiting_leaves_the_interpreter_to_other_threads():
    # A waiting thread that kept the interpreter would leave this one a handful of turns.
    assert run_ranks(other_threads_run, 2)[1] > 100


def in_a_child(*calls):
    """Fork; the outcomes of ``calls`` in the child, which then leaves as a Python program does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        texts = [
            f"{refusal.kinds}: {refusal.text}" if isinstance(refusal := outcome(call), Refusal) else "done"
            for call in calls
        ]
        os.write(writer, "\n".join(texts).encode())
        sys.exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    assert os.waitpid(pid, 0)[1] == 0
    return lines


def forked():
    with arx.init() as world:
        check_usable()
        x = arx.empty(10)
        x[...] = world.rank
        lines = in_a_child(lambda: arx.all_reduce(x), lambda: world.barrier(), lambda: arx.broadcast(np.ones(2)))
        assert x.tolist() == [world.rank] * 10
        check_usable()
        arx.all_reduce(x)
        return lines, x.tolist()


def test_fork_after_init_leaves_the_parent_undisturbed_and_the_child_without_a_rank():
    for lines, x in run_ranks(forked, 2):
        assert len(lines) == 3
        for line in lines:
            assert "ArxError" in line
            assert "fork" in line
        assert x == [1.0] * 10


def forked_init():
    with arx.init():
        lines = in_a_child(lambda: arx.init(timeout=5), arx.shutdown)
        check_usable()
        return lines


def test_a_forked_child_cannot_take_the_rank_of_its_parent():
    for lines in run_ranks(forked_init, 2):
        assert "InitError" in lines[0]


def inherited_variables():
    """A program started by a rank has its variables, but not its place."""
    with arx.init():
        script = (
            "import arx\ntry:\n    arx.init(timeout=20)\nexcept arx.InitError as error:\n    print('refused:', error)\n"
        )
        env = os.environ | PATHS
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        check_usable()
        return done.stdout + done.stderr, os.getpid()


def test_a_child_program_that_inherited_the_variables_is_refused():
    for text, pid in run_ranks(inherited_variables, 2):
        assert text.startswith("refused:"), text
        assert str(pid) in text, "the error names the process that has the rank"


def build_facts():
    info = arx.build_info()
    return arx.__version__, info


def test_build_info_tells_version_and_instruction_set(ranks):
    ((version, info),) = ranks(1).run(build_facts)
    assert info["version"] == version
    assert info["simd"] in info["simd_available"]
    assert "scalar" in info["simd_available"]
