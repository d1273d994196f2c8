"""Ranks that disagree: every rank raises, with both descriptions; nothing is written; the group stays usable."""

import ml_dtypes
import numpy as np
import pytest
from rankside import assert_refused, check_usable, filled, outcome

import arx

BF16 = ml_dtypes.bfloat16

# What the usual and the odd ranks ask for, and what every message has to say of both. Small data travels in the arrival
# lines, large data does not.
CASES = {
    "length, large": (
        ("all_reduce", (409600,), "f4", "sum"),
        ("all_reduce", (409598,), "f4", "sum"),
        ["409600", "409598"],
    ),
    "length, small": (("all_reduce", (6,), "f4", "sum"), ("all_reduce", (5,), "f4", "sum"), ["(6,)", "(5,)"]),
    "shape, small": (("all_reduce", (2, 3), "f4", "sum"), ("all_reduce", (3, 2), "f4", "sum"), ["(2, 3)", "(3, 2)"]),
    "shape, large": (
        ("all_reduce", (2, 50000), "f4", "sum"),
        ("all_reduce", (50000, 2), "f4", "sum"),
        ["(2, 50000)", "(50000, 2)"],
    ),
    "number of axes": (("all_reduce", (6,), "f4", "sum"), ("all_reduce", (1, 6), "f4", "sum"), ["(6,)", "(1, 6)"]),
    "dtype": (("all_reduce", (6,), "f4", "sum"), ("all_reduce", (6,), BF16, "sum"), ["float32", "bfloat16"]),
    "dtype, same bytes": (("all_reduce", (6,), "f4", "sum"), ("all_reduce", (6,), "i4", "sum"), ["float32", "int32"]),
    "dtype, same bytes in all": (
        ("all_reduce", (6,), "f4", "sum"),
        ("all_reduce", (3,), "i8", "sum"),
        ["float32", "int64"],
    ),
    "dtype, large": (
        ("all_reduce", (90000,), "f8", "sum"),
        ("all_reduce", (90000,), "u8", "sum"),
        ["float64", "uint64"],
    ),
    "op": (("all_reduce", (6,), "f4", "sum"), ("all_reduce", (6,), "f4", "max"), ["sum", "max"]),
    "op, large": (("all_reduce", (90000,), "f4", "sum"), ("all_reduce", (90000,), "f4", "avg"), ["sum", "avg"]),
    "root": (("broadcast", (6,), "f4", 0), ("broadcast", (6,), "f4", 1), ["root=0", "root=1"]),
    "root, large": (("broadcast", (90000,), "f4", 0), ("broadcast", (90000,), "f4", 1), ["root=0", "root=1"]),
    "broadcast": (("broadcast", (6,), "f4", 0), ("broadcast", (14,), "i8", 0), ["(6,)", "float32", "(14,)", "int64"]),
    "collective": (("all_reduce", (6,), "f4", "sum"), ("broadcast", (6,), "f4", 0), ["all_reduce", "broadcast"]),
    "collective, large": (
        ("broadcast", (90000,), "f4", 0),
        ("all_reduce", (90000,), "f4", "sum"),
        ["all_reduce", "broadcast"],
    ),
    "barrier": (("all_reduce", (6,), "f4", "sum"), ("barrier", (0,), "f4", None), ["all_reduce", "barrier"]),
    "barrier, large": (("all_reduce", (90000,), "f4", "sum"), ("barrier", (0,), "f4", None), ["all_reduce", "barrier"]),
}


def ask(memory, with_out, collective, shape, dtype, extra):
    """Make one call; whatever it may write to must come back as it was."""
    x = filled(memory, np.full(shape, arx.rank() + 1).astype(dtype), arx.rank())
    out = (
        filled(memory, np.full(shape, 99).astype(dtype), arx.rank())
        if with_out and collective == "all_reduce"
        else None
    )
    before = x.tobytes(), None if out is None else out.tobytes()
    if collective == "all_reduce":
        result = outcome(arx.all_reduce, x, extra, out=out)
    elif collective == "broadcast":
        result = outcome(arx.broadcast, x, extra)
    else:
        result = outcome(arx.barrier)
    assert before == (x.tobytes(), None if out is None else out.tobytes()), "an output buffer was touched"
    return result


def disagree(case, odd, memory, with_out):
    usual, other, _ = CASES[case]
    result = ask(memory, with_out, *(other if arx.rank() in odd else usual))
    check_usable()
    return result


@pytest.mark.parametrize("with_out", [False, True], ids=["in place", "out"])
@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize(("p", "odd"), [(2, {1}), (2, {0}), (4, {2}), (4, {0}), (5, {1, 3}), (9, {0, 8})], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_ranks_that_disagree_all_raise_and_the_group_stays_usable(ranks, case, p, odd, memory, with_out):
    words = CASES[case][2]
    for result in ranks(p).run(disagree, case, odd, memory, with_out):
        assert_refused(result, "MismatchError", *words)
        assert_refused(result, "ValueError", *(f"rank {rank}" for rank in odd if len(odd) == 1))


def all_different():
    result = outcome(arx.all_reduce, np.ones(arx.rank() + 1))
    check_usable()
    return result


def test_every_rank_different(ranks):
    for result in ranks(4).run(all_different):
        assert_refused(result, "MismatchError")


def disagree_often(rounds):
    """Right and wrong calls in turn, of changing size: no wrong call may leave anything that a later one reads."""
    for k in range(rounds):
        count = (3, 100, 5000, 60000)[k % 4]
        result = outcome(arx.all_reduce, np.ones(count + (arx.rank() == k % arx.size())))
        assert_refused(result, "MismatchError", str(count))
        check_usable()


@pytest.mark.parametrize("p", [2, 3, 6])
def test_disagreeing_again_and_again(ranks, p):
    ranks(p).run(disagree_often, 60)


def names_differ(name):
    """name= is part of the call."""
    result = outcome(arx.all_reduce, np.ones(3), name=name if arx.rank() == 1 else "weights")
    check_usable()
    return result


def test_different_names_are_a_disagreement(ranks):
    for result in ranks(3).run(names_differ, "gradients"):
        assert_refused(result, "MismatchError", "weights", "gradients")
