"""Any strides, another layout on every rank, no elements, no axes; the memory around a view stays as it was."""

import numpy as np
import oracle
import pytest
from layouts import LAYOUTS, broadcast, in_place, into_out
from rankside import assert_refused, check_usable, outcome

import arx

SHAPES = [(12,), (4, 3), (2, 3, 5), (130, 70), (3, 1, 40000)]


def all_of(function, layout, memory, dtypes):
    for shape in SHAPES:
        for name, op in dtypes:
            function(layout, memory, name, shape, op)


DTYPES = [("float32", "sum"), ("int16", "prod"), ("complex128", "sum"), ("bool", "bxor"), ("bfloat16", "avg")]


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "each"])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_any_layout_in_place(ranks, p, layout, memory):
    ranks(p).run(all_of, in_place, layout, memory, DTYPES)


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "each"])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_any_layout_into_any_other(ranks, p, layout, memory):
    ranks(p).run(all_of, into_out, layout, memory, DTYPES)


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "each"])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_any_layout_in_a_broadcast(ranks, p, layout, memory):
    ranks(p).run(all_of, broadcast, layout, memory, [("float32", 0), ("uint8", 1), ("complex128", 2), ("bfloat16", 4)])


def column_of_a_matrix(call):
    m = 100 * arx.rank() + np.arange(12.0).reshape(4, 3)
    before = m.copy()
    v = m[:, 1]
    {"broadcast": lambda: arx.broadcast(v, 0), "all_reduce": lambda: arx.all_reduce(v)}[call]()
    assert np.array_equal(m[:, [0, 2]], before[:, [0, 2]])
    return v.tolist()


def test_a_column_of_a_matrix(ranks):
    assert ranks(2).run(column_of_a_matrix, "broadcast") == [[1, 4, 7, 10]] * 2
    assert ranks(2).run(column_of_a_matrix, "all_reduce") == [[102, 108, 114, 120]] * 2


def reversed_view():
    base = np.arange(8, dtype="f4")
    x = base[::-1]
    arx.all_reduce(x)
    flipped = np.arange(6, dtype="f4").reshape(2, 3)
    arx.all_reduce(np.flip(flipped, axis=0))
    target = np.zeros(8, "f4")
    arx.all_reduce(np.arange(8, dtype="f4"), out=target[::-1])
    return x.tolist(), base.tolist(), flipped.ravel().tolist(), target.tolist()


def test_a_reversed_view(ranks):
    down, up = [28, 24, 20, 16, 12, 8, 4, 0], [0, 4, 8, 12, 16, 20, 24, 28]
    assert ranks(4).run(reversed_view) == [(down, up, [0, 4, 8, 12, 16, 20], down)] * 4


def ranks_in_different_order():
    """C order on even ranks, Fortran order on odd ones: matched by logical index."""
    rank = arx.rank()
    x = np.array(10 * rank + np.arange(6.0).reshape(2, 3), order="FC"[rank % 2 == 0])
    arx.all_reduce(x)
    assert x.flags.f_contiguous == (rank % 2 == 1), "the caller's memory order is kept"
    return x.tolist()


def test_ranks_are_matched_by_logical_index(ranks):
    assert ranks(3).run(ranks_in_different_order) == [[[30, 33, 36], [39, 42, 45]]] * 3


def empty_arrays(op):
    """Nothing to reduce counts as a call all the same."""
    results = []
    for shape in ((0,), (1, 0, 2), (0, 7)):
        for name in oracle.DTYPES:
            if not oracle.allowed(op, name):
                continue
            for x in (np.ones(shape, oracle.DTYPES[name]), arx.empty(shape, oracle.DTYPES[name])):
                assert arx.all_reduce(x, op) is x
                assert arx.broadcast(x, arx.size() - 1) is x
                results.append((x.shape, x.dtype == oracle.DTYPES[name]))
    check_usable()
    return results


@pytest.mark.parametrize("op", oracle.OPS)
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_empty_arrays_work_and_count_as_a_call(ranks, p, op):
    for results in ranks(p).run(empty_arrays, op):
        assert all(kept for _, kept in results)
        assert {shape for shape, _ in results} == {(0,), (1, 0, 2), (0, 7)}


def one_empty_against_one_not():
    refusal = outcome(arx.all_reduce, np.ones(0 if arx.rank() == 1 else 4))
    check_usable()
    return refusal


def test_an_empty_array_is_matched_with_its_peers(ranks):
    for refusal in ranks(3).run(one_empty_against_one_not):
        assert_refused(refusal, "MismatchError", "(0,)", "(4,)")


def zero_d():
    results = []
    for empty in (np.empty, arx.empty):
        x = empty((), np.float64)
        x[...] = arx.rank() + 1.0
        assert arx.all_reduce(x) is x
        results.append((x.shape, float(x)))
        x[...] = arx.rank()
        assert arx.broadcast(x, 2) is x
        results.append((x.shape, float(x)))
    return results


def test_0_d_arrays_work(ranks):
    assert ranks(4).run(zero_d) == [[((), 10.0), ((), 2.0)] * 2] * 4


def many_axes():
    x = np.full((1,) * 20 + (2,) * 6, arx.rank() + 1.0).transpose()
    arx.all_reduce(x)
    return x.shape == (2,) * 6 + (1,) * 20 and set(x.ravel().tolist())


def test_many_axes(ranks):
    assert ranks(2).run(many_axes) == [{3.0}] * 2
