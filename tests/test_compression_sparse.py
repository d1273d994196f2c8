"""Compressed all-reduces in which some values travel: numpy's scatter-add of them, in the order of hosts, exactly."""

import numpy as np
import oracle
import pytest
import squeezed
from rankside import assert_refused, outcome

import arx
from arx.compression import Pipeline, PowerSGD, RandomK, Threshold, TopK, parse

F = np.float32
WORLDS = ["1", "2", "3", "4", "5"]
COUNTS = (1, 2, 15, 16, 17, 100, 5000, 70_000)


def plain(codec):
    return Pipeline(codec, error_feedback=False)


def arrays(count, odd=False, seed=0):
    return [oracle.values("float32", count, rank, seed=count + seed, odd=odd) for rank in range(arx.size())]


def call(codec, parts, op="sum"):
    x = parts[arx.rank()].copy()
    assert arx.all_reduce(x, op, compression=plain(codec)) is x
    return x


def everything(parts, op="sum"):
    return oracle.expected(op, parts) if len(parts) > 1 else parts[0]


# Each host its own


def cases_of_the_field():
    size = arx.size()
    oracle.check(call("topk:1", [np.array([3, -5, 1, 2], F)] * size, "avg"), np.array([0, -5, 0, 0], F), "magnitudes")
    oracle.check(call("topk:2", [np.array([1, -1, 1, -1], F)] * size, "avg"), np.array([1, -1, 0, 0], F), "ties")
    parts = [np.array([9, 0, 0, 1], F), np.array([0, 8, 0, 1], F)]
    oracle.check(call("topk:1", parts), np.array([9, 8, 0, 0], F), "own places, sum")
    oracle.check(call("topk:1", parts, "avg"), np.array([4.5, 4, 0, 0], F), "own places, average")


def test_magnitudes_ties_and_places_of_their_own(crew):
    crew("2").run(cases_of_the_field)


def top_sums(amount, how):
    codec = f"topk:{amount}" + ("" if how == "fp32" else f"+{how}")
    for count in COUNTS:
        k = min(amount, count) if isinstance(amount, int) else squeezed.share(amount, count)
        for odd in (False, True):
            parts = arrays(count, odd)
            places = [squeezed.top(part, k) for part in parts]
            for op in ("sum", "avg"):
                x = call(codec, parts, op)
                want = squeezed.scattered(parts, places, op, how=how) if len(parts) > 1 else parts[0]
                oracle.check(x, want, f"{codec} {op} of {count}, k={k}, odd={odd}")


@pytest.mark.parametrize("how", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("amount", [1, 7, 0.01, 0.3])
@pytest.mark.parametrize("where", WORLDS)
def test_top_k_is_a_scatter_add(crew, where, amount, how):
    """With 0.3 of the elements, and float32, they travel as an array."""
    crew(where).run(top_sums, amount, how)


def all_above(least):
    for count in COUNTS:
        parts = arrays(count)
        places = [squeezed.at_least(part, least) for part in parts]
        want = squeezed.scattered(parts, places) if len(parts) > 1 else parts[0]
        oracle.check(call(Threshold(least), parts), want, f"from {least} on, {count} elements")


@pytest.mark.parametrize("least", [0.01, 1.0, 15.9, 100.0])
@pytest.mark.parametrize("where", ["1", "2", "4"])
def test_all_from_a_threshold_on(crew, where, least):
    """All of them, half of them, hardly any, and none."""
    crew(where).run(all_above, least)


def nothing_is_left_out(codec):
    for count in (0, 1, 2, 3, 100, 5000):
        parts = arrays(count) if count else [np.empty(0, F)] * arx.size()
        for op in ("sum", "avg"):
            oracle.check(call(codec, parts, op), everything(parts, op), f"{codec} of all {count}, {op}")
            zeros = [np.full(count, -0.0, F)] * arx.size()
            oracle.check(call(codec, zeros, op), zeros[0], f"{codec} of {count} negative zeros, {op}")


@pytest.mark.parametrize("codec", ["topk:1.0", "topk:5000", f"topk:{10**9}", "topk:1.0:shared", "randomk:1.0"])
@pytest.mark.parametrize("where", ["1", "2", "3", "4"])
def test_all_elements_are_an_uncompressed_call(crew, where, codec):
    crew(where).run(nothing_is_left_out, codec)


def no_axes():
    size, me = arx.size(), arx.rank()
    for codec in ("topk:1", "topk:0.001", "randomk:0.5", "threshold:0.5", "topk:1:shared", "powersgd"):
        x = np.array(me + 1.0, F)
        assert arx.all_reduce(x, compression=plain(codec)) is x
        assert x == size * (size + 1) / 2, (codec, x)
        for shape in ((0,), (4, 0)):
            assert arx.all_reduce(np.empty(shape, F), compression=plain(codec)).shape == shape


@pytest.mark.parametrize("where", ["1", "2", "3"])
def test_no_axes_and_no_elements(crew, where):
    crew(where).run(no_axes)


# All the same


def shared_tops(how):
    """The places that are sent are those of one host, of each in turn."""
    parts, size = arrays(1000), arx.size()
    places = [squeezed.top(part, 10) for part in parts]
    leaders = []
    for _ in range(2 * size):
        x = call(f"topk:10:shared+{how}" if how != "fp32" else "topk:10:shared", parts)
        wants = []
        for picks in places:
            want = np.zeros(1000, F)
            want[picks] = squeezed.summed(how, [part[picks] for part in parts])
            wants.append(want.tobytes())
        leaders.append(wants.index(x.tobytes()))
    return leaders


@pytest.mark.parametrize("how", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("where", ["2", "3", "4"])
def test_shared_places_are_those_of_each_host_in_turn(crew, where, how):
    told = crew(where).run(shared_tops, how)
    size = int(where)
    assert all(leaders == told[0] for leaders in told)
    assert [(leader - told[0][0]) % size for leader in told[0]] == [k % size for k in range(2 * size)]


def random_places(how):
    parts = arrays(3000)
    chosen = []
    for _ in range(4):
        x = call(f"randomk:30+{how}" if how != "fp32" else "randomk:30", parts)
        picks = np.flatnonzero(x)
        assert len(picks) == 30
        want = np.zeros(3000, F)
        want[picks] = squeezed.summed(how, [part[picks] for part in parts])
        oracle.check(x, want, f"random places, {how}")
        chosen.append(picks.tolist())
    assert len({tuple(picks) for picks in chosen}) == 4, "other places in each call"
    return chosen


@pytest.mark.parametrize("how", ["fp32", "fp16"])
@pytest.mark.parametrize("where", ["2", "3", "5"])
def test_random_places_are_the_same_everywhere(crew, where, how):
    told = crew(where).run(random_places, how)
    assert all(chosen == told[0] for chosen in told)


# Matrices


def thin(rank):
    """Matrices of that rank in the sum are found again; vectors are exact."""
    rng = np.random.default_rng(7)
    size, me = arx.size(), arx.rank()
    left = rng.standard_normal((40, rank)).astype(F)
    parts = [left @ rng.standard_normal((rank, 60)).astype(F) for _ in range(size)]
    exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
    digests = []
    for op, shape in (("sum", (40, 60)), ("avg", (40, 3, 20)), ("sum", (40, 60, 1, 1))):
        x = parts[me].reshape(shape).copy()
        arx.all_reduce(x, op, compression=plain(PowerSGD(rank)))
        want = exact.reshape(shape) / (size if op == "avg" else 1)
        assert np.abs(x - want).max() <= 1e-5 * np.abs(want).max()
        digests.append(oracle.digest(x))
    vector = oracle.values("float32", 500, me)
    arx.all_reduce(vector, compression=plain(PowerSGD(rank)))
    oracle.check(vector, oracle.reduced("sum", "float32", 500, size), "a vector")
    zero = np.zeros((40, 60), F)
    arx.all_reduce(zero, compression=plain(PowerSGD(rank)))
    assert (zero == 0).all()
    return digests


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("where", ["2", "3"])
def test_matrices_of_low_rank_are_found(crew, where, rank):
    told = crew(where).run(thin, rank)
    assert all(digests == told[0] for digests in told)


# What is refused


@pytest.mark.parametrize("amount", [0, -1, 0.0, 1.5, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [TopK, RandomK])
def test_amounts_that_mean_nothing(kind, amount):
    with pytest.raises(ValueError, match=r"ratio must be more than 0|must be positive") as refusal:
        kind(amount)
    assert str(amount) in str(refusal.value)


@pytest.mark.parametrize("amount", ["0.1", True, None])
def test_amounts_that_are_no_numbers(amount):
    with pytest.raises(TypeError):
        TopK(amount)


@pytest.mark.parametrize("least", [0.0, -1.0, float("nan"), float("inf")])
def test_thresholds_that_mean_nothing(least):
    with pytest.raises(ValueError, match="threshold: must be a positive number"):
        Threshold(least)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zip", "is not one of"),
        ("topk", "needs an amount"),
        ("topk:many", "must be a number"),
        ("topk:0", "must be positive"),
        ("topk:1.5", "ratio"),
        ("topk:0.1:0.2", "is not one of"),
        ("int8:3", "even number"),
        ("int8:70000", "even number"),
        ("fp16:shared", "is not one of"),
        ("powersgd:0", "from 1 to 32"),
        ("int8+topk:0.1", "do not go together"),
        ("topk:0.1+bf16", "do not go together"),
        ("", "is not one of"),
    ],
)
def test_strings_that_mean_nothing(text, words):
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_strings_say_what_they_mean():
    for text, full in {
        "topk:0.01": "topk:0.01",
        "topk:5:shared": "topk:5:shared",
        "topk:0.01+int8": "topk:0.01+int8:256",
        "int8": "int8:256",
        "int4:32:stochastic": "int4:32:stochastic",
        "randomk:7": "randomk:7",
        "threshold:0.5": "threshold:0.5",
        "powersgd": "powersgd:2",
        "auto": "auto",
    }.items():
        assert str(parse(text)) == full
        assert str(parse(full)) == full
        assert parse(text) is parse(text)


def different_amounts():
    """Refused on all ranks, with both descriptions; nothing is written."""
    world = arx.world()
    refusals = []
    for codec in (TopK(3 + world.rank), TopK(0.1) if world.rank else RandomK(0.1), "fp16" if world.rank else "bf16"):
        group = world.new_group(range(world.size))
        x = np.full(100, world.rank + 1.0, F)
        refusals.append(outcome(group.all_reduce, x, compression=plain(codec)))
        assert (x == world.rank + 1).all()
    return refusals


@pytest.mark.parametrize("where", ["2", "3"])
def test_ranks_with_different_codecs(crew, where):
    for refusals in crew(where).run(different_amounts):
        for refusal, words in zip(
            refusals, (("topk:3", "topk:4"), ("topk:0.1", "randomk:0.1"), ("fp16", "bf16")), strict=True
        ):
            assert_refused(refusal, "MismatchError", *(f"compression={word}" for word in words))
