"""Codecs that a program brings with it: their sums, their feedback, and what goes wrong in them."""

import numpy as np
import oracle
import pytest
import squeezed
from rankside import assert_refused
from test_compression_calls import in_a_group, mine, parts_of

import arx
from arx.compression import Pipeline

F = np.float32


class Halves:
    def encode(self, x):
        return x.astype(np.float16).tobytes()

    def decode(self, payload, count):
        return np.frombuffer(payload, np.float16, count).astype(F)


class Positive:
    """Payloads of different lengths: the positive values and their places."""

    def encode(self, x):
        picks = np.flatnonzero(x > 0).astype(np.uint32)
        return np.concatenate([picks.view(np.uint8), x[picks].view(np.uint8)])

    def decode(self, payload, count):
        picks, values = np.split(payload.view(np.uint32), 2)
        said = np.zeros(count, F)
        said[picks] = values.view(F)
        return said


def own_codec(codec):
    size = arx.size()
    for count in (0, 1, 1000):
        parts = parts_of(count, seed=count)
        said = [codec.decode(np.frombuffer(codec.encode(part), np.uint8), count) for part in parts]
        for op in ("sum", "avg"):
            want = squeezed.summed("fp32", said if size > 1 else parts, op)
            x = mine(parts)
            assert arx.all_reduce(x, op, compression=codec) is x
            oracle.check(x, want, f"{op} of {count}")
            x, out = mine(parts), np.empty((count,), np.float64)
            assert arx.all_reduce(x.astype(np.float64), op, out=out, compression=codec) is out
            oracle.check(out, want.astype(np.float64), f"{op} of {count} into out")
    cube = np.asfortranarray(mine(parts_of(60)).reshape(3, 4, 5))
    arx.all_reduce(cube, compression=codec)
    said = [codec.decode(np.frombuffer(codec.encode(part), np.uint8), 60) for part in parts_of(60)]
    want = squeezed.summed("fp32", said if size > 1 else parts_of(60)).reshape(3, 4, 5)
    oracle.check(np.ascontiguousarray(cube), want, "Fortran order")


@pytest.mark.parametrize("codec", [Halves(), Positive()], ids=["halves", "positive"])
@pytest.mark.parametrize("where", ["1", "2", "3"])
def test_a_codec_in_python(crew, where, codec):
    crew(where).run(own_codec, codec)


def own_feedback():
    """What half a value's bits leave out comes with the next call."""
    kept, size, me = Pipeline(Halves(), error_feedback=True), arx.size(), arx.rank()
    left = [np.zeros(1000, F)] * size
    for step in range(5):
        parts = parts_of(1000, seed=step)
        if step == 2:
            poisoned = mine(parts)
            poisoned[7] = np.inf if me == 0 else 1
            arx.all_reduce(poisoned, compression=kept, name="w")
            assert poisoned[7] == np.inf
        sums = [part + rest for part, rest in zip(parts, left, strict=True)]
        said = [x.astype(np.float16).astype(F) for x in sums]
        x = mine(parts)
        arx.all_reduce(x, compression=kept, name="w")
        oracle.check(x, squeezed.summed("fp32", said), f"step {step}")
        left = [a - b for a, b in zip(sums, said, strict=True)]
        state = kept.state_dict()["w"]
        oracle.check(state["residual"], left[me], f"what is kept after step {step}")
        assert state["steps"] == step + 1
    again = Pipeline(Halves(), error_feedback=True)
    again.load_state_dict(kept.state_dict())
    parts = parts_of(1000, seed=9)
    x, y = mine(parts), mine(parts)
    arx.all_reduce(x, compression=kept, name="w")
    arx.all_reduce(y, compression=again, name="w")
    oracle.check(x, y, "after a restart")


def test_a_codec_in_python_with_feedback(crew):
    crew("2").run(own_feedback)


class Wrong:
    def encode(self, x):
        if arx.rank() == 1:
            raise ZeroDivisionError("no such payload")
        return x.tobytes()

    def decode(self, payload, count):
        return np.frombuffer(payload, F)


def own_mistakes():
    me = arx.rank()

    def reduce(group, x, codec, **options):
        return group.all_reduce(x, compression=codec, timeout=20, **options)

    read_only = np.ones(5, F)
    read_only.flags.writeable = me != 1
    return [
        in_a_group(reduce, np.ones(5, F), Halves(), async_op=True),
        in_a_group(reduce, np.ones(5 + me, F), Halves()),
        in_a_group(reduce, np.ones(5, F), Halves() if me else Positive()),
        in_a_group(reduce, np.ones(5, F), Wrong()),
        in_a_group(reduce, read_only, Halves()),
    ]


def test_a_codec_in_python_that_goes_wrong(crew):
    """All ranks raise, and the one whose fault it is knows it."""
    told = crew("2").run(own_mistakes)
    for rank, (later, shapes, codecs, failed, read_only) in enumerate(told):
        assert_refused(later, "TypeError", "async_op")
        assert_refused(shapes, "MismatchError", "(5,)", "(6,)")
        assert_refused(codecs, "MismatchError", "Halves", "Positive")
        assert_refused(failed, *(("ZeroDivisionError", "no such payload") if rank else ("MismatchError", "rank 1")))
        assert_refused(read_only, *(("ValueError", "read-only") if rank else ("MismatchError", "read-only")))
