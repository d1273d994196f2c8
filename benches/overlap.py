"""Times what hides, fuses or shares work: gradient buckets, non-blocking calls, many in one, the sharded optimizer.

    python benches/overlap.py                             all of it
    python benches/overlap.py --parts waiting,sharded     some
    python benches/overlap.py --record overlap            the same, written to record/

    hide      two hosts, a link of 200 Mb/s, computation as long as communication: what share of the shorter is hidden?
    many      two hosts, a link of 1 Gb/s: all_reduce_many of 100 arrays of 4 KiB against a loop of all_reduce
    sharded   one host: a step of ShardedOptimizer against all_reduce and an update of everything on every rank
    waiting   one host: what async_op=True and wait() cost more than the call that waits, at 8 B

Hosts are network namespaces with shaped links; that needs root, iproute2 and tbf.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
import report
from hosts import stream_rate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from netlab import Lab

RANK = Path(__file__).resolve().parent / "workloads" / "beside.py"
GOALS = {"hide": 0.85, "many": 10.0, "sharded": 1.0, "waiting": 5.0}
SIZES = "1Mi,4Mi,16Mi,64Mi"
Rows = list[dict[str, Any]]


class Ranks:
    """Starts ranks, on this host or one on each host of a lab, and returns the rows that they measured."""

    def __init__(self, folder: Path, timeout: float, lab: Lab | None = None) -> None:
        self.output, self.timeout = folder / "rows", timeout
        run = [sys.executable, "-m", "arx", "run", "--prefix", "none"]
        hosts = [] if lab is None else ["--rsh", str(lab.rsh(folder)), "--hosts", ",".join(lab.hosts)]
        self.launcher = [*([] if lab is None else lab.enter("h0")), *run, *hosts]

    def __call__(self, n: int, part: str, **settings: Any) -> Rows:
        self.output.write_text("")
        words = [sys.executable, str(RANK), part, json.dumps(settings | {"timeout": self.timeout}), str(self.output)]
        command = [*self.launcher, "-n", str(n), *words]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=self.timeout + 30, check=True)
        return [json.loads(line) for line in self.output.read_text().splitlines()]


def verdict(part: str, value: float, *, most: bool = False) -> str:
    """Whether a figure reaches its goal; `most`: it is to stay below."""
    goal = GOALS[part]
    return "reached" if (value <= goal if most else value >= goal) else "MISSES"


def hide(options: argparse.Namespace, folder: Path) -> Rows:
    with Lab(2, "200mbit") as lab:
        return Ranks(folder, options.timeout, lab)(1, "hide", layers=20, layer_bytes=256 << 10, rounds=options.rounds)


def hide_table(rows: Rows) -> str:
    head = ["200 Mb/s, 20 layers of 256 KiB", "computation, ms", "communication, ms", "both, ms", "hidden", "goal 85 %"]
    lines = []
    for row in rows:
        times = [f"{row[name] / 1e3:.1f}" for name in ("computation", "communication", row["form"])]
        lines.append([row["form"], *times, f"{row['hidden']:.1%}", verdict("hide", row["hidden"])])
    most = 1 - 1 / rows[0]["layers"]
    note = f"Hidden: the median over rounds. At most {most:.0%} can be: behind the last layer nothing is computed."
    return f"{report.table(head, lines)}\n\n{note}"


def many(options: argparse.Namespace, folder: Path) -> Rows:
    with Lab(2, "1gbit") as lab:
        rows = Ranks(folder, options.timeout, lab)(1, "many", count=100, nbytes=4096, rounds=5 * options.rounds)
        return [row | {"bound": row["calls"] * row["bytes"] / stream_rate(lab) * 1e6} for row in rows]


def many_table(rows: Rows) -> str:
    head = [
        "1 Gb/s, 100 arrays of 4 KiB",
        "loop, us",
        "all_reduce_many, us",
        "ratio",
        "goal 10",
        "bound, us",
        "at most",
    ]
    lines = []
    for row in rows:
        ratio = row["loop"] / row["all_reduce_many"]
        times = [report.microseconds(row[name]) for name in ("loop", "all_reduce_many", "bound")]
        most = f"{row['loop'] / row['bound']:.1f}"
        lines.append(["float32, avg", *times[:2], f"{ratio:.1f}", verdict("many", ratio), times[2], most])
    note = "Bound: what the bytes take at the rate that a plain TCP stream reaches; no way to send them is faster."
    return f"{report.table(head, lines)}\n\n{note}"


def sharded(options: argparse.Namespace, folder: Path) -> Rows:
    """Short steps take turns more often, for they suffer most from whatever else runs."""
    ranks, rows = Ranks(folder, options.timeout), []
    for n, rule, size in itertools.product(options.ranks, ("SGD with momentum", "Adam"), options.bytes):
        rounds = options.rounds * max(1, (16 << 20) // size)
        rows += ranks(n, "sharded", rule=rule, nbytes=size, rounds=rounds)
    return rows


def sharded_table(rows: Rows) -> str:
    """Ratios above 1: the sharded step is faster."""
    head = ["ranks", "rule", "gradients", "sharded, us", "replicated, us", "ratio", "goal 1"]
    head += ["replicated, symmetric, us", "ratio"]
    lines = []
    for row in rows:
        ratios = [row[name] / row["sharded"] for name in ("replicated", "replicated, symmetric")]
        times = [report.microseconds(row[name]) for name in ("sharded", "replicated", "replicated, symmetric")]
        first = [str(row["ranks"]), row["rule"], report.size(row["bytes"]), *times[:2], f"{ratios[0]:.2f}"]
        lines.append([*first, verdict("sharded", ratios[0]), times[2], f"{ratios[1]:.2f}"])
    return report.table(head, lines)


def waiting(options: argparse.Namespace, folder: Path) -> Rows:
    return Ranks(folder, options.timeout)(2, "waiting", calls=2000, rounds=options.rounds)


def waiting_table(rows: Rows) -> str:
    head = ["2 ranks, 8 B", "blocking, us", "async_op=True and wait(), us", "more, us", "goal 5"]
    lines = []
    for row in rows:
        blocking, begun = row["blocking"], row["async_op=True and wait"]
        figures = [report.microseconds(us) for us in (blocking, begun, begun - blocking)]
        lines.append(["float64, max", *figures, verdict("waiting", begun - blocking, most=True)])
    return report.table(head, lines)


Part = tuple[Callable[[argparse.Namespace, Path], Rows], Callable[[Rows], str]]
PARTS: dict[str, Part] = {
    "hide": (hide, hide_table),
    "many": (many, many_table),
    "sharded": (sharded, sharded_table),
    "waiting": (waiting, waiting_table),
}


def measured(options: argparse.Namespace) -> Iterator[tuple[Rows, str]]:
    """Rows and table of each part."""
    for name in options.parts:
        measure, table = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="arx-overlap-") as folder:
            rows = measure(options, Path(folder))
        text = table(rows)
        print(f"{text}\n", flush=True)
        yield rows, text


def main(options: argparse.Namespace) -> None:
    parts = list(measured(options))
    if options.record:
        from arx import __version__, build_info

        about = {
            "command": report.command(),
            "commit": machine.commit(),
            "arx": f"{__version__} ({build_info()['simd']})",
            "machine": machine.describe(),
        }
        rows = [row for rows, _ in parts for row in rows]
        print("written:", report.write_record(options.record, about, rows, "\n\n".join(text for _, text in parts)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--parts", type=report.list_of(str, tuple(PARTS)), default=list(PARTS), help="(default all)")
    add("--ranks", type=report.list_of(int), default="2,4", help="of the sharded optimizer (default %(default)s)")
    add("--bytes", type=report.list_of(report.number_of_bytes), default=SIZES, help="of its gradients (%(default)s)")
    add("--rounds", type=int, default=9, help="how often the forms take turns (default %(default)s)")
    add("--timeout", type=float, default=120.0, help="seconds for one launch (default %(default)s)")
    add("--record", metavar="WHAT", help="write benches/record/<date>-WHAT.md and .json")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main(parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
