"""Arguments that are refused: on every rank, before any data moves, with the reason; and the group stays usable.

Each case is tried twice: all ranks pass the bad argument, then only rank 1 does, and the others raise MismatchError,
which names rank 1 and its reason.
"""

import time

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from rankside import assert_refused, check_usable, outcome

import arx


def read_only(x):
    x.flags.writeable = False
    return x


def good():
    """What the other ranks pass."""
    return np.full(8, arx.rank() + 1.0)


BAD_X = {
    "int": (lambda: 3, "TypeError", ["functional"]),
    "float": (lambda: 3.0, "TypeError", ["functional"]),
    "complex": (lambda: 3j, "TypeError", ["functional"]),
    "bool": (lambda: True, "TypeError", ["functional"]),
    "numpy scalar": (lambda: np.float64(3), "TypeError", ["functional"]),
    "list": (lambda: [1.0] * 8, "TypeError", ["list"]),
    "text": (lambda: "12345678", "TypeError", ["str"]),
    "None": (lambda: None, "TypeError", ["None"]),
    "an object": (lambda: object(), "TypeError", ["object"]),
    "bytes": (lambda: bytes(8), "ValueError", ["read-only"]),
    "read-only": (lambda: read_only(good()), "ValueError", ["read-only"]),
    "broadcast_to": (lambda: np.broadcast_to(1.0, (8,)), "ValueError", ["read-only"]),
    "stride 0": (lambda: as_strided(np.zeros(1), (8,), (0,)), "ValueError", ["stride"]),
    "overlapping strides": (lambda: as_strided(np.zeros(9), (4, 2), (8, 8)), "ValueError", ["share memory"]),
    "big-endian": (lambda: good().astype(">f8"), "TypeError", ["byte order"]),
    "objects": (lambda: np.full(8, None), "TypeError", ["object"]),
    "record": (lambda: np.zeros(8, [("a", "<u8"), ("b", "<f4")]), "TypeError", ["dtype", "<u8"]),
    "text array": (lambda: np.zeros(8, "U4"), "TypeError", ["U4"]),
    "bytes array": (lambda: np.zeros(8, "S8"), "TypeError", ["S8"]),
    "void": (lambda: np.zeros(8, "V3"), "TypeError", ["V3"]),
    "dates": (lambda: np.zeros(8, "M8[ns]"), "TypeError", ["datetime64"]),
    "durations": (lambda: np.zeros(8, "m8[ns]"), "TypeError", ["timedelta64"]),
    "long double": (lambda: np.zeros(8, np.longdouble), "TypeError", [np.dtype(np.longdouble).name]),
    "masked": (lambda: np.ma.masked_array(good(), [True] + [False] * 7), "TypeError", ["masked"]),
    "masked, nothing masked": (lambda: np.ma.masked_array(good()), "TypeError", ["masked"]),
}


def overlapping(shift):
    b = np.arange(16.0)
    return {"x": b[:8], "out": b[shift : 8 + shift]}


BAD_OPTIONS = {
    "unknown op": (lambda: {"op": "summ"}, "ValueError", ["summ", "sum", "max"]),
    "op of another type": (lambda: {"op": 3}, "TypeError", ["op", "not int"]),
    "op that the dtype has not": (lambda: {"op": "bxor"}, "TypeError", ["bxor", "float64"]),
    "negative timeout": (lambda: {"timeout": -1}, "ValueError", ["timeout"]),
    "timeout NaN": (lambda: {"timeout": float("nan")}, "ValueError", ["timeout"]),
    "timeout as text": (lambda: {"timeout": "3"}, "TypeError", ["timeout"]),
    "unknown algo": (lambda: {"algo": "magic"}, "ValueError", ["magic", "auto"]),
    "algo of another type": (lambda: {"algo": 3}, "TypeError", ["algo"]),
    "name of another type": (lambda: {"name": 3}, "TypeError", ["name"]),
    "out of another shape": (lambda: {"out": np.zeros((2, 4))}, "ValueError", ["out", "(2, 4)", "(8,)"]),
    "out of another dtype": (lambda: {"out": np.zeros(8, "f4")}, "ValueError", ["out", "float32", "float64"]),
    "out read-only": (lambda: {"out": read_only(np.zeros(8))}, "ValueError", ["out", "read-only"]),
    "out broadcast": (lambda: {"out": np.broadcast_to(1.0, (8,))}, "ValueError", ["out", "read-only"]),
    "out stride 0": (lambda: {"out": as_strided(np.zeros(1), (8,), (0,))}, "ValueError", ["out", "stride"]),
    "out big-endian": (lambda: {"out": np.zeros(8, ">f8")}, "TypeError", ["out", "byte order"]),
    "out masked": (lambda: {"out": np.ma.zeros(8)}, "TypeError", ["out", "masked"]),
    "out a list": (lambda: {"out": [0.0] * 8}, "TypeError", ["out", "list"]),
    "out overlaps above": (lambda: overlapping(2), "ValueError", ["overlap"]),
    "out overlaps by one": (lambda: overlapping(7), "ValueError", ["overlap"]),
}


def contents(*values):
    return [v.tobytes() for v in values if isinstance(v, np.ndarray) and not v.dtype.hasobject]


def attempt(kind, case, everywhere):
    """all_reduce with a bad argument on rank 1 or on all ranks; nothing that was passed may have changed."""
    bad = everywhere or arx.rank() == 1
    x, options = good(), {}
    if bad and kind == "x":
        x = BAD_X[case][0]()
    elif bad:
        options = BAD_OPTIONS[case][0]()
        x = options.pop("x", x)
    before = contents(x, options.get("out"))
    refusal = outcome(arx.all_reduce, x, **options)
    assert contents(x, options.get("out")) == before, "data has moved"
    check_usable()
    return refusal


def check_attempts(ranks, kind, case, error, words):
    for refusal in ranks(3).run(attempt, kind, case, True):
        assert_refused(refusal, error, *words)
    results = ranks(3).run(attempt, kind, case, False)
    assert_refused(results[1], error, *words)
    for rank in (0, 2):
        assert_refused(results[rank], "MismatchError", "rank 1", *words)


@pytest.mark.parametrize("case", BAD_X)
def test_an_x_that_is_refused(ranks, case):
    check_attempts(ranks, "x", case, *BAD_X[case][1:])


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_an_option_that_is_refused(ranks, case):
    check_attempts(ranks, "option", case, *BAD_OPTIONS[case][1:])


def two_refused():
    """Two ranks refuse for different reasons."""
    x = {1: read_only(good()), 3: good().astype(">f8")}.get(arx.rank(), good())
    refusal = outcome(arx.all_reduce, x)
    check_usable()
    return refusal


def test_two_ranks_that_refuse(ranks):
    results = ranks(5).run(two_refused)
    assert_refused(results[1], "ValueError", "read-only")
    assert_refused(results[3], "TypeError", "byte order")
    for rank in (0, 2, 4):
        assert_refused(results[rank], "MismatchError", "rank 1", "read-only")


def refused_again_and_again():
    for _ in range(50):
        assert "ValueError" in outcome(arx.all_reduce, read_only(good()) if arx.rank() == 0 else good()).kinds
        check_usable()


def test_refusals_in_a_row_keep_the_ranks_in_step(ranks):
    ranks(3).run(refused_again_and_again)


def refusals_in_a_row(count):
    """Rank 1 refuses many times before the others have come to the first of these calls."""
    if arx.rank() != 1:
        time.sleep(0.2)
    for _ in range(count):
        refusal = outcome(arx.all_reduce, 3.0 if arx.rank() == 1 else good())
        assert_refused(refusal, "TypeError" if arx.rank() == 1 else "MismatchError", "functional")
    check_usable()


@pytest.mark.parametrize("p", [2, 3])
def test_one_rank_refuses_many_times_before_the_others_come(ranks, p):
    ranks(p).run(refusals_in_a_row, 20)


def masked_broadcast():
    refusal = outcome(arx.broadcast, np.ma.zeros(3))
    check_usable()
    return refusal


def test_masked_arrays_are_refused_in_a_broadcast(ranks):
    for refusal in ranks(2).run(masked_broadcast):
        assert_refused(refusal, "TypeError", "masked")


def big_endian_broadcast():
    refusal = outcome(arx.broadcast, np.zeros(3, ">i4"))
    check_usable()
    return refusal


def test_big_endian_is_refused_in_a_broadcast(ranks):
    for refusal in ranks(2).run(big_endian_broadcast):
        assert_refused(refusal, "TypeError", "byte order")


def scalar_broadcast():
    refusal = outcome(arx.broadcast, 3.0)
    check_usable()
    return refusal


def test_python_scalars_are_refused_in_a_broadcast(ranks):
    for refusal in ranks(2).run(scalar_broadcast):
        assert_refused(refusal, "TypeError", "float")


def bad_barrier():
    refusals = [outcome(arx.barrier, timeout=-1), outcome(arx.barrier, timeout="soon")]
    check_usable()
    return refusals


def test_a_barrier_with_a_bad_timeout(ranks):
    for negative, text in ranks(2).run(bad_barrier):
        assert_refused(negative, "ValueError", "timeout")
        assert_refused(text, "TypeError", "timeout")


def exactly_the_same_memory():
    """In place by other names: an equal view as out, and a second array over the same buffer."""
    b = np.full(8, arx.rank() + 1.0)
    view = b[:]
    assert arx.all_reduce(b, out=view) is view
    over = np.frombuffer(memoryview(b), np.float64)
    arx.all_reduce(over, out=b)
    return b.tolist()


def test_exactly_the_same_memory_is_in_place(ranks):
    assert ranks(2).run(exactly_the_same_memory) == [[6.0] * 8] * 2


def same_span_other_elements():
    """x and out within the same bytes without a common element: two columns of one matrix."""
    m = np.full((8, 2), arx.rank() + 1.0)
    arx.all_reduce(m[:, 0], out=m[:, 1])
    return m.tolist()


def test_interleaved_columns_do_not_overlap(ranks):
    assert ranks(2).run(same_span_other_elements) == [[[r + 1.0, 3.0]] * 8 for r in range(2)]


def reversed_in_itself():
    b = np.arange(8.0)
    refusal = outcome(arx.all_reduce, b, out=b[::-1])
    assert b.tolist() == list(range(8))
    check_usable()
    return refusal


def test_the_same_memory_in_another_order_overlaps(ranks):
    for refusal in ranks(2).run(reversed_in_itself):
        assert_refused(refusal, "ValueError", "overlap")


def x_that_is_only_read():
    """With out=, x may be read-only, or one element repeated."""
    out = np.zeros(8)
    arx.all_reduce(read_only(good()), out=out)
    first = out.tolist()
    arx.all_reduce(np.broadcast_to(np.float64(arx.rank() + 1), (8,)), out=out)
    return first, out.tolist()


def test_x_is_only_read_when_there_is_an_out(ranks):
    assert ranks(2).run(x_that_is_only_read) == [([3.0] * 8, [3.0] * 8)] * 2


def keyword_only():
    return [
        outcome(arx.all_reduce, good(), "sum", good()),
        outcome(arx.broadcast, good(), 0, None),
        outcome(arx.barrier, 3),
    ]


def test_what_stands_behind_the_star_is_keyword_only(ranks):
    for refusals in ranks(2).run(keyword_only):
        for refusal in refusals:
            assert_refused(refusal, "TypeError", "positional")
