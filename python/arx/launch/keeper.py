"""The parent of the ranks: starts them, shows their output, and sees to it that they all end.

    a rank fails        NOTICE for the others to end by themselves, since arx tells them within 0.2 s and says more ─┐
    a signal comes      it is passed on, and they have GRACE ────────────────────────────────────────────────────────┤
    the ranks are done  LEFTOVER for what they left behind ──────────────────────────────────────────────────────────┤
                                                                     SIGTERM to every descendant ◄───────────────────┘
                                                                        │ GRACE, or Ctrl-C again
                                                                     SIGKILL, until there is none
    the launcher dies   SIGKILL at once

It ends when it has no child left; as it adopts orphans, nothing of the job is left then. Only then does it say which
rank is at fault: those that noticed its failure may end before it does (see `blame`).
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import IO

from arx.launch import output, signals, tree
from arx.launch.command import Job, UsageError
from arx.launch.ranks import Crew
from arx.launch.report import Outcome, at_fault, failure_report
from arx.launch.share import Share
from arx.launch.signals import JOB_CONTROL, PASSED_ON, RELAYED

GRACE = 5.0  # seconds between asking and forcing
NOTICE = 1.0  # seconds
LEFTOVER = 0.5  # seconds; multiprocessing's resource tracker, for one, outlives its rank by milliseconds
_TICK = 0.05  # seconds between two rounds of SIGKILL, and until an unfinished line counts as a prompt


class Keeper:
    """One job, from its first rank's start to its last descendant's end."""

    def __init__(self, job: Job, crew: Crew, share: Share, console: output.Console, lifeline: int) -> None:
        self._job, self._crew, self._share, self._console, self._lifeline = job, crew, share, console, lifeline
        self._streams: dict[tuple[int, int], output.Stream] = {}  # by rank and fd
        self._childless = False
        self._first: Outcome | None = None  # the rank that ended first with a failure
        self._signal: int | None = None  # the signal that ended the job
        self._term_at = self._kill_at = float("inf")  # times of the clock; finite once the job is ending
        self._orphaned = False
        self._wake = signals.as_bytes()

    def run(self) -> int:
        """Runs the job; returns the launcher's exit code."""
        try:
            self._connect()
            self._crew.start()
            while not self._childless and not self._orphaned:
                self._turn()
        finally:
            tree.kill_all()
        if not self._orphaned:
            self._last_words()
        return self._exit_code()

    def _connect(self) -> None:
        """Ways from every rank to the console."""
        marked = self._job.prefix == "auto" and self._share.world > 1
        for rank in range(self._share.first, self._share.first + self._share.n):
            log = None
            if self._job.log_dir is not None:
                log = _open_log(os.path.join(self._job.log_dir, f"rank-{rank}.log"))
            for fd in (1, 2):
                mark = output.prefix(rank, output.wants_colour(fd, os.environ)) if marked else b""
                self._streams[rank, fd] = output.Stream(fd, mark, log)

    # One turn of the loop

    def _turn(self) -> None:
        ready = self._wait()
        if self._lifeline in ready:
            self._orphaned = True
            return
        if self._wake in ready:
            for number in os.read(self._wake, 4096):
                self._heard(number)
        self._read(ready)
        self._console.pump()
        ended, self._childless = self._crew.reap()
        self._judge(ended)
        self._press(time.monotonic())

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._lifeline, select.POLLIN)
        for fd, mask in self._crew.fds(reading=not self._console.full).items():
            poll.register(fd, mask)
        if (waiting := self._console.waiting_for) is not None:
            poll.register(waiting, select.POLLOUT)
        return {fd for fd, _ in poll.poll(self._patience())}

    def _patience(self) -> float | None:
        """Milliseconds until something is due although nobody stirs."""
        now, due = time.monotonic(), min(self._term_at, self._kill_at, self._crew.due())
        if due < float("inf"):
            return max(_TICK, due - now) * 1000 if due > now else _TICK * 1000
        return _TICK * 1000 if self._prompts() else None

    def _read(self, ready: set[int]) -> None:
        quiet = True
        for said in self._crew.receive(ready):
            self._streams[said.rank, said.fd].feed(said.data, self._console)
            quiet = False
        if quiet and self._console.waiting_for is None:
            for stream in self._prompts():
                stream.show_prompt(self._console)

    def _prompts(self) -> list[output.Stream]:
        """Streams whose unfinished line may be a question to the user at the terminal, which only rank 0 can ask."""
        if not (os.isatty(0) and os.isatty(1)):
            return []
        return [stream for (rank, _), stream in self._streams.items() if rank == 0 and stream.unfinished]

    def _running(self) -> list[Outcome]:
        return [outcome for outcome in self._crew.outcomes if outcome.running]

    # Endings

    def _judge(self, ended: list[Outcome]) -> None:
        now = time.monotonic()
        failed = [outcome for outcome in ended if outcome.code != 0]
        if failed and not self._ending:
            # Seen at the same time: a death by signal is rather the cause, an exit code the consequence.
            self._first = min(failed, key=lambda outcome: (outcome.code > 0, outcome.rank))
            self._end(now + NOTICE)
        elif self._console.failed and not self._ending:
            self._end(now)
        elif self._all_done() and not self._childless and not self._ending:
            self._end(now + LEFTOVER)

    def _all_done(self) -> bool:
        return len(self._crew.outcomes) == self._share.n and not self._running()

    @property
    def _ending(self) -> bool:
        return self._kill_at < float("inf")

    def _end(self, term_at: float) -> None:
        self._term_at, self._kill_at = term_at, term_at + GRACE

    def _heard(self, number: int) -> None:
        now = time.monotonic()
        if number in JOB_CONTROL:
            self._crew.hold(number == signal.SIGTSTP)
        elif number in RELAYED:
            self._crew.relay(number)
        elif number == signal.SIGINT and self._ending:
            self._kill_at = now
        elif number in PASSED_ON and self._ending:
            self._term_at = min(self._term_at, now)
        elif number in PASSED_ON:
            self._signal = number
            self._end(now if number == signal.SIGTERM else now + GRACE)
            if number != signal.SIGTERM:
                self._crew.pass_on(number)

    def _press(self, now: float) -> None:
        if now >= self._term_at:
            self._term_at = float("inf")
            for outcome in self._running():
                outcome.asked = True
            left = self._crew.ask()
            if left and self._all_done():
                self._console.write(2, f"arx run: ending {left} process(es) that the ranks left behind\n".encode())
        if now >= self._kill_at:
            for outcome in self._running():
                outcome.forced = True
            self._crew.kill()

    # End

    def _last_words(self) -> None:
        """All writers are gone: shows what is left in the pipes, and the report."""
        for said in self._crew.drain():
            self._streams[said.rank, said.fd].feed(said.data, self._console)
        for stream in self._streams.values():
            stream.feed(b"", self._console)
        if self._first is not None:
            culprit = at_fault(self._first, self._crew.outcomes)
            tail = self._streams[culprit.rank, 2].tail
            report = failure_report(culprit, self._crew.outcomes, self._share.world, tail, self._job.log_dir)
            self._console.write(2, report.encode(errors="backslashreplace"))
        elif self._signal is not None:
            name = signal.Signals(self._signal).name
            self._console.write(2, f"arx run: {name}: all ranks have ended\n".encode())
        self._term_at = self._kill_at = float("inf")
        self._console.pump()
        while self._console.waiting_for is not None:
            ready = self._wait()
            if self._lifeline in ready or (self._wake in ready and set(os.read(self._wake, 4096)) & set(PASSED_ON)):
                return  # nobody reads, and somebody wants an end
            self._console.pump()

    def _exit_code(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        if self._first is not None:
            code = at_fault(self._first, self._crew.outcomes).code
            return code if code > 0 else 128 - code
        if self._console.failed is not None:
            return 128 + signal.SIGPIPE if isinstance(self._console.failed, BrokenPipeError) else 1
        return 0


def _open_log(path: str) -> IO[bytes]:
    try:
        return open(path, "wb", buffering=0)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
