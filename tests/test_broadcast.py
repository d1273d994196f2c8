"""broadcast: every dtype and root, data that is no number, read-only roots."""

import numpy as np
import oracle
import pytest
from rankside import assert_refused, check_usable, filled, outcome

import arx

RECORD = np.dtype([("a", "<u8"), ("b", "<f4"), ("c", "S3")])
# Element types of which a broadcast moves the bytes as they are.
OTHERS = [RECORD, np.dtype("U4"), np.dtype("S5"), np.dtype("V3"), np.dtype("M8[ns]"), np.dtype("m8[s]")]


def table(memory):
    world = arx.world()
    for name, dtype in oracle.DTYPES.items():
        for count in sorted({0, 1, world.size - 1, world.size + 1, 1000, 65537}):
            for root in range(world.size):
                x = filled(memory, oracle.values(name, count, world.rank, odd=True), world.rank)
                assert arx.broadcast(x, root) is x
                want = oracle.values(name, count, root, odd=True)
                case = f"{count} {dtype} from {root} in {memory} memory"
                oracle.check(x, want, case)
                assert x.tobytes() == want.tobytes(), f"{case}: other bytes"


@pytest.mark.parametrize("memory", ["private", "symmetric", "mixed"])
@pytest.mark.parametrize("p", range(1, 10))
def test_every_dtype_length_and_root(ranks, p, memory):
    ranks(p).run(table, memory)


def long_table(memory):
    world = arx.world()
    count = 3 * 8 * 1024 * 1024 + 1
    for root in range(world.size):
        x = filled(memory, oracle.values("uint8", count, world.rank), world.rank)
        arx.broadcast(x, root)
        oracle.check(x, oracle.values("uint8", count, root), f"{count} bytes from {root}, {memory}")


@pytest.mark.parametrize("memory", ["private", "symmetric", "mixed"])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_longer_than_several_staging_rings(ranks, p, memory):
    ranks(p).run(long_table, memory)


def of_bytes(dtype, count, rank, scattered):
    """``count`` elements of ``dtype`` made of bytes that tell their rank and place."""
    room = 2 * count * dtype.itemsize
    raw = oracle.values("uint8", room, rank)
    if dtype.kind == "U":  # of which not every four bytes are a character
        raw = (raw[: room // 4] % 26 + ord("A")).astype(np.uint32)
    x = raw.view(dtype)
    return x[::2] if scattered else x[:count].copy()


def no_numbers(dtype, scattered):
    world = arx.world()
    for count in (0, 1, 7, 5000):
        for root in range(world.size):
            x = of_bytes(dtype, count, world.rank, scattered)
            assert arx.broadcast(x, root) is x
            want = of_bytes(dtype, count, root, scattered)
            assert x.tobytes() == want.tobytes(), f"{count} {dtype} from {root}"


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_structured_strings_void_and_dates_move_byte_for_byte(ranks, p, dtype, scattered):
    ranks(p).run(no_numbers, dtype, scattered)


def reduction_of(dtype):
    refusal = outcome(arx.all_reduce, np.zeros(3, dtype))
    check_usable()
    return refusal


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_structured_strings_void_and_dates_are_refused_in_reductions(ranks, dtype):
    for refusal in ranks(2).run(reduction_of, dtype):
        assert_refused(refusal, "TypeError", str(dtype))


def objects(call):
    x = np.array([object(), "text", None], dtype=object)
    before = list(x)
    refusal = outcome(getattr(arx, call), x)
    assert all(a is b for a, b in zip(x, before, strict=True)), "pointers must never travel"
    check_usable()
    return refusal


@pytest.mark.parametrize("call", ["all_reduce", "broadcast"])
def test_objects_are_refused_everywhere(ranks, call):
    for refusal in ranks(2).run(objects, call):
        assert_refused(refusal, "TypeError", "object")


def objects_inside_a_record():
    x = np.zeros(2, [("a", "i4"), ("b", object)])
    refusal = outcome(arx.broadcast, x)
    check_usable()
    return refusal


def test_objects_inside_a_record_are_refused(ranks):
    for refusal in ranks(2).run(objects_inside_a_record):
        assert_refused(refusal, "TypeError", "object")


def read_only_root(count):
    x = oracle.values("float64", count, arx.rank())
    x.flags.writeable = arx.rank() != 1
    assert arx.broadcast(x, 1) is x
    oracle.check(x, oracle.values("float64", count, 1), "from a read-only root")


@pytest.mark.parametrize("count", [5, 50_000])
@pytest.mark.parametrize("p", [2, 3])
def test_the_root_may_be_read_only(ranks, p, count):
    ranks(p).run(read_only_root, count)


def read_only_elsewhere():
    x = np.full(4, float(arx.rank()))
    x.flags.writeable = arx.rank() != 1
    refusal = outcome(arx.broadcast, x, 0)
    assert x.tolist() == [arx.rank()] * 4, "no data may have moved"
    check_usable()
    return refusal


def test_another_rank_may_not_be_read_only(ranks):
    results = ranks(3).run(read_only_elsewhere)
    assert_refused(results[1], "ValueError", "read-only")
    for rank in (0, 2):
        assert_refused(results[rank], "MismatchError", "rank 1", "read-only")


def bad_root(root):
    refusal = outcome(arx.broadcast, np.zeros(3), root)
    check_usable()
    return refusal


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        (3, "ValueError"),
        (-1, "ValueError"),
        (10**12, "ValueError"),
        (1.5, "TypeError"),
        ("0", "TypeError"),
    ],
)
def test_a_root_that_is_no_rank_is_refused(ranks, root, kind):
    for refusal in ranks(3).run(bad_root, root):
        assert_refused(refusal, kind, "root")


def forms():
    world = arx.world()
    for way, call in {
        "positional": lambda x: arx.broadcast(x, 1),
        "by name": lambda x: arx.broadcast(x, root=1),
        "numpy integer": lambda x: arx.broadcast(x, np.int64(1)),
        "group=": lambda x: arx.broadcast(x, 1, group=world),
        "method": lambda x: world.broadcast(x, 1),
        "timeout, name": lambda x: arx.broadcast(x, 1, timeout=30, name="weights"),
    }.items():
        x = oracle.values("int32", 10, world.rank)
        assert call(x) is x, way
        oracle.check(x, oracle.values("int32", 10, 1), way)
    x = oracle.values("int32", 10, world.rank)
    oracle.check(arx.broadcast(x), oracle.values("int32", 10, 0), "the default root is 0")


def test_forms_of_the_call(ranks):
    ranks(3).run(forms)
