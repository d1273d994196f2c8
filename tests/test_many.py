"""Several arrays in one call: `all_reduce_many`, `coalesce`, and the call that is planned once."""

import asyncio

import ml_dtypes
import numpy as np
import oracle
import pytest
from rankside import assert_refused, check_usable, outcome

import arx

DTYPES = ("float32", "float64", "int32", "bfloat16", "bool")


def arrays(rank, large=False):
    """Some of each dtype, of several shapes and layouts, distinct everywhere."""
    made = []
    for k in range(15):
        name = DTYPES[k % len(DTYPES)]
        count = [0, 1, 6, 240, 3000][k % 5 if k % 2 else (k + 2) % 5]
        x = oracle.exact("sum", name, count, rank, seed=k)
        made.append(np.repeat(x, 2)[::2] if k % 3 == 0 else x.reshape(-1, 3) if count % 3 == 0 else x.copy())
    if large:
        made.append(oracle.exact("sum", "float32", 300_000, rank, seed=99))
    return made


def totals(size, large=False):
    every = [arrays(rank, large) for rank in range(size)]
    return [oracle.expected("sum", [np.ascontiguousarray(x[k]) for x in every]) for k in range(len(every[0]))]


def lists(kind):
    world = arx.world()
    xs = kind(arrays(world.rank, large=True))
    want = totals(world.size, large=True) if world.size > 1 else arrays(0, large=True)
    assert arx.all_reduce_many(xs) is xs
    for k, (x, total) in enumerate(zip(xs, want, strict=True)):
        oracle.check(np.ascontiguousarray(x), np.ascontiguousarray(total), f"array {k}")
    assert arx.all_reduce_many(kind([])) == kind([])
    check_usable()


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_lists(ranks, p, kind):
    ranks(p).run(lists, kind)


def dicts():
    world = arx.world()
    names = [f"layer{k}" for k in range(8)]
    if world.rank % 2:
        names.reverse()  # ranks build their dicts in different orders
    xs = {name: np.full(10 + int(name[5:]), world.rank + 1.0 + int(name[5:])) for name in names}
    assert arx.all_reduce_many(xs, "avg") is xs
    mean = (world.size + 1) / 2
    for name, x in xs.items():
        assert (x == mean + int(name[5:])).all(), name


def test_dicts_are_matched_by_name(ranks):
    ranks(1).run(dicts)
    ranks(3).run(dicts)


def an_extra_name():
    world = arx.world()
    xs = {"a": np.ones(2), "b": np.ones(3)} | ({"only here": np.ones(1)} if world.rank == 1 else {})
    refusal = outcome(arx.all_reduce_many, xs)
    check_usable()
    assert (xs["a"] == 1).all()
    return refusal


@pytest.mark.parametrize("where", ["3", "h0 h1"])
def test_a_name_that_not_all_have_is_listed(crew, where):
    for refusal in crew(where).run(an_extra_name):
        assert_refused(refusal, "MismatchError", "rank 1", "'only here'")


def test_a_name_that_not_all_have_is_listed_on_one_host(ranks):
    for refusal in ranks(3).run(an_extra_name):
        assert_refused(refusal, "MismatchError", "rank 1", "'only here'")


def unlike():
    world = arx.world()
    shapes = [(2, 3), (4,)] if world.rank == 0 else [(3, 2), (4,)]  # as long together
    refusal = outcome(arx.all_reduce_many, [np.ones(shape) for shape in shapes])
    check_usable()
    return refusal


def test_shapes_that_differ(ranks):
    for refusal in ranks(2).run(unlike):
        assert_refused(refusal, "MismatchError", "(2, 3)", "(3, 2)")


def wrong():
    world = arx.world()
    for xs, kind in ((3.0, "TypeError"), ({1: np.ones(2)}, "TypeError"), ([np.ones(2), "x"], "TypeError")):
        refusal = outcome(arx.all_reduce_many, xs if world.rank == 0 else [np.ones(2)])
        if world.rank == 0:
            assert_refused(refusal, kind)
        else:
            assert_refused(refusal, "MismatchError")
        check_usable()


def test_what_is_no_list_of_arrays(ranks):
    ranks(2).run(wrong)


def later():
    world = arx.world()
    xs = arrays(world.rank)
    together = arx.all_reduce_many(xs, async_op=True)
    seen = []
    together.add_done_callback(lambda t: seen.append(t.done()))
    assert together.wait() is xs
    assert together.done()
    assert together.exception() is None
    for x, total in zip(xs, totals(world.size), strict=True):
        oracle.check(np.ascontiguousarray(x), np.ascontiguousarray(total), "later")

    async def main():
        ys = [np.ones(3), np.ones(4)]
        return await arx.all_reduce_many(ys, async_op=True)

    assert [y.tolist() for y in asyncio.run(main())] == [[world.size] * 3, [world.size] * 4]


def test_without_waiting(ranks):
    ranks(2).run(later)


def fewer_calls():
    """How many calls of the group ten arrays take."""
    xs = [np.ones(10, np.float32) for _ in range(10)]
    refusal = outcome(arx.all_reduce, np.ones(2 + arx.rank()))
    arx.all_reduce_many(xs)
    again = outcome(arx.all_reduce, np.ones(2 + arx.rank()))
    first, second = (int(r.text.split("call #")[1].split()[0]) for r in (refusal, again))
    return second - first - 1


def test_small_arrays_share_a_call(ranks):
    assert ranks(2).run(fewer_calls) == [1, 1]


def coalesced():
    world = arx.world()
    xs, out = arrays(world.rank), np.zeros(7)
    want = totals(world.size)
    with arx.coalesce():
        for x in xs:
            before = x.copy()
            assert arx.all_reduce(x) is x
            assert x.tobytes() == before.tobytes(), "not yet"
        work = arx.all_reduce(np.full(7, 2.0), out=out, async_op=True)
        assert not work.done()
        assert_refused(outcome(work.wait), "RuntimeError", "coalesce")
        with arx.coalesce():  # belongs to the outer one
            y = arx.all_reduce(np.full(3, world.rank + 1.0), "max")
        assert (y == world.rank + 1).all()
    for k, (x, total) in enumerate(zip(xs, want, strict=True)):
        oracle.check(np.ascontiguousarray(x), np.ascontiguousarray(total), f"array {k}")
    assert work.wait() is out
    assert (out == 2.0 * world.size).all()
    assert (y == world.size).all()
    z = np.ones(2)
    arx.all_reduce(z)
    assert (z == world.size).all(), "the block has ended"


def test_coalesce(ranks):
    ranks(2).run(coalesced)
    ranks(3).run(coalesced)


def a_block_that_raises():
    world = arx.world()

    def block():
        with arx.coalesce():
            arx.all_reduce(np.ones(3))
            if world.rank == 0:
                raise KeyError("mine")

    refusal = outcome(block)
    check_usable()
    return refusal


def test_a_block_that_raises_on_one_rank(ranks):
    first, *others = ranks(3).run(a_block_that_raises)
    assert_refused(first, "KeyError", "mine")
    for refusal in others:
        assert_refused(refusal, "MismatchError", "KeyError")


def planned(memory):
    world = arx.world()
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for count in (1, 300, 100_000):
            x = arx.empty(count, dtype) if memory == "symmetric" else np.empty(count, dtype)
            y = np.zeros(2 * count, dtype)[::2]
            here, there = arx.plan_all_reduce(x), arx.plan_all_reduce(x, "max", out=y)
            for step in range(3):
                x[:] = world.rank + step
                assert there() is y
                assert (y == dtype(world.size - 1 + step)).all()
                assert here() is x
                assert (x == dtype(sum(range(world.size)) + world.size * step)).all()
    assert_refused(outcome(arx.plan_all_reduce, np.ones(2), "nope"), "ValueError", "nope")
    check_usable()


@pytest.mark.parametrize("memory", ["private", "symmetric"])
def test_a_plan_does_the_same_call_again(ranks, memory):
    ranks(2).run(planned, memory)
    ranks(3).run(planned, memory)


def plans_that_differ():
    plan = arx.plan_all_reduce(np.ones(2 + arx.rank()))  # nobody is asked yet
    refusal = outcome(plan)
    check_usable()
    return refusal


def test_plans_that_differ_are_found_out_when_called(ranks):
    for refusal in ranks(2).run(plans_that_differ):
        assert_refused(refusal, "MismatchError", "(2,)", "(3,)")


def pairs(kind):
    """Lists of arrays, and the two that have memory in common; None where none have."""
    a, b = np.ones(10), np.ones((4, 6))
    return {
        "the same": ([a, b, a], (0, 2)),
        "a view of it": ([b, a, a[:]], (1, 2)),
        "parts": ([a[:3], b, a[2:]], (0, 2)),
        "one element": ([b[:, 0], b[3]], (0, 1)),
        "reversed": ([a[::-1], a[:1]], (0, 1)),
        "within": ([b, a, b[1:2, 2:4]], (0, 2)),
        "far within": ([a[:], b[:, 5], b[1:, 0], b], (1, 3)),
        "large": ([np.broadcast_to(a, (10, 10)).copy(), a, large := np.ones(200_000), large[-1:]], (2, 3)),
        "neighbours": ([a[:3], a[3:]], None),
        "interleaved": ([a[::2], a[1::2], *(b[:, k] for k in range(6))], None),
        "empty": ([a, a[3:3], a[3:3], a[:0]], None),
    }[kind]


OVERLAPS = ("the same", "a view of it", "parts", "one element", "reversed", "within", "far within", "large")
APART = ("neighbours", "interleaved", "empty")


def overlaps_in_a_list(kind):
    """Rank 0 has arrays that overlap, others the same apart."""
    xs, (one, other) = pairs(kind)
    xs = xs if arx.rank() == 0 else [x.copy() for x in xs]
    kept = [x.copy() for x in xs]
    refusal = outcome(arx.all_reduce_many, xs)
    assert all((x == y).all() for x, y in zip(xs, kept, strict=True)), "nothing has changed"
    kind = "MismatchError" if arx.rank() else "ValueError"
    assert_refused(refusal, kind, f"arrays {one} and {other} have")
    named = {f"n{k}": x for k, x in enumerate(xs)}
    assert_refused(outcome(arx.all_reduce_many, named), kind, f"arrays 'n{one}' and 'n{other}' have")
    check_usable()


@pytest.mark.parametrize("kind", OVERLAPS)
def test_arrays_that_overlap_are_refused(ranks, kind):
    ranks(2).run(overlaps_in_a_list, kind)


def apart(kind):
    p, rank = arx.size(), arx.rank()
    xs, _ = pairs(kind)
    for k, x in enumerate(xs):
        x[...] = k + rank
    arx.all_reduce_many(xs)
    for k, x in enumerate(xs):
        assert (x == k * p + p * (p - 1) / 2).all(), (kind, k)
    for k, x in enumerate(xs):
        x[...] = k + rank
    with arx.coalesce():
        for x in xs:
            arx.all_reduce(x)
    for k, x in enumerate(xs):
        assert (x == k * p + p * (p - 1) / 2).all(), (kind, k)


@pytest.mark.parametrize("kind", APART)
def test_views_without_an_element_in_common_are_fine(ranks, kind):
    ranks(2).run(apart, kind)


def overlaps_in_a_block(kind):
    xs, (one, other) = pairs(kind)
    xs = xs if arx.rank() == 0 else [x.copy() for x in xs]
    kept = [x.copy() for x in xs]

    def block():
        with arx.coalesce():
            for x in xs:
                arx.all_reduce(x)

    assert_refused(outcome(block), "MismatchError" if arx.rank() else "ValueError", f"calls {one} (", f"and {other} (")
    assert all((x == y).all() for x, y in zip(xs, kept, strict=True)), "nothing has changed"
    check_usable()


@pytest.mark.parametrize("kind", OVERLAPS)
def test_an_array_may_be_in_one_call_of_a_block(ranks, kind):
    ranks(2).run(overlaps_in_a_block, kind)


def blocks_with_out():
    p = arx.size()
    x, y, z = (np.full(4, arx.rank() + k) for k in (1.0, 2.0, 3.0))
    with arx.coalesce():  # an array that none of them changes may be read by all
        arx.all_reduce(x, out=y)
        arx.all_reduce(x, out=z)
    assert x.tolist() == [arx.rank() + 1.0] * 4
    assert y.tolist() == z.tolist() == [p * (p + 1) / 2] * 4

    def block(*calls):
        with arx.coalesce():
            for source, out in calls:
                arx.all_reduce(source, out=out)

    frozen = x[1:3]
    frozen.flags.writeable = False
    for calls in ([(x, None), (x, y)], [(x, y), (z, None), (y, y)], [(x, None), (frozen, np.zeros(2))]):
        assert_refused(outcome(block, *calls), "ValueError", "of the block", "memory in common")
        check_usable()
    assert_refused(outcome(block, (x, np.zeros((2, 4)))), "ValueError", "out must", "float64(4,)", "float64(2, 4)")
    assert_refused(outcome(block, (x, np.zeros(4, "f4"))), "ValueError", "out must", "float32(4,)")
    check_usable()


def test_out_in_a_block(ranks):
    ranks(2).run(blocks_with_out)


def two_groups():
    """Rank 0 is refused a block of calls of two groups: the others are told in both."""
    world = arx.world()
    other = world.split(0)
    x = np.ones(4)

    def block():
        with arx.coalesce():
            world.all_reduce(x)
            other.all_reduce(np.ones(5))
            world.all_reduce(x[3:] if world.rank == 0 else np.ones(1))

    assert_refused(outcome(block), "MismatchError" if world.rank else "ValueError", "calls 0 (float64(4,)) and 2 (")
    for group in (world, other):
        y = np.full(3, world.rank + 1.0)
        group.all_reduce(y)
        assert (y == world.size * (world.size + 1) / 2).all()
    other.shutdown()


def test_a_block_of_two_groups_that_is_refused(ranks):
    ranks(3).run(two_groups)


def an_empty_list(kind, later):
    """Rank 1 has an empty list or dict, others have arrays; then all have nothing."""
    arrays = {"list": [np.ones(3), np.ones(4)], "compressed": [np.ones(3)], "dict": {"a": np.ones(3)}}[kind]
    options = {"async_op": later} | ({"compression": "fp16"} if kind == "compressed" else {})

    def call(xs, **more):
        result = arx.all_reduce_many(xs, "avg", **options, **more)
        return result.wait() if later else result

    refusal = outcome(call, type(arrays)() if arx.rank() == 1 else arrays)
    check_usable()
    nothing = type(arrays)()
    assert call(nothing, timeout=30) is nothing
    assert arx.all_reduce_many(nothing, "band") is nothing
    check_usable()
    return refusal


@pytest.mark.parametrize(("kind", "later"), [("list", False), ("list", True), ("compressed", False), ("dict", False)])
def test_a_list_that_is_empty_on_one_rank(ranks, kind, later):
    for refusal in ranks(3).run(an_empty_list, kind, later):
        assert_refused(refusal, "MismatchError", "rank 1", "missing 'a'" if kind == "dict" else "of 0: ")
