"""Times arx and other libraries in turn on this machine, and says how many times faster arx is.

    python benches/compare.py                                                      everything
    python benches/compare.py --ranks 2 --bytes 8,64Ki,16Mi --rounds 3 --record    a part, written to record/
    python benches/compare.py --ranks 2,4 --transport tcp                          over loopback

Each library runs as its users run it, from an environment of its own (peers.py). How it is timed: workloads/method.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import goals
import libraries
import machine
import report
from peers import PeerMissing
from rounds import Row, take_turns
from workloads import family
from workloads.method import APART, Plan

COLLECTIVES = ("all_reduce", *family.COLLECTIVES)
SIZES = "8,1Ki,16Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi"
VARIANTS = {"private": ["in place", "out="], "symmetric": ["symmetric"]}
ARX_COLUMNS = {"in place": "arx", "out=": "arx out=", "symmetric": "arx symmetric"}

Column = dict[int, Row]  # by number of bytes


@dataclass(frozen=True)
class Ratio:
    """How many times longer `slow` takes than `fast`."""

    title: str
    slow: Column
    fast: Column
    goal: Callable[[int, int], float | None]

    def cell(self, nbytes: int, ranks: int, aimed: bool) -> str:
        if nbytes not in self.slow or nbytes not in self.fast:
            return "-"
        ratio = self.slow[nbytes].median / self.fast[nbytes].median
        goal = self.goal(ranks, nbytes) if aimed else None
        return f"{ratio:.2f}" + ("" if goal is None else f"{' MISSES' if ratio < goal else ''} ≥ {goal:g}")

    def range_cell(self, nbytes: int) -> str:
        if nbytes not in self.slow or nbytes not in self.fast:
            return "-"
        pairs = zip(self.slow[nbytes].medians, self.fast[nbytes].medians, strict=True)
        each = [slow / fast for slow, fast in pairs]
        return f"{min(each):.2f} … {max(each):.2f}"

    def mean_cell(self, nbytes: int) -> str:
        if nbytes not in self.slow or nbytes not in self.fast:
            return "-"
        return f"{self.slow[nbytes].mean / self.fast[nbytes].mean:.2f}"


def columns(rows: Sequence[Row], peers: Sequence[str]) -> dict[str, Column]:
    """By title. Each form of arx has a column; for a peer stands the form that was faster at that size."""
    found: dict[str, Column] = {}
    for row in rows:
        column = found.setdefault(ARX_COLUMNS[row.form] if row.library == "arx" else row.library, {})
        if row.bytes not in column or row.median < column[row.bytes].median:
            column[row.bytes] = row
    return {title: found[title] for title in (*ARX_COLUMNS.values(), *peers) if title in found}


def ratios(by_title: dict[str, Column], plan: Plan, transport: str) -> list[Ratio]:
    others = [column for title, column in by_title.items() if title not in ARX_COLUMNS.values()]
    best: Column = {}
    for row in (row for column in others for row in column.values() if transport != "tcp" or row.uses_tcp):
        if row.bytes not in best or row.median < best[row.bytes].median:
            best[row.bytes] = row
    arx, symmetric, gloo = (by_title.get(title, {}) for title in ("arx", "arx symmetric", "gloo"))
    if plan.collective != "all_reduce":
        arx = by_title.get("arx out=", {})
        wanted = [
            Ratio("best peer / arx", best, arx, goals.best_mpi_of_the_family),
            Ratio("best peer / arx symmetric", best, symmetric, lambda *_: None),
        ]
        return [ratio for ratio in wanted if ratio.slow and ratio.fast]
    wanted = [
        Ratio("best peer / arx", best, arx, goals.best_peer_over_tcp if transport == "tcp" else goals.best_peer),
        Ratio("gloo / arx", gloo, arx, goals.gloo if transport != "tcp" else lambda *_: None),
        Ratio("arx / arx symmetric", arx, symmetric, goals.symmetric),
        Ratio("best peer / arx symmetric", best, {} if arx else symmetric, lambda *_: None),
    ]
    return [ratio for ratio in wanted if ratio.slow and ratio.fast]


def _mean(row: Row) -> str:
    return report.microseconds(row.mean)


def tables(rows: Sequence[Row], peers: Sequence[str], plan: Plan, transport: str) -> str:
    """Medians with ratios and goals; then the fastest calls, and how much the rounds differ; then means."""
    ranks = rows[0].ranks
    by_title = columns(rows, peers)
    compared, sizes = ratios(by_title, plan, transport), plan.sizes
    aimed = (plan.dtype, plan.op) == ("float32", "sum")

    def lines(of_row: Callable[[Row], str], of_ratio: Callable[[Ratio, int], str]) -> list[list[str]]:
        times = {n: [of_row(column[n]) if n in column else "-" for column in by_title.values()] for n in sizes}
        return [[report.size(n), *times[n], *(of_ratio(ratio, n) for ratio in compared)] for n in sizes]

    head = [f"{ranks} ranks", *by_title, *(ratio.title for ratio in compared)]
    mark = "*" if transport == "tcp" else ""
    medians = lines(
        lambda row: report.microseconds(row.median) + ("" if row.uses_tcp else mark),
        lambda ratio, n: ratio.cell(n, ranks, aimed),
    )
    rounds = lines(lambda row: f"{report.microseconds(row.least)}, {row.spread:.0%}", Ratio.range_cell)
    means = [line for n, line in zip(sizes, lines(_mean, Ratio.mean_cell), strict=True) if n <= APART]
    return "\n\n".join(
        [
            f"## {ranks} ranks",
            "Median, us; ratio, and the goal for it:" + (" (* without TCP, not compared)" if mark else ""),
            report.table(head, medians),
            "Fastest call, us, and how far the rounds' medians lie apart; the ratio in the rounds:",
            report.table(head, rounds),
            *(
                ["Mean of short calls, us: the slowest rank's loop, divided by its calls:", report.table(head, means)]
                if means
                else []
            ),
        ]
    )


def find_peers(names: Sequence[str], transport: str) -> tuple[list[libraries.Library], dict[str, str]]:
    """The peers that are there or can be built, and why the others cannot."""
    found, missing = [], {}
    for name in names:
        try:
            found.append(libraries.peer(name, transport))
        except PeerMissing as reason:
            missing[name] = str(reason)
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return found, missing


def main(options: argparse.Namespace) -> int:
    plan = Plan(
        options.collective,
        options.bytes,
        options.seconds,
        options.dtype,
        options.op,
        [
            form
            for name in options.variants
            for form in VARIANTS[name]
            if form != "symmetric" or options.transport != "tcp"
        ],
        options.timeout,
    )
    peers, missing = find_peers(options.peers, options.transport)
    competitors = [libraries.arx(transport=options.transport), *peers]
    about: dict[str, Any] = {
        "command": report.command(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "versions": {library.title: library.versions for library in competitors},
        "measured": f"{options.collective} {options.op} of {options.dtype}, {options.rounds} rounds in turn",
        "transport": options.transport,
        "settings": report.arx_variables(),
        "left out": missing,
    }
    rows: list[Row] = []
    parts: list[str] = []
    for ranks in options.ranks:
        outcome = take_turns(competitors, ranks, plan, options.rounds)
        about["left out"] |= {f"{title} with {ranks} ranks": why for title, why in outcome.failures.items()}
        rows += outcome.rows
        if outcome.rows:
            parts.append(tables(outcome.rows, [peer.title for peer in peers], plan, options.transport))
            print(f"\n{parts[-1]}\n", flush=True)
    for name, why in about["left out"].items():
        print(f"left out: {name}: {why}")
    if options.record and rows:
        what = options.record.replace("_", "-")
        print("written:", report.write_record(what, about, [asdict(row) for row in rows], "\n\n".join(parts)))
    return 0 if any(row.library == "arx" for row in rows) else 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--collective", choices=COLLECTIVES, default="all_reduce", help="sizes are those of its longest array")
    add("--ranks", type=report.list_of(int), default="2,4,8", help="numbers of ranks (default %(default)s)")
    add("--bytes", type=report.list_of(report.number_of_bytes), default=SIZES, help="sizes (default %(default)s)")
    add("--rounds", type=int, default=5, help="how often the libraries take turns (default %(default)s)")
    add("--seconds", type=float, default=0.3, help="for each size, form of the call and round (default %(default)s)")
    add("--peers", type=report.list_of(str, libraries.PEER_NAMES), default=",".join(libraries.PEER_NAMES))
    add("--variants", type=report.list_of(str, tuple(VARIANTS)), default=",".join(VARIANTS))
    add("--transport", choices=("auto", "tcp"), default="auto", help="tcp: over loopback (default %(default)s)")
    add("--dtype", default="float32", help="numpy's name of it (default %(default)s)")
    add("--op", choices=("sum", "prod", "min", "max"), default="sum")
    add("--timeout", type=float, default=300.0, help="seconds for one launch (default %(default)s)")
    add("--record", nargs="?", const="", metavar="WHAT", help="write benches/record/<date>-WHAT.md and .json")
    options = parser.parse_args(argv)
    if options.transport == "tcp":
        options.variants = [name for name in options.variants if name != "symmetric"]  # memory that hosts do not share
    if options.record == "":
        options.record = options.collective + ("-tcp" if options.transport == "tcp" else "")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main(parse(sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(130)
