"""What became of each rank, and the last thing that `arx run` prints when one of them failed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_RULE = "-" * 72
_LAST_LINES = 20


@dataclass
class Outcome:
    """One rank: its process, and how that ended."""

    rank: int
    pid: int
    started: float
    host: str = ""  # if there are several
    running: bool = True
    code: int = 0  # as subprocess has it: negative for a signal
    lasted: float = 0.0
    lost: str = ""  # why nobody knows how it ended
    asked: bool = False  # the launcher sent it SIGTERM
    forced: bool = False  # the launcher sent it SIGKILL
    blames: set[int] = field(default_factory=set)  # ranks that arx told it were lost

    def end(self, code: int) -> None:
        """The process was reaped."""
        self.running = False
        self.code = code
        self.lasted = time.monotonic() - self.started

    @property
    def failed_by_itself(self) -> bool:
        """Whether it failed, and not because the launcher ended it."""
        return not (self.running or self.code == 0 or self.asked or self.forced)

    def __str__(self) -> str:
        if self.lost:
            return self.lost
        if self.forced and self.code == -signal.SIGKILL:
            return "killed by the launcher, since SIGTERM did not end it"
        if self.asked and self.code == -signal.SIGTERM:
            return "ended by the launcher (SIGTERM)"
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {_signal_name(-self.code)}"


def at_fault(first: Outcome, all_ranks: Sequence[Outcome]) -> Outcome:
    """Which rank is to be named when `first` was the first to end with a failure.

    Who fails leaves its group, then ends; the others raise as soon as it has left, so one of them may be the first to
    end. It failed because of the ranks that it had lost, or that these had lost, as far as they failed by themselves.
    """

    def behind(outcome: Outcome) -> list[Outcome]:
        traced = [outcome]
        for one in traced:  # which grows
            traced += [other for other in all_ranks if other.rank in one.blames and other not in traced]
        return [one for one in traced if one.failed_by_itself]

    # The fewest behind itself: nobody but itself, unless some have lost each other. Then a death by signal is rather
    # the cause, an exit code the consequence.
    return min(behind(first), key=lambda one: (len(behind(one)), one.code > 0, one.started + one.lasted))


def failure_report(first: Outcome, all_ranks: Sequence[Outcome], size: int, stderr: bytes, log_dir: str | None) -> str:
    """Which rank failed first, how, its last lines again (they may have scrolled away), and what the others did.

    `size` is that of the world, of which this launcher may have started only some ranks.
    """
    rank, on = first.rank, f" on {first.host}" if first.host else ""
    lines = [_RULE, f"arx run: rank {rank} of {size} failed{' first' if size > 1 else ''}: {first}"]
    lines[-1] += f" (pid {first.pid}{on}, after {first.lasted:.1f} s)"
    if first.code == -signal.SIGKILL:
        lines.append("  if nobody sent that signal, the kernel did because memory ran out: see `dmesg | grep -i oom`")
    if size > 1:
        lines += [f"  | {line}" for line in stderr.decode(errors="backslashreplace").splitlines()[-_LAST_LINES:]]
    others: dict[str, list[str]] = {}
    for outcome in all_ranks:
        if outcome is not first:
            others.setdefault(str(outcome), []).append(str(outcome.rank))
    lines += [f"  rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}: {what}" for what, ranks in others.items()]
    if log_dir is not None:
        lines.append(f"  all that rank {rank} wrote: {os.path.join(log_dir, f'rank-{rank}.log')}")
    return "\n".join([*lines, ""])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
