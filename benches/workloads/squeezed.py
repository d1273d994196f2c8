"""Compressed all-reduce: the forms that `benches/compression.py` compares (`beside.py` takes their turns)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import arx
from arx import compression


def forms(codecs: Sequence[str], nbytes: int) -> dict[str, Callable[[], object]]:
    """An average of normally distributed gradients, by each codec; "none" is without."""
    gradient = np.random.default_rng(arx.rank()).standard_normal(nbytes // 4).astype(np.float32)
    out = np.empty_like(gradient)
    return {
        codec: partial(
            arx.all_reduce, gradient, "avg", out=out, compression=None if codec == "none" else codec, name=codec
        )
        for codec in codecs
    }


def explained(nbytes: int) -> arx.Explanation:
    """What "auto" takes for such an array."""
    return arx.explain(np.empty(nbytes // 4, np.float32), "avg", compression="auto")


def alone(nbytes: int) -> dict[str, Callable[[], object]]:
    """An all-reduce inside this host, and coding without sending."""
    gradient = np.random.default_rng(arx.rank()).standard_normal(nbytes // 4).astype(np.float32)
    out = np.empty_like(gradient)

    def code(codec: Any) -> None:
        codec.decode(codec.encode(gradient), gradient.size)

    calls: dict[str, Callable[[], object]] = {"all_reduce": partial(arx.all_reduce, gradient, "avg", out=out)}
    for codec in (compression.Fp16(), compression.Int8(), compression.Int4(), compression.TopK(0.01)):
        calls[str(codec).removesuffix(":256").removesuffix(":64")] = partial(code, codec)
    return calls
