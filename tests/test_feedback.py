"""What a codec leaves out comes with the next call: nothing is lost; momentum, warm-up and clipping around it."""

import warnings

import numpy as np
import oracle
import pytest
import squeezed
from feedbackside import everybodys, feedback, gradient, spread
from hypothesis import given, settings
from hypothesis import strategies as st

import arx
from arx.compression import Pipeline, parse

F = np.float32
CODECS = [
    *("fp16", "bf16", "int8", "int8:32:stochastic", "int4", "int4:6:stochastic"),
    *("topk:0.05", "topk:7+fp16", "topk:0.3", "topk:0.05+int8", "topk:7:shared", "topk:0.1:shared+int8"),
    *("randomk:0.1", "randomk:9+fp16", "threshold:2.0", "threshold:1.0+int8", "powersgd:1", "powersgd:4"),
]


# Conservation


def conserves(codec, shape, seed, scale, steps):
    """Sum of results and of what all keep = sum of what all brought and kept, in every step.

    Every number between is at most S in magnitude: the sum over ranks of the largest of what each brings and keeps (for
    a product of thin matrices, of the norms), and as much again for an error of one level. A sum over p ranks, a
    difference and the second rounding's are fewer than 2p + 8 roundings, each off by 2**-24 of what is rounded.
    """
    size, me = arx.size(), arx.rank()
    pipeline = feedback(codec)
    before = np.zeros(int(np.prod(shape)), F)
    for step in range(steps):
        x = gradient(me, step, shape, seed, scale)
        brought = everybodys(x.ravel()) + everybodys(before)
        alone = np.abs(x.ravel().astype(np.float64)) + np.abs(before)
        largest = everybodys(np.linalg.norm(alone) * 2 if codec.startswith("powersgd") else alone.max(initial=0))
        arx.all_reduce(x, compression=pipeline, name="w")
        states = pipeline.state_dict()
        if codec.startswith("powersgd") and not states:
            return  # it travels as it is
        assert states["w"]["steps"] == step + 1
        before = spread(states["w"], x.size)
        off = np.abs(x.ravel() + everybodys(before) - brought)
        bound = (2 * size + 8) * 2.0**-24 * 2 * float(largest)
        assert off.max(initial=0) <= bound, f"{codec} {shape} step {step}: off by {off.max()}, more than {bound}"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("where", ["2", "3"])
def test_nothing_is_lost(crew, where, codec):
    for seed, shape in enumerate([(40, 30), (700,), (1,), ()]):
        crew(where).run(conserves, codec, shape, seed, 0, 6)


@given(
    codec=st.sampled_from(CODECS),
    shape=st.lists(st.integers(1, 40), max_size=3).map(tuple),
    seed=st.integers(0, 2**32),
    scale=st.integers(-60, 60),
)
@settings(max_examples=300)
def test_nothing_is_lost_whatever_the_array(crew, codec, shape, seed, scale):
    # Of thin matrices squares are added up, which are infinite from 2**64 on.
    crew("3").run(conserves, codec, shape, seed, scale // 2 if codec.startswith("powersgd") else scale, 3)


# Bit for bit


def as_dgc(momentum, how, op):
    """Deep gradient compression, by numpy: results and what is kept, bit for bit."""
    size, me, count, k = arx.size(), arx.rank(), 1000, 20
    pipeline = feedback(f"topk:{k}" + ("" if how == "fp32" else f"+{how}"), momentum=momentum)
    velocity, left = np.zeros((size, count), F), np.zeros((size, count), F)
    for step in range(12):
        brought = np.array([gradient(rank, step, (count,)) for rank in range(size)])
        velocity = F(momentum) * velocity + brought if momentum else brought
        sums = velocity + left
        places = [squeezed.top(part, k) for part in sums]
        x = brought[me].copy()
        arx.all_reduce(x, op, compression=pipeline, name="w")
        oracle.check(x, squeezed.scattered(list(sums), places, op, how=how), f"step {step}")
        left = sums.copy()
        for rank, picks in enumerate(places):
            left[rank, picks] -= squeezed.CODECS[how](sums[rank, picks])
            velocity[rank, picks] = 0
        state = pipeline.state_dict()["w"]
        oracle.check(state["residual"], left[me], f"kept in step {step}")
        if momentum:
            oracle.check(state["velocity"], velocity[me], f"momentum in step {step}")


@pytest.mark.parametrize("how", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("where", ["2", "3"])
def test_momentum_is_gathered_before_values_are_picked(crew, where, momentum, how):
    for op in ("sum", "avg"):
        crew(where).run(as_dgc, momentum, how, op)


def plain_momentum():
    """Where nothing is compressed, it is that of the optimizer; and a step that is skipped is none."""
    size, me = arx.size(), arx.rank()
    pipeline = feedback("topk:0.01", momentum=0.5)
    velocity = np.zeros((size, 300), F)
    for step in range(5):
        brought = np.array([gradient(rank, step, (300,)) for rank in range(size)])
        poisoned = brought[me].copy()
        poisoned[3] = np.nan if me == size - 1 else 1
        arx.all_reduce(poisoned, "avg", compression=pipeline, name="w")
        assert np.isnan(poisoned[3])
        velocity = F(0.5) * velocity + brought
        x = brought[me].copy()
        arx.all_reduce(x, "avg", compression=pipeline, name="w")
        oracle.check(x, oracle.expected("avg", list(velocity)) if size > 1 else velocity[0], f"step {step}")


@pytest.mark.parametrize("p", [1, 2])
def test_momentum_on_one_host(ranks, p):
    ranks(p).run(plain_momentum)


def sums_over_time(codec):
    """After many steps the sum of results is the sum of all gradients but for what one step leaves out."""
    size, me = arx.size(), arx.rank()
    pipeline, lossy = feedback(codec), Pipeline(codec, error_feedback=False)
    x = gradient(me, 0, (30, 20))
    exact = everybodys(x)
    with_it, without = np.zeros((30, 20)), np.zeros((30, 20))
    for _ in range(200):
        y, z = x.copy(), x.copy()
        arx.all_reduce(y, compression=pipeline, name="w")
        arx.all_reduce(z, compression=lossy)
        with_it += y
        without += z
    assert size > 1
    return np.abs(with_it / 200 - exact).max() / np.abs(exact).max(), np.abs(without / 200 - exact).max()


@pytest.mark.parametrize("codec", ["int4", "topk:0.05", "topk:0.02+int8", "powersgd:2"])
def test_feedback_is_what_brings_the_small_ones(crew, codec):
    for off, off_without in crew("2").run(sums_over_time, codec):
        assert off < 0.5
        assert off_without > 2 * off


# Warm-up, clipping, names


def warming(codec):
    """All ranks bring the same, so that the result has as many values as were picked."""
    pipeline = feedback(codec, warmup=8)
    picked = []
    for step in range(10):
        x = gradient(0, step, (10_000,))
        if step == 3:
            poisoned = x.copy()
            poisoned[0] = np.nan
            arx.all_reduce(poisoned, compression=pipeline, name="w")
        arx.all_reduce(x, compression=pipeline, name="w")
        picked.append(np.count_nonzero(x))
    return picked


@pytest.mark.parametrize("codec", ["topk:0.01", "topk:0.01:shared", "randomk:0.01"])
def test_warm_up_picks_less_and_less(crew, codec):
    """The ninth and tenth calls are as they will be from then on; a skipped step does not count."""
    wanted = [2500, 2500, 625, 625, 156, 156, 100, 100, 100, 100]
    assert crew("2").run(warming, codec) == [wanted, wanted]


def warming_to(codec, warmup):
    pipeline = feedback(codec, warmup=warmup)
    picked = []
    for step in range(6):
        x = gradient(0, step, (10_000,))
        arx.all_reduce(x, compression=pipeline, name="w")
        picked.append(np.count_nonzero(x))
    return picked


@pytest.mark.parametrize(
    ("codec", "warmup", "wanted"),
    [
        ("topk:0.001", 4, [2500, 625, 156, 39, 10, 10]),
        ("topk:0.001", 2, [2500, 156, 10, 10, 10, 10]),
        ("topk:0.5", 4, [5000] * 6),
        ("topk:100", 4, [100] * 6),
    ],
)
def test_warm_up_never_picks_less_than_the_codec(crew, codec, warmup, wanted):
    assert crew("2").run(warming_to, codec, warmup) == [wanted, wanted]


def clipped():
    size, me = arx.size(), arx.rank()
    for op, limit in (("avg", 3.0 * np.sqrt(size)), ("sum", 3.0 / np.sqrt(size))):
        for factor in (1e-3, 1.0, 1e3):
            parts = [gradient(rank, 0, (6, 50)) * F(factor) * (rank + 1) for rank in range(size)]
            norms = [np.linalg.norm(part.astype(np.float64)) for part in parts]
            small = [p * F(limit / n) if n > limit else p for p, n in zip(parts, norms, strict=True)]
            want = oracle.expected(op, small) if size > 1 else small[0]
            pipeline = Pipeline("topk:1.0", error_feedback=False, clip_norm=3.0)
            x = parts[me].copy()
            assert arx.all_reduce(x, op, compression=pipeline) is x
            oracle.check(x, want, f"{op}, norms {norms}")
            x, out = parts[me].copy(), np.empty((6, 50), F)
            assert arx.all_reduce(x, op, out=out, compression=pipeline) is out
            oracle.check(out, want, f"{op} into out")
            oracle.check(x, parts[me], "what was clipped")
            assert factor != 1e3 or np.linalg.norm(want.astype(np.float64)) <= 3 * size * 1.0001
    for value in (np.inf, np.nan):
        x = np.array([1, value, 2], F)
        arx.all_reduce(x, compression=Pipeline("topk:1.0", error_feedback=False, clip_norm=3.0))
        assert not np.isfinite(x[1])
        assert x[[0, 2]].tolist() == [size, 2 * size]


@pytest.mark.parametrize("where", ["1", "2", "3"])
def test_each_rank_clips_by_its_own_norm(crew, where):
    crew(where).run(clipped)


def test_each_rank_clips_on_one_host(ranks):
    ranks(2).run(clipped)


def clipped_before_feedback():
    """What is kept is not clipped again, and not what was clipped away."""
    size, me = arx.size(), arx.rank()
    pipeline = Pipeline("topk:5", error_feedback=True, clip_norm=1.0)
    left = [np.zeros(100, F)] * size
    for step in range(4):
        parts = [gradient(rank, step, (100,)) for rank in range(size)]
        scales = [1.0 * np.sqrt(size) / np.linalg.norm(part.astype(np.float64)) for part in parts]
        sums = [part * F(scale) + rest for part, scale, rest in zip(parts, scales, left, strict=True)]
        places = [squeezed.top(x, 5) for x in sums]
        x = parts[me].copy()
        arx.all_reduce(x, "avg", compression=pipeline, name="w")
        oracle.check(x, squeezed.scattered(sums, places, "avg"), f"step {step}")
        left = [x.copy() for x in sums]
        for rest, picks in zip(left, places, strict=True):
            rest[picks] = 0


def test_gradients_are_clipped_before_feedback(crew):
    crew("2").run(clipped_before_feedback)


def without_a_name(codec):
    """One warning for a codec, and nothing is kept."""
    x = gradient(arx.rank(), 0, (20, 30))
    first = x.copy()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        arx.all_reduce(first, compression=codec)
        for _ in range(2):
            y = x.copy()
            arx.all_reduce(y, compression=codec)
            oracle.check(y, first, "each call is the first")
            arx.all_reduce_many([y], compression=codec)
        arx.all_reduce(y, compression="int8")
        arx.all_reduce(y, compression=codec, name="a name")
    assert [(w.category, "name=" in str(w.message), codec in str(w.message)) for w in heard] == [
        (UserWarning, True, True)
    ]
    assert list(parse(codec).state_dict()) == ["a name"]


@pytest.mark.parametrize("codec", ["int4:62", "topk:13", "powersgd:3"])
def test_without_a_name_nothing_is_kept_and_one_warning_says_so(crew, codec):
    crew("2").run(without_a_name, codec)
