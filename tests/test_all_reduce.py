"""all_reduce against the oracle: ops, dtypes, worlds, lengths, kinds of memory, in place and with ``out=``."""

import os
import random
import time

import numpy as np
import oracle
import pytest
from rankside import assert_refused, filled, outcome

import arx
from arx.testing import run_ranks

WORLDS = range(1, 10)
# Where x lies and where out lies; without the second, in place.
MEMORY = (
    ("private", None),
    ("symmetric", None),
    ("mixed", None),
    ("private", "private"),
    ("private", "symmetric"),
    ("symmetric", "private"),
    ("symmetric", "symmetric"),
    ("mixed", "mixed"),
)
# Past the end of any staging ring (at most 8 MiB a rank) three times over, and one more.
LONG = 3 * 8 * 1024 * 1024 + 1


def lengths(p):
    return sorted({0, 1, p - 1, p, p + 1, 1000, 65537})


def call(x_memory, out_memory, op, name, count, *, seed=0, odd=False, algo="auto"):
    """One all_reduce, checked against the oracle; returns the digest of the result."""
    world = arx.world()
    mine = oracle.values(name, count, world.rank, seed, odd)
    want = oracle.reduced(op, name, count, world.size, seed, odd)
    case = f"{op} of {count} {name} from {x_memory} to {out_memory or 'the same'} memory, {world.size} ranks"
    x = filled(x_memory, mine, world.rank)
    if out_memory is None:
        result = arx.all_reduce(x, op, algo=algo)
        assert result is x, f"{case}: returns another object than x"
    else:
        out = filled(out_memory, oracle.values(name, count, world.rank, seed + 1), world.rank)
        result = arx.all_reduce(x, op, out=out, algo=algo)
        assert result is out, f"{case}: returns another object than out"
        assert oracle.raw(x).tobytes() == oracle.raw(mine).tobytes(), f"{case}: x has changed"
    oracle.check(result, want, case)
    return case, oracle.digest(result)


def table(op, odd):
    # How data moves does not depend on the op: one op goes through all kinds of memory, the others through three.
    memories = MEMORY if op == "sum" else (MEMORY[0], MEMORY[2], MEMORY[4])
    names = [name for name in oracle.DTYPES if oracle.allowed(op, name) and (not odd or name in oracle.FLOATS)]
    return [
        call(*memory, op, name, count, odd=odd)
        for name in names
        for count in lengths(arx.size())
        for memory in memories
    ]


def long_calls(name, op):
    # The length of an array of bytes serves for all types, so that large elements make more rounds.
    count = LONG // oracle.DTYPES[name].itemsize + 1
    return [call(*memory, op, name, count) for memory in MEMORY[:4]]


def short_table(algo, counts):
    """A few dtypes of every size, over one algorithm."""
    kinds = [("uint8", "sum"), ("float16", "sum"), ("float32", "prod"), ("int64", "bxor"), ("complex128", "avg")]
    return [call(*memory, op, name, count, algo=algo) for name, op in kinds for count in counts for memory in MEMORY]


def in_a_new_group(cores, counts):
    """``short_table`` in a group whose ranks may use so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with arx.init():
        return short_table("auto", counts)


def assert_alike(rows):
    """All ranks have the same digest for every case."""
    for cases in zip(*rows, strict=True):
        assert len({digest for _, digest in cases}) == 1, f"ranks differ: {cases}"


@pytest.mark.parametrize("op", oracle.OPS)
@pytest.mark.parametrize("p", WORLDS)
def test_every_dtype_length_and_memory(ranks, p, op):
    assert_alike(ranks(p).run(table, op, False))


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_floats_that_are_no_numbers(ranks, p, op):
    """NaN, infinities, signed zeros, the smallest and largest: right, and the same bits on every rank."""
    assert_alike(ranks(p).run(table, op, True))


@pytest.mark.parametrize(
    ("name", "op"), [("uint8", "bxor"), ("float32", "sum"), ("bfloat16", "avg"), ("float64", "max")]
)
@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_longer_than_several_staging_rings(ranks, p, name, op):
    assert_alike(ranks(p).run(long_calls, name, op))


@pytest.mark.parametrize(
    ("algo", "counts"),
    [("lines", (0, 1, 7, 13)), ("staged", (0, 1, 7, 13, 5000)), ("symmetric", (1, 7, 5000, 300_000))],
)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_every_algorithm_at_sizes_that_are_not_its_own(ranks, p, algo, counts):
    assert_alike(ranks(p).run(short_table, algo, counts))


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_pieces_of_one_cache_line(p):
    """Every border between pieces, rounds and turns of the ring lies within a few kilobytes."""
    env = {"ARX_TUNE": "chunk=64,round=64,symmetric=64,ring=1048576"}
    assert_alike(run_ranks(in_a_new_group, p, 1000, (1, 63, 64, 65, 1000, 20_000), env=env))


@pytest.mark.parametrize("p", [2, 3])
def test_more_ranks_than_cores(p):
    assert_alike(run_ranks(in_a_new_group, p, 1, (0, 1, 13, 1000, 70_000)))


def jittered(seed):
    """Sums in which every rank arrives late at times; a digest of all results."""
    with arx.init() as world:
        moods = random.Random(f"{seed} {world.rank}")
        results = []
        for k in range(200):
            count = int(oracle.bits(1, "count", k)[0] % np.uint64(30_000))
            if moods.random() < 0.2:
                time.sleep(moods.random() / 1000)
            x = oracle.values("float32", count, world.rank, seed=k % 16)
            results.append(arx.all_reduce(x))
        return oracle.digest(*results)


def test_results_are_bit_identical_on_every_rank_and_from_run_to_run():
    digests = {digest for seed in range(3) for digest in run_ranks(jittered, 4, seed)}
    assert len(digests) == 1


def forms():
    """The ways to say the same call."""
    world = arx.world()
    mine = oracle.values("float64", 100, world.rank)
    want = oracle.reduced("max", "float64", 100, world.size)
    ways = {
        "positional op": lambda x: arx.all_reduce(x, "max"),
        "op by name": lambda x: arx.all_reduce(x, op="max"),
        "ReduceOp": lambda x: arx.all_reduce(x, arx.ReduceOp.MAX),
        "group=": lambda x: arx.all_reduce(x, "max", group=world),
        "method": lambda x: world.all_reduce(x, "max"),
        "timeout, name, algo": lambda x: arx.all_reduce(x, "max", timeout=30, name="gradient", algo="auto"),
        "out is x": lambda x: arx.all_reduce(x, "max", out=x),
    }
    for way, run in ways.items():
        x = mine.copy()
        assert run(x) is x, way
        oracle.check(x, want, way)


def test_forms_of_the_call(ranks):
    ranks(3).run(forms)


def default_op():
    x = np.full(3, arx.rank() + 1.0)
    arx.all_reduce(x)
    return x.tolist()


def test_the_default_is_the_sum(ranks):
    assert ranks(3).run(default_op) == [[6.0, 6.0, 6.0]] * 3


@pytest.mark.parametrize("p", [2, 3])
def test_results_do_not_depend_on_the_instruction_set(p):
    """Every ARX_SIMD that this machine has gives the same bits: the scalar loops are the measure."""
    found = {isa: run_ranks(simd_digests, p, env={"ARX_SIMD": isa}) for isa in available_isas()}
    assert "scalar" in found
    scalar = found["scalar"]
    for isa, digests in found.items():
        assert digests == scalar, isa


def available_isas():
    (isas,) = run_ranks(isas_of_this_machine, 1)
    return isas


def isas_of_this_machine():
    return arx.build_info()["simd_available"]


def refused_init():
    return outcome(arx.init)


def test_an_instruction_set_that_there_is_not_is_refused():
    for refusal in run_ranks(refused_init, 2, env={"ARX_SIMD": "mmx"}):
        assert_refused(refusal, "InitError", "ARX_SIMD", "mmx", "scalar")


def simd_digests():
    """Digests by op of results over all dtypes, at lengths around the width of a vector."""
    counts = (1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 4099)
    with arx.init():
        return [
            [
                call("private", None, op, name, count, odd=name in oracle.FLOATS)[1]
                for name in oracle.DTYPES
                if oracle.allowed(op, name)
                for count in counts
            ]
            for op in oracle.OPS
        ]
