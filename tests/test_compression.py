"""Compressed all-reduces in which every value travels: bit for bit what numpy makes of the definition of each codec."""

import ml_dtypes
import numpy as np
import oracle
import pytest
import squeezed

import arx
from arx.compression import Int4, Int8, Pipeline

F = np.float32
BF16 = ml_dtypes.bfloat16
WORLDS = ["1", "2", "3", "4", "5"]
DENSE = [name for name in squeezed.CODECS if name != "fp32"]
# Around the blocks of every codec, and several pieces for each host.
COUNTS = (0, 1, 2, 5, 64, 65, 255, 256, 257, 1000, 1023, 1025, 5000, 70_000)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 1e-37, 7.0, -1.5, 0.1]


def plain(codec):
    """Without feedback: each call by itself."""
    return Pipeline(codec, error_feedback=False)


def mine(parts):
    return parts[arx.rank()].copy()


def check_call(codec, parts, op="sum", case=""):
    """One call, in place."""
    x = mine(parts)
    assert arx.all_reduce(x, op, compression=plain(codec)) is x
    oracle.check(x, squeezed.summed(codec, parts, op), f"{codec} {op} {x.shape} {case}")
    return x


# Values


def sums(codec):
    for count in COUNTS:
        for odd in (False, True):
            parts = [oracle.values("float32", count, rank, seed=count, odd=odd) for rank in range(arx.size())]
            for op in ("sum", "avg"):
                check_call(codec, parts, op, f"odd={odd}")


@pytest.mark.parametrize("codec", DENSE)
@pytest.mark.parametrize("where", WORLDS)
def test_sums_are_those_of_the_definition(crew, where, codec):
    crew(where).run(sums, codec)


def other_dtypes(codec):
    for dtype in (np.float16, BF16, np.float64):
        for count in (1, 300, 5000):
            parts = [oracle.values("float32", count, rank, seed=count) for rank in range(arx.size())]
            given = [part.astype(dtype) for part in parts]
            for op in ("sum", "avg"):
                x = mine(given)
                arx.all_reduce(x, op, compression=plain(codec))
                want = squeezed.summed(codec, [x.astype(F) for x in given], op).astype(dtype)
                oracle.check(x, want, f"{codec} {op} of {count} {x.dtype}")


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("where", ["2", "3"])
def test_other_floats_are_summed_in_float32(crew, where, codec):
    crew(where).run(other_dtypes, codec)


def layouts(codec):
    parts = [oracle.values("float32", 48, rank).reshape(2, 3, 8) for rank in range(arx.size())]
    want = squeezed.summed(codec, [part.reshape(-1) for part in parts]).reshape(2, 3, 8)
    x = mine(parts)
    doubled = np.repeat(x, 2, axis=2)
    for layout in (np.asfortranarray(x), x.copy()[::-1, :, ::-1][::-1, :, ::-1], doubled[:, :, ::2], x.copy()):
        assert arx.all_reduce(layout, compression=plain(codec)) is layout
        oracle.check(np.ascontiguousarray(layout), want, f"{codec}, strides {layout.strides}")
    backwards = x[::-1].copy()[::-1]
    assert backwards.strides[0] < 0
    arx.all_reduce(backwards, compression=plain(codec))
    oracle.check(np.ascontiguousarray(backwards), want, f"{codec}, backwards")
    x.flags.writeable = False
    for out in (np.empty_like(x), np.empty_like(x, order="F"), np.empty(96, F)[::2].reshape(2, 3, 8)):
        assert arx.all_reduce(x, out=out, compression=plain(codec)) is out
        oracle.check(np.ascontiguousarray(out), want, f"{codec} into out, strides {out.strides}")
    oracle.check(x, parts[arx.rank()], "what was reduced")
    symmetric = arx.empty(48)
    symmetric[:] = x.reshape(-1)
    arx.all_reduce(symmetric, compression=plain(codec))
    oracle.check(symmetric.astype(F), want.reshape(-1), f"{codec}, symmetric float64")


@pytest.mark.parametrize("codec", ["fp16", "int8"])
@pytest.mark.parametrize("where", ["1", "3"])
def test_layouts_and_out(crew, where, codec):
    crew(where).run(layouts, codec)


def small_shapes(codec):
    for shape in ((), (1,), (1, 1), (0,), (3, 0), (2, 0, 5)):
        parts = [np.full(shape, 2.0 * rank - 1, F) for rank in range(arx.size())]
        x = mine(parts)
        assert arx.all_reduce(x, compression=plain(codec)) is x
        oracle.check(x, squeezed.summed(codec, [part.reshape(-1) for part in parts]).reshape(shape), f"{codec} {shape}")


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("where", WORLDS)
def test_no_axes_no_elements_and_one_element(crew, where, codec):
    crew(where).run(small_shapes, codec)


def specials(codec):
    size = arx.size()
    for shift in range(len(SPECIAL)):
        rows = [np.roll(np.array(SPECIAL, F), shift * rank) for rank in range(size)]
        parts = [np.resize(row, 700) for row in rows]
        x = check_call(codec, parts, "sum", f"shift {shift}")
        unlike = [np.isnan(part) | np.isinf(part) for part in parts]
        assert not np.isfinite(x[np.any(unlike, axis=0)]).any()


@pytest.mark.parametrize("codec", DENSE)
@pytest.mark.parametrize("where", ["2", "3"])
def test_nan_and_infinity_arrive(crew, where, codec):
    crew(where).run(specials, codec)


# The cases of the field


def large_and_tiny():
    size, me = arx.size(), arx.rank()
    for value, mean in ((40_000.0, 40_000.0), (160_000.0, 160_000.0), (70_000.0, 70_016.0), (1e30, None), (1e-7, None)):
        x = np.full(3, value, F)
        arx.all_reduce(x, "avg", compression="fp16")
        assert (np.abs(x - F(value)) <= 2**-10 * F(value)).all(), (value, x)
        assert mean is None or (x == mean).all(), (value, x)
    x = np.full(3, 60_000 if me < size // 2 else -60_000, F)
    arx.all_reduce(x, "avg", compression="fp16")
    assert (x == 0).all()
    # Beside a large value a tiny one is what a half can say of it.
    x = np.array([32_768, 1e-7], F)
    arx.all_reduce(x, "avg", compression="fp16")
    assert x.tolist() == [32_768, float(F(1.1920929e-07))]


@pytest.mark.parametrize("where", ["4", "8"])
def test_fp16_neither_overflows_nor_loses_the_tiny(crew, where):
    crew(where).run(large_and_tiny)


def zeros(codec, block):
    size = arx.size()
    for count in (1, block - 1, block, 3 * block + 1):
        for zero in (0.0, -0.0):
            x = check_call(codec, [np.full(count, zero, F)] * size)
            assert (x == 0).all()
    beside = [oracle.values("float32", 3 * block, rank) for rank in range(size)]
    alone = squeezed.summed(codec, [part[: 2 * block] for part in beside])
    for part in beside:
        part[2 * block :] = 0
    x = check_call(codec, beside)
    assert (x[2 * block :] == 0).all()
    oracle.check(x[: 2 * block], alone, f"{codec}: the blocks beside the zeros")
    only_one = [part * F(rank == 1) for rank, part in enumerate(beside)]
    check_call(codec, only_one, case="zeros on all ranks but one")
    tiny = mine([np.full(block, 1e-40, F)] * size)
    arx.all_reduce(tiny, compression=plain(codec))
    assert np.isfinite(tiny).all()
    assert (np.abs(tiny - size * F(1e-40)) <= size * F(1e-40)).all(), tiny[0]


@pytest.mark.parametrize(("codec", "block"), [("int8", 256), ("int8:32", 32), ("int4", 64), ("fp16", 1024)])
@pytest.mark.parametrize("where", ["2", "4"])
def test_blocks_of_zeros_stay_zeros(crew, where, codec, block):
    crew(where).run(zeros, codec, block)


# What is promised of the error


BOUNDS = {"fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 1 / 254, "int4": (1 + 2.0**-7) / 14}


def within_bounds(codec, scale):
    """Off by at most (2 + b) b of the sum over hosts of the largest of the block, or of the value itself for halves."""
    size = arx.size()
    parts = [oracle.values("float32", 4096, rank, seed=5) * F(2.0**scale) for rank in range(size)]
    exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
    x = mine(parts)
    arx.all_reduce(x, compression=plain(codec))
    sizes = [np.abs(part.astype(np.float64)) for part in parts]
    if codec.startswith("int"):
        block = {"int8": 256, "int4": 64}[codec]
        sizes = [np.repeat(part.reshape(-1, block).max(axis=1), block) for part in sizes]
    b, total = BOUNDS[codec], np.sum(sizes, axis=0)
    rounding = (size + 4) * 2.0**-24 * total
    off = np.abs(x - exact)
    assert (off <= (2 + b) * b * total + rounding).all()
    assert (off > b / 4 * total).any(), "the bound is no idle one"


@pytest.mark.parametrize("scale", [-100, 0, 100])
@pytest.mark.parametrize("codec", BOUNDS)
@pytest.mark.parametrize("where", ["2", "5"])
def test_errors_stay_within_what_is_documented(crew, where, codec, scale):
    crew(where).run(within_bounds, codec, scale)


def stochastic_sums(codec, steps):
    """Off by less than one step of each rounding; on average not at all."""
    size = arx.size()
    parts = [oracle.values("float32", 6400, rank) for rank in range(size)]
    exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
    seen = []
    for _ in range(20):
        x = mine(parts)
        arx.all_reduce(x, compression=Pipeline(codec, error_feedback=False))
        seen.append(x - exact)
    largest = max(np.abs(part).max() for part in parts)
    # A scale is at most 1/steps of the largest, and 2**-7 of that more if it is a bfloat16.
    scale = 1.008 * largest / steps
    second = 1.008 * (size * (largest + scale)) / steps
    bound = size * scale + second
    errors = np.array(seen)
    assert np.abs(errors).max() <= bound
    # The deviation of one rounding is at most half a step; six of the mean's are no accident.
    deviation = np.sqrt(size * scale**2 + second**2) / 2
    assert abs(errors.mean()) <= 6 * deviation / np.sqrt(errors.size)
    assert len({oracle.digest(x) for x in seen}) == 20, "other numbers in each call"
    x = mine(parts)
    arx.all_reduce(x, compression=Pipeline(codec, error_feedback=False))
    return oracle.digest(x)


@pytest.mark.parametrize(
    ("codec", "steps"), [(Int8(stochastic=True), 127), (Int4(stochastic=True), 7)], ids=["int8", "int4"]
)
def test_stochastic_rounding_is_right_on_average(crew, codec, steps):
    assert len(set(crew("3").run(stochastic_sums, codec, steps))) == 1


def encoded_alone(codec, name):
    """What `encode` and `decode` say of an array is what the collectives make of it."""
    for count in COUNTS:
        x = oracle.values("float32", count, 3, seed=count, odd=count % 2 == 1)
        payload = codec.encode(x)
        oracle.check(codec.decode(payload, count), squeezed.CODECS[name](x), f"{name}, {count} elements")
        if count:
            with pytest.raises(ValueError, match="malformed payload"):
                codec.decode(payload[:-1], count)


@pytest.mark.parametrize("name", DENSE)
def test_a_payload_says_what_the_definition_says(name):
    encoded_alone(Pipeline(name).codecs[0], name)


def chosen_automatically():
    """What takes more than 1.5 ms is not tried."""
    parts = [oracle.values("float32", 3 << 20, rank) for rank in range(arx.size())]
    ways = {name: squeezed.summed(name, parts, "avg").tobytes() for name in ("fp32", "fp16", "int8")}
    explained = arx.explain(parts[0], "avg", compression="auto")
    assert "predicted" in explained.why
    chosen = {"uncompressed": "fp32", "fp16": "fp16", "int8:256": "int8"}[explained.algorithm]
    assert arx.functional.all_reduce(mine(parts), "avg", compression="auto").tobytes() == ways[chosen], explained


@pytest.mark.parametrize("where", ["2", "4"])
def test_auto_is_what_explain_says(crew, where):
    crew(where).run(chosen_automatically)


def chosen_by_trial():
    """Some hundred calls in which the ways take turns, and all ranks take the same one."""
    parts = [oracle.values("float32", 1000, rank) for rank in range(arx.size())]
    names = {"fp32": "uncompressed", "fp16": "fp16", "int8": "int8:256"}
    ways = {squeezed.summed(name, parts, "avg").tobytes(): names[name] for name in names}
    taken = []
    while "tried" not in (said := arx.explain(parts[0], "avg", compression="auto")).why:
        assert len(taken) < 10_000, said
        taken.append(ways[arx.functional.all_reduce(mine(parts), "avg", compression="auto").tobytes()])
    assert set(taken) == set(names.values())
    for _ in range(3):
        assert ways[arx.functional.all_reduce(mine(parts), "avg", compression="auto").tobytes()] == said.algorithm


@pytest.mark.parametrize("where", ["2", "4"])
def test_auto_tries_what_short_calls_take(crew, where):
    crew(where).run(chosen_by_trial)


# On one host


def on_one_host(codec):
    for count in (0, 1, 1000, 70_000):
        parts = [oracle.values("float32", count, rank) for rank in range(arx.size())]
        for op in ("sum", "avg"):
            x = mine(parts)
            assert arx.all_reduce(x, op, compression=plain(codec)) is x
            oracle.check(x, oracle.reduced(op, "float32", count, arx.size()), f"{codec} {op} of {count} on one host")
    if arx.size() > 1:
        assert "nothing is compressed inside a host" in arx.explain(np.ones(9, F), compression=codec).why


@pytest.mark.parametrize("codec", ["fp16", "int4", "topk:0.01", "randomk:2", "threshold:0.5", "powersgd", "auto"])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_on_one_host_nothing_is_lost(ranks, p, codec):
    ranks(p).run(on_one_host, codec)
