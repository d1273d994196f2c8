"""Element types and operations, by numbers worked out by hand: what must come out, and which pairs are refused."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from rankside import assert_refused, check_usable, filled, outcome

import arx


def reduced_rows(op, dtype, rows, memory="private", refused=False):
    """Each rank puts its row in; returns what all_reduce leaves there, or how it refuses."""
    x = filled(memory, np.array(rows[arx.rank()], dtype), arx.rank())
    result = outcome(arx.all_reduce, x, op)
    if refused:
        check_usable()
    return result


def assert_all(results, want):
    for result in results:
        oracle.check(result, want, "literal rows")


@pytest.mark.parametrize(
    ("dtype", "rows", "want"),
    [
        ("int64", [[2**53], [1]], [9007199254740993]),
        ("int32", [[2**24], [1]], [16777217]),
        ("uint64", [[2**63], [2**62 + 1]], [13835058055282163713]),
    ],
)
def test_integers_never_pass_through_a_float(ranks, dtype, rows, want):
    assert_all(ranks(2).run(reduced_rows, "sum", dtype, rows), np.array(want, dtype))


@pytest.mark.parametrize(
    ("op", "dtype", "rows", "want"),
    [
        ("sum", "int8", [[127, -128, 100], [1, -1, 100], [0, 0, 100]], [-128, 127, 44]),
        ("sum", "uint8", [[255], [1], [1]], [1]),
        ("sum", "uint32", [[2**32 - 1], [2**32 - 1], [0]], [2**32 - 2]),
        ("sum", "int64", [[2**63 - 1], [1], [0]], [-(2**63)]),
        ("prod", "int16", [[300], [300], [1]], [24464]),
        ("prod", "uint64", [[2**63], [3], [1]], [2**63]),
    ],
)
def test_integer_sum_and_prod_wrap(ranks, op, dtype, rows, want):
    assert_all(ranks(3).run(reduced_rows, op, dtype, rows), np.array(want, dtype))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("max", [True, True, False]),
        ("bor", [True, True, False]),
        ("lor", [True, True, False]),
        ("sum", [True, True, False]),
        ("min", [True, False, False]),
        ("prod", [True, False, False]),
        ("band", [True, False, False]),
        ("land", [True, False, False]),
        ("bxor", [True, True, False]),
    ],
)
def test_bool_is_or_and_and_its_bytes_stay_0_or_1(ranks, op, want):
    rows = [[True, r == 0, False] for r in range(3)]
    for result in ranks(3).run(reduced_rows, op, "bool", rows):
        assert result.dtype == bool
        assert set(result.view(np.uint8).tolist()) <= {0, 1}
        assert result.tolist() == want


def odd_bools(op):
    """Bools whose true bytes are other than 1, as C code may leave them."""
    x = np.array([255, 2, 0, 128], np.uint8).view(bool)
    arx.all_reduce(x, op)
    return x.view(np.uint8).tolist()


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "band", "bor", "land", "lor"])
def test_bool_bytes_other_than_1_count_as_true(ranks, op):
    assert ranks(2).run(odd_bools, op) == [[1, 1, 0, 1]] * 2


def test_avg_divides_by_the_group_size(ranks):
    rows = [[float(r)] * 5 for r in range(3)]
    assert_all(ranks(3).run(reduced_rows, "avg", "float64", rows), np.ones(5))
    rows = [[1 + 2j], [3 - 2j], [5 + 6j], [7 + 2j]]
    assert_all(ranks(4).run(reduced_rows, "avg", "complex64", rows), np.array([4 + 2j], "complex64"))


@pytest.mark.parametrize("dtype", [*oracle.INTEGERS, "bool"])
def test_avg_of_integers_and_bool_is_refused(ranks, dtype):
    for refusal in ranks(2).run(reduced_rows, "avg", dtype, [[1, 0], [0, 1]], "private", True):
        assert_refused(refusal, "TypeError", "avg", dtype, "cast")


@pytest.mark.parametrize("op", ["band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_bitwise_operations_of_floats_are_refused(ranks, op, dtype):
    for refusal in ranks(2).run(reduced_rows, op, dtype, [[1], [2]], "private", True):
        assert_refused(refusal, "TypeError", op, dtype)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_min_and_max_of_complex_are_refused(ranks, op, dtype):
    for refusal in ranks(2).run(reduced_rows, op, dtype, [[1j], [2]], "private", True):
        assert_refused(refusal, "TypeError", op, dtype)


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize(
    ("dtype", "rows", "want"),
    [
        (np.float16, [2048, 1, 1, 1], 2052),
        (ml_dtypes.bfloat16, [256, 1, 1, 1], 260),
        (np.float16, [60000, 60000, -60000, -60000], 0),
        (np.float16, [2048, 1, 1, 1.5], 2052),
    ],
)
def test_halves_are_summed_in_float32_and_rounded_once(ranks, memory, dtype, rows, want):
    # 2051.5 lies between 2050 and 2052, nearer to the latter; one rounding per rank would stay at 2048.
    for count in (1, 40, 5000):
        results = ranks(4).run(reduced_rows, "sum", dtype, [[row] * count for row in rows], memory)
        assert_all(results, np.full(count, want, dtype))


def one_nan(op, name, holder, memory):
    """NaN at one rank, at each place of an array in turn."""
    world = arx.world()
    count = 67
    for at in range(count):
        x = filled(memory, oracle.values(name, count, world.rank), world.rank)
        want = oracle.reduced(op, name, count, world.size)
        if world.rank == holder:
            x[at] = np.nan
        want[at] = np.nan
        arx.all_reduce(x, op)
        oracle.check(x, want, f"{op} of {name}, NaN of rank {holder} at [{at}]")


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_nan_wins_wherever_it_stands(ranks, p, op, memory):
    for name in oracle.FLOATS:
        for holder in range(p):
            ranks(p).run(one_nan, op, name, holder, memory)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("rows", [[[0.0], [-0.0], [0.0]], [[-0.0], [0.0], [0.0]], [[0.0], [0.0], [-0.0]]])
def test_minus_zero_is_below_zero(ranks, dtype, rows):
    # As many elements as fill a vector register, and some over: both the vector loop and its rest.
    rows = [row * 67 for row in rows]
    assert_all(ranks(3).run(reduced_rows, "min", dtype, rows), np.full(67, -0.0, dtype))
    assert_all(ranks(3).run(reduced_rows, "max", dtype, rows), np.full(67, 0.0, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinities(ranks, dtype):
    rows = [[np.inf, np.inf, -np.inf, 1], [-np.inf, 1, 1, 1], [1, 1, 1, 1]]
    assert_all(ranks(3).run(reduced_rows, "sum", dtype, rows), np.array([np.nan, np.inf, -np.inf, 3], dtype))
    assert_all(ranks(3).run(reduced_rows, "max", dtype, rows), np.array([np.inf, np.inf, 1, 1], dtype))
    assert_all(ranks(3).run(reduced_rows, "min", dtype, rows), np.array([-np.inf, 1, -np.inf, 1], dtype))


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128"])
def test_logical_operations_give_0_or_1_in_the_dtype(ranks, dtype):
    rows = [[5, 0, 7, 0], [2, 0, 0, 3]]
    assert_all(ranks(2).run(reduced_rows, "land", dtype, rows), np.array([1, 0, 0, 0], dtype))
    assert_all(ranks(2).run(reduced_rows, "lor", dtype, rows), np.array([1, 0, 1, 1], dtype))
