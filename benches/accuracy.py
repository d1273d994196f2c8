"""What compression costs in accuracy: the same training with each codec, every rank a host of its own (over TCP).

    python benches/accuracy.py                                  all codecs, 10 seeds, 4 ranks
    python benches/accuracy.py --seeds 3 --ways float32,int8    some
    python benches/accuracy.py --record                         ... and write record/<date>-accuracy.md

A network of 17,000 parameters learns scikit-learn's digits (`workloads/digits.py`). The difference from float32 is that
of pairs with the same seed; its interval is the 95 % one of Student's t. The last rows show that the guards are needed:
top-k that forgets what it leaves out, and halves that are summed as they are, where gradients are large.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import machine
import report
from scipy import stats  # comes with scikit-learn

sys.path.insert(0, str(Path(__file__).resolve().parent / "workloads"))
import digits

from arx.testing import Ranks

RECORD = Path(__file__).resolve().parent / "record"
# Points that a codec may cost.
GOALS = {"fp16": 0.1, "bf16": 0.1, "int8": 0.3, "int4": 0.5, "topk:0.01": 1.0}
CONTROLS = ("topk:0.01 without feedback", "naive fp16 of a large loss")
TIMEOUT = 900  # seconds for all seeds of one way; ends what hangs


class Result(NamedTuple):
    way: str
    accuracies: list[float]
    seconds: float


class Difference(NamedTuple):
    """From float32, in points."""

    mean: float
    half_width: float
    """Of the 95 % confidence interval."""


def measure(way: str, options: argparse.Namespace) -> Result:
    """Train with all seeds, in one job."""
    start = time.perf_counter()
    with Ranks(options.ranks, timeout=TIMEOUT, env={"ARX_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"}) as ranks:
        told = ranks.run(digits.trained, way, list(range(options.seeds)), options.epochs)
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            raise SystemExit(f"{way}: rank {rank} has other weights than rank 0")
    return Result(way, [accuracy for accuracy, _ in told[0]], time.perf_counter() - start)


def difference(result: Result, base: Result) -> Difference:
    pairs = [a - b for a, b in zip(result.accuracies, base.accuracies, strict=True)]
    if len(pairs) < 2:
        return Difference(pairs[0], float("inf"))
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    return Difference(statistics.mean(pairs), float(stats.t.ppf(0.975, len(pairs) - 1)) * error)


def verdict(way: str, found: Difference) -> str:
    """A control has to be worse beyond doubt."""
    if way in CONTROLS:
        return "worse, as it should be" if found.mean + found.half_width < 0 else "NOT SHOWN to be worse"
    if way not in GOALS:
        return ""
    return "reached" if found.mean >= -GOALS[way] else "MISSES"


def table(results: list[Result]) -> str:
    base = next((result for result in results if result.way == "float32"), None)
    rows = []
    for result in results:
        row = [result.way, f"{statistics.mean(result.accuracies):.2f}"]
        if base is None or result is base:
            row += ["", "", "", ""]
        else:
            found = difference(result, base)
            ends = f"{found.mean - found.half_width:+.2f} to {found.mean + found.half_width:+.2f}"
            goal = f"-{GOALS[result.way]}" if result.way in GOALS else ""
            row += [
                f"{found.mean:+.2f}",
                ends if len(result.accuracies) > 1 else "one seed",
                goal,
                verdict(result.way, found),
            ]
        rows.append([*row, f"{result.seconds:.0f}"])
    head = ["gradients as", "accuracy, %", "from float32, points", "95 % interval", "goal", "", "seconds"]
    return report.table(head, rows)


def record(text: str, options: argparse.Namespace) -> Path:
    date = datetime.date.today().isoformat()
    about = [f"- {key}: {value}" for key, value in (machine.describe() | {"commit": machine.commit()}).items()]
    title = f"# Accuracy with compressed gradients, {date}"
    command = f"`python benches/accuracy.py --seeds {options.seeds} --ranks {options.ranks} --epochs {options.epochs}`"
    path = RECORD / f"{date}-accuracy.md"
    path.write_text("\n\n".join([title, command, "\n".join(about), text]) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--ways", type=report.list_of(str, list(digits.WAYS)), default=list(digits.WAYS))
    parser.add_argument("--record", action="store_true", help="write record/<date>-accuracy.md too")
    options = parser.parse_args()
    if min(options.seeds, options.ranks, options.epochs) < 1:
        parser.error("--seeds, --ranks and --epochs must be at least 1")
    results = []
    for way in options.ways:
        results.append(measure(way, options))
        print(f"{way}: {statistics.mean(results[-1].accuracies):.2f} % in {results[-1].seconds:.0f} s", flush=True)
    text = table(results)
    print(f"\n{text}")
    if options.record:
        print(f"\nwritten: {record(text, options)}")


if __name__ == "__main__":
    main()
