"""Values of groups on several hosts, and of ranks on this one that have nothing but TCP.

What is combined in which order is the algorithm's affair between hosts, so the numbers here give the same bits in any
order, while a half that was rounded too early, or twice, would be another number (`oracle.exact`).
"""

import time

import ml_dtypes
import numpy as np
import oracle
import pytest
from hostranks import Crew
from rankside import assert_refused, filled, outcome

import arx
from arx import functional

HOME = [str(p) for p in range(2, 10)]
# Two hosts turn about; unequal hosts; a rank on each; neither ranks nor hosts in order.
APART = ["h0 h1 h0 h1", "h0 h0 h0 h1 h2 h2", "h0 h1 h2", "h2 h0 h1 h0 h2 h0", "h1 h0"]
SITES = HOME + APART
FEW = ["2", "3", "5", *APART[:2], APART[3]]

ORDERED = ("pairwise", "exchange", "all_gather_reduce", "reduce_broadcast", "relay")
BETWEEN = (*ORDERED, "ring", "recursive", "tree", "double_tree:8")
MIB = 1 << 20
# Instead of what would be measured.
NETWORK = "alpha_ns=30000,overhead_ns=8000,beta_fs=1000000,gamma_fs=100000"


def assert_alike(results):
    """All ranks have the same bits, result for result."""
    for case in zip(*results, strict=True):
        assert len(set(case)) == 1, f"ranks differ: {case}"


def reduce(op, name, count, *, memory="private", out=None, seed=0, **options):
    """One all_reduce, checked; what was computed, in a word."""
    world = arx.world()
    x = filled(memory, oracle.exact(op, name, count, world.rank, seed), world.rank)
    before = x.copy()
    target = x if out is None else filled(out, oracle.exact(op, name, count, world.rank, seed + 1), world.rank)
    result = arx.all_reduce(x, op, **options) if out is None else arx.all_reduce(x, op, out=target, **options)
    case = f"{op} of {count} {name}, {memory} to {out or 'itself'}, {options}"
    assert result is target, case
    oracle.check(result, oracle.exactly(op, name, count, world.size, seed), case)
    if out is not None:
        assert oracle.raw(x).tobytes() == oracle.raw(before).tobytes(), f"{case}: x has changed"
    return case, oracle.digest(result)


# Every operation, type and length


def every_dtype(op):
    names = [name for name in oracle.DTYPES if oracle.allowed(op, name)]
    return [reduce(op, name, count) for name in names for count in (1, 37, 40_961)]


@pytest.mark.parametrize("op", oracle.OPS)
@pytest.mark.parametrize("where", [*APART, "2", "3", "8"])
def test_every_op_and_dtype(crew, where, op):
    assert_alike(crew(where).run(every_dtype, op))


def every_length(name):
    size, p = oracle.DTYPES[name].itemsize, arx.size()
    at = [
        0,
        1,
        2,
        p - 1,
        p,
        p + 1,
        63,
        64,
        65,
        1023,
        1025,
        16 * 1024 + 1,
        32 * 1024 - 1,
        64 * 1024 + 1,
        300_001,
        MIB + 3,
    ]
    counts = sorted({count // size + (count % size > 0) if count > 4096 else count for count in at})
    return [reduce("sum", name, count, seed=count) for count in counts]


@pytest.mark.parametrize("name", ["uint8", "float16", "int32", "complex128"])
@pytest.mark.parametrize("where", SITES)
def test_every_length(crew, where, name):
    assert_alike(crew(where).run(every_length, name))


def several_mebibytes(seed):
    return [reduce("sum", "float32", 3 * MIB + seed, seed=seed), reduce("max", "float64", 2 * MIB + seed, seed=seed)]


@pytest.mark.parametrize("where", ["2", "5", "h0 h1 h0 h1"])
def test_arrays_of_several_mebibytes(crew, where):
    for seed in (1, 2):
        assert_alike(crew(where).run(several_mebibytes, seed))


def every_memory():
    kinds = ("private", "symmetric", "mixed")
    return [
        reduce("sum", name, count, memory=memory, out=out)
        for name in ("bfloat16", "int64")
        for count in (5, 70_001)
        for memory in kinds
        for out in (None, *kinds)
    ]


@pytest.mark.parametrize("where", FEW)
def test_private_and_symmetric_memory_in_place_and_out(crew, where):
    assert_alike(crew(where).run(every_memory))


def rows(op, dtype, given):
    """One row for each rank; the last is repeated for the others."""
    x = np.array(given[min(arx.rank(), len(given) - 1)], dtype)
    return arx.all_reduce(x, op)


@pytest.mark.parametrize("where", ["4", "h0 h1 h0 h1", "h0 h0 h0 h1", "h0 h1 h2 h0"])
@pytest.mark.parametrize(("dtype", "big", "want"), [("float16", 2048, 2052), (ml_dtypes.bfloat16, 256, 260)])
def test_halves_are_rounded_once_wherever_their_ranks_are(crew, where, dtype, big, want):
    """In halves big + 1 is big: whoever rounds between hosts, or at a rank, loses ones."""
    for large in range(4):
        small = [1.5 if rank == (large + 1) % 4 else 1 for rank in range(4)]
        for count in (1, 5000, 60_000):
            given = [[big if rank == large else small[rank]] * count for rank in range(4)]
            for result in crew(where).run(rows, "sum", dtype, given):
                oracle.check(result, np.full(count, want, dtype), f"the large one from rank {large}")


@pytest.mark.parametrize("where", ["3", "h0 h1 h0 h1", "h2 h0 h1 h0 h2 h0"])
def test_by_hand(crew, where):
    p = crew(where).size
    for op, dtype, given, want in [
        ("sum", "bool", [[True, False], [False, False]], [True, False]),
        ("prod", "bool", [[True, True], [False, True]], [False, True]),
        ("min", "float32", [[0.0, np.nan, 1], [-0.0, 1, 2]], [-0.0, np.nan, 1]),
        ("max", "float64", [[-0.0, 1, 1], [0.0, np.nan, 2]], [0.0, np.nan, 2]),
        ("avg", "complex64", [[p + 2j * p, p], [0, p]], [1 + 2j, p]),
        ("sum", "uint8", [[255], [1]], [(254 + p) % 256]),
        ("land", "int32", [[5, 0], [3, 1]], [1, 0]),
        ("lor", "float64", [[0, 0.5], [0, 0]], [0, 1]),
    ]:
        for result in crew(where).run(rows, op, dtype, given):
            oracle.check(result, np.array(want, dtype), f"{op} of {dtype}")


# Layouts


def layouts():
    """Arrays of odd layouts, another on each rank: what counts is the index, and memory order is kept."""
    world, shape = arx.world(), (7, 11, 13)
    mine = oracle.exact("sum", "float32", 1001, world.rank).reshape(shape)
    want = oracle.exactly("sum", "float32", 1001, world.size).reshape(shape)
    makers = [
        lambda: mine.copy(),
        lambda: np.asfortranarray(mine),
        lambda: np.repeat(mine, 2, axis=1)[:, ::2],
        lambda: mine[::-1, :, ::-1].copy()[::-1, :, ::-1],
        lambda: mine.transpose(2, 0, 1).copy().transpose(1, 2, 0),
    ]
    for shift in range(len(makers)):
        x = makers[(world.rank + shift) % len(makers)]()
        strides = x.strides
        assert arx.all_reduce(x) is x
        assert x.strides == strides
        oracle.check(x, want, f"layout {shift}")
        out = makers[(world.rank + shift + 1) % len(makers)]()
        arx.all_reduce(makers[(world.rank + shift) % len(makers)](), out=out)
        oracle.check(out, want, f"layout {shift}, out")
        x = makers[(world.rank + shift) % len(makers)]()
        arx.broadcast(x, world.size - 1)
        oracle.check(x, oracle.exact("sum", "float32", 1001, world.size - 1).reshape(shape), f"layout {shift}, root")
    for shape in [(), (0,), (3, 0, 2), (1, 1)]:
        x = np.full(shape, world.rank + 1, np.int64)
        assert arx.all_reduce(x) is x
        assert (x == world.size * (world.size + 1) // 2).all()
        assert arx.broadcast(x, 0) is x
    assert functional.all_reduce(world.rank + 1) == world.size * (world.size + 1) // 2
    whole = functional.all_reduce(mine)
    assert whole is not mine
    oracle.check(whole, want, "functional")


@pytest.mark.parametrize("where", FEW)
def test_layouts_scalars_and_empty_arrays(crew, where):
    crew(where).run(layouts)


# Broadcast and barrier


def every_root():
    world = arx.world()
    record = np.dtype([("a", "<u8"), ("b", "<f4"), ("c", "S3")])
    for root in range(world.size):
        for name, count in [("uint8", MIB + 3), ("float64", 7), ("float16", 20_001), ("bool", 1), ("complex64", 0)]:
            x = filled("mixed", oracle.values(name, count, world.rank, seed=root), world.rank)
            assert arx.broadcast(x, root) is x
            oracle.check(x, oracle.values(name, count, root, seed=root), f"{count} {name} from {root}")
        x = oracle.values("uint8", 15 * 5000, world.rank).view(record)
        x.flags.writeable = world.rank != root
        arx.broadcast(x, root)
        assert x.tobytes() == oracle.values("uint8", 15 * 5000, root).tobytes(), f"records from {root}"


@pytest.mark.parametrize("where", SITES)
def test_broadcast_from_every_root(crew, where):
    crew(where).run(every_root)


def holds_all_up(late):
    if arx.rank() == late:
        time.sleep(0.1)
    came = time.monotonic()
    arx.barrier()
    return came, time.monotonic()


@pytest.mark.parametrize("where", ["3", "9", *APART])
def test_nobody_leaves_a_barrier_before_all_have_come(crew, where):
    for late in range(crew(where).size):
        times = crew(where).run(holds_all_up, late)
        assert min(left for _, left in times) >= max(came for came, _ in times)


# One result for all


def digests(seed):
    """Sums whose bits depend on the order of combination."""
    found = []
    for k, name in enumerate(("float32", "float64", "complex64", "float16")):
        for count in (3, 1000, 33_333, 500_000):
            x = oracle.values(name, count, arx.rank(), seed=seed + k)
            want = oracle.reduced("sum", name, count, arx.size(), seed=seed + k)
            arx.all_reduce(x)
            np.testing.assert_allclose(x.astype(want.dtype), want, rtol=2e-2 if name == "float16" else 1e-3, atol=1e-2)
            found.append(oracle.digest(x))
    return found


@pytest.mark.parametrize("where", FEW)
def test_the_same_bits_on_every_rank(crew, where):
    assert_alike(crew(where).run(digests, 5))


@pytest.mark.parametrize("where", ["5", "h2 h0 h1 h0 h2 h0"])
def test_the_same_bits_in_every_run_over_a_network_that_is_the_same(crew, where):
    """What is measured of the network decides on the algorithm, and that on the order of combination."""
    found = []
    for _ in range(2):
        with Crew(crew.site(where), env={"ARX_TUNE": NETWORK}) as ranks:
            found.append(ranks.run(digests, 5))
    assert found[0] == found[1]
    assert_alike(found[0])


def mixed_calls(rounds):
    """Calls of all kinds in a random order, the same on all ranks: no call reads what belongs to another."""
    dice = np.random.default_rng(17)
    for k in range(rounds):
        name = str(dice.choice(["uint8", "float32", "float16", "int64"]))
        count = int(dice.choice([0, 1, 5, 900, 9000, 70_000, 150_000]))
        kind = dice.integers(4)
        if kind < 2:
            reduce("sum", name, count, seed=k % 7)
        elif kind == 2:
            root = int(dice.integers(arx.size()))
            x = oracle.values(name, count, arx.rank(), seed=k % 7)
            arx.broadcast(x, root)
            oracle.check(x, oracle.values(name, count, root, seed=k % 7), f"call {k}")
        else:
            arx.barrier()


@pytest.mark.parametrize("where", ["2", "4", *APART])
def test_many_calls_of_all_kinds(crew, where):
    crew(where).run(mixed_calls, 150)


# Algorithms


def forced(algo):
    return [
        reduce(op, name, count, algo=algo)
        for op, name in [
            ("sum", "int16"),
            ("avg", "float16"),
            ("prod", "bfloat16"),
            ("min", "float32"),
            ("sum", "complex128"),
        ]
        for count in (0, 1, 5, 1000, 77_777)
    ]


@pytest.mark.parametrize("algo", [*BETWEEN, "hierarchical", *(f"hierarchical+{name}" for name in BETWEEN)])
@pytest.mark.parametrize("where", ["2", "3", "6", "7", *APART])
def test_every_algorithm(crew, where, algo):
    assert_alike(crew(where).run(forced, algo))


def refused(algo, count):
    refusal = outcome(arx.all_reduce, np.ones(count, np.float32), algo=algo)
    return refusal, outcome(arx.barrier)


@pytest.mark.parametrize("algo", ["lines", "staged", "symmetric"])
def test_ways_by_shared_memory_are_refused_between_hosts(crew, algo):
    for where, hosts in [("2", 2), ("h0 h1 h0 h1", 2)]:
        ranks = crew(where)
        for refusal, later in ranks.run(refused, algo, 5):
            words = (
                f"algo '{algo}' is for ranks that share memory; the {ranks.size} ranks of this group are on {hosts} h"
            )
            assert_refused(refusal, "ValueError", words)
            assert_refused(later, "MismatchError", "group is closed", words)
        ranks.kill()
