"""What a compressed all-reduce has to give, computed by numpy: what each codec says of an array, and the sums of that.

    said(codec, x)          an array of float32 as the codec leaves it
    summed(codec, parts)    dense: said(sum of said(part)), in the order of hosts; two roundings
    scattered(parts, ...)   sparse: numpy's scatter-add of what each host picked, in the order of hosts

A *part* is what one host brings: the sum of its ranks' arrays. Knows nothing of arx: it is written from the definitions
in docs/compression.md.
"""

from functools import partial, reduce

import ml_dtypes
import numpy as np

F = np.float32
LEAST, LIFT = F(2.0**-126), F(2.0**64)


def fp16(x):
    """Halves, scaled by a power of two for each 1,024 elements: the largest lies in [2**14, 2**15)."""
    return _by_block(x, 1024, _halves)


def bf16(x):
    with np.errstate(over="ignore"):
        return x.astype(ml_dtypes.bfloat16).astype(F)


def int8(x, block=256):
    return _by_block(x, block, partial(_levels, top=127, coarse=False))


def int4(x, block=64):
    return _by_block(x, block, partial(_levels, top=7, coarse=True))


CODECS = {
    "fp16": fp16,
    "bf16": bf16,
    "int8": int8,
    "int8:32": partial(int8, block=32),
    "int8:1000": partial(int8, block=1000),
    "int4": int4,
    "int4:6": partial(int4, block=6),
    "fp32": lambda x: x,
}


def summed(codec, parts, op="sum", size=None):
    """The sum over hosts, or the mean over `size` ranks, by default one on each; one host alone has nothing to send."""
    said = CODECS[codec] if len(parts) > 1 else CODECS["fp32"]
    return _finished(said(_total([said(part) for part in parts])), op, size or len(parts))


def scattered(parts, places, op="sum", size=None, how="fp32"):
    """The same of the values at `places`, one list for each part, which travel as `how`."""
    total = np.zeros(parts[0].shape, F)
    with np.errstate(all="ignore"):
        for part, picks in zip(parts, places, strict=True):
            total[picks] += CODECS[how](part[picks])
    return _finished(total, op, size or len(parts))


def top(x, k):
    """Places of the `k` largest magnitudes, NaN above all; of equal ones the first."""
    k = min(k, x.size)
    return np.sort(np.lexsort((np.arange(x.size), -np.abs(x), ~np.isnan(x)))[:k])


def at_least(x, threshold):
    return np.flatnonzero((np.abs(x) >= F(threshold)) | np.isnan(x))


def share(ratio, count):
    """How many elements a ratio is."""
    return min(count, max(1, int(count * ratio)))


def _total(parts):
    with np.errstate(all="ignore"):
        return reduce(np.add, parts)


def _finished(total, op, size):
    return total / F(size) if op == "avg" else total


def _by_block(x, block, said):
    """What is said of a matrix that has a block in each row; the last block may be short."""
    whole = x.size // block * block
    with np.errstate(all="ignore"):
        return np.concatenate([said(part).ravel() for part in (x[:whole].reshape(-1, block), x[None, whole:])])


def _largest(rows, finite):
    return np.abs(rows).max(axis=1, keepdims=True, initial=F(0), where=finite)


def _halves(rows):
    finite = np.isfinite(rows)
    largest = _largest(rows, finite)
    exponent = np.where(largest > 0, 15 - np.frexp(largest.astype(np.float64))[1], 0)
    # The greatest float32 would round up to 2**128.
    ceiling = (2 - 2.0**-10) * 2.0**127
    kept = np.where(finite, np.clip(rows, -ceiling, ceiling), rows).astype(np.float64)
    return np.ldexp(np.ldexp(kept, exponent).astype(np.float16).astype(np.float64), -exponent).astype(F)


def _levels(rows, top, coarse):
    """Whole multiples of a scale, up to `top` of them; of which the last is for infinities, if there are any."""
    finite = np.isfinite(rows)
    top = np.where(finite.all(axis=1, keepdims=True), F(top), F(top - 1))
    largest = _largest(rows, finite)
    # Blocks of very small values are quantised as if they were larger.
    lift = np.where(largest < F(2.0**-40), LIFT, F(1))
    scale = _scale(largest * lift / top, top, coarse)
    codes = np.rint(np.where(finite, rows * lift, F(0)) * (F(1) / scale)) + F(0)
    levels = np.where(scale < LEAST * lift, F(0), codes * (scale / lift))
    return np.where(finite, levels, rows)


def _scale(least, top, coarse):
    """A bfloat16, if `coarse`: the first that is not less, or the one before if its last level is no float32."""
    step = np.uint32(1 << 16 if coarse else 1)
    bits = (least.view(np.uint32) + (step - 1)) // step * step
    return np.where(bits.view(F) * top == np.inf, bits - step, bits).view(F)
