"""The codecs: what is checked here is passed to the core, which encodes and decodes."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from arx import _arx

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 65536  # elements of a block


@runtime_checkable
class Codec(Protocol):
    """What a codec of your own has: pass it as `compression=`, or in a `Pipeline`.

    Every rank sends the payload of its array to all others, and all add up what they decode, in the order of ranks.
    Both methods work on flat float32 arrays, and must do the same on all ranks.
    """

    def encode(self, x: NDArray[Any], /) -> Any:
        """Return the payload of `x`: bytes, or an array of uint8."""
        ...

    def decode(self, payload: NDArray[Any], count: int, /) -> NDArray[Any]:
        """Return what `payload` says of `count` elements."""
        ...


class _Core:
    """A codec of the core."""

    #: Whether what it leaves out is so much that it must come with the next call.
    needs_feedback = False

    def _core(self) -> _arx._Codec:
        raise NotImplementedError

    def encode(self, x: NDArray[Any], seed: int = 0) -> NDArray[Any]:
        """Return the payload of a float32 array, as the collectives send it.

        Args:
            x: any shape; elements are taken in row-major order.
            seed: for what is random.
        """
        import numpy as np

        flat = np.ascontiguousarray(x, np.float32).reshape(-1)
        return np.frombuffer(self._core().encode(flat, seed), np.uint8)

    def decode(self, payload: Any, count: int) -> NDArray[Any]:
        """Return what `payload` says of `count` elements, as a flat float32 array.

        Raises:
            ValueError: no encoder writes such a payload.
        """
        import numpy as np

        return np.frombuffer(self._core().decode(bytes(payload), count), np.float32)

    def __str__(self) -> str:
        """Return the short form."""
        return str(self._core())


@dataclass(frozen=True)
class Fp16(_Core):
    """float16 with a power-of-two scale for each 1,024 elements, so that nothing overflows: 2 bytes an element.

    Each value is rounded twice, whatever the number of hosts, to 11 bits; values that are 2**25 times smaller than the
    largest of their 1,024 lose bits, and are zero from 2**39 times on. NaN and infinity pass.
    """

    def _core(self) -> _arx._Codec:
        return _arx._Codec.dense("fp16", 0, stochastic=False)


@dataclass(frozen=True)
class Bf16(_Core):
    """bfloat16: 2 bytes an element, the range of float32, 8 bits. Each value is rounded twice."""

    def _core(self) -> _arx._Codec:
        return _arx._Codec.dense("bf16", 0, stochastic=False)


def _check_block(name: str, block: int) -> None:
    if isinstance(block, bool) or not isinstance(block, int) or not 2 <= block <= _MOST or block % 2:
        msg = f"{name}: block must be an even number of elements from 2 to {_MOST}, not {block!r}"
        raise ValueError(msg)


@dataclass(frozen=True)
class Int8(_Core):
    """Eight bits an element, and a scale for each block: 1.016 bytes an element with blocks of 256.

    In each of two roundings a value is off by at most 1/254 of the largest of its block.

    Args:
        block: elements that share a scale.
        stochastic: round up or down at random, so that the error is zero on average; the same in every run.
    """

    block: int = 256
    stochastic: bool = False

    def __post_init__(self) -> None:
        """Check the block."""
        _check_block("int8", self.block)

    def _core(self) -> _arx._Codec:
        return _arx._Codec.dense("int8", self.block, stochastic=self.stochastic)


@dataclass(frozen=True)
class Int4(_Core):
    """Four bits an element, and a scale for each block. Off by at most 1/14 of the block's largest: keep the feedback.

    Args:
        block: elements that share a scale.
        stochastic: as in `Int8`.
    """

    block: int = 64
    stochastic: bool = False
    needs_feedback = True

    def __post_init__(self) -> None:
        """Check the block."""
        _check_block("int4", self.block)

    def _core(self) -> _arx._Codec:
        return _arx._Codec.dense("int4", self.block, stochastic=self.stochastic)


class _Sparse(_Core):
    """A codec that sends some values, and their places."""

    needs_feedback = True

    def _with(self, values: str) -> _arx._Codec:
        raise NotImplementedError

    def _core(self) -> _arx._Codec:
        return self._with("fp32")


def _check_amount(name: str, amount: Any) -> int | float:
    """Return a count (int) or a ratio (float)."""
    if isinstance(amount, bool | str):
        msg = f"{name}: the amount must be a number of elements (int) or a ratio (float), not {amount!r}"
        raise TypeError(msg)
    try:
        count = operator.index(amount)
    except TypeError:
        ratio = float(amount)
        if not 0.0 < ratio <= 1.0:  # NaN too
            msg = f"{name}: a ratio must be more than 0 and at most 1, not {ratio}"
            raise ValueError(msg) from None
        return ratio
    if count <= 0:
        msg = f"{name}: the number of elements must be positive, not {count}"
        raise ValueError(msg)
    return count


@dataclass(frozen=True)
class TopK(_Sparse):
    """The elements of largest magnitude, exactly as they are, and their places; of equal ones those that come first.

    Args:
        amount: how many: a number (int; all elements if there are fewer) or a part of all (float; at least one). Of an
            array whose parts are sent by several ranks of a host, each sends its share.
        shared: all hosts send the values at the same places, those that are the largest on one of them, each in turn
            (ScaleCom): fewer bytes with many hosts, and no more than `amount` elements in the result.
    """

    amount: int | float
    shared: bool = False

    def __post_init__(self) -> None:
        """Check the amount."""
        object.__setattr__(self, "amount", _check_amount("topk", self.amount))

    def _with(self, values: str) -> _arx._Codec:
        return _arx._Codec.sparse("topk", self.amount, values, shared=self.shared)


@dataclass(frozen=True)
class RandomK(_Sparse):
    """Elements at random places, the same on all hosts, other ones in each call: no places travel.

    Args:
        amount: as in `TopK`.
    """

    amount: int | float

    def __post_init__(self) -> None:
        """Check the amount."""
        object.__setattr__(self, "amount", _check_amount("randomk", self.amount))

    def _with(self, values: str) -> _arx._Codec:
        return _arx._Codec.sparse("randomk", self.amount, values, shared=True)


@dataclass(frozen=True)
class Threshold(_Sparse):
    """All elements whose magnitude is at least `least`, and their places."""

    least: float

    def __post_init__(self) -> None:
        """Check the threshold."""
        if not (self.least > 0.0 and math.isfinite(self.least)):
            msg = f"threshold: must be a positive number, not {self.least!r}"
            raise ValueError(msg)

    def _with(self, values: str) -> _arx._Codec:
        return _arx._Codec.sparse("threshold", float(self.least), values, shared=False)


@dataclass(frozen=True)
class PowerSGD(_Core):
    """A matrix as a product of two thin ones (Vogels, Karimireddy, Jaggi, NeurIPS 2019).

    Arrays with more than two axes count as matrices of as many rows as the first axis is long; what would not become
    smaller, and all vectors, travel as they are.

    Args:
        rank: columns of the thin matrices; at least 2 is usual.
    """

    rank: int = 2
    needs_feedback = True

    def __post_init__(self) -> None:
        """Check the rank."""
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= 32:
            msg = f"powersgd: the rank must be from 1 to 32, not {self.rank!r}"
            raise ValueError(msg)

    def _core(self) -> _arx._Codec:
        return _arx._Codec.low_rank(self.rank)


@dataclass(frozen=True)
class Auto(_Core):
    """Fp16, Int8 or none, whichever is fastest: as predicted, or for short calls as tried. `arx.explain` says which."""

    def _core(self) -> _arx._Codec:
        return _arx._Codec.auto()


def _numbers(name: str, words: list[str], kinds: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for (what, kind), word in zip(kinds.items(), words, strict=False):
        try:
            values.append(kind(word))
        except ValueError:
            msg = f"compression '{name}': {what} must be a number, not {word!r}"
            raise ValueError(msg) from None
    return values


def _amount(word: str) -> int | float:
    return int(word) if word.lstrip("+-").isdigit() else float(word)


FORMS = (
    "fp16, bf16, int8[:BLOCK], int4[:BLOCK], topk:AMOUNT[:shared], randomk:AMOUNT, threshold:LEAST, powersgd[:RANK], "
    "auto; +fp16 or +int8 behind one that picks says how the picked values travel"
)


def one(text: str) -> _Core:
    """Return the codec that a short form without "+" means."""
    name, *words = text.split(":")
    flags = {word for word in words if word in ("shared", "stochastic")}
    words = [word for word in words if word not in flags]
    codecs: dict[str, tuple[type[Any], dict[str, Any], str | None]] = {
        "fp16": (Fp16, {}, None),
        "bf16": (Bf16, {}, None),
        "int8": (Int8, {"block": int}, "stochastic"),
        "int4": (Int4, {"block": int}, "stochastic"),
        "topk": (TopK, {"amount": _amount}, "shared"),
        "randomk": (RandomK, {"amount": _amount}, None),
        "threshold": (Threshold, {"least": float}, None),
        "powersgd": (PowerSGD, {"rank": int}, None),
        "auto": (Auto, {}, None),
    }
    found = codecs.get(name)
    if found is None or len(words) > len(found[1]) or not flags <= {found[2]}:
        msg = f"compression '{text}' is not one of: {FORMS}"
        raise ValueError(msg)
    kind, parameters, flag = found
    if name in ("topk", "randomk", "threshold") and not words:
        msg = f"compression '{text}' needs an amount: '{name}:0.01' for a hundredth of the elements"
        raise ValueError(msg)
    numbers = _numbers(text, words, parameters)
    codec: _Core = kind(*numbers, **({flag: True} if flags and flag else {}))
    return codec
