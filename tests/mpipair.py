"""One group of ranks as arx and as MPI know it, and the dice that choose what is done in it. For `mpicases`."""

from __future__ import annotations

import numpy as np
import oracle
from mpi4py import MPI
from rankside import filled

# Around what an arrival carries, a slice of a round, and several rounds.
LENGTHS = (0, 1, 2, 7, 40, 257, 3000, 70_001)
MOVED = [np.dtype(kind) for kind in ("u1", "<i2", "<f4", "<c16")] + [
    np.dtype([("a", "<u8"), ("b", "<f4"), ("c", "S3")])
]
OPS = {name: getattr(MPI, name.upper()) for name in ("sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor")}
# MPI has no other operations for bool; these are what arx documents the others to be.
OF_BOOL = {
    **dict.fromkeys(("prod", "min", "band", "land"), MPI.LAND),
    **dict.fromkeys(("sum", "max", "bor", "lor"), MPI.LOR),
    "bxor": MPI.LXOR,
}


def edges(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(int)


class Pair:
    """One group of ranks, as arx and as MPI know it."""

    def __init__(self, group, comm, seed):
        assert (group.rank, group.size) == (comm.Get_rank(), comm.Get_size())
        self.group, self.comm = group, comm
        self.rank, self.size = group.rank, group.size
        self.dice = np.random.default_rng(seed)
        self.own = np.random.default_rng([*seed, MPI.COMM_WORLD.Get_rank()])

    def pick(self, items):
        return items[self.dice.integers(len(items))]

    def rows(self):
        """How many rows, and what a row is."""
        return int(self.pick(LENGTHS)), self.pick([(), (), (3,)])

    def ragged(self, limit):
        """A length for each rank; some are 0."""
        counts = self.dice.integers(0, limit + 1, self.size) * self.dice.integers(0, 4, self.size).clip(0, 1)
        return [int(count) for count in counts]

    def operation(self):
        """An operation of arx's, the same of MPI's, and a dtype for which both have it."""
        while True:
            op, name = (
                self.pick(list(OPS)),
                self.pick([*oracle.INTEGERS, "bool", "float32", "float64", *oracle.COMPLEX]),
            )
            if oracle.allowed(op, name) and (op not in ("land", "lor") or name in (*oracle.INTEGERS, "bool")):
                return op, OF_BOOL[op] if name == "bool" else OPS[op], name

    def numbers(self, op, name, shape):
        """This rank's operand."""
        count, seed = int(np.prod(shape)), int(self.dice.integers(20))
        if op in ("min", "max"):  # no NaN, of which MPI says nothing
            x = oracle.values(name, count, self.rank, seed)
        else:
            x = oracle.exact(op, name, count, self.rank, seed)
        if op in ("land", "lor"):  # of full integers hardly one would be zero
            x = (x * oracle.values("bool", count, self.rank, seed + 1)).astype(x.dtype)
        return self.placed(x.reshape(shape))

    def stuff(self, dtype, shape, *key):
        """Bytes that depend on the rank and the key, as elements of a dtype."""
        raw = oracle.values(
            "uint8", int(np.prod(shape)) * dtype.itemsize, self.rank, seed=(int(self.dice.integers(99)), *key)
        )
        return self.placed(raw.view(dtype).reshape(shape))

    def placed(self, x):
        return filled("symmetric" if self.own.integers(2) else "private", x, self.rank)

    def nothing(self, like):
        """Where a result comes."""
        return self.placed(np.zeros_like(like))

    def call(self, fn, *args, **options):
        """Calls arx; waits at once, or by a `Work`."""
        if self.own.integers(3):
            return fn(*args, **options)
        return fn(*args, **options, async_op=True).wait()


def as_bytes(x, counts=None):
    """A message for MPI: the bytes of `x`, cut by counts of rows."""
    flat = x.reshape(-1).view(np.uint8)
    if counts is None:
        return [flat, MPI.BYTE]
    row = x.dtype.itemsize * int(np.prod(x.shape[1:]))
    return [flat, ([count * row for count in counts], [int(at) * row for at in edges(counts)[:-1]]), MPI.BYTE]
