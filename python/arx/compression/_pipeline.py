"""`Pipeline`: codecs, what they leave out, and clipping; what becomes of the argument `compression=`."""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arx import _arx
from arx.compression import _own
from arx.compression._codecs import FORMS, Codec, Fp16, Int8, _Core, _Sparse, one

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class ErrorFeedback:
    """What a codec leaves out of an array is added to the same array in the next call (Seide et al. 2014).

    The sum of what is sent and of what is kept, over all ranks, is what they brought: nothing is lost, only late.

    Args:
        momentum: of the optimizer (SGD), which then must have none: momentum is gathered before values are picked, and
            ends where they are sent (momentum correction and factor masking of DGC, Lin et al., ICLR 2018). Where
            nothing is compressed, inside one host, it is plain momentum.
        warmup: calls in which a codec that picks a part picks more: a quarter, a 16th, a 64th, a 256th, each for a
            quarter of the calls, if that is more than its own part (DGC).
    """

    momentum: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0.0 <= self.momentum < 1.0:
            msg = f"momentum must be at least 0 and less than 1, not {self.momentum!r}"
            raise ValueError(msg)
        if isinstance(self.warmup, bool) or not isinstance(self.warmup, int) or self.warmup < 0:
            msg = f"warmup must be a number of calls, not {self.warmup!r}"
            raise ValueError(msg)


class Pipeline:
    """How an all-reduce is compressed: `arx.all_reduce(x, "avg", compression=pipeline, name="layer 1")`.

        Pipeline([TopK(0.01), Int8()], error_feedback=True)

    It holds what was left out of earlier calls, for each group and name. Use one pipeline for one model.

    Args:
        codecs: one codec; or one that picks and, behind it, how the picked values travel (`Fp16` or `Int8`).
        error_feedback: whether what is left out comes with the next call of the same `name`; or how
            (`ErrorFeedback`). By default where the codec needs it (int4, all that pick, powersgd), if the call has a
            name.
        clip_norm: the gradients of each rank are scaled down before anything else if their norm is so large that the
            result's may exceed this: to clip_norm·sqrt(p) with "avg", clip_norm/sqrt(p) with "sum" (local gradient
            clipping, DGC section 3.3). With `all_reduce_many` it is the norm of arrays that travel together.
    """

    def __init__(
        self,
        codecs: Sequence[Codec | _Core] | Codec | _Core | str,
        *,
        error_feedback: bool | ErrorFeedback | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Check that the codecs go together."""
        self.codecs = _chain(codecs)
        self.error_feedback = error_feedback
        if clip_norm is not None and not (clip_norm > 0.0 and math.isfinite(clip_norm)):
            msg = f"clip_norm must be a positive number, not {clip_norm!r}"
            raise ValueError(msg)
        self.clip_norm = clip_norm
        first = self.codecs[0]
        wanted = getattr(first, "needs_feedback", False) if error_feedback is None else error_feedback
        self._feedback = ErrorFeedback() if wanted is True else (wanted or None)
        self._states: weakref.WeakKeyDictionary[_arx.Group, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._core = None if not isinstance(first, _Core) else _core(self.codecs)

    def state_dict(self, group: _arx.Group | None = None) -> dict[str, dict[str, Any]]:
        """Return what is kept for `group` (by default the world), by name; arrays are copies.

        Each rank saves its own: what is kept differs between ranks.
        """
        import numpy as np

        states: dict[str, dict[str, Any]] = {}
        for name, feedback in self._of(group).items():
            state = feedback.state()
            if state is not None:
                arrays = {
                    key: np.frombuffer(value, np.float32).copy() for key, value in state.items() if key in _ARRAYS
                }
                states[name] = {**state, **arrays}
        return states

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]], group: _arx.Group | None = None) -> None:
        """Go on from what `state_dict` gave; what was kept so far is forgotten.

        A state counts as long as its array has the shape and dtype that it had, and this rank the same part of it.
        """
        mine = self._of(group)
        mine.clear()
        for name, state in states.items():
            mine[name] = self._new()
            mine[name].restore(dict(state))

    def reset(self, group: _arx.Group | None = None) -> None:
        """Forget what was kept for `group` (by default the world)."""
        self._of(group).clear()

    def forgetful(self) -> Pipeline:
        """Return a pipeline that keeps nothing, for what has no name; what wants feedback says so once."""
        if self._feedback is None:
            return self
        self._unnamed()
        return _without_feedback(self.codecs, self.clip_norm)

    def _unnamed(self) -> None:
        if self.error_feedback:
            msg = f"error feedback needs name=: what '{self}' leaves out is kept under it for the next call"
            raise ValueError(msg)
        _warn(str(self))

    def _of(self, group: _arx.Group | None) -> dict[str, Any]:
        return self._states.setdefault(_arx.world() if group is None else group, {})

    def _new(self) -> Any:
        momentum = 0.0 if self._feedback is None else self._feedback.momentum
        return _own.Feedback(momentum) if self._core is None else _arx._Feedback(momentum)

    def _feedback_of(self, group: _arx.Group, name: str | None) -> Any:
        if self._feedback is None:
            return None
        if name is None:
            self._unnamed()
            return None
        mine = self._of(group)
        if name not in mine:
            mine[name] = self._new()
        return mine[name]

    def _step_codec(self, feedback: Any) -> _arx._Codec:
        """Return the codec of a call: while it warms up it picks more."""
        assert self._core is not None
        warmup = 0 if self._feedback is None else self._feedback.warmup
        picked = self.codecs[0]
        if not warmup or feedback is None or not isinstance(picked, _Sparse) or feedback.steps >= warmup:
            return self._core
        amount = getattr(picked, "amount", None)
        ratio = 0.25 ** (1 + 4 * feedback.steps // warmup)
        if not isinstance(amount, float) or ratio <= amount:
            return self._core
        return _core((_with_amount(picked, ratio), *self.codecs[1:]))

    def _clipped(self, x: Any, op: str, size: int) -> Any:
        """Return `x`, or a smaller copy."""
        if self.clip_norm is None:
            return x
        import numpy as np

        norm = float(np.linalg.norm(np.asarray(x, np.float64)))
        limit = self.clip_norm * (math.sqrt(size) if op == "avg" else 1 / math.sqrt(size))
        # What is not finite is for the program to see.
        return x * (limit / norm) if limit < norm < math.inf else x

    def __str__(self) -> str:
        """Return the short form."""
        return "+".join(str(codec) for codec in self.codecs)

    def __repr__(self) -> str:
        """Return how it is made."""
        return f"Pipeline({str(self)!r}, error_feedback={self.error_feedback!r}, clip_norm={self.clip_norm!r})"


_ARRAYS = ("residual", "velocity", "basis")


def _with_amount(codec: Any, ratio: float) -> Any:
    import dataclasses

    return dataclasses.replace(codec, amount=ratio)


def _chain(codecs: Any) -> tuple[Any, ...]:
    if isinstance(codecs, str):
        return tuple(one(text) for text in codecs.split("+"))
    several = tuple(codecs) if isinstance(codecs, list | tuple) else (codecs,)
    for codec in several:
        if not isinstance(codec, Codec) or isinstance(codec, type):
            msg = f"compression takes a string, codecs or a Pipeline, not {codec!r}. Strings: {FORMS}"
            raise TypeError(msg)
    if not several:
        msg = "a Pipeline needs a codec"
        raise ValueError(msg)
    return several


def _core(codecs: tuple[Any, ...]) -> _arx._Codec:
    match codecs:
        case (_Core() as codec,):
            return codec._core()
        case (_Sparse() as picks, Fp16()):
            return picks._with("fp16")
        case (_Sparse() as picks, Int8(block=256, stochastic=False)):
            return picks._with("int8")
    names = "+".join(str(codec) for codec in codecs)
    msg = (
        f"codecs '{names}' do not go together: one codec, or one that picks (topk, randomk, threshold) "
        "and behind it fp16 or int8 with blocks of 256, which says how the picked values travel"
    )
    raise ValueError(msg)


@functools.cache
def parse(text: str) -> Pipeline:
    """Return the pipeline that a short form stands for: the same one each time, with what it keeps."""
    return Pipeline(text)


@functools.cache
def _without_feedback(codecs: tuple[Any, ...], clip_norm: float | None) -> Pipeline:
    return Pipeline(codecs, error_feedback=False, clip_norm=clip_norm)


@functools.cache
def _warn(codec: str) -> None:
    warnings.warn(
        f"compression '{codec}' without name=: what it leaves out of the array is lost; "
        "with a name it comes with the next call",
        UserWarning,
        stacklevel=5,
    )


def pipeline(compression: Any) -> Pipeline:
    """Return the pipeline that `compression=` means."""
    if isinstance(compression, Pipeline):
        return compression
    if isinstance(compression, str):
        return parse(compression)
    return _single(_chain(compression))


@functools.cache
def _single(codecs: tuple[Any, ...]) -> Pipeline:
    return Pipeline(codecs)


# Short forms that keep nothing, as the core knows them: it looks here before it calls `prepare`.
PLAIN: dict[str, _arx._Codec] = {}


def prepare(
    group: _arx.Group, x: Any, op: str, compression: Any, name: str | None, timeout: float | None, later: bool
) -> Any:
    """Return a codec of the core, what it keeps and the array to send; or, for another codec, what does the call."""
    chosen = pipeline(compression)
    if isinstance(compression, str) and chosen._core is not None and chosen._feedback is None:
        PLAIN[compression] = chosen._core
    feedback = chosen._feedback_of(group, name)
    source = chosen._clipped(x, op, group.size)
    if chosen._core is None:
        if later:
            msg = "a codec in Python cannot be used with async_op: Python would have to run beside the program"
            raise TypeError(msg)
        return functools.partial(_own.all_reduce, group, chosen.codecs[0], feedback, source, op, timeout)
    return chosen._step_codec(feedback), feedback, source


def codec(compression: Any) -> _arx._Codec | None:
    """Return the codec that `compression=` means, after any warm-up; None if it is one in Python."""
    return pipeline(compression)._core


def of_buckets(compression: Any, group: _arx.Group | None, count: int) -> list[tuple[_arx._Codec, Any]]:
    """Return a codec of the core for each bucket, and what it keeps for the group, if there is one."""
    chosen, codec = _steady(compression, "a bucketer")
    if group is None:
        return [(codec, None)] * count
    return [(codec, chosen._feedback_of(group, f"bucket {number}")) for number in range(count)]


def of_plan(group: _arx.Group, compression: Any, name: str | None) -> tuple[_arx._Codec, Any]:
    """Return the codec of a plan, and what it keeps."""
    chosen, codec = _steady(compression, "a plan")
    return codec, chosen._feedback_of(group, name)


def _steady(compression: Any, where: str) -> tuple[Pipeline, _arx._Codec]:
    """Return a pipeline that does the same in each call, without Python, and its codec."""
    chosen = pipeline(compression)
    if chosen._core is None or chosen.clip_norm is not None or (chosen._feedback and chosen._feedback.warmup):
        msg = f"{chosen!r} cannot be used in {where}: it needs a codec of arx, no clip_norm and no warm-up"
        raise ValueError(msg)
    return chosen, chosen._core


__all__ = ["ErrorFeedback", "Pipeline", "codec", "of_plan", "parse", "pipeline", "prepare"]
