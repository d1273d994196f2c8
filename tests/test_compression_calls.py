"""`compression=` wherever it can be said, and calls that are refused."""

import warnings

import numpy as np
import oracle
import pytest
import squeezed
from rankside import assert_refused, check_usable, outcome

import arx
from arx import functional
from arx.compression import ErrorFeedback, Int8, Pipeline, TopK, parse

F = np.float32


def parts_of(count, seed=0):
    return [oracle.values("float32", count, rank, seed=seed) for rank in range(arx.size())]


def mine(parts):
    return parts[arx.rank()].copy()


# Every way to call


def ways_to_ask():
    """A string, a codec, a list of codecs and a pipeline are the same."""
    parts = parts_of(1000)
    picks = [squeezed.top(part, 10) for part in parts]
    want = squeezed.scattered(parts, picks, how="int8")
    with warnings.catch_warnings(action="ignore"):
        for asked in ("topk:10+int8", [TopK(10), Int8()], (TopK(10), Int8()), Pipeline("topk:10+int8")):
            x = mine(parts)
            arx.all_reduce(x, compression=asked)
            oracle.check(x, want, repr(asked))
            x = mine(parts)
            oracle.check(functional.all_reduce(x, compression=asked), want, f"functional, {asked!r}")
            oracle.check(x, parts[arx.rank()], "what was reduced")
    assert arx.explain(x, compression=Int8()).algorithm == "int8:256"
    assert "on the wire" in arx.explain(x, compression="auto").why
    # It is no call: it needs no name.
    with warnings.catch_warnings(action="error"):
        assert arx.explain(x, compression=Pipeline("int4:60", error_feedback=True)).algorithm == "int4:60"
        assert arx.explain(x, compression="topk:0.0321").algorithm == "topk:0.0321"
    assert functional.all_reduce(1.5, compression="fp16") == 1.5 * arx.size()


def test_strings_codecs_lists_and_pipelines(crew):
    crew("3").run(ways_to_ask)


def later():
    """Several at once, in order, with feedback too."""
    kept, at_once = Pipeline("int4"), Pipeline("int4")
    works, wants = [], []
    for step in range(6):
        parts = parts_of(3000, seed=step)
        works.append(arx.all_reduce(mine(parts), "avg", compression=kept, name="layer", async_op=True))
        wants.append((parts, works[-1]))
    for parts, work in wants:
        x = mine(parts)
        arx.all_reduce(x, "avg", compression=at_once, name="layer")
        oracle.check(work.wait(), x, "in the background")
    assert [state["steps"] for state in kept.state_dict().values()] == [6] * (arx.size() > 1)
    x = mine(parts_of(100))
    work = arx.all_reduce(x, compression="int8", async_op=True)
    assert work.wait() is x
    oracle.check(x, squeezed.summed("int8", parts_of(100)), "in the background, int8")


@pytest.mark.parametrize("where", ["1", "2", "3"])
def test_in_the_background(crew, where):
    crew(where).run(later)


def planned(codec, memory):
    """A plan does the same as calls, with what they keep too."""
    x, y = arx.empty(2000, F) if memory == "symmetric" else np.empty(2000, F), np.zeros(4000, F)[::2]
    kept, at_once = Pipeline(codec), Pipeline(codec)
    here = arx.plan_all_reduce(x, "avg", compression=kept, name="here")
    there = arx.plan_all_reduce(x, out=y, compression=kept, name="there")
    for step in range(4):
        part = mine(parts_of(2000, seed=step))
        want = part.copy()
        x[:] = part
        arx.all_reduce(want, compression=at_once, name="there")
        assert there() is y
        oracle.check(y, want, f"step {step}, elsewhere")
        oracle.check(x, part, "what was reduced")
        arx.all_reduce(part, "avg", compression=at_once, name="here")
        assert here() is x
        oracle.check(x, part, f"step {step}, in place")
    assert kept.state_dict().keys() == at_once.state_dict().keys()


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("codec", ["fp16", "int4", "topk:20", "auto"])
def test_a_plan(crew, codec, memory):
    crew("3").run(planned, codec, memory)


def plans_that_cannot_be():
    warm = Pipeline("topk:2", error_feedback=ErrorFeedback(warmup=4))
    for asked, words in ((warm, ("warm-up",)), (Pipeline("int8", clip_norm=1.0), ("clip_norm", "a plan"))):
        assert_refused(outcome(arx.plan_all_reduce, np.ones(9, F), compression=asked, name="a"), "ValueError", *words)
    assert_refused(outcome(arx.plan_all_reduce, np.ones(9, int), compression="fp16"), "TypeError", "int64")
    assert_refused(outcome(arx.plan_all_reduce, np.ones(9, F), "max", compression="fp16"), "ValueError", "'max'")
    assert_refused(outcome(arx.plan_all_reduce, np.ones(9, F), compression="fp17"), "ValueError", "fp17")
    check_usable()


def test_plans_that_cannot_be(crew):
    crew("3").run(plans_that_cannot_be)


def many():
    """Small arrays of one dtype are compressed as one; a large one by itself."""
    size, me = arx.size(), arx.rank()
    counts = {"a": 300, "b": 7, "c": 300_000, "d": 1}
    made = [
        {name: oracle.values("float32", count, rank, seed=count) for name, count in counts.items()}
        for rank in range(size)
    ]
    small = [np.concatenate([each[name] for name in "abd"]) for each in made]
    flat = squeezed.summed("int8", small, "avg")
    wants = dict(zip("abd", np.split(flat, [300, 307]), strict=True))
    wants["c"] = squeezed.summed("int8", [each["c"] for each in made], "avg")
    for later in (False, True):
        for kind in (dict, lambda xs: list(xs.values())):
            xs = kind({name: x.copy() for name, x in made[me].items()})
            done = arx.all_reduce_many(xs, "avg", compression="int8", async_op=later)
            assert (done.wait() if later else done) is xs
            for (name, want), x in zip(sorted(wants.items()), xs.values() if kind is dict else xs, strict=True):
                oracle.check(x, want, f"{name}, {'dict' if kind is dict else 'list'}, async={later}")


def many_with_feedback():
    """What each transfer leaves out is kept under the name of the list."""
    kept = Pipeline("topk:3")
    rows = [[np.arange(1.0, 11, dtype=F) * (rank + 1), np.arange(20.0, 25, dtype=F)] for rank in range(arx.size())]
    flats = [np.concatenate(row) for row in rows]
    left = [flat.copy() for flat in flats]
    for step in range(4):
        xs = [x.copy() for x in rows[arx.rank()]]
        arx.all_reduce_many(xs, compression=kept, name="all")
        places = [squeezed.top(part, 3) for part in left]
        want = squeezed.scattered(left, places)
        oracle.check(np.concatenate(xs), want if arx.size() > 1 else flats[0], f"step {step}")
        for part, picks, flat in zip(left, places, flats, strict=True):
            part[picks] = 0
            part += flat
    assert len(kept.state_dict()) == (1 if arx.size() > 1 else 0)


@pytest.mark.parametrize("where", ["2", "3"])
def test_many_at_once(crew, where):
    crew(where).run(many)
    crew(where).run(many_with_feedback)


def in_a_block():
    """A compressed call is done where it stands, others at the end of the block."""
    parts = parts_of(500)
    x, y = mine(parts), np.full(3, arx.rank())
    with arx.coalesce():
        arx.all_reduce(y)
        arx.all_reduce(x, compression="int8")
        oracle.check(x, squeezed.summed("int8", parts), "in the block")
        assert (y == arx.rank()).all()
    assert (y == sum(range(arx.size()))).all()


def test_in_a_coalesced_block(crew):
    crew("2").run(in_a_block)


def bucketed(bucket_bytes):
    size, me = arx.size(), arx.rank()
    shapes = {"w1": (30, 20), "b1": (20,), "w2": (20, 10)}
    names = list(shapes)
    arrays = {name: np.empty(shape, F) for name, shape in shapes.items()}
    left = None
    with arx.GradientBucketer(arrays, bucket_bytes=bucket_bytes, compression="topk:0.1") as bucketer:
        for step in range(3):
            made = [
                {n: oracle.values("float32", np.prod(s), rank, seed=step).reshape(s) for n, s in shapes.items()}
                for rank in range(size)
            ]
            for name in names[me % 3 :] + names[: me % 3]:
                arrays[name][...] = made[me][name]
                bucketer.ready(name)
            bucketer.finish()
            groups = [[name] for name in names] if bucket_bytes == 1 else [names]
            flats = [[np.concatenate([made[r][n].ravel() for n in group]) for r in range(size)] for group in groups]
            left = [[np.zeros_like(x) for x in flat] for flat in flats] if left is None else left
            for group, flat, rests in zip(groups, flats, left, strict=True):
                sums = [x + rest for x, rest in zip(flat, rests, strict=True)]
                places = [squeezed.top(x, squeezed.share(0.1, x.size)) for x in sums]
                want = squeezed.scattered(sums, places, "avg")
                got = np.concatenate([arrays[name].ravel() for name in group])
                oracle.check(got, want, f"step {step}, bucket of {group}")
                for x, rest, picks in zip(sums, rests, places, strict=True):
                    x[picks] = 0
                    rest[...] = x
        kept = parse("topk:0.1").state_dict(bucketer.group)
        residuals = [kept[f"bucket {number}"]["residual"] for number in range(len(left))]
        for residual, rests in zip(residuals, left, strict=True):
            oracle.check(residual, rests[me], "what is kept of a bucket")


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("where", ["2", "3"])
def test_gradients_in_buckets(crew, where, bucket_bytes):
    crew(where).run(bucketed, bucket_bytes)


# What is refused


def in_a_group(call, *args, **options):
    """The outcome of a call in a group of its own, which is closed if the call is refused."""
    group = arx.world().new_group(range(arx.size()))
    result = outcome(call, group, *args, **options)
    check_usable()
    return result


REFUSED = {
    "integers": (lambda: np.ones(4, np.int32), "sum", "int8", "TypeError", ("real floats", "int32", "cast")),
    "bool": (lambda: np.ones(4, bool), "sum", "fp16", "TypeError", ("real floats", "bool")),
    "complex": (lambda: np.ones(4, np.complex64), "sum", "fp16", "TypeError", ("real floats", "complex64")),
    "maximum": (lambda: np.ones(4, F), "max", "int8", "ValueError", ("'sum' and 'avg'", "'max'")),
    "product": (lambda: np.ones(4, F), "prod", "topk:2", "ValueError", ("'sum' and 'avg'", "'prod'")),
    "no codec": (lambda: np.ones(4, F), "sum", "zip", "ValueError", ("'zip'", "fp16", "topk")),
    "no amount": (lambda: np.ones(4, F), "sum", "topk", "ValueError", ("needs an amount",)),
    "a number": (lambda: np.ones(4, F), "sum", 8, "TypeError", ("compression takes",)),
    "a class": (lambda: np.ones(4, F), "sum", TopK, "TypeError", ("compression takes",)),
    "feedback without a name": (
        lambda: np.ones(4, F),
        "sum",
        Pipeline("int4", error_feedback=True),
        "ValueError",
        ("name=", "int4"),
    ),
}


def refused(case, odd):
    make, op, compression, *_ = REFUSED[case]

    def call(group):
        x = make()
        if arx.rank() == odd:
            return group.all_reduce(x, op, compression=compression)
        return group.all_reduce(np.ones(4, F), compression="fp16")

    return in_a_group(call)


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("where", ["1", "3"])
def test_what_cannot_be_compressed_is_refused_everywhere(crew, where, case):
    *_, kind, words = REFUSED[case]
    odd = int(where) - 1
    refusals = crew(where).run(refused, case, odd)
    assert_refused(refusals.pop(odd), kind, *words)
    for refusal in refusals:
        assert_refused(refusal, "MismatchError", f"rank {odd} could not take part", *words)


def refused_on_one_host(case):
    make, op, compression, *_ = REFUSED[case]
    refusal = outcome(arx.all_reduce, make(), op, compression=compression)
    check_usable()
    return refusal


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compressed_is_refused_on_one_host(ranks, case):
    *_, kind, words = REFUSED[case]
    for refusal in ranks(2).run(refused_on_one_host, case):
        assert_refused(refusal, kind, *words)


def other_refusals():
    arrays = {"w": np.ones(4, F)}
    clipped, warming = Pipeline("fp16", clip_norm=1.0), Pipeline("topk:0.1", error_feedback=ErrorFeedback(warmup=4))
    return [
        in_a_group(lambda group: arx.GradientBucketer(arrays, compression=clipped, group=group)),
        in_a_group(lambda group: arx.GradientBucketer(arrays, compression=warming, group=group)),
        in_a_group(lambda group: arx.GradientBucketer(arrays, compression="zip", group=group)),
        in_a_group(lambda group: arx.all_reduce_many([np.ones(3, F)], compression="zip", group=group)),
        in_a_group(lambda group: arx.all_reduce_many([np.ones(3, int)], compression="int8", group=group)),
        in_a_group(lambda group: group.all_reduce(np.float32(3), compression="int8")),
    ]


def test_refusals_of_buckets_lists_and_numbers(crew):
    for clipped, warming, unknown, many, integers, number in crew("2").run(other_refusals):
        assert_refused(clipped, "ValueError", "bucketer", "clip_norm")
        assert_refused(warming, "ValueError", "bucketer", "warm-up")
        assert_refused(unknown, "ValueError", "'zip'")
        assert_refused(many, "ValueError", "'zip'")
        assert_refused(integers, "TypeError", "real floats")
        assert_refused(number, "TypeError", "functional")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pipeline([]), "needs a codec"),
        (lambda: Pipeline("fp16", clip_norm=0.0), "clip_norm"),
        (lambda: Pipeline("fp16", clip_norm=float("nan")), "clip_norm"),
        (lambda: ErrorFeedback(momentum=1.0), "momentum"),
        (lambda: ErrorFeedback(momentum=float("nan")), "momentum"),
        (lambda: ErrorFeedback(warmup=-1), "warmup"),
        (lambda: Int8(block=0), "block"),
        (lambda: Pipeline([TopK(0.1), Int8(block=64)]), "do not go together"),
    ],
)
def test_pipelines_that_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        make()
