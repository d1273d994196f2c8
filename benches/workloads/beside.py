"""What the ranks of `benches/overlap.py` measure: beside.py PART SETTINGS OUTPUT. Rank 0 writes rows of JSON.

The forms of a part take turns, call by call, with a barrier before each. The time of a call is its slowest rank's.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are the parallelism; BLAS reads it when numpy is imported

import numpy as np
import squeezed
from numpy.typing import NDArray

import arx

Array = NDArray[Any]
_PIECE = 192  # rows of the matrices that are multiplied; some 0.2 ms


def turns(forms: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Array]:
    """Microseconds of a call of each form, one entry a round, after a round that does not count.

    Each round begins with the next form: what one leaves in caches, queues and token buckets is not always for the
    same one.
    """
    times: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for k in range(rounds + 1):
        first = k % len(names)
        for name in names[first:] + names[:first]:
            form = forms[name]
            arx.barrier()
            began = time.perf_counter()
            form()
            times[name].append(time.perf_counter() - began)
    return {name: 1e6 * arx.functional.all_reduce(np.array(seconds[1:]), "max") for name, seconds in times.items()}


def medians(times: Mapping[str, Array]) -> dict[str, Any]:
    """The medians over rounds, and all rounds."""
    middle = {name: round(float(np.median(us)), 3) for name, us in times.items()}
    return middle | {"rounds": {name: us.round(3).tolist() for name, us in times.items()}}


class Computation:
    """Matrix products, without the GIL, that take about so long."""

    def __init__(self) -> None:
        self.a = np.random.default_rng(0).normal(size=(_PIECE, _PIECE))
        self.b, self.pieces = np.empty_like(self.a), 0

    def last(self, seconds: float) -> None:
        """How long `run` is to take, by what some take now."""
        self.pieces = 20
        for _ in range(2):
            (us,) = np.median(list(turns({"": self.run}, 5).values()), axis=1)
            self.pieces = max(1, round(self.pieces * seconds * 1e6 / us))

    def run(self) -> None:
        for _ in range(self.pieces):
            np.matmul(self.a, self.a, out=self.b)


def hide(layers: int, layer_bytes: int, rounds: int) -> list[dict[str, Any]]:
    """Layers that take as long to compute as their gradients to average: each alone, and both together."""
    gradients = {str(k): np.full(layer_bytes // 4, arx.rank(), np.float32) for k in range(layers)}
    backward = list(gradients.values())[::-1]
    compute = Computation()

    def communicate() -> None:
        for x in backward:
            arx.all_reduce(x, "avg")

    def computed() -> None:
        for _ in range(layers):
            compute.run()

    def by_work() -> None:
        works = []
        for x in backward:
            compute.run()
            works.append(arx.all_reduce(x, "avg", async_op=True))
        arx.wait_all(works)

    with arx.GradientBucketer(gradients, bucket_bytes=layer_bytes) as bucketer:

        def by_bucketer() -> None:
            for name in reversed(gradients):
                compute.run()
                bucketer.ready(name)
            bucketer.finish()

        compute.last(float(np.median(turns({"": communicate}, 5)[""])) / 1e6 / layers)
        alone = {"communication": communicate, "computation": computed}
        together = {"GradientBucketer": by_bucketer, "async_op=True": by_work}
        times = turns(alone | together, rounds)
    _check(backward, (arx.size() - 1) / 2)
    return [{"form": name, "layers": layers, **_hidden(times, name), **medians(times)} for name in together]


def _hidden(times: Mapping[str, Array], together: str) -> dict[str, float]:
    """What share of the shorter was hidden, round by round."""
    parts = np.array([times["communication"], times["computation"]])
    return {"hidden": float(np.median((parts.sum(axis=0) - times[together]) / parts.min(axis=0)))}


def many(count: int, nbytes: int, rounds: int) -> list[dict[str, Any]]:
    """Small arrays, one call for each or one for all."""
    arrays = [np.full(nbytes // 4, arx.rank(), np.float32) for _ in range(count)]

    def loop() -> None:
        for x in arrays:
            arx.all_reduce(x, "avg")

    times = turns({"loop": loop, "all_reduce_many": lambda: arx.all_reduce_many(arrays, "avg")}, rounds)
    _check(arrays, (arx.size() - 1) / 2)
    return [{"calls": count, "bytes": nbytes, **medians(times)}]


def _check(arrays: list[Array], want: float) -> None:
    if not all((x == want).all() for x in arrays):
        raise SystemExit(f"rank {arx.rank()}: averages are wrong")


RULES = {"SGD with momentum": arx.SGD(lr=1e-3, momentum=0.9), "Adam": arx.Adam(lr=1e-3)}


def sharded(rule: str, nbytes: int, rounds: int) -> list[dict[str, Any]]:
    """One step with the same gradients: everybody updates everything, or each its share."""
    count, how = nbytes // 4, RULES[rule]
    rng = np.random.default_rng(arx.rank())
    gradient = rng.standard_normal(count).astype(np.float32)
    parameters = np.tile(np.random.default_rng(99).standard_normal(count).astype(np.float32), (3, 1))
    optimizer = arx.ShardedOptimizer(parameters[0], how)
    forms: dict[str, Callable[[], object]] = {"sharded": lambda: optimizer.step(gradient)}
    places = {"replicated": np.empty(count, np.float32), "replicated, symmetric": arx.empty(count, np.float32)}
    for (name, reduced), x in zip(places.items(), parameters[1:], strict=True):
        forms[name] = _replicated(how, x, gradient, reduced)
    times = turns(forms, rounds)
    if any((x != parameters[0]).any() for x in parameters[1:]):
        raise SystemExit(f"rank {arx.rank()}: the ways to update differ")
    return [{"rule": rule, "ranks": arx.size(), "bytes": nbytes, **medians(times)}]


def _replicated(rule: Any, parameters: Array, gradient: Array, reduced: Array) -> Callable[[], None]:
    """The gradients of a step must survive it, as they do in a sharded one; so they are reduced in `reduced`."""
    state, steps = rule.state(parameters), 0

    def step() -> None:
        nonlocal steps
        steps += 1
        reduced[...] = gradient
        arx.all_reduce(reduced, "avg")
        rule.update(parameters, reduced, state, steps)

    return step


def waiting(calls: int, rounds: int) -> list[dict[str, Any]]:
    """The smallest call, in a loop as a program has it: at once, or begun and waited for."""
    x = np.ones(1)

    def blocking() -> None:
        for _ in range(calls):
            arx.all_reduce(x, "max")

    def begun() -> None:
        for _ in range(calls):
            arx.all_reduce(x, "max", async_op=True).wait()

    times = turns({"blocking": blocking, "async_op=True and wait": begun}, rounds)
    return [medians({name: us / calls for name, us in times.items()})]


def compressed(codecs: list[str], sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """All-reduce by each codec; what "auto" takes is said too.

    Short calls come in rows, as token buckets let some bytes pass faster than the link is, and forms that are quick
    take turns more often.
    """
    rows = []
    for nbytes in sizes:
        calls = max(1, (256 << 10) // nbytes)
        forms = {codec: _repeat(form, calls) for codec, form in squeezed.forms(codecs, nbytes).items()}
        first = turns(forms, 1)
        if "auto" in forms:
            _settle(forms["auto"], nbytes)
        often = round(2e6 / sum(us[0] for us in first.values()))  # all of them in two seconds
        times = turns(forms, min(max(rounds, often), 10 * rounds))
        said = squeezed.explained(nbytes).algorithm
        rows.append({"bytes": nbytes, "explained": said, **medians({name: us / calls for name, us in times.items()})})
    return rows


def _repeat(form: Callable[[], object], calls: int) -> Callable[[], object]:
    def row() -> None:
        for _ in range(calls):
            form()

    return row


def _settle(auto: Callable[[], object], nbytes: int) -> None:
    """Until "auto" has tried what it tries: calls of less than 1.5 ms."""
    for _ in range(1000):
        said = squeezed.explained(nbytes)
        if said.seconds > 1.5e-3 or "tried" in said.why:
            return
        auto()


def coding(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """All-reduce inside a host, and what encoding and decoding alone would take there, on all ranks at once."""
    rows = []
    for nbytes in sizes:
        times = turns(squeezed.alone(nbytes), rounds * max(1, (1 << 20) // nbytes))
        rows.append({"bytes": nbytes, **medians(times)})
    return rows


PARTS = {
    "hide": hide,
    "many": many,
    "sharded": sharded,
    "waiting": waiting,
    "compressed": compressed,
    "coding": coding,
}


def main(part: str, settings: dict[str, Any], output: str) -> None:
    faulthandler.dump_traceback_later(settings.pop("timeout"), exit=True)
    with arx.init() as world:
        rows = PARTS[part](**settings)
        if world.rank == 0:
            with open(output, "a") as lines:
                for row in rows:
                    print(json.dumps({"part": part} | row), file=lines)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
