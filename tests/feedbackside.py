"""What the tests of error feedback have in common."""

import pickle

import numpy as np
import oracle

import arx
from arx.compression import ErrorFeedback, Pipeline

F = np.float32


def feedback(codec, **options):
    return Pipeline(codec, error_feedback=ErrorFeedback(**options))


def gradient(rank, step, shape, seed=0, scale=0):
    """Distinct for every rank, step and element."""
    x = oracle.values("float32", int(np.prod(shape)), rank, seed=(seed, step)) * F(2.0**scale)
    return x.reshape(shape)


def everybodys(x):
    """The sum over ranks, in float64."""
    return arx.functional.all_reduce(np.asarray(x, np.float64))


def spread(state, count):
    """What a rank keeps, where it is in the array: of a host with several ranks each may keep a part."""
    kept = np.zeros(count, F)
    kept[state["start"] :][: len(state["residual"])] = state["residual"]
    return kept


def kept_of(pipeline, name="w"):
    """The state of one name as bytes, or None."""
    state = pipeline.state_dict().get(name)
    return None if state is None else pickle.dumps({k: getattr(v, "tolist", lambda v=v: v)() for k, v in state.items()})
