"""The parent of the ranks: starts them, shows their output, and sees to it that they all end.

    a rank fails        NOTICE for the others to end by themselves, since arx tells them within 0.2 s and says more ─┐
    a signal comes      it is passed on, and they have GRACE ────────────────────────────────────────────────────────┤
    the ranks are done  LEFTOVER for what they left behind ──────────────────────────────────────────────────────────┤
                                                                     SIGTERM to every descendant ◄───────────────────┘
                                                                        │ GRACE, or Ctrl-C again
                                                                     SIGKILL, until there is none
    the launcher dies   SIGKILL at once

It ends when it has no child left; as it adopts orphans, nothing of the job is left then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import IO

from arx.launch import output, spawn, tree
from arx.launch.command import Job, UsageError
from arx.launch.report import Outcome, failure_report

GRACE = 5.0  # seconds between asking and forcing
NOTICE = 1.0  # seconds
LEFTOVER = 0.5  # seconds; multiprocessing's resource tracker, for one, outlives its rank by milliseconds
_TICK = 0.05  # seconds between two rounds of SIGKILL, and until an unfinished line counts as a prompt

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the job; the exit code is 128 + number."""
RELAYED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to the ranks only."""
JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)


class Keeper:
    """One job, from its first rank's start to its last descendant's end."""

    def __init__(self, job: Job, command: Sequence[str], env: Mapping[str, str], lifeline: int) -> None:
        self._job, self._command, self._env, self._lifeline = job, command, env, lifeline
        self._console = output.Console()
        self._streams: list[output.Stream] = []
        self._tails: dict[int, output.Stream] = {}
        self._running: dict[int, Outcome] = {}  # by process id
        self._outcomes: list[Outcome] = []
        self._childless = False
        self._first: Outcome | None = None  # the rank that failed first
        self._signal: int | None = None  # the signal that ended the job
        self._term_at = self._kill_at = float("inf")  # times of the clock; finite once the job is ending
        self._orphaned = False
        self._wake = _signals_as_bytes()

    def run(self) -> int:
        """Runs the job; returns the launcher's exit code."""
        try:
            self._start()
        except BaseException:
            tree.kill_all()
            raise
        while not self._childless and not self._orphaned:
            self._turn()
        tree.kill_all()
        if not self._orphaned:
            self._last_words()
        return self._exit_code()

    # Start

    def _start(self) -> None:
        job = self._job
        streams = (job.prefix == "auto" and job.n > 1) or job.log_dir is not None
        cores = sorted(os.sched_getaffinity(0))
        for rank in range(job.n):
            core = cores[rank % len(cores)] if job.bind == "core" else None
            process = spawn.spawn(self._command, self._env, rank, streams=streams, core=core)
            outcome = Outcome(rank, process, time.monotonic())
            self._running[process.pid] = outcome
            self._outcomes.append(outcome)
            if streams:
                self._connect(outcome)

    def _connect(self, outcome: Outcome) -> None:
        rank, log = outcome.rank, None
        if self._job.log_dir is not None:
            log = _open_log(os.path.join(self._job.log_dir, f"rank-{rank}.log"))
        for pipe, fd in ((outcome.process.stdout, 1), (outcome.process.stderr, 2)):
            assert pipe is not None  # asked for in spawn
            marked = self._job.prefix == "auto" and self._job.n > 1
            mark = output.prefix(rank, output.wants_colour(fd, os.environ)) if marked else b""
            self._streams.append(output.Stream(pipe, fd, rank, mark, log))
        self._tails[rank] = self._streams[-1]

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
        self._reap()
        self._press(time.monotonic())

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._lifeline, select.POLLIN)
        if not self._console.full:
            for stream in self._streams:
                poll.register(stream.fileno(), select.POLLIN)
        if (fd := self._console.waiting_for) is not None:
            poll.register(fd, select.POLLOUT)
        return {fd for fd, _ in poll.poll(self._patience())}

    def _patience(self) -> float | None:
        """Milliseconds until something is due although nobody stirs."""
        now, due = time.monotonic(), min(self._term_at, self._kill_at)
        if due < float("inf"):
            return max(_TICK, due - now) * 1000 if due > now else _TICK * 1000
        return _TICK * 1000 if self._prompts() else None

    def _read(self, ready: set[int]) -> None:
        quiet = not any(stream.fileno() in ready for stream in self._streams)
        self._streams = [s for s in self._streams if s.fileno() not in ready or s.read(self._console)]
        if quiet and self._console.waiting_for is None:
            for stream in self._prompts():
                stream.show_prompt(self._console)

    def _prompts(self) -> list[output.Stream]:
        """Streams whose unfinished line may be a question to the user at the terminal, which only rank 0 can ask."""
        if not (os.isatty(0) and os.isatty(1)):
            return []
        return [stream for stream in self._streams if stream.rank == 0 and stream.unfinished]

    def _reap(self) -> None:
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if outcome := self._running.pop(found[0], None):
                    outcome.end(os.waitstatus_to_exitcode(found[1]))
                    ended.append(outcome)
            return self._judge(ended)
        self._childless = True
        return self._judge(ended)

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
        elif not self._running and not self._childless and not self._ending:
            self._end(now + LEFTOVER)

    @property
    def _ending(self) -> bool:
        return self._kill_at < float("inf")

    def _end(self, term_at: float) -> None:
        self._term_at, self._kill_at = term_at, term_at + GRACE

    def _heard(self, number: int) -> None:
        now = time.monotonic()
        if number in JOB_CONTROL:
            tree.signal_all(signal.SIGSTOP if number == signal.SIGTSTP else signal.SIGCONT)
        elif number in RELAYED:
            for pid in self._running:
                os.kill(pid, number)  # not reaped yet, so the number is still this rank's
        elif number == signal.SIGINT and self._ending:
            self._kill_at = now
        elif number in PASSED_ON and self._ending:
            self._term_at = min(self._term_at, now)
        elif number in PASSED_ON:
            self._signal = number
            self._end(now if number == signal.SIGTERM else now + GRACE)
            if number != signal.SIGTERM:
                # To groups, as a terminal would do it: a launcher inside a rank passes it on to its own ranks.
                for pid in self._running:
                    os.killpg(pid, number)

    def _press(self, now: float) -> None:
        if now >= self._term_at:
            self._term_at = float("inf")
            for outcome in self._running.values():
                outcome.asked = True
            left = tree.signal_all(signal.SIGTERM)
            if not self._running:
                self._console.write(2, f"arx run: ending {left} process(es) that the ranks left behind\n".encode())
            tree.signal_all(signal.SIGCONT)  # a stopped process cannot die of anything but SIGKILL
        if now >= self._kill_at:
            for outcome in self._running.values():
                outcome.forced = True
            tree.signal_all(signal.SIGKILL)

    # End

    def _last_words(self) -> None:
        """All writers are gone: shows what is left in the pipes, and the report."""
        while self._streams:
            self._streams = [stream for stream in self._streams if stream.read(self._console)]
        if self._first is not None:
            stream = self._tails.get(self._first.rank)
            report = failure_report(self._first, self._outcomes, stream.tail if stream else b"", self._job.log_dir)
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
            code = self._first.code
            return code if code > 0 else 128 - code
        if self._console.failed is not None:
            return 128 + signal.SIGPIPE if isinstance(self._console.failed, BrokenPipeError) else 1
        return 0


def _open_log(path: str) -> IO[bytes]:
    try:
        return open(path, "wb", buffering=0)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _signals_as_bytes() -> int:
    """A pipe that gets one byte, its number, for each signal that is not ignored (as SIGHUP is under nohup)."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in handled():
        signal.signal(number, lambda *_: None)
    return reading


def handled() -> list[signal.Signals]:
    """The signals that the launcher acts on: those that whoever started it does not have it ignore."""
    numbers = (*PASSED_ON, *RELAYED, *JOB_CONTROL)
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
