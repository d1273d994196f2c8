"""Trains a small network on handwritten digits, data-parallel, with one way or another to average the gradients.

    float32 weights and momentum on every rank ─► gradient of its share of a batch ─► averaged, in fewer bytes ─► update

`trained` is run on every rank. For a seed, all ways see the same split, first weights and batches, so that accuracies
can be compared in pairs. Knows nothing of tables: `benches/accuracy.py` makes them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np
from sklearn.datasets import load_digits

import arx
from arx.compression import ErrorFeedback, Pipeline

WIDTHS = (64, 128, 64, 10)
TEST_IMAGES = 900  # half of the 1797: an image is a ninth of a point
BATCH = 64
RATE = 0.02
MOMENTUM = 0.9
WARM_EPOCHS = 4
F = np.float32


class Network:
    """Dense layers with ReLU between them. All parameters lie in one vector, all gradients in another."""

    def __init__(self, rng: np.random.Generator) -> None:
        count = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(WIDTHS))
        self.parameters, self.gradient, self.velocity = (np.zeros(count, F) for _ in range(3))
        self.layers, self.d_layers = layer_views(self.parameters), layer_views(self.gradient)
        for weights, _ in self.layers:
            weights[:] = rng.normal(scale=np.sqrt(2 / len(weights)), size=weights.shape)

    def forward(self, x: np.ndarray) -> list[np.ndarray]:
        """What goes into each layer, and last the logits."""
        values = [x]
        for weights, bias in self.layers[:-1]:
            values.append(np.maximum(values[-1] @ weights + bias, 0))
        weights, bias = self.layers[-1]
        return [*values, values[-1] @ weights + bias]

    def backward(self, x: np.ndarray, y: np.ndarray, scale: float) -> None:
        """Leave `scale` times the gradient of the loss, summed over the images, in `gradient`."""
        *inputs, logits = self.forward(x)
        delta = np.exp(logits - logits.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(y)), y] -= 1
        delta *= F(scale)
        for layer in reversed(range(len(self.layers))):
            d_weights, d_bias = self.d_layers[layer]
            np.matmul(inputs[layer].T, delta, out=d_weights)
            np.sum(delta, axis=0, out=d_bias)
            delta = (delta @ self.layers[layer][0].T) * (inputs[layer] > 0)

    def step(self, rate: float, momentum: float) -> None:
        self.velocity *= F(momentum)
        self.velocity -= F(rate) * self.gradient
        self.parameters += self.velocity


def layer_views(flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cut a flat vector into (weights, bias) per layer without a copy."""
    layers, at = [], 0
    for fan_in, fan_out in itertools.pairwise(WIDTHS):
        bias_at = at + fan_in * fan_out
        layers.append((flat[at:bias_at].reshape(fan_in, fan_out), flat[bias_at : bias_at + fan_out]))
        at = bias_at + fan_out
    return layers


class Split(NamedTuple):
    """The images, cut into training and test set by the seed."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@functools.cache
def images() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return (digits.data / 16).astype(F), digits.target


def split(seed: int) -> Split:
    x, y = images()
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Split(x[train], y[train], x[test], y[test])


# Ways to average


class Way(NamedTuple):
    """How gradients become their averages, in place."""

    average: Callable[[Network], object]
    momentum: float = MOMENTUM
    """Of the optimizer; 0 where the pipeline has it."""
    loss_scale: float = 1.0


def _flat(compression: Any) -> Callable[[Network], object]:
    return lambda network: arx.all_reduce(network.gradient, "avg", compression=compression, name="gradient")


def _by_matrix(compression: Any) -> Callable[[Network], object]:
    """Each matrix by itself, and the rest as it is."""

    def average(network: Network) -> None:
        for number, (weights, _) in enumerate(network.d_layers):
            arx.all_reduce(weights, "avg", compression=compression, name=f"layer {number}")
        arx.all_reduce_many([bias for _, bias in network.d_layers], "avg")

    return average


def _naive_halves(network: Network) -> None:
    """Cast, divide, and add up in float16, as is usual: nothing keeps values in its range."""
    size = arx.size()
    with np.errstate(over="ignore", invalid="ignore"):
        halves = network.gradient.astype(np.float16) / np.float16(size)
        total = np.zeros_like(halves)
        for each in arx.all_gather(halves[None]):
            total += each
    network.gradient[:] = total


LARGE_LOSS = 2.0**30  # makes gradients that no half can hold

WAYS: dict[str, Callable[[int], Way]] = {
    # For so many steps in an epoch.
    "float32": lambda _: Way(_flat(None)),
    "fp16": lambda _: Way(_flat("fp16")),
    "bf16": lambda _: Way(_flat("bf16")),
    "int8": lambda _: Way(_flat("int8")),
    "int4": lambda _: Way(_flat(Pipeline("int4", error_feedback=True))),
    "topk:0.01": lambda steps: Way(_flat(_dgc("topk:0.01", steps)), momentum=0.0),
    "topk:0.01+int8": lambda steps: Way(_flat(_dgc("topk:0.01+int8", steps)), momentum=0.0),
    "randomk:0.1": lambda steps: Way(_flat(_dgc("randomk:0.1", steps)), momentum=0.0),
    "powersgd:2": lambda _: Way(_by_matrix(Pipeline("powersgd:2", error_feedback=True))),
    "topk:0.01 without feedback": lambda _: Way(_flat(Pipeline("topk:0.01", error_feedback=False))),
    "fp16 of a large loss": lambda _: Way(_flat("fp16"), loss_scale=LARGE_LOSS),
    "naive fp16 of a large loss": lambda _: Way(_naive_halves, loss_scale=LARGE_LOSS),
}


def _dgc(codec: str, steps: int) -> Pipeline:
    return Pipeline(codec, error_feedback=ErrorFeedback(momentum=MOMENTUM, warmup=WARM_EPOCHS * steps))


# Training


def trained(way: str, seeds: list[int], epochs: int) -> list[tuple[float, str]]:
    """For each seed, the accuracy on the test set in percent, and a digest of the weights."""
    return [_train(way, seed, epochs) for seed in seeds]


def _train(name: str, seed: int, epochs: int) -> tuple[float, str]:
    rank, size = arx.rank(), arx.size()
    data, rng = split(seed), np.random.default_rng(seed)
    network = Network(rng)
    steps = -(-len(data.y) // BATCH)
    way = WAYS[name](steps)
    for step in range(epochs * steps):
        if step % steps == 0:
            order = rng.permutation(len(data.y))
        batch = order[step % steps * BATCH :][:BATCH]
        share = batch[rank::size]
        network.backward(data.x[share], data.y[share], way.loss_scale * size / len(batch))
        way.average(network)
        network.gradient /= F(way.loss_scale)
        if np.isfinite(network.gradient).all():  # else skipped, as with any scaled loss
            network.step(RATE * (1 + np.cos(np.pi * step / (epochs * steps))) / 2, way.momentum)
    hits = network.forward(data.x_test)[-1].argmax(axis=1) == data.y_test
    return 100 * float(hits.mean()), hashlib.sha256(network.parameters.tobytes()).hexdigest()
