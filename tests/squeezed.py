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
    with np.errstate(all="ignore"):
        return np.concatenate([said(x[at : at + block]) for at in range(0, x.size, block)] or [x])


def _halves(x):
    finite = np.isfinite(x)
    largest = np.abs(x[finite]).max(initial=0)
    exponent = 15 - np.frexp(np.float64(largest))[1] if largest else 0
    # The greatest float32 would round up to 2**128.
    ceiling = (2 - 2.0**-10) * 2.0**127
    kept = np.where(finite, np.clip(x, -ceiling, ceiling), x).astype(np.float64)
    return np.ldexp(np.ldexp(kept, exponent).astype(np.float16).astype(np.float64), -exponent).astype(F)


def _levels(x, top, coarse):
    """Whole multiples of a scale, up to `top` of them; of which the last is for infinities, if there are any."""
    finite = np.isfinite(x)
    top = F(top if finite.all() else top - 1)
    largest = np.abs(x[finite]).max(initial=F(0))
    # Blocks of very small values are quantised as if they were larger.
    lift = LIFT if largest < F(2.0**-40) else F(1)
    scale = _up(largest * lift / top, coarse)
    if scale * top == np.inf:
        scale = _down(scale, coarse)
    if scale < LEAST * lift:
        return np.where(finite, F(0), x)
    codes = np.rint(np.where(finite, x * lift, F(0)) * (F(1) / scale)) + F(0)
    return np.where(finite, codes * (scale / lift), x)


def _up(scale, coarse):
    """To a bfloat16 that is not less."""
    step = 1 << 16 if coarse else 1
    return np.array((int(np.array(scale, F).view(np.uint32)) + step - 1) // step * step, np.uint32).view(F)[()]


def _down(scale, coarse):
    step = 1 << 16 if coarse else 1
    return np.array(int(np.array(scale, F).view(np.uint32)) - step, np.uint32).view(F)[()]
