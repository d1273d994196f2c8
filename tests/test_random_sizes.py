"""200,000 calls back to back, of random kind and size, with ranks that are late: nothing is used again too early."""

import time

import numpy as np
import oracle
import pytest

import arx
from arx.testing import run_ranks

CALLS = 200_000
LARGEST = 8 * 1024 * 1024
KINDS = [
    ("sum", "float32"),
    ("max", "float64"),
    ("bxor", "int16"),
    ("sum", "uint8"),
    ("avg", "bfloat16"),
    ("broadcast", "int32"),
]


def sizes(random):
    """Bytes of each call: mostly small, some of every magnitude up to the largest."""
    top = random.choice([6, 12, 18, 23], size=CALLS, p=[0.5, 0.4595, 0.04, 0.0005])
    return np.minimum(2 ** (random.random(CALLS) * top), LARGEST).astype(int)


class Streams:
    """What goes into one kind of call and must come out of it; each call takes a stretch of its own."""

    def __init__(self, op, name, world):
        self.op, self.name = op, name
        self.itemsize = oracle.DTYPES[name].itemsize
        count = LARGEST // self.itemsize + oracle.PERIOD
        self.mine = oracle.values(name, count, world.rank)
        wanted = [oracle.values(name, count, root) for root in range(world.size)]
        self.wanted = wanted if op == "broadcast" else [oracle.reduced(op, name, count, world.size)] * world.size
        self.arrays = [np.empty(count, self.mine.dtype), arx.empty(count, self.mine.dtype)]

    def call(self, k, size, offset, place):
        count = max(1, size // self.itemsize)
        x = self.arrays[place][:count]
        x[...] = self.mine[offset : offset + count]
        root = offset % len(self.wanted)
        if self.op == "broadcast":
            arx.broadcast(x, root)
        else:
            arx.all_reduce(x, self.op)
        want = self.wanted[root][offset : offset + count]
        if x.tobytes() != want.tobytes():
            oracle.check(x, want, f"call {k}: {self.op} of {count} {self.name}")


def back_to_back():
    with arx.init() as world:
        streams = [Streams(op, name, world) for op, name in KINDS]
        common, own = np.random.default_rng(27), np.random.default_rng([27, world.rank])
        kind = common.integers(len(KINDS), size=CALLS)
        offset = common.integers(oracle.PERIOD, size=CALLS)
        place = common.integers(2, size=CALLS)
        late = np.where(own.random(CALLS) < 0.003, own.random(CALLS) * 1e-3, 0)
        for k, (which, size, start, where, pause) in enumerate(
            zip(kind.tolist(), sizes(common).tolist(), offset.tolist(), place.tolist(), late.tolist(), strict=True)
        ):
            if pause:
                time.sleep(pause)
            streams[which].call(k, size, start, where)
        return CALLS


# On a small machine four ranks are a crowd, and two are not: other code waits.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("p", [2, 4])
def test_200_000_calls_of_random_kind_and_size(p):
    assert run_ranks(back_to_back, p, timeout=1700) == [CALLS] * p
