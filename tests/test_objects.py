"""Collectives of Python objects."""

import numpy as np
import pytest
from rankside import assert_refused, check_usable, outcome

import arx


def thing(rank, length):
    """Something that tells its rank; a pickle of more than `length` bytes."""
    return {"rank": rank, "text": chr(97 + rank) * length, "array": np.arange(rank)}


def same(a, b):
    return a["rank"] == b["rank"] and a["text"] == b["text"] and (a["array"] == b["array"]).all()


def everything():
    world = arx.world()
    p, me = world.size, world.rank
    for length in (0, 700, 1024, 5000, 300_000):
        for root in range(p):
            mine = thing(me, length)
            got = arx.broadcast_object(mine if me == root else None, root)
            assert same(got, thing(root, length))
            assert (got is mine) == (me == root)
            gathered = arx.gather_object(mine, root)
            assert (gathered is None) == (me != root)
            if gathered is not None:
                assert all(same(x, thing(rank, length)) for rank, x in enumerate(gathered))
            things = [thing(rank, length * (rank % 3)) for rank in range(p)]
            got = arx.scatter_object(things if me == root else None, root)
            assert same(got, things[me])
        gathered = arx.all_gather_object(thing(me, length * me))
        assert len(gathered) == p
        assert all(same(x, thing(rank, length * rank)) for rank, x in enumerate(gathered))
    assert arx.all_gather_object(None) == [None] * p


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_objects_of_any_size(ranks, p):
    ranks(p).run(everything)


CALLS = {
    "broadcast": lambda bad: arx.broadcast_object(bad),
    "all_gather": lambda bad: arx.all_gather_object(bad),
    "gather": lambda bad: arx.gather_object(bad),
    "scatter": lambda bad: arx.scatter_object([bad] * arx.size()),
}


def unpicklable(name):
    bad = (lambda: None) if arx.rank() == 0 else 1
    refusal = outcome(CALLS[name], bad)
    check_usable()
    return refusal


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_pickled_raises_everywhere(ranks, name):
    first, *others = ranks(3).run(unpicklable, name)
    assert_refused(first, first.kinds[0], "pickle")
    for refusal in others:
        assert_refused(refusal, "MismatchError", "could not take part")


def too_few():
    refusal = outcome(arx.scatter_object, [1] if arx.rank() == 0 else None)
    check_usable()
    return refusal


def test_an_object_for_every_rank(ranks):
    first, *others = ranks(3).run(too_few)
    assert_refused(first, "ValueError", "3 objects", "not 1")
    for refusal in others:
        assert_refused(refusal, "MismatchError", "3 objects")
