"""arx.empty, zeros, empty_like: ordinary arrays in memory that the peers can read."""

import gc
import itertools

import numpy as np
import oracle
import psutil
import pytest
from rankside import assert_refused, check_usable, outcome

import arx
from arx.testing import run_ranks


def ordinary():
    """What numpy users may expect of the arrays."""
    found = []
    for shape in (5, (5,), (3, 4), (0,), (2, 0, 3), (), [2, 3], np.int64(7)):
        for dtype in (float, "int16", np.complex64, oracle.DTYPES["bfloat16"], bool, "M8[s]", "S3", [("a", "i4")]):
            x = arx.empty(shape, dtype)
            want = np.empty(shape, dtype)
            assert type(x) is np.ndarray
            assert (x.shape, x.dtype) == (want.shape, want.dtype)
            assert x.strides == want.strides or not x.size
            assert x.flags.writeable
            assert x.flags.c_contiguous
            assert x.flags.aligned
            found.append(x)
            z = arx.zeros(shape, dtype)
            assert (z.shape, z.dtype) == (want.shape, want.dtype)
            assert not any(z.tobytes())
    assert arx.empty(3).dtype == arx.zeros(3).dtype == np.float64
    # No two of them share memory.
    spans = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for x in found if x.nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_ordinary_arrays(ranks):
    ranks(2).run(ordinary)


def like():
    for prototype in (
        np.zeros((3, 4), "i2"),
        np.zeros((3, 4), "f4", order="F"),
        np.float32(3),
        np.zeros((2, 3, 4))[::2, ::-1],
    ):
        x = arx.empty_like(prototype)
        assert type(x) is np.ndarray
        assert (x.shape, x.dtype) == (prototype.shape, prototype.dtype)
        assert x.flags.c_contiguous
        assert arx.empty_like(prototype, "u1").dtype == np.uint8
        x[...] = arx.rank()
        arx.all_reduce(x)
        assert set(x.ravel().tolist()) == {1}


def test_empty_like_has_the_shape_and_dtype_of_its_prototype(ranks):
    ranks(2).run(like)


def zeros_in_used_memory():
    for _ in range(20):
        x = arx.empty(100_000, "u1")
        x[...] = 255
        del x
        assert not arx.zeros(100_000, "u1").any()


def test_zeros_are_zero_where_something_was_before(ranks):
    ranks(1).run(zeros_in_used_memory)


@pytest.mark.parametrize("call", ["empty", "zeros"])
@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        (-1, float, "ValueError"),
        ((3, -2), float, "ValueError"),
        ("3", float, "TypeError"),
        (2.5, float, "TypeError"),
        (3, "no such type", "TypeError"),
        (3, object, "TypeError"),
        ((2**40, 2**40), "f8", "MemoryError"),
        (2**45, "u1", "MemoryError"),
    ],
)
def test_shapes_and_dtypes_that_make_no_array_are_refused(ranks, call, shape, dtype, kind):
    (refusal,) = ranks(1).run(refused_allocation, call, shape, dtype)
    assert_refused(refusal, kind)


def refused_allocation(call, shape, dtype):
    return outcome(getattr(arx, call), shape, dtype)


def other_places():
    """Each rank allocates in another order, so that no array lies at the same place on two ranks."""
    world = arx.world()
    before = [arx.empty(1000 * (world.rank + 1), "u1") for _ in range(world.rank)]
    for count in (1, 100, 5000, 300_000):
        x = arx.empty(count, "float32")
        x[...] = oracle.values("float32", count, world.rank)
        arx.all_reduce(x)
        oracle.check(x, oracle.reduced("sum", "float32", count, world.size), f"{count}, at different places")
        before.append(x)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_arrays_may_lie_at_different_places(ranks, p):
    ranks(p).run(other_places)


def parts():
    """Slices of one symmetric array, each rank another one, and their neighbours untouched."""
    world = arx.world()
    base = arx.empty(100_000, "float64")
    for count in (3, 1000, 20_000):
        base[...] = oracle.values("float64", base.size, world.rank, seed=2)
        want = base.copy()
        first = 17 * (world.rank + 1)
        x = base[first : first + count]
        x[...] = oracle.values("float64", count, world.rank)
        want[first : first + count] = oracle.reduced("sum", "float64", count, world.size)
        arx.all_reduce(x)
        oracle.check(base, want, f"slice of {count}")


@pytest.mark.parametrize("p", [2, 3])
def test_slices_of_symmetric_arrays(ranks, p):
    ranks(p).run(parts)


def reused():
    """Arrays made and dropped in step with calls: no memory of a living array is given away, none is lost."""
    world = arx.world()
    process = psutil.Process()
    alive, sizes = {}, []
    for k in range(400):
        count = int(oracle.bits(1, "size", k)[0] % 200_000) + 1
        x = arx.empty(count, "int32")
        x[...] = oracle.values("int32", count, world.rank, seed=k % 8)
        alive[k] = x
        arx.all_reduce(x)
        for j in [j for j in alive if oracle.bits(1, "drop", j, k)[0] % 4 == 0]:
            y = alive.pop(j)
            oracle.check(y, oracle.reduced("sum", "int32", y.size, world.size, seed=j % 8), f"array {j} at step {k}")
        sizes.append(process.memory_info().rss)
    return sizes[100], sizes[-1]


def test_memory_of_dropped_arrays_is_used_again(ranks):
    for early, late in ranks(2).run(reused):
        # 400 arrays of 400 kB are 160 MB.
        assert late - early < 40e6


def large_arrays_come_and_go():
    process = psutil.Process()
    sizes = []
    for _ in range(30):
        x = arx.empty(16 * 1024 * 1024, "u1")
        x[...] = 1
        del x
        sizes.append(process.memory_info().rss)
    return sizes[0], sizes[-1]


def test_large_arrays_give_their_memory_back(ranks):
    for first, last in ranks(2).run(large_arrays_come_and_go):
        assert last - first < 20e6


def outlives_the_group():
    """The memory stays readable and writable as long as the array lives, group or no group."""
    with arx.init():
        x = arx.empty(50_000)
        x[...] = arx.rank()
        arx.all_reduce(x)
        view = x[10:20]
    del x
    gc.collect()
    view += 1
    with arx.init():
        y = np.zeros(10) + view
        arx.all_reduce(y)
        arx.all_reduce(view)
        check_usable()
    return view.tolist(), y.tolist()


def test_an_array_outlives_its_group():
    assert run_ranks(outlives_the_group, 2) == [([4.0] * 10, [4.0] * 10)] * 2
