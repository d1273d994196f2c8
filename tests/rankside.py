"""What the functions that tests run on ranks have in common."""

from typing import NamedTuple

import numpy as np
import oracle

import arx


class Refusal(NamedTuple):
    """An exception as the rank saw it: the names of its classes, and its message."""

    kinds: tuple[str, ...]
    text: str


def outcome(call, *args, **options):
    """The value of a call, or its ``Refusal``."""
    try:
        return call(*args, **options)
    except Exception as error:
        return Refusal(tuple(kind.__name__ for kind in type(error).__mro__), str(error))


def empty(kind, count, dtype, rank):
    """An array in private or in symmetric memory; ``mixed``: in symmetric memory on odd ranks."""
    symmetric = kind == "symmetric" or (kind == "mixed" and rank % 2)
    return arx.empty(count, dtype) if symmetric else np.empty(count, dtype)


def filled(kind, x, rank):
    """A copy of ``x`` in that memory."""
    y = empty(kind, x.size, x.dtype, rank).reshape(x.shape)
    y[...] = x
    return y


def check_usable():
    """The group is in step: a small and a large call give what they should."""
    world = arx.world()
    for count in (3, 40_000):
        x = oracle.values("int64", count, world.rank, seed=count)
        world.all_reduce(x)
        oracle.check(x, oracle.reduced("sum", "int64", count, world.size, seed=count), f"later, {count} elements")


def assert_refused(refusal, kind, *words):
    """``refusal`` is one of class ``kind`` and speaks of each of the words."""
    assert isinstance(refusal, Refusal), f"not refused: {refusal!r}"
    assert kind in refusal.kinds, f"{refusal.kinds[0]}, not {kind}: {refusal.text}"
    for word in words:
        assert word.lower() in refusal.text.lower(), f"{word!r} is not in: {refusal.text}"
