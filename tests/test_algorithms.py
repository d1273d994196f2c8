"""Algorithms of the message path, by name, among ranks that share a host: their links are pipes in shared memory."""

import os
import signal

import numpy as np
import oracle
import pytest
from processes import Job, fault, stage
from rankside import assert_refused, check_usable, filled, outcome
from test_all_reduce import MEMORY

import arx
from arx.testing import run_ranks

NAMES = (
    "ring",
    "recursive",
    "doubling",
    "all_gather_reduce",
    "reduce_broadcast",
    "relay",
    "tree",
    "chain",
    "pairwise",
    "exchange",
    "k_ary:3:2",
    "double_tree:4",
)
LEFT_OUT = ("k_ary", "k_ary:2", "double_tree")
"""Names without the numbers that may follow."""
ELSEWHERE = ("hierarchical", "hierarchical+ring")
"""On one host the same as "auto"."""
IN_ANY_ORDER = tuple((op, name) for name in oracle.INTEGERS for op in ("sum", "bxor")) + tuple(
    (op, name) for name in oracle.DTYPES for op in ("min", "lor") if oracle.allowed(op, name)
)
"""What gives the same whatever is combined first."""


def exact(algo, most=300_000):
    """Every type and operation that has one right answer, at lengths around the number of ranks and beyond a pipe."""
    rank, p = arx.rank(), arx.size()
    for op, name in IN_ANY_ORDER:
        for count in (1, p + 1, 1000):
            x = oracle.values(name, count, rank)
            out = np.zeros_like(x)
            arx.all_reduce(x, op, out=out, algo=algo)
            oracle.check(out, oracle.reduced(op, name, count, p), f"{algo} {op} {name} {count}")
            oracle.check(x, oracle.values(name, count, rank), f"{algo} {op} {name} {count}: the input")
    for count in (0, p - 1, p, most):
        x = oracle.values("int64", count, rank)
        arx.all_reduce(x, algo=algo)
        oracle.check(x, oracle.reduced("sum", "int64", count, p), f"{algo} {count}")


@pytest.mark.parametrize("algo", [*NAMES, *LEFT_OUT, *ELSEWHERE])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_every_name_gives_exact_results(ranks, p, algo):
    ranks(p).run(exact, algo)


def floats(algo):
    """Whole numbers, which every order adds to the same; and numbers whose order shows, the same bits each time."""
    found, rank, p = [], arx.rank(), arx.size()
    for name in ("float32", "float64", "complex64", "complex128"):
        for op in ("sum", "avg", "prod"):
            parts = [np.floor(oracle.values("float64", 3000, r) * 2).astype(oracle.DTYPES[name]) for r in range(p)]
            whole = parts[rank].copy()
            arx.all_reduce(whole, op, algo=algo)
            if op != "prod":
                oracle.check(whole, oracle.expected(op, parts), f"{algo} {op} {name}")
            x, y = (oracle.values(name, 3000, rank) for _ in range(2))
            arx.all_reduce(x, op, algo=algo)
            arx.all_reduce(y, op, algo=algo)
            assert oracle.digest(x) == oracle.digest(y), f"{algo} {op} {name}: other bits the second time"
            found.append(oracle.digest(whole, x))
    return found


@pytest.mark.parametrize("algo", NAMES)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_floats_have_the_same_bits_on_every_rank(ranks, p, algo):
    first, *others = ranks(p).run(floats, algo)
    assert others == [first] * (p - 1)


def halves(algo):
    """One large number and many of one: added in halves they would be lost."""
    rank, p = arx.rank(), arx.size()
    for name, large in (("float16", 2048), ("bfloat16", 256)):
        for op in ("sum", "avg"):
            parts = np.array([[large if r == k % p else 1 + (k + r) % 3 for k in range(3000)] for r in range(p)], "f4")
            x = parts[rank].astype(oracle.DTYPES[name])
            arx.all_reduce(x, op, algo=algo)
            total = parts.sum(axis=0) / np.float32(p if op == "avg" else 1)
            oracle.check(x, total.astype(x.dtype), f"{algo} {op} {name}")


@pytest.mark.parametrize("algo", NAMES)
@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_halves_are_rounded_once(ranks, p, algo):
    ranks(p).run(halves, algo)


def memories(algo):
    for x_memory, out_memory in MEMORY:
        x = filled(x_memory, oracle.values("int32", 7000, arx.rank()), arx.rank())
        out = x if out_memory is None else filled(out_memory, np.zeros(7000, "i4"), arx.rank())
        arx.all_reduce(x, out=out, algo=algo)
        oracle.check(out, oracle.reduced("sum", "int32", 7000, arx.size()), f"{algo} {x_memory} {out_memory}")
    strided = oracle.values("int32", 600, arx.rank()).reshape(20, 30)[::2, ::-1]
    want = oracle.reduced("sum", "int32", 600, arx.size()).reshape(20, 30)[::2, ::-1]
    oracle.check(arx.all_reduce(strided, algo=algo), want, f"{algo}, strided")


@pytest.mark.parametrize("algo", ["ring", "exchange"])
def test_arrays_of_every_kind(ranks, algo):
    ranks(3).run(memories, algo)


@pytest.mark.parametrize(
    "name", ["magic", "Ring", "ring:2", "k_ary:0", "k_ary:2:3:4", "double_tree:x", "hierarchical+x"]
)
def test_a_wrong_name_lists_the_right_ones(ranks, name):
    for refusal in ranks(2).run(wrong, name):
        assert_refused(refusal, "ValueError", f"algo '{name}'", "auto", "lines", "staged", "symmetric", "hierarchical")
        assert_refused(refusal, "ValueError", *(known.split(":")[0] for known in NAMES))


def wrong(name):
    refusal = outcome(arx.all_reduce, np.ones(3), algo=name)
    check_usable()
    return refusal


def other_way(mine, others):
    """Rank 1 comes with another algorithm, of arrays that may not be touched."""
    x = np.full(20_000, arx.rank() + 1.0)
    refusal = outcome(arx.all_reduce, x, algo=mine if arx.rank() == 1 else others)
    assert (x == arx.rank() + 1.0).all(), "data has moved"
    check_usable()
    x[:] = 1
    arx.all_reduce(x, algo=others)
    assert (x == arx.size()).all()
    return refusal


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(("mine", "others"), [("ring", "tree"), ("k_ary:2:3", "k_ary:2:4"), ("staged", "pairwise")])
def test_different_algorithms_are_a_disagreement(ranks, p, mine, others):
    for refusal in ranks(p).run(other_way, mine, others):
        assert_refused(refusal, "MismatchError", "rank 1 called", f"algo={mine}", f"algo={others}", "No data has moved")


def by_the_environment():
    """``ARX_ALGO`` is what calls do that name none; it shows in errors."""
    with arx.init():
        check_usable()
        x = np.ones(3)
        arx.all_reduce(x, algo="staged")
        arx.all_reduce(x, "max", algo="auto")
        arx.broadcast(x)
        arx.barrier()
        return outcome(arx.all_reduce, np.ones(3 + arx.rank()))


def test_the_environment_names_the_algorithm():
    for transport in ("auto", "shm"):
        for refusal in run_ranks(by_the_environment, 3, env={"ARX_ALGO": "recursive", "ARX_TRANSPORT": transport}):
            assert_refused(refusal, "MismatchError", "algo=recursive")


def refused_start():
    return outcome(arx.init)


def test_an_environment_with_a_wrong_name_is_refused():
    for refusal in run_ranks(refused_start, 2, env={"ARX_ALGO": "rings"}):
        assert_refused(refusal, "InitError", "ARX_ALGO", "'rings'", "staged", "ring", "recursive", "double_tree")


def crowded(algo):
    with arx.init():
        exact(algo, 10_000)


@pytest.mark.parametrize("algo", ["ring", "exchange"])
def test_small_pipes_and_more_ranks_than_cores(algo):
    run_ranks(crowded, 5, algo, env={"ARX_TUNE": "pipe=4096,cores=1"})


def endless(algo, count):
    x = np.full(count, arx.rank(), np.float32)
    while True:
        arx.all_reduce(x, "max", algo=algo)


def survivor(say, algo, count):
    arx.init(timeout=300)
    check_usable()
    say("ready")
    return fault(endless, algo, count), fault(arx.barrier), fault(arx.all_reduce, np.ones(3), algo=algo)


def killing(cases):
    stories = []
    for algo, count, victim in cases:
        with Job(4, survivor, algo, count) as job:
            job.hear("ready")
            os.sched_yield()
            job.signal(victim, signal.SIGKILL)
            stories.append(job.ends([rank for rank in range(4) if rank != victim]))
    return stories


def test_every_survivor_names_the_killed():
    cases = [(algo, count, k % 4) for k, algo in enumerate(NAMES) for count in (10, 2 << 20)]
    for (algo, count, victim), ends in zip(cases, stage(killing, cases), strict=True):
        for end in ends:
            assert end.code == 0, f"{algo} {count}: {end}"
            for error in end.result:
                assert (error.kind, error.ranks) == ("PeerLostError", (victim,)), f"{algo} {count}: {error}"


def leaver(say, algo):
    """Rank 0 ends after as many calls as the others had with it: its pipes may close while they still read."""
    with arx.init(timeout=300) as world:
        for k in range(20):
            x = np.full(50_000 + k, 1 << world.rank)
            arx.all_reduce(x, algo=algo)
            assert (x == 7).all()
    return world.rank


def leaving(names):
    ends = []
    for algo in names:
        with Job(3, leaver, algo) as job:
            ends.append(job.ends())
    return ends


def test_ranks_that_leave_after_the_same_call_do_not_disturb_each_other():
    for ends in stage(leaving, NAMES):
        assert [(end.result, end.code) for end in ends] == [(0, 0), (1, 0), (2, 0)]
