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


NO_SEQUENCES = {
    "int": lambda: 3,
    "generator": lambda: (k for k in range(3)),
    "set": lambda: {1, 2, 3},
    "dict": lambda: {0: 1, 1: 2, 2: 3},
    "ndarray": lambda: np.array(3),
}


def no_sequence(kind):
    refusal = outcome(arx.scatter_object, NO_SEQUENCES[kind]() if arx.rank() == 1 else None, 1)
    check_usable()
    return refusal


@pytest.mark.parametrize("kind", NO_SEQUENCES)
def test_what_is_no_sequence_of_objects_raises_everywhere(ranks, kind):
    for rank, refusal in enumerate(ranks(3).run(no_sequence, kind)):
        told = ("TypeError",) if rank == 1 else ("MismatchError", "rank 1 could not take part", "TypeError")
        assert_refused(refusal, *told, f"sequence of 3 objects on the root, one per rank, not {kind}")


def nothing_to_scatter():
    refusals = [outcome(arx.scatter_object, None, 1), outcome(arx.scatter, None, 1)]
    check_usable()
    return refusals


def test_a_root_without_anything_to_scatter(ranks):
    for rank, (objects, array) in enumerate(ranks(2).run(nothing_to_scatter)):
        kind = "ValueError" if rank == 1 else "MismatchError"
        assert_refused(objects, kind, "2 objects on the root, one per rank, not none")
        assert_refused(array, kind, "rank 1 is the root of this scatter, and must pass x")
