"""Gradients averaged while others are still computed: values, order, priority, and what goes wrong."""

import numpy as np
import pytest
from rankside import assert_refused, check_usable, outcome

import arx

SHAPES = {"embed": (40, 30), "w1": (30, 20), "b1": (20,), "w2": (20, 10), "b2": (10,), "half": (7, 3)}


def gradients(rank, step):
    """Distinct for every rank, step and element; their averages over any number of ranks up to 9 are exact."""
    made = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        x = 2520.0 * (np.arange(np.prod(shape)) % 50 + 100 * number + 7 * step) + 2520.0 * rank
        made[name] = x.reshape(shape).astype(np.float32 if name == "half" else np.float64)
    return made


def mean(size, step):
    every = [gradients(rank, step) for rank in range(size)]
    return {
        name: (sum(g[name].astype(np.float64) for g in every) / size).astype(every[0][name].dtype) for name in SHAPES
    }


def order(kind, rank, step):
    names = list(SHAPES)
    return {
        "backward": names[::-1],
        "forward": names,
        "another on each rank": names[(rank + step) % 6 :] + names[: (rank + step) % 6],
        "half of the ranks the other way": names[:: 1 if rank % 2 else -1],
    }[kind]


def steps(kind, bucket_bytes):
    world = arx.world()
    arrays = gradients(world.rank, 0)
    arrays["w2"] = np.asfortranarray(arrays["w2"])
    with arx.GradientBucketer(arrays, bucket_bytes=bucket_bytes) as bucketer:
        for step in range(4):
            fresh = gradients(world.rank, step)
            for name in order(kind, world.rank, step):
                arrays[name][...] = fresh[name]
                bucketer.ready(name)
            bucketer.finish()
            for name, want in mean(world.size, step).items():
                assert arrays[name].tobytes() == want.tobytes(), (kind, step, name)
    check_usable()


@pytest.mark.parametrize("bucket_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize("kind", ["backward", "forward", "another on each rank", "half of the ranks the other way"])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_averages_whatever_the_order_of_marking(ranks, p, kind, bucket_bytes):
    ranks(p).run(steps, kind, bucket_bytes)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0"])
def test_averages_between_hosts(crew, where):
    crew(where).run(steps, "another on each rank", 2000)


def lists_and_others():
    world = arx.world()
    arrays = [np.full(5, world.rank + k, np.float64) for k in range(3)]
    arrays[1] = np.repeat(arrays[1], 2)[::2]
    bucketer = arx.GradientBucketer(arrays, op="sum")
    for k in (2, 0, 1):
        bucketer.ready(k)
    total = sum(range(world.size))
    assert (bucketer.wait(1) == total + world.size).all()
    bucketer.finish()
    assert [x[0] for x in arrays] == [total + world.size * k for k in range(3)]
    bucketer.close()
    bucketer.close()
    arx.GradientBucketer({}).finish()


def test_a_list_and_waiting_for_one(ranks):
    ranks(2).run(lists_and_others)


def first_needed_first():
    """Whether, when all is ready, what was registered first overtakes what was marked before it.

    What is marked first is so long that the rest is marked meanwhile. Seen once is enough: a rank may be looking
    elsewhere until all is done, but what was marked last would otherwise always be done last.
    """
    world = arx.world()
    arrays = {f"layer{k}": np.ones(2_000_000 if k < 7 else 8_000_000) for k in range(8)}
    with arx.GradientBucketer(arrays, bucket_bytes=1, op="sum") as bucketer:
        for _ in range(10):
            for x in arrays.values():
                x[:] = 1.0
            arx.barrier()
            for name in reversed(arrays):
                bucketer.ready(name)
            bucketer.wait("layer0")
            overtaken = arrays["layer6"][-1] == 1.0
            bucketer.finish()
            assert all((x == world.size).all() for x in arrays.values())
            seen = np.array([overtaken])
            arx.all_reduce(seen, "lor")
            if seen[0]:
                return True
    return False


def test_what_is_needed_first_is_done_first(ranks):
    assert ranks(2).run(first_needed_first) == [True, True]


def wrong_use():
    arrays = {"a": np.ones(3), "b": np.ones(4)}
    bucketer = arx.GradientBucketer(arrays)
    assert_refused(outcome(bucketer.finish), "RuntimeError", "'a'", "'b'")
    assert_refused(outcome(bucketer.ready, "c"), "KeyError", "'c'", "'a'")
    bucketer.ready("b")
    assert_refused(outcome(bucketer.ready, "b"), "ValueError", "twice")
    assert_refused(outcome(bucketer.wait, "a"), "RuntimeError", "'a'")
    assert_refused(outcome(bucketer.finish), "RuntimeError", "'a'")
    bucketer.ready("a")
    bucketer.finish()
    assert (arrays["a"] == 1).all()
    bucketer.close()
    for bad, kind in (({"a": 3.0}, "TypeError"), ({"a": np.broadcast_to(1.0, 3)}, "ValueError")):
        refusal = outcome(arx.GradientBucketer, bad)
        assert_refused(refusal, kind)
        check_usable()
    refusal = outcome(arx.GradientBucketer, arrays, bucket_bytes=0)
    assert_refused(refusal, "ValueError", "bucket_bytes")


def test_wrong_use(ranks):
    ranks(2).run(wrong_use)


def the_group_stays_free():
    """The program uses the world while a round is under way."""
    world = arx.world()
    arrays = {"a": np.full(100_000, world.rank + 1.0), "b": np.full(10, world.rank + 1.0)}
    with arx.GradientBucketer(arrays, bucket_bytes=1) as bucketer:
        bucketer.ready("b")
        loss = np.ones(1)
        arx.all_reduce(loss)  # "a" is not ready yet
        assert loss[0] == world.size
        bucketer.ready("a")
        bucketer.finish()
    assert (arrays["a"] == (world.size + 1) / 2).all()


def test_the_group_itself_stays_free(ranks):
    ranks(3).run(the_group_stays_free)


# What rank 1 of three registers, others a, b and c; and what all of them then say.
DISAGREEMENTS = {
    "order": (lambda: named("cab"), ["another order", "'a' on ranks 0, 2", "'c' on rank 1"]),
    "name": (lambda: named("abz"), ["rank 1: extra 'z', missing 'c'"]),
    "extra": (lambda: named("abcde"), ["rank 1: extra 'd', 'e'"]),
    "missing": (lambda: named("ac"), ["rank 1: missing 'b'"]),
    "nothing": (dict, ["rank 1: missing 'a', 'b', 'c'"]),
    "list": (lambda: list(named("abc").values()), ["rank 1: extra '0', '1', '2', missing 'a', 'b', 'c'"]),
    "shape": (
        lambda: named("ab") | {"c": np.ones((2, 2))},
        ["'c' is", "float64 (4,) on ranks 0, 2", "(2, 2) on rank 1"],
    ),
    "dtype": (lambda: named("ab") | {"c": np.ones(4, "f4")}, ["'c' is", "float64 (4,) on ranks 0, 2", "float32 (4,)"]),
}


def named(letters):
    return {letter: np.full(4, 100.0 * (ord(letter) - 96)) for letter in letters}


def registers(kind):
    arrays = DISAGREEMENTS[kind][0]() if arx.rank() == 1 else named("abc")
    refusal = outcome(arx.GradientBucketer, arrays)
    check_usable()
    return refusal


@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_arrays_that_differ_between_ranks_are_named(ranks, kind):
    for refusal in ranks(3).run(registers, kind):
        assert_refused(refusal, "MismatchError", "GradientBucketer", *DISAGREEMENTS[kind][1])


@pytest.mark.parametrize("kind", ["order", "name"])
def test_arrays_that_differ_between_hosts_are_named(crew, kind):
    for refusal in crew("h0 h1 h0").run(registers, kind):
        assert_refused(refusal, "MismatchError", "GradientBucketer", *DISAGREEMENTS[kind][1])


# What one rank is refused, with the reason that all ranks hear.
BAD_ARGUMENTS = {
    "None": (lambda: (None, {}), "TypeError", "NoneType"),
    "integers": (lambda: ({"a": np.ones(4, int)}, {}), "TypeError", "int64"),
    "objects": (lambda: ({"a": np.full(4, None)}, {}), "TypeError", "object"),
    "one twice": (lambda: (dict.fromkeys("ab", np.ones(4)), {}), "ValueError", "arrays 'a' and 'b' have memory"),
    "bucket_bytes": (lambda: (named("a"), {"bucket_bytes": 0}), "ValueError", "bucket_bytes"),
    "op": (lambda: (named("a"), {"op": "mean"}), "ValueError", "mean"),
    "codec": (lambda: (named("a"), {"compression": "int3"}), "ValueError", "int3"),
    "codec for the dtype": (lambda: ({"a": np.ones(4, complex)}, {"compression": "int8"}), "TypeError", "complex128"),
    "clipping": (
        lambda: (named("a"), {"compression": arx.compression.Pipeline("int8", clip_norm=1.0)}),
        "ValueError",
        "clip_norm",
    ),
}


def refused_on_one_rank(kind):
    arrays, options = BAD_ARGUMENTS[kind][0]() if arx.rank() == 1 else (named("a"), {})
    refusal = outcome(arx.GradientBucketer, arrays, **options)
    check_usable()
    return refusal


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
def test_an_argument_refused_on_one_rank_raises_on_all(ranks, kind):
    _, error, word = BAD_ARGUMENTS[kind]
    for rank, refusal in enumerate(ranks(3).run(refused_on_one_rank, kind)):
        if rank == 1:
            assert_refused(refusal, error, word)
        else:
            assert_refused(refusal, "MismatchError", "rank 1", "could not take part", word)


def other_settings():
    refusals = [
        outcome(arx.GradientBucketer, named("abc"), bucket_bytes=100 + arx.rank()),
        outcome(arx.GradientBucketer, named("abc"), op="max" if arx.rank() else "sum"),
    ]
    check_usable()
    return refusals


def test_settings_that_differ_between_ranks(ranks):
    for bucket_bytes, op in ranks(2).run(other_settings):
        assert_refused(bucket_bytes, "MismatchError", "bucket_bytes=100", "bucket_bytes=101")
        assert_refused(op, "MismatchError", "op=sum", "op=max")
