"""Communication behind computation: gradients are averaged while the backward pass still computes others.

    arx run -n 2 examples/overlap.py
    arx run --hosts h0,h1 -n 1 examples/overlap.py      # over a network, where there is more to hide

The backward pass goes from the last layer to the first. As soon as a layer has its gradient it is marked ready in an
`arx.GradientBucketer`, which averages it in the background, while the next layer is computed:

    computing       layer 3 │ layer 2 │ layer 1 │ layer 0 │       │ update 0, 1, 2, 3
    communicating           └ layer 3 ┴ layer 2 ┴ layer 1 ┴ layer 0 ┘

The program trains twice from the same weights, first with one call after the backward pass and then like this, and
shows what it saved. The weights end as the same bits on every rank.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from collections.abc import Callable

# The ranks are the parallelism: BLAS threads in each of them would only fight for the same cores.
# BLAS reads this when numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import arx


class Layer:
    """A dense layer with ReLU behind it. The last row of `weights` is the bias, of `gradient` that of the bias."""

    def __init__(self, name: str, width: int, rng: np.random.Generator) -> None:
        self.name = name
        self.weights = rng.normal(scale=np.sqrt(2 / width), size=(width + 1, width)).astype(np.float32)
        # An ordinary numpy array, in memory that the other ranks can read: the fastest kind to reduce.
        self.gradient = arx.zeros(self.weights.shape, np.float32)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.input = x
        self.output = np.maximum(x @ self.weights[:-1] + self.weights[-1], 0)
        return self.output

    def backward(self, delta: np.ndarray) -> np.ndarray:
        """Leave the gradient in `gradient`; return the error of the layer before."""
        delta = delta * (self.output > 0)
        np.matmul(self.input.T, delta, out=self.gradient[:-1])
        np.sum(delta, axis=0, out=self.gradient[-1])
        return delta @ self.weights[:-1].T

    def update(self, rate: float) -> None:
        self.weights -= np.float32(rate) * self.gradient


class AfterBackward:
    """Averages all gradients at once when the last is there; small ones share a transfer."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.communicating: list[float] = []  # seconds, one a step

    def ready(self, name: str) -> None:
        pass

    def update(self, rate: float) -> None:
        began = time.perf_counter()
        arx.all_reduce_many([layer.gradient for layer in self.layers], "avg")
        self.communicating.append(time.perf_counter() - began)
        for layer in self.layers:
            layer.update(rate)


class DuringBackward:
    """Averages each gradient as soon as it is there, and updates each layer as soon as that is done."""

    def __init__(self, layers: list[Layer], bucketer: arx.GradientBucketer) -> None:
        self.layers, self.bucketer = layers, bucketer
        self.ready = bucketer.ready

    def update(self, rate: float) -> None:
        for layer in self.layers:  # the order in which the next forward pass needs them, and in which they arrive
            self.bucketer.wait(layer.name)
            layer.update(rate)
        self.bucketer.finish()


class Problem:
    """Pairs of points and what a fixed random network makes of them; each rank draws its own."""

    def __init__(self, width: int, seed: int, rank: int) -> None:
        self.rng = np.random.default_rng([seed, rank])
        self.map = np.random.default_rng(seed).normal(scale=np.sqrt(2 / width), size=(width, width)).astype(np.float32)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        x = self.rng.normal(size=(count, len(self.map))).astype(np.float32)
        return x, np.maximum(x @ self.map, 0)


def compute(layers: list[Layer], x: np.ndarray, y: np.ndarray, ready: Callable[[str], None]) -> float:
    """The forward and the backward pass; returns the loss."""
    for layer in layers:
        x = layer.forward(x)
    delta = (x - y) * np.float32(2 / y.size)
    loss = float(np.mean(np.square(x - y)))
    for layer in reversed(layers):
        delta = layer.backward(delta)
        ready(layer.name)
    return loss


def train(args: argparse.Namespace, layers: list[Layer], way: AfterBackward | DuringBackward) -> tuple[dict, list]:
    """Returns the times of the steps and their parts, on the slowest rank, and the losses, averaged over ranks."""
    problem, losses = Problem(args.width, args.seed, arx.rank()), []
    times = {"step": [], "forward and backward": [], "averages and update": []}
    for _ in range(args.steps):
        x, y = problem.draw(args.batch)
        arx.barrier()  # only for the clock: all ranks begin the step together
        began = time.perf_counter()
        losses.append(compute(layers, x, y, way.ready))
        computed = time.perf_counter()
        way.update(args.lr)
        ended = time.perf_counter()
        for part, seconds in zip(times, (ended - began, computed - began, ended - computed), strict=True):
            times[part].append(seconds)
    slowest = {part: arx.functional.all_reduce(np.array(seconds), "max") for part, seconds in times.items()}
    return slowest, arx.functional.all_reduce(np.array(losses), "avg").tolist()


def run(args: argparse.Namespace, world: arx.Group) -> None:
    layers = [Layer(f"layer {k}", args.width, np.random.default_rng([args.seed, k])) for k in range(args.layers)]
    first = [layer.weights.copy() for layer in layers]
    count = sum(layer.weights.size for layer in layers)
    report(
        world, f"ranks {world.size}, layers {args.layers} of width {args.width}, gradients {count * 4 / 2**20:.1f} MiB"
    )
    compute(layers, *Problem(args.width, args.seed, 0).draw(args.batch), lambda name: None)  # warms up BLAS

    way = AfterBackward(layers)
    after, losses = train(args, layers, way)
    show(world, "without overlap", after, losses, digest(layers, world))
    communication = statistics.median(arx.functional.all_reduce(np.array(way.communicating), "max"))
    for layer, weights in zip(layers, first, strict=True):
        layer.weights[...] = weights
    with arx.GradientBucketer({layer.name: layer.gradient for layer in layers}, bucket_bytes=args.bucket) as bucketer:
        during, losses = train(args, layers, DuringBackward(layers, bucketer))
    name = digest(layers, world)
    show(world, "with overlap", during, losses, name)

    saved = statistics.median(after["step"]) - statistics.median(during["step"])
    if world.size > 1:
        report(world, f"hidden behind computation: {saved / communication:.0%} of {communication * 1e3:.2f} ms")
    report(world, f"weights identical on all {world.size} ranks: {name}")


def show(world: arx.Group, title: str, times: dict[str, np.ndarray], losses: list[float], name: str) -> None:
    for k, seconds in enumerate(times["step"]):
        report(world, f"{title}, step {k + 1:2}: {seconds * 1e3:8.2f} ms, loss {losses[k]:.4f}")
    parts = ", ".join(f"{part} {statistics.median(seconds) * 1e3:.2f} ms" for part, seconds in times.items())
    report(world, f"{title}, medians: {parts}; weights {name[:12]}")


def digest(layers: list[Layer], world: arx.Group) -> str:
    """SHA-256 of the weights, the same on every rank or an error."""
    mine = hashlib.sha256(b"".join(layer.weights.tobytes() for layer in layers)).hexdigest()
    if len(set(arx.all_gather_object(mine))) != 1:
        raise SystemExit(f"rank {world.rank}: weights differ between ranks, here {mine}")
    return mine


def report(world: arx.Group, line: str) -> None:
    """One rank speaks for all."""
    if world.rank == 0:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="of each kind")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="points per rank and step")
    parser.add_argument("--bucket", type=int, default=1 << 20, help="bytes that a bucket holds")
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the points")
    args = parser.parse_args()
    if min(args.steps, args.layers, args.width, args.batch, args.bucket) < 1:
        parser.error("all numbers must be at least 1")
    with arx.init() as world:
        run(args, world)


if __name__ == "__main__":
    main()
