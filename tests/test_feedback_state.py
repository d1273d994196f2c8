"""What is kept of an array: for that array only, saved and restored, and untouched by a step that is skipped."""

import pickle

import numpy as np
import oracle
import pytest
from feedbackside import feedback, gradient, kept_of
from rankside import check_usable

import arx

F = np.float32
# What depends on how many calls the group has made before cannot be had twice in one job.
REPEATABLE = ["fp16", "int8", "int4", "topk:0.05", "topk:7+fp16", "threshold:2.0", "powersgd:2"]


# Another array


def first_result(codec, x):
    y = x.copy()
    arx.all_reduce(y, compression=feedback(codec), name="w")
    return y


def changes(codec):
    """A state is for one shape and dtype; another starts anew, and so does the first when it comes back."""
    me = arx.rank()
    pipeline = feedback(codec)
    for step, (shape, dtype) in enumerate(
        [((100,), F), ((120,), F), ((100,), F), ((10, 10), F), ((100,), F), ((100,), np.float64), ((100,), np.float16)]
    ):
        for again in range(2):
            x = gradient(me, 2 * step + again, shape).astype(dtype)
            fresh = first_result(codec, x)
            arx.all_reduce(x, compression=pipeline, name="w")
            state = pipeline.state_dict()["w"]
            assert (state["steps"], tuple(state["shape"]), state["dtype"]) == (again + 1, shape, np.dtype(dtype).name)
            assert (x.tobytes() == fresh.tobytes()) == (again == 0), (shape, dtype, again)


@pytest.mark.parametrize("codec", ["int4", "topk:10", "topk:5+int8"])
def test_another_shape_or_dtype_starts_from_nothing(crew, codec):
    crew("2").run(changes, codec)


def one_rank_changes():
    """All raise, and no state is touched."""
    pipeline = feedback("int4")
    group = arx.world().new_group(range(arx.size()))
    group.all_reduce(gradient(arx.rank(), 0, (100,)), compression=pipeline, name="w")
    before = pickle.dumps(pipeline.state_dict(group))
    with pytest.raises(arx.MismatchError, match=r"\(100,\)"):
        group.all_reduce(gradient(0, 1, (100,) if arx.rank() else (10, 10)), compression=pipeline, name="w")
    after = pipeline.state_dict(group)["w"]
    check_usable()
    return after["steps"], pickle.dumps(pipeline.state_dict(group)) == before


def test_one_rank_with_another_shape(crew):
    told = crew("2").run(one_rank_changes)
    # A rank whose array has changed has begun anew; nobody has taken a step.
    assert told == [(0, False), (1, True)]


def names_and_groups():
    """Each name, and each group, by itself."""
    me = arx.rank()
    pipeline = feedback("topk:10")
    other = arx.world().new_group(range(arx.size()))
    for step in range(3):
        for group in (arx.world(), other):
            for name in ("a", "b"):
                seed = (name, group is other)
                x = gradient(me, step, (200,), seed)
                group.all_reduce(x, compression=pipeline, name=name)
    for group in (arx.world(), other):
        states = pipeline.state_dict(group)
        assert list(states) == ["a", "b"]
        for name, state in states.items():
            alone = feedback("topk:10")
            for step in range(3):
                x = gradient(me, step, (200,), (name, group is other))
                arx.all_reduce(x, compression=alone, name="w")
            oracle.check(state["residual"], alone.state_dict()["w"]["residual"], f"{name}")
    pipeline.reset(other)
    assert (list(pipeline.state_dict()), pipeline.state_dict(other)) == (["a", "b"], {})


def test_names_and_groups_are_kept_apart(crew):
    crew("2").run(names_and_groups)


# Saved, and skipped


def restarts(codec, momentum):
    """A pipeline that goes on from a saved state goes on bit for bit."""
    me = arx.rank()
    one = feedback(codec, momentum=momentum)
    for step in range(3):
        for name, shape in (("w", (40, 30)), ("b", (30,))):
            arx.all_reduce(gradient(me, step, shape), compression=one, name=name)
    two = feedback(codec, momentum=momentum)
    saved = pickle.loads(pickle.dumps(one.state_dict()))
    two.load_state_dict(saved)
    for step in range(3, 6):
        for name, shape in (("w", (40, 30)), ("b", (30,))):
            x, y = gradient(me, step, shape), gradient(me, step, shape)
            arx.all_reduce(x, compression=one, name=name)
            arx.all_reduce(y, compression=two, name=name)
            oracle.check(y, x, f"{codec} {name} step {step}")
    assert kept_of(one) == kept_of(two)
    assert saved["w"]["steps"] == 3, "a copy"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("codec", REPEATABLE)
def test_a_saved_state_goes_on_bit_for_bit(crew, codec, momentum):
    crew("2").run(restarts, codec, momentum)


def test_a_state_that_is_none():
    pipeline = feedback("int4")
    whole = {"shape": [2], "dtype": "float32", "start": 0, "steps": 1, "residual": np.zeros(2, F)}
    whole |= {"velocity": np.zeros(0, F), "basis": np.zeros(0, F)}
    with arx.init():
        pipeline.load_state_dict({"w": whole})
        assert pipeline.state_dict()["w"]["residual"].tolist() == [0, 0]
        for wrong in ({"velocity": np.zeros(3, F)}, {"dtype": "float33"}, {"residual": np.zeros(2)}):
            with pytest.raises((TypeError, ValueError)):
                pipeline.load_state_dict({"w": whole | wrong})
        with pytest.raises(ValueError, match="residual"):
            pipeline.load_state_dict({"w": {k: v for k, v in whole.items() if k != "residual"}})


def skips(codec, value, momentum):
    """A step with a value that is not finite leaves all as it was, on all ranks."""
    size, me = arx.size(), arx.rank()
    one, two = feedback(codec, momentum=momentum), feedback(codec, momentum=momentum)
    for step in range(4):
        x, y = gradient(me, step, (40, 30)), gradient(me, step, (40, 30))
        before = kept_of(one)
        for odd in range(size):
            poisoned = x.copy()
            if me == odd:
                poisoned[11, 3] = value
            arx.all_reduce(poisoned, "avg", compression=one, name="w")
            assert not np.isfinite(poisoned).all()
            if step:
                assert kept_of(one) == before, f"{codec} {value} step {step}, rank {odd} poisoned"
        arx.all_reduce(x, "avg", compression=one, name="w")
        arx.all_reduce(y, "avg", compression=two, name="w")
        oracle.check(x, y, f"{codec} step {step}")
        assert kept_of(one) == kept_of(two)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("codec", REPEATABLE)
def test_a_step_that_is_skipped_is_none(crew, codec, value, momentum):
    crew("3").run(skips, codec, value, momentum)


def skips_wherever_it_stands(codec, value):
    """All hosts send the same places: a value that is not finite may stand at another, and is seen all the same."""
    size, me = arx.size(), arx.rank()
    pipeline = feedback(codec)
    arx.all_reduce(gradient(me, 0, (60,)), compression=pipeline, name="w")
    before = kept_of(pipeline)
    for odd in range(size):
        for at in range(0, 60, 7):
            x = gradient(me, 1, (60,))
            if me == odd:
                x[at] = value
            arx.all_reduce(x, compression=pipeline, name="w")
            assert not np.isfinite(x).all(), f"{codec}: {value} at {at} of rank {odd}"
            assert kept_of(pipeline) == before
    x = gradient(me, 1, (60,))
    arx.all_reduce(x, compression=pipeline, name="w")
    assert np.isfinite(x).all()
    assert pipeline.state_dict()["w"]["steps"] == 2


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("codec", ["randomk:4", "topk:4:shared", "topk:4:shared+int8", "randomk:0.1+fp16", "topk:1"])
def test_a_step_is_skipped_wherever_the_value_stands(crew, codec, value):
    crew("3").run(skips_wherever_it_stands, codec, value)


def half_overflows():
    """The sum fits a float32 but not the array: the program sees infinity, and the step is none."""
    pipeline = feedback("topk:2")
    x = np.array([40_000, 1, 2, 50_000], np.float16)
    arx.all_reduce(x, compression=pipeline, name="w")
    assert np.isinf(x).sum() == 2
    return pipeline.state_dict()["w"]["steps"]


def test_a_half_that_overflows_is_a_skipped_step(crew):
    assert crew("2").run(half_overflows) == [0, 0]
