"""Data-parallel training in plain numpy: scikit-learn's handwritten digits, gradients averaged by arx.

    arx run -n 4 examples/train_digits.py      # four processes
    python examples/train_digits.py            # one: the same program, the same accuracy

Every rank holds the whole network and works on its share of each batch. Three calls make the ranks one training run:
`broadcast` starts them all from rank 0's weights, `all_reduce` averages their gradients after each batch, and once per
epoch an `all_reduce` of two numbers adds up loss and hits. Since `all_reduce` leaves the same bits on every rank, the
weights stay the same everywhere without ever being sent again; the last line of the output proves it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import time

# The ranks are the parallelism: BLAS threads in each of them would only fight for the same cores.
# BLAS reads this when numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from sklearn.datasets import load_digits

import arx

WIDTHS = (64, 512, 10)  # 8x8 pixels, one hidden layer, ten digits
TEST_IMAGES = 360  # a fifth of the 1797
MOMENTUM = 0.9


class Network:
    """Dense layers with ReLU between them. All parameters lie in one vector, all gradients in another."""

    def __init__(self) -> None:
        count = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(WIDTHS))
        self.parameters = np.zeros(count)
        self.velocity = np.zeros(count)
        # An ordinary numpy array, in memory that the other ranks can read: the fastest kind to reduce.
        self.gradient = arx.zeros(count)
        self.layers = layer_views(self.parameters)
        self.d_layers = layer_views(self.gradient)

    def initialise(self, rng: np.random.Generator) -> None:
        for weights, _ in self.layers:
            weights[:] = rng.normal(scale=np.sqrt(2 / len(weights)), size=weights.shape)

    def forward(self, x: np.ndarray) -> list[np.ndarray]:
        """What goes into each layer, and last the logits."""
        values = [x]
        for weights, bias in self.layers[:-1]:
            values.append(np.maximum(values[-1] @ weights + bias, 0))
        weights, bias = self.layers[-1]
        return [*values, values[-1] @ weights + bias]

    def backward(self, x: np.ndarray, y: np.ndarray, scale: float) -> float:
        """Return the cross-entropy summed over the images; leave `scale` times its gradient in `gradient`."""
        *inputs, logits = self.forward(x)
        logits -= logits.max(axis=1, keepdims=True)
        log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        picked = np.arange(len(y)), y

        delta = np.exp(log_softmax)
        delta[picked] -= 1
        delta *= scale
        for layer in reversed(range(len(self.layers))):
            d_weights, d_bias = self.d_layers[layer]
            np.matmul(inputs[layer].T, delta, out=d_weights)
            np.sum(delta, axis=0, out=d_bias)
            delta = (delta @ self.layers[layer][0].T) * (inputs[layer] > 0)
        return float(-log_softmax[picked].sum())

    def step(self, rate: float) -> None:
        self.velocity *= MOMENTUM
        self.velocity -= rate * self.gradient
        self.parameters += self.velocity


def layer_views(flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cut a flat vector into (weights, bias) per layer without a copy: writing to a view writes to `flat`."""
    layers, at = [], 0
    for fan_in, fan_out in itertools.pairwise(WIDTHS):
        bias_at = at + fan_in * fan_out
        layers.append((flat[at:bias_at].reshape(fan_in, fan_out), flat[bias_at : bias_at + fan_out]))
        at = bias_at + fan_out
    return layers


class Digits:
    """The images, cut into training and test set by the seed. Every rank holds all of them; they are small."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        order = np.random.default_rng(seed).permutation(len(digits.target))
        images, labels = digits.images[order] / 16, digits.target[order]
        self.x_test, self.y_test = images[:TEST_IMAGES].reshape(-1, 64), labels[:TEST_IMAGES]
        self.y = labels[TEST_IMAGES:]
        padded = np.pad(images[TEST_IMAGES:], ((0, 0), (1, 1), (1, 1)))
        self.windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(1, 2))

    def shifted(self, images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Training images moved by up to one pixel each way, so that no two epochs see quite the same ones."""
        return self.windows[images, shifts[images, 0], shifts[images, 1]].reshape(len(images), 64)


class Stopwatch:
    """Adds up the time spent in its `with` blocks: by the clock, and on a core."""

    seconds = 0.0
    busy = 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started[0]
        self.busy += time.process_time() - self.started[1]


def train(args: argparse.Namespace, world: arx.Group) -> None:
    data, network = Digits(args.seed), Network()
    training, communication = Stopwatch(), Stopwatch()
    batches = -(-len(data.y) // args.batch)
    if world.rank == 0:
        network.initialise(np.random.default_rng(args.seed))
    arx.broadcast(network.parameters, root=0)
    report(world, f"ranks {world.size}, training images {len(data.y)}, parameters {len(network.parameters)}")

    # Every rank draws the same order and the same shifts: a batch does not depend on how many ranks share it.
    rng = np.random.default_rng(args.seed)
    for epoch in range(args.epochs):
        before, loss = training.seconds, 0.0
        order, shifts = rng.permutation(len(data.y)), rng.integers(0, 3, (len(data.y), 2))
        with training:
            for index in range(batches):
                batch = order[index * args.batch : (index + 1) * args.batch]
                share = batch[world.rank :: world.size]
                # "avg" divides by the number of ranks, but one rank's share may be an image longer than another's,
                # or empty. This scale makes the average the mean over the batch, each image counted once.
                scale = world.size / len(batch)
                loss += network.backward(data.shifted(share, shifts), data.y[share], scale)
                with communication:
                    arx.all_reduce(network.gradient, "avg")
                progress = (epoch * batches + index) / (args.epochs * batches)
                network.step(args.lr * (1 + np.cos(np.pi * progress)) / 2)

        loss, accuracy = evaluate(network, data, loss, world)
        speed = f"{len(data.y) / (training.seconds - before):,.0f} samples/s"
        report(world, f"epoch {epoch + 1:2}  loss {loss:.4f}  test accuracy {accuracy:.2%}  {speed}")

    share, busy = communication.seconds / training.seconds, communication.busy / training.seconds
    report(world, f"test accuracy {accuracy:.2%} after {training.seconds:.1f} s of training")
    waiting = max(share - busy, 0)
    report(world, f"{share:.0%} of it in all_reduce: {busy:.0%} at work, {waiting:.0%} waiting for other ranks")
    digest = common_digest(network.parameters, world)
    report(world, f"weights identical on all {world.size} ranks: {digest}")


def evaluate(network: Network, data: Digits, loss: float, world: arx.Group) -> tuple[float, float]:
    """Mean training loss over all ranks, given this rank's sum, and test accuracy: each rank tests its share."""
    share = slice(world.rank, None, world.size)
    hits = np.count_nonzero(network.forward(data.x_test[share])[-1].argmax(axis=1) == data.y_test[share])
    loss, hits = arx.functional.all_reduce(np.array([loss, hits]))
    return loss / len(data.y), hits / len(data.y_test)


def common_digest(parameters: np.ndarray, world: arx.Group) -> str:
    """SHA-256 of the weights, the same on every rank or an error: the smallest of all digests must be the largest."""
    digest = hashlib.sha256(parameters.tobytes())
    octets = np.frombuffer(digest.digest(), np.uint8)
    lowest, highest = arx.functional.all_reduce(octets, "min"), arx.functional.all_reduce(octets, "max")
    if (lowest != highest).any():
        raise SystemExit(f"rank {world.rank}: weights differ between ranks, here {digest.hexdigest()}")
    return digest.hexdigest()


def report(world: arx.Group, line: str) -> None:
    """One rank speaks for all."""
    if world.rank == 0:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.25, help="first learning rate; it falls to 0 along a cosine")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the first weights and the order")
    args = parser.parse_args()
    if min(args.epochs, args.batch) < 1:
        parser.error("--epochs and --batch must be at least 1")
    with arx.init() as world:
        train(args, world)


if __name__ == "__main__":
    main()
