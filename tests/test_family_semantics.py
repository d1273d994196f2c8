"""The family: what the table of semantics promises for unusual arguments, and what is refused, on every rank."""

import numpy as np
import pytest
from rankside import Refusal, assert_refused, check_usable, outcome

import arx

RECORD = np.dtype([("a", "<u8"), ("b", "<f4"), ("c", "S3")])


def records(count, rank):
    x = np.zeros(count, RECORD)
    x["a"], x["b"], x["c"] = np.arange(count) + 1000 * rank, rank + 0.5, f"r{rank}".encode()
    return x


def opaque():
    world = arx.world()
    p, me = world.size, world.rank
    want = np.concatenate([records(5, rank) for rank in range(p)])
    assert (arx.all_gather(records(5, me)) == want).all()
    got = arx.gather(records(5, me), p - 1)
    assert got is None if me < p - 1 else (got == want).all()
    assert (arx.scatter(want if me == 0 else None) == records(5, me)).all()
    moved = arx.all_to_all(want)
    assert (moved == np.concatenate([records(5, me)] * p)).all()
    dates = np.array([f"20{10 + me}-01-01"], "M8[D]")
    assert arx.all_gather(dates).tolist() == [np.datetime64(f"20{10 + r}-01-01").item() for r in range(p)]


def test_structured_dtypes_and_dates_move_byte_for_byte(ranks):
    ranks(3).run(opaque)


def layouts():
    world = arx.world()
    p, me = world.size, world.rank
    base = np.arange(24.0).reshape(4, 6) + 100 * np.arange(p).reshape(-1, 1, 1)
    plain = np.concatenate(list(base))
    kinds = {
        "Fortran": np.asfortranarray(base[me]),
        "reversed": base[me][::-1, ::-1].copy()[::-1, ::-1],
        "every second": np.repeat(base[me], 2, axis=1)[:, ::2],
    }
    for kind, x in kinds.items():
        assert (arx.all_gather(x) == plain).all(), kind
        out = np.asfortranarray(np.zeros_like(plain))
        assert arx.all_gather(x, out=out) is out
        assert (out == plain).all(), kind
        total = base.sum(axis=0)
        y = np.array(x, order="K")[:]
        scattered = arx.reduce_scatter(np.concatenate([y] * p))
        assert (scattered == total).all(), kind
        z = x.copy(order="F")
        arx.scan(z)
        assert (z == base[: me + 1].sum(axis=0)).all(), kind


def test_any_layout_is_matched_by_index(ranks):
    ranks(2).run(layouts)
    ranks(3).run(layouts)


def axes():
    world = arx.world()
    p, me = world.size, world.rank
    for axis in (0, 1, 2, -1, -2):
        shapes = [[2, 3, 4] for _ in range(p)]
        for rank, shape in enumerate(shapes):
            shape[axis] += rank
        parts = [np.arange(np.prod(s)).reshape(s) + 1000 * rank for rank, s in enumerate(shapes)]
        want = np.concatenate(parts, axis=axis)
        assert (arx.all_gather(parts[me], axis=axis) == want).all()
        out = np.zeros_like(want)
        assert arx.all_gather(parts[me], axis=axis, out=out) is out
        assert (out == want).all()
        got = arx.gather(parts[me], axis=axis)
        assert got is None if me else (got == want).all()
    assert_refused(outcome(arx.all_gather, np.zeros((2, 2)), axis=2), "IndexError", "axis 2", "2 axes")
    check_usable()


def test_gathering_along_any_axis(ranks):
    ranks(3).run(axes)


def zero_dimensional():
    world = arx.world()
    x = np.array(world.rank + 0.5)
    gathered = arx.all_gather(x)
    assert gathered.shape == (world.size,)
    assert gathered.tolist() == [rank + 0.5 for rank in range(world.size)]
    for call in (arx.reduce_scatter, arx.all_to_all):
        assert_refused(outcome(call, x), "ValueError", "0-d")
        check_usable()
    y = x.copy()
    arx.scan(y)
    assert y == sum(rank + 0.5 for rank in range(world.rank + 1))
    z = x.copy()
    arx.exscan(z)
    assert z == sum(rank + 0.5 for rank in range(world.rank))


def test_zero_dimensional_arrays(ranks):
    ranks(1).run(zero_dimensional)
    ranks(3).run(zero_dimensional)


# What rank 0 does wrong, and what its own error says; the others get MismatchError with the reason.
WRONG = {
    "indivisible": (lambda p: arx.reduce_scatter(np.ones(p + 1)), "ValueError", "equal blocks: pad it, or pass counts"),
    "indivisible scatter": (lambda p: arx.scatter(np.ones(p + 1), out=np.ones(1)), "ValueError", "all_to_all"),
    "counts that do not add up": (lambda p: arx.reduce_scatter(np.ones(p), counts=[2] * p), "ValueError", "add up"),
    "too few counts": (lambda p: arx.reduce_scatter(np.ones(p), counts=[p]), "ValueError", "one each"),
    "negative count": (
        lambda p: arx.all_to_all(np.ones(p), send_counts=[0, -1, 1]),
        "ValueError",
        "send_counts[1] is -1",
    ),
    "only recv_counts": (lambda p: arx.all_to_all(np.ones(p), recv_counts=[1] * p), "TypeError", "send_counts"),
    "root": (lambda p: arx.gather(np.ones(2), p), "ValueError", "not a rank"),
    "out of another dtype": (lambda p: arx.all_gather(np.ones(2), out=np.ones(2 * p, "f4")), "ValueError", "float32"),
    "read-only out": (lambda p: arx.all_gather(np.ones(2), out=np.broadcast_to(1.0, 2 * p)), "ValueError", "read-only"),
    "average of some": (lambda p: arx.scan(np.ones(2), "avg"), "ValueError", "avg"),
    "objects": (lambda p: arx.all_gather(np.array([None])), "TypeError", "all_gather_object"),
    "dates": (lambda p: arx.reduce_scatter(np.zeros(p, "M8[s]")), "TypeError", "int64"),
    "overlap": (lambda p: _overlapping(p), "ValueError", "overlap"),
    "scalar": (lambda p: arx.reduce(3.0), "TypeError", "scalar"),
}


def _overlapping(p):
    x = np.ones(3 * p)
    return arx.all_to_all(x[:p], out=x[1 : p + 1])


def wrong_on_one(name):
    world = arx.world()
    call = WRONG[name][0] if world.rank == 0 else lambda p: arx.all_gather(np.ones(2))
    refusal = outcome(call, world.size)
    check_usable()
    return refusal


@pytest.mark.parametrize("name", WRONG)
def test_who_is_refused_makes_every_rank_raise(ranks, name):
    first, *others = ranks(3).run(wrong_on_one, name)
    assert_refused(first, WRONG[name][1], WRONG[name][2])
    for refusal in others:
        assert_refused(refusal, "MismatchError", "rank 0 could not take part", WRONG[name][1])


def out_that_does_not_fit(uneven):
    world = arx.world()
    x = np.ones(2 + uneven * world.rank)
    refusal = outcome(arx.all_gather, x, out=np.empty(3) if world.rank == 0 else None)
    check_usable()
    return refusal


@pytest.mark.parametrize("uneven", [False, True])
def test_an_out_that_does_not_fit(ranks, uneven):
    first, *others = ranks(3).run(out_that_does_not_fit, uneven)
    assert_refused(first, "ValueError", "(3,)", "9 rows" if uneven else "6 rows")
    for refusal in others:
        assert_refused(refusal, "MismatchError", "rank 0 could not take part")


def rows_of_nothing():
    """Blocks that differ in length and have no bytes, along the first axis and others."""
    world = arx.world()
    p, me = world.size, world.rank
    total = sum(range(2, p + 2))
    shapes = [arx.all_gather(np.empty((me + 2, 0, 3))).shape, arx.all_gather(np.empty((0, me + 2), "f4"), axis=1).shape]
    shapes.append(arx.all_gather(np.empty((4, me + 2, 0)), axis=-2, async_op=True).wait().shape)
    out = np.empty((total, 0))
    assert arx.all_gather(np.empty((me + 2, 0)), out=out) is out
    gathered = arx.gather(np.empty((me + 2, 0)), p - 1)
    assert (gathered is None) == (me < p - 1)
    if gathered is not None:
        shapes.append(gathered.shape)
    assert shapes == [(total, 0, 3), (0, total), (4, total, 0), (total, 0)][: len(shapes)], shapes
    wrong = np.empty((total + (me == 0), 0))
    refusal = outcome(arx.all_gather, np.empty((me + 2, 0)), out=wrong)
    check_usable()
    return refusal


def test_blocks_without_bytes_have_lengths(ranks):
    for size in (1, 2, 3):
        first, *others = ranks(size).run(rows_of_nothing)
        total = sum(range(2, size + 2))
        assert_refused(first, "ValueError", f"({total + 1}, 0)", f"{total} rows")
        for refusal in others:
            assert_refused(refusal, "MismatchError", "rank 0 could not take part")


def different(calls):
    world = arx.world()
    refusal = outcome(calls[world.rank % 2])
    check_usable()
    return refusal


DIFFERENT = {
    "dtype": (lambda: arx.all_gather(np.ones(2)), lambda: arx.all_gather(np.ones(2, "f4")), ["float64", "float32"]),
    "shape": (lambda: arx.all_gather(np.ones((2, 3))), lambda: arx.all_gather(np.ones((2, 4))), ["(2, 3)", "(2, 4)"]),
    "axis": (lambda: arx.all_gather(np.ones((2, 2))), lambda: arx.all_gather(np.ones((2, 2)), axis=1), ["axis=1"]),
    "root": (lambda: arx.gather(np.ones(2), 0), lambda: arx.gather(np.ones(2), 1), ["root=0", "root=1"]),
    "collective": (lambda: arx.scan(np.ones(2)), lambda: arx.exscan(np.ones(2)), ["scan", "exscan"]),
    "op": (lambda: arx.reduce(np.ones(2)), lambda: arx.reduce(np.ones(2), op="max"), ["sum", "max"]),
    "counts": (
        lambda: arx.reduce_scatter(np.ones(4), counts=[1, 3]),
        lambda: arx.reduce_scatter(np.ones(4), counts=[3, 1]),
        ["(1, 3)", "(3, 1)"],
    ),
}


def differ(name):
    return different(DIFFERENT[name][:2])


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_disagree_all_raise(ranks, name):
    for refusal in ranks(2).run(differ, name):
        assert_refused(refusal, "MismatchError", *DIFFERENT[name][2])


def wrong_recv_counts():
    world = arx.world()
    p = world.size
    refusal = outcome(arx.all_to_all, np.ones(p), send_counts=[1] * p, recv_counts=[2] * p if world.rank == 0 else None)
    check_usable()
    return refusal


def test_recv_counts_are_checked(ranks):
    first, *others = ranks(3).run(wrong_recv_counts)
    assert_refused(first, "ValueError", "recv_counts", "(2, 2, 2)", "(1, 1, 1)")
    for refusal in others:
        assert_refused(refusal, "MismatchError", "recv_counts")


def identities():
    world = arx.world()
    expected = {
        ("sum", "int32"): 0,
        ("prod", "float64"): 1.0,
        ("min", "float32"): np.inf,
        ("max", "float32"): -np.inf,
        ("min", "int8"): 127,
        ("max", "uint16"): 0,
        ("band", "uint8"): 255,
        ("lor", "bool"): False,
        ("land", "bool"): True,
    }
    for (op, name), want in expected.items():
        x = np.full(3, 1, name)
        arx.exscan(x, op)
        if world.rank == 0:
            assert x.tolist() == [want] * 3, (op, name, x)


def test_rank_0_of_an_exscan_gets_what_changes_nothing(ranks):
    ranks(1).run(identities)
    ranks(2).run(identities)


def test_refusals_are_told_apart_from_values():
    assert isinstance(outcome(int, "x"), Refusal)


def pure():
    world = arx.world()
    p, me = world.size, world.rank
    f = arx.functional
    x = np.arange(2.0 * p) + me
    kept = x.copy()
    total = np.sum([np.arange(2.0 * p) + rank for rank in range(p)], axis=0)
    assert (f.reduce_scatter(x) == total[2 * me : 2 * me + 2]).all()
    assert f.reduce(x, p - 1) is None if me < p - 1 else (f.reduce(x, p - 1) == total).all()
    assert (f.broadcast(x, p - 1) == np.arange(2.0 * p) + p - 1).all()
    assert (f.scan(x) == np.sum([np.arange(2.0 * p) + rank for rank in range(me + 1)], axis=0)).all()
    assert (f.all_to_all(x) == np.concatenate([np.arange(2 * me, 2 * me + 2) + rank for rank in range(p)])).all()
    assert (x == kept).all()
    start = f.exscan(me + 1)
    assert start == sum(range(1, me + 1))
    assert type(start) is int
    assert f.all_gather(me + 0.5).tolist() == [rank + 0.5 for rank in range(p)]
    assert f.gather([me, me]) is None if me else f.gather([me, me]).tolist() == [r for r in range(p) for _ in "ab"]
    assert f.scatter([[rank] for rank in range(p)] if me == 0 else None).tolist() == [[me]]
    assert f.scan(np.float32(2)) == np.float32(2 * me + 2)


def test_pure_functions(ranks):
    ranks(1).run(pure)
    ranks(3).run(pure)
