"""What a reduction has to give, computed by numpy one rank after another, and the values that go in.

Knows nothing of arx: floats are summed in rank order in their own type, halves in float32 with one rounding at the end.
"""

import hashlib
from functools import cache, reduce

import ml_dtypes
import numpy as np

DTYPES = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor")
INTEGERS = tuple(name for name in DTYPES if "int" in name)
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
# A prime: data that comes from a wrong chunk, ring round or rank is different data.
PERIOD = 4099


def allowed(op, name):
    """Whether arx has this operation for elements of this type."""
    if op == "avg":
        return name in FLOATS + COMPLEX
    if op in ("min", "max"):
        return name not in COMPLEX
    return op in ("sum", "prod", "land", "lor") or name not in FLOATS + COMPLEX


def bits(count, *key):
    """``count`` evenly spread 64-bit numbers, a function of the key and the index alone (splitmix64)."""
    start = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def values(name, count, rank, seed=0, odd=False):
    """``count`` numbers of ``rank``, distinct up to ``PERIOD``; ``odd`` puts NaN and the like among floats."""
    return np.resize(_block(name, rank, seed, odd), count)


def reduced(op, name, count, ranks, seed=0, odd=False):
    """What the reduction of ``values`` over so many ranks gives; one rank alone keeps what it has."""
    if ranks == 1:
        return values(name, count, 0, seed, odd)
    return np.resize(_reduced_block(op, name, ranks, seed, odd), count)


def exact(op, name, count, rank, seed=0):
    """Numbers of ``rank`` that give the same bits in whatever order ranks are combined, which between hosts is the
    algorithm's affair; of halves, only if no partial result was rounded.
    """
    if op in ("min", "max") or name in (*INTEGERS, "bool"):
        return values(name, count, rank, seed, odd=op in ("min", "max"))
    return np.resize(_plain(op, name, rank, seed), count)


def exactly(op, name, count, ranks, seed=0):
    """What the reduction of ``exact`` over so many ranks gives."""
    if ranks == 1:
        return exact(op, name, count, 0, seed)
    return np.resize(_exact_block(op, name, ranks, seed), count)


@cache
def _exact_block(op, name, ranks, seed):
    return expected(op, [exact(op, name, PERIOD, rank, seed) for rank in range(ranks)])


@cache
def _plain(op, name, rank, seed):
    """Small integers. As factors, powers of two, times 1 + 2i if they are complex: no product of them has a part that
    is zero, whose sign would be another matter. For logic, half of them are zero.
    """
    raw = bits(PERIOD, "plain", op, name, rank, seed)
    parts = [(raw >> np.uint64(shift)) % np.uint64(511) - 255.0 for shift in (8, 32)]
    if op == "prod":
        x = np.array([1, -1, 2, -2, 0.5])[raw % np.uint64(5)]
        parts = [x, 2 * x]
    elif op in ("land", "lor"):
        parts = [part * (raw & np.uint64(1)) for part in parts]
    return (_complex(*parts) if name in COMPLEX else parts[0]).astype(DTYPES[name])


@cache
def _block(name, rank, seed, odd):
    x = _numbers(name, PERIOD, rank, seed)
    return _sprinkled(x, name, bits(PERIOD, "odd", seed, rank)) if odd and name in FLOATS else x


@cache
def _reduced_block(op, name, ranks, seed, odd):
    return expected(op, [_block(name, rank, seed, odd) for rank in range(ranks)])


def _numbers(name, count, *key):
    """Integers use all their bits; floats have full mantissas and eight exponents, so that the order of a sum shows."""
    raw = bits(count, *key)
    if name == "bool":
        return (raw & np.uint64(1)).astype(bool)
    if name in INTEGERS:
        return raw.astype(DTYPES[name])
    if name in COMPLEX:
        part = "float32" if name == "complex64" else "float64"
        return _complex(_numbers(part, count, *key, "real"), _numbers(part, count, *key, "imaginary"))
    exponent = ((raw >> np.uint64(1)) & np.uint64(7)).astype(np.int64) - 3
    size = np.ldexp(1 + (raw >> np.uint64(12)) * 2.0**-52, exponent)
    return np.where(raw & np.uint64(1), -size, size).astype(DTYPES[name])


def _sprinkled(x, name, pick):
    """A third of the numbers replaced by what floats have besides."""
    info = ml_dtypes.finfo(DTYPES[name])
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, info.smallest_subnormal, info.max, -info.max])
    odd = odd.astype(DTYPES[name])
    return np.where(pick % np.uint64(3) == 0, odd[(pick >> np.uint64(8)) % np.uint64(len(odd))], x)


def expected(op, parts):
    """The reduction of ``parts``, one array per rank, in that order."""
    dtype = parts[0].dtype
    name = next(key for key, value in DTYPES.items() if value == dtype)
    with np.errstate(all="ignore"):
        if op in ("land", "lor"):
            return reduce({"land": np.logical_and, "lor": np.logical_or}[op], [p != 0 for p in parts]).astype(dtype)
        if op in ("band", "bor", "bxor"):
            return reduce({"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op], parts)
        if op in ("min", "max"):
            return reduce(lambda a, b: _extreme(op, a, b), parts)
        if name == "bool":
            return reduce({"sum": np.logical_or, "prod": np.logical_and}[op], parts)
        wide = [p.astype(np.float32) for p in parts] if name in HALVES else parts
        total = reduce(_times if op == "prod" else np.add, wide)
        if op == "avg":
            total = _divided(total, len(parts))
        return total.astype(dtype)


def _extreme(op, a, b):
    """NaN wins, and -0 is below +0."""
    if a.dtype.kind in "biu":
        return np.minimum(a, b) if op == "min" else np.maximum(a, b)
    below = (a < b) | ((a == b) & np.signbit(a))
    first = below if op == "min" else ~below
    return np.where(np.isnan(a) | (first & ~np.isnan(b)), a, b)


def _times(a, b):
    """Complex products by the schoolbook formula; numpy's may fuse a multiplication with an addition."""
    if a.dtype.kind != "c":
        return a * b
    return _complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _divided(total, p):
    """Each part by the number of ranks; numpy would multiply a complex number by a rounded reciprocal."""
    p = total.real.dtype.type(p)
    return _complex(total.real / p, total.imag / p) if total.dtype.kind == "c" else total / p


def _complex(real, imag):
    z = np.empty(real.shape, np.result_type(real, np.complex64))
    z.real, z.imag = real, imag
    return z


def raw(x):
    """The elements of ``x`` in logical order as bytes, one row each."""
    x = np.ascontiguousarray(x)
    return x.reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) if x.size else np.empty((0, x.itemsize), np.uint8)


def check(got, want, case):
    """``got`` is ``want`` bit for bit; of NaNs it is enough that they are NaNs."""
    assert got.dtype == want.dtype, f"{case}: dtype {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{case}: shape {got.shape}, not {want.shape}"
    ours, theirs = raw(got), raw(want)
    if np.array_equal(ours, theirs):
        return
    # To find out which ones takes forty times as long.
    wrong = (ours != theirs).any(axis=1)
    if got.dtype.kind == "c":
        wrong = (_unlike(got.real, want.real) | _unlike(got.imag, want.imag)).reshape(-1)
    elif got.dtype in (DTYPES[name] for name in FLOATS):
        wrong = _unlike(got, want).reshape(-1)
    for at in np.flatnonzero(wrong)[:1]:
        found = f"{got.flat[at]!r}, not {want.flat[at]!r}"
        raise AssertionError(f"{case}: {wrong.sum()} of {got.size} elements wrong, first [{at}]: {found}")


def _unlike(got, want):
    other = (raw(got) != raw(want)).any(axis=1).reshape(got.shape)
    return other & ~(np.isnan(got) & np.isnan(want))


def digest(*arrays):
    """A short name for the bytes of some arrays, NaN payloads included."""
    digest = hashlib.blake2b(digest_size=8)
    for x in arrays:
        digest.update(raw(x).tobytes())
    return digest.hexdigest()
