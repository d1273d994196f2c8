"""The family on one host: every collective and number of ranks, lengths around thresholds, all kinds of blocks."""

import familycases
import numpy as np
import oracle
import pytest

import arx

MOVED = ("uint8", "float32", "complex128")
REDUCED = (
    ("sum", "float32"),
    ("sum", "bfloat16"),
    ("max", "float64"),
    ("prod", "int32"),
    ("avg", "float16"),
    ("bxor", "uint8"),
)
MEMORY = ("private", "symmetric", "mixed")
WORLDS = range(1, 10)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_all_gather_and_gather(ranks, p, memory):
    for name in MOVED:
        ranks(p).run(familycases.gathers, name, memory, "all")


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_scatter(ranks, p, memory):
    for name in MOVED:
        ranks(p).run(familycases.scatters, name, memory)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_all_to_all(ranks, p, memory):
    for name in MOVED:
        ranks(p).run(familycases.alltoalls, name, memory)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_reduce(ranks, p, memory):
    for op, name in REDUCED:
        ranks(p).run(familycases.reductions, name, op, memory)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_reduce_scatter(ranks, p, memory):
    for op, name in REDUCED:
        ranks(p).run(familycases.scatterings, name, op, memory)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("p", WORLDS)
def test_scan_and_exscan(ranks, p, memory):
    for op, name in REDUCED:
        if op != "avg":
            ranks(p).run(familycases.scans, name, op, memory)


def every_dtype():
    world = arx.world()
    p, me = world.size, world.rank
    for name in oracle.DTYPES:
        for op in oracle.OPS:
            if not oracle.allowed(op, name):
                continue
            parts = [oracle.values(name, 5 * p, rank) for rank in range(p)]
            want = oracle.reduced(op, name, 5 * p, p)
            x = parts[me].copy()
            oracle.check(arx.reduce_scatter(x, op), want[5 * me : 5 * me + 5], f"reduce_scatter {op} {name}")
            arx.reduce(x, p - 1, op)
            oracle.check(x, want if me == p - 1 else parts[me], f"reduce {op} {name}")
            if op != "avg":
                x = parts[me].copy()
                arx.scan(x, op)
                oracle.check(x, oracle.expected(op, parts[: me + 1]) if me else parts[0], f"scan {op} {name}")


@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_dtype_and_operation_in_rank_order(ranks, p):
    ranks(p).run(every_dtype)


def long_ones():
    world = arx.world()
    p, me = world.size, world.rank
    count = 3 * 2**20 + 17
    parts = [oracle.exact("sum", "float32", count * p, rank) for rank in range(p)]
    want = oracle.exactly("sum", "float32", count * p, p)
    mine = slice(me * count, (me + 1) * count)
    oracle.check(arx.reduce_scatter(parts[me]), want[mine], "reduce_scatter")
    oracle.check(arx.all_gather(parts[me][:count]), np.concatenate([x[:count] for x in parts]), "all_gather")
    oracle.check(arx.all_to_all(parts[me]), np.concatenate([x[mine] for x in parts]), "all_to_all")
    x = parts[me].copy()
    arx.scan(x)
    oracle.check(x, oracle.expected("sum", parts[: me + 1]), "scan")
    got = arx.reduce(parts[me].copy(), 1)
    if me == 1:
        oracle.check(got, want, "reduce")


@pytest.mark.parametrize("p", [2, 3, 4])
def test_longer_than_several_staging_rings(ranks, p):
    ranks(p).run(long_ones)


def same_as_all_reduce(count):
    world = arx.world()
    p, me = world.size, world.rank
    x = oracle.values("float32", count * p, me)
    reduced = x.copy()
    arx.all_reduce(reduced)
    mine = arx.reduce_scatter(x)
    oracle.check(mine, reduced[me * count : (me + 1) * count], f"{count} of {p}")
    again = arx.all_gather(mine)
    oracle.check(again, reduced, "gathered again")


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_reduce_scatter_has_the_bits_of_all_reduce(ranks, p):
    for count in (1, 100, 10_000, 300_000):
        ranks(p).run(same_as_all_reduce, count)
