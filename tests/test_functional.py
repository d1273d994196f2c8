"""arx.functional: the argument stays as it is, the result is new; Python numbers are welcome."""

import numpy as np
import oracle
import pytest
from rankside import assert_refused, check_usable, outcome

import arx
from arx import functional


def table(op):
    world = arx.world()
    for name in oracle.DTYPES:
        if not oracle.allowed(op, name):
            continue
        for count in (0, 1, 1000, 70_000):
            x = oracle.values(name, count, world.rank)
            before = x.tobytes()
            x.flags.writeable = False
            y = functional.all_reduce(x, op)
            assert type(y) is np.ndarray
            assert not np.shares_memory(x, y)
            assert x.tobytes() == before
            oracle.check(y, oracle.reduced(op, name, count, world.size), f"functional {op} of {count} {name}")
            y[...] = 0  # the result is the caller's own


@pytest.mark.parametrize("op", oracle.OPS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_new_array_and_the_argument_untouched(ranks, p, op):
    ranks(p).run(table, op)


def numbers():
    r = arx.rank()
    found = [
        functional.all_reduce(r + 1),
        functional.all_reduce(r + 0.5),
        functional.all_reduce(complex(r, 1)),
        functional.all_reduce(r == 1),
        functional.all_reduce(np.float32(r)),
        functional.all_reduce(np.int8(r), "max"),
        functional.all_reduce(np.array(r + 1.0), op="avg"),
    ]
    return [(type(y).__name__, np.shape(y), np.asarray(y).item()) for y in found]


def test_python_numbers(ranks):
    assert (
        ranks(3).run(numbers)
        == [
            [
                ("int", (), 6),
                ("float", (), 4.5),
                ("complex", (), 3 + 3j),
                ("bool", (), True),
                ("float32", (), 3.0),
                ("int8", (), 2),
                ("ndarray", (), 2.0),
            ]
        ]
        * 3
    )


def sequences():
    r = arx.rank()
    y = functional.all_reduce([[r, 1], [2, r]], "max")
    return type(y).__name__, y.tolist()


def test_sequences_of_numbers(ranks):
    assert ranks(3).run(sequences) == [("ndarray", [[2, 1], [2, 2]])] * 3


def layouts():
    world = arx.world()
    count = 6000
    want = oracle.reduced("sum", "float32", count, world.size).reshape(60, 100)
    x = oracle.values("float32", count, world.rank).reshape(60, 100)
    oracle.check(functional.all_reduce(np.asfortranarray(x)), want, "Fortran order")
    oracle.check(functional.all_reduce(x[::-1, ::2]), want[::-1, ::2], "negative and long strides")
    same = functional.all_reduce(np.broadcast_to(np.float64(world.rank), (4, 5)))
    assert same.tolist() == [[sum(range(world.size))] * 5] * 4


def test_any_layout_goes_in(ranks):
    ranks(3).run(layouts)


def options():
    world = arx.world()
    return functional.all_reduce(1, "sum", group=world, timeout=30, name="count", algo="auto")


def test_options(ranks):
    assert ranks(2).run(options) == [2, 2]


def refused(what):
    x = {"text": "text", "None": None, "object": np.array([None]), "record": np.zeros(2, [("a", "i4")])}[what]
    refusal = outcome(functional.all_reduce, x)
    check_usable()
    return refusal


@pytest.mark.parametrize("what", ["text", "None", "object", "record"])
def test_what_is_no_number_is_refused(ranks, what):
    for refusal in ranks(2).run(refused, what):
        assert_refused(refusal, "TypeError")


def too_large():
    refusal = outcome(functional.all_reduce, 2**70)
    check_usable()
    return refusal


def test_an_integer_beyond_64_bits_is_refused(ranks):
    for refusal in ranks(2).run(too_large):
        assert isinstance(refusal, tuple)
        assert {"TypeError", "OverflowError", "ValueError"} & set(refusal.kinds)
