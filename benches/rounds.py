"""Runs that take turns: on a shared machine only what was measured next to each other can be compared.

    round 1:  A B C
    round 2:  B C A
    round 3:  C A B

A round starts each competitor's ranks anew, which measure all sizes. One that fails is left out from then on.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from libraries import Failed, Library, run
from workloads.method import Plan


@dataclass
class Row:
    """One way to say the call, at one size, over all rounds."""

    library: str  # the title
    form: str
    ranks: int
    bytes: int
    medians: list[float] = field(default_factory=list)  # us, one a round
    minima: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    segments: list[float] = field(default_factory=list)  # of TCP, by the whole host, for each call

    @property
    def median(self) -> float:
        return statistics.median(self.medians)

    @property
    def mean(self) -> float:
        """Of the round in the middle."""
        return statistics.median(self.means)

    @property
    def uses_tcp(self) -> bool:
        """Whether at least one segment went out in each call, in every round."""
        return min(self.segments) >= 1

    @property
    def least(self) -> float:
        return min(self.minima)

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, in parts of the median."""
        return (max(self.medians) - min(self.medians)) / self.median


@dataclass
class Outcome:
    rows: list[Row]
    failures: dict[str, str]  # title: reason


def take_turns(competitors: Sequence[Library], ranks: int, plan: Plan, rounds: int) -> Outcome:
    rows: dict[tuple[str, str, int], Row] = {}
    failures: dict[str, str] = {}
    for k in range(rounds):
        first = k % len(competitors)
        for library in (*competitors[first:], *competitors[:first]):
            if library.title in failures:
                continue
            _say(f"{ranks} ranks, round {k + 1} of {rounds}: {library.title}")
            try:
                samples = run(library, ranks, plan)
            except Failed as reason:
                failures[library.title] = str(reason)
                _say(f"{library.title} is left out: {reason}")
                continue
            for sample in samples:
                key = library.title, sample["form"], sample["bytes"]
                row = rows.setdefault(key, Row(library.title, sample["form"], ranks, sample["bytes"]))
                row.medians.append(sample["median_us"])
                row.minima.append(sample["min_us"])
                row.means.append(sample["mean_us"])
                row.calls.append(sample["calls"])
                row.segments.append(sample["segments"])
    return Outcome([row for row in rows.values() if row.library not in failures], failures)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
