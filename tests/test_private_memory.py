"""Blocks that the kernel reads in the memory of other ranks: every number of ranks, groups, and who may not be read."""

import contextlib
import ctypes
import os

import numpy as np
import oracle
import pytest

import arx
from arx.testing import run_ranks

# Of float32, around the sizes between which the kernel is asked, and more than one piece of its reading.
COUNTS = (8191, 8192, 16_384, 16_385, 100_003, 1_200_001)
NOBODY = 65534
PR_SET_DUMPABLE = 4


def check_moves(group, count):
    """All that moves blocks of that many elements: each has values of its own."""
    p, me = group.size, group.rank
    parts = [oracle.exact("sum", "float32", count * p, rank) for rank in range(p)]
    mine, case = slice(me * count, (me + 1) * count), f"{count} of {p}"
    firsts = np.concatenate([part[:count] for part in parts])
    oracle.check(arx.all_to_all(parts[me], group=group), np.concatenate([x[mine] for x in parts]), f"all_to_all {case}")
    oracle.check(arx.all_gather(parts[me][:count], group=group), firsts, f"all_gather {case}")
    for root in range(p):
        got = arx.gather(parts[me][:count], root, group=group)
        oracle.check(firsts if got is None else got, firsts, f"gather to {root}, {case}")
        sent = parts[root] if me == root else None
        oracle.check(arx.scatter(sent, root, group=group), parts[root][mine], f"scatter from {root}, {case}")
    for root in range(p):
        x = parts[me][:count].copy()
        arx.broadcast(x, root, group=group)
        oracle.check(x, parts[root][:count], f"broadcast from {root}, {case}")
    x = parts[me][:count].copy()
    arx.exscan(x, out=(after := np.zeros_like(x)), group=group)
    if me > 0:
        oracle.check(after, oracle.expected("sum", [part[:count] for part in parts[:me]]), f"exscan {case}")
    oracle.check(parts[me], oracle.exact("sum", "float32", count * p, me), "what was sent")


def moves(counts):
    with arx.init() as world:
        for count in counts:
            check_moves(world, count)


@pytest.mark.parametrize("tune", [None, "kernel=off", "kernel=1", "kernel=1,cores=1"])
@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_moving(p, tune):
    run_ranks(moves, p, COUNTS[:5], env={"ARX_TUNE": tune})


def test_more_than_a_piece_at_once():
    run_ranks(moves, 3, COUNTS)


def in_groups():
    with arx.init() as world:
        evens, odds = world.new_group([0, 2, 4]), world.new_group([3, 1])
        for group in (evens, odds, world):
            if group is not None:
                for count in COUNTS[3:5]:
                    check_moves(group, count)


def test_groups_read_their_members():
    run_ranks(in_groups, 5)


def refused_tuning():
    with pytest.raises(arx.InitError, match=r"kernel=of.*kernel=off"):
        arx.init()


def test_a_word_that_is_none():
    run_ranks(refused_tuning, 1, env={"ARX_TUNE": "kernel=of"})


def become_nobody():
    """Root may read everybody."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    show_memory(True)


def show_memory(yes):
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(yes), 0, 0, 0) == 0


def is_hidden(pid):
    with contextlib.suppress(PermissionError), open(f"/proc/{pid}/mem", "rb"):
        return False
    return True


@contextlib.contextmanager
def silence():
    """Nothing is written to the streams of this process."""
    heard, kept = os.memfd_create("heard"), [os.dup(1), os.dup(2)]
    try:
        for stream in (1, 2):
            os.dup2(heard, stream)
        yield
        assert os.pread(heard, 10_000, 0) == b""
    finally:
        for stream, old in zip((1, 2), kept, strict=True):
            os.dup2(old, stream)


def hiding(whom, when):
    """The ranks `whom` hide their memory before the job forms, or between two calls of it."""
    become_nobody()
    me = int(os.environ["ARX_RANK"])
    if when == "before":
        show_memory(me not in whom)
    with silence(), arx.init() as world:
        pids = arx.all_gather(np.array([os.getpid()]))
        group = world.new_group(list(range(world.size))[::-1])
        if when == "during":
            check_moves(world, 20_000)
            show_memory(me not in whom)
            arx.barrier()
        assert all(is_hidden(pids[rank]) for rank in whom if rank != me)
        for count in (20_000, 300_000):
            check_moves(world, count)
            check_moves(group, count)


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize(("p", "whom"), [(2, [0]), (2, [1]), (2, [0, 1]), (3, [2]), (4, [1]), (4, [0, 1, 2, 3])])
def test_memory_that_may_not_be_read(p, whom, when):
    run_ranks(hiding, p, whom, when)
