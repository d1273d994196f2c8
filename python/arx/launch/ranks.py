"""The ranks of this host: starts them, reads what they write, sees them end, and can make them.

`Crew` is what a keeper needs of ranks, wherever they are; `Ranks` are processes of this host, `hosts.Hosts` those of
several.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple, Protocol

from arx.launch import blame, spawn, tree
from arx.launch.report import Outcome
from arx.launch.share import Share

_READ = 1 << 16  # bytes, the size of a pipe


class Output(NamedTuple):
    """What a rank wrote to its fd 1 or 2; nothing at the end of the stream."""

    rank: int
    fd: int
    data: bytes


class Crew(Protocol):
    """Ranks, as a keeper sees them."""

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The ranks that were started."""

    def start(self) -> None:
        """Starts all ranks."""

    def fds(self, *, reading: bool) -> dict[int, int]:
        """What to poll, and for what; without `reading` the ranks' output is left where it is."""

    def receive(self, ready: set[int]) -> Iterator[Output]:
        """What came by the descriptors that are ready."""

    def reap(self) -> tuple[list[Outcome], bool]:
        """The ranks that have ended since the last call, and whether nothing at all is left of the job."""

    def due(self) -> float:
        """The time of the clock by which `reap` wants to be called although nobody stirs."""

    def drain(self) -> Iterator[Output]:
        """What is left in the pipes when nothing else is."""

    def pass_on(self, number: int) -> None:
        """A signal for each rank's group, as a terminal would send it."""

    def relay(self, number: int) -> None:
        """A signal for each rank."""

    def hold(self, stop: bool) -> None:
        """Stops the whole job, or lets it go on."""

    def ask(self) -> int:
        """SIGTERM for all processes of the job; returns how many of this host there were."""

    def kill(self) -> None:
        """SIGKILL for all processes of the job; to be repeated until there is none."""


class Ranks:
    """The ranks of one share, which are processes of this host. With `streams` their output comes through pipes."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], share: Share, *, streams: bool, bind: str, stdin: bool
    ) -> None:
        self._command, self._env, self._share = command, env, share
        self._streams, self._bind, self._stdin = streams, bind, stdin
        self._pipes: dict[int, tuple[IO[bytes], int, int]] = {}  # by descriptor: the pipe, whose, which of its fds
        self._ear: blame.Ear | None = None  # once there are ranks to listen to
        self._running: dict[int, tuple[Outcome, subprocess.Popen[bytes]]] = {}  # by process id
        self.outcomes: list[Outcome] = []

    def start(self) -> None:
        """Starts all ranks."""
        self._ear = blame.Ear(self._env.get("ARX_JOB_ID", ""))
        cores = sorted(os.sched_getaffinity(0))
        for index in range(self._share.n):
            core = cores[(self._share.local_first + index) % len(cores)] if self._bind == "core" else None
            rank = self._share.first + index
            env = {**self._env, **self._ear.environment, **self._share.place(index)}
            process = spawn.spawn(self._command, env, streams=self._streams, core=core, stdin=self._stdin and rank == 0)
            outcome = Outcome(rank, process.pid, time.monotonic())
            self.outcomes.append(outcome)
            self._running[process.pid] = (outcome, process)
            for pipe, fd in ((process.stdout, 1), (process.stderr, 2)):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
                    self._pipes[pipe.fileno()] = (pipe, rank, fd)

    def fds(self, *, reading: bool) -> dict[int, int]:
        """The ranks' pipes, and what `reap` listens to; their ends are told by SIGCHLD."""
        ears = [self._ear.fileno()] if self._ear else []
        return dict.fromkeys([*ears, *(self._pipes if reading else ())], select.POLLIN)

    def receive(self, ready: set[int]) -> Iterator[Output]:
        """What came by the pipes that are ready."""
        for number in ready & self._pipes.keys():
            pipe, rank, fd = self._pipes[number]
            with contextlib.suppress(BlockingIOError):
                data = os.read(number, _READ)
                if not data:
                    del self._pipes[number]
                    pipe.close()
                yield Output(rank, fd, data)

    def reap(self) -> tuple[list[Outcome], bool]:
        """The ranks that have ended since the last call, and whether nothing at all is left of the job."""
        ended, childless = [], True
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if known := self._running.pop(found[0], None):
                    outcome, process = known
                    process.returncode = os.waitstatus_to_exitcode(found[1])  # else Popen would look for it
                    outcome.end(process.returncode)
                    ended.append(outcome)
            childless = False
        self._listen()  # after this, since who has ended has said before all that it had to
        return ended, childless

    def _listen(self) -> None:
        """Whom the ranks have lost."""
        known = {outcome.rank: outcome for outcome in self.outcomes}
        for rank, lost in self._ear.hear() if self._ear else ():
            if rank in known:
                known[rank].blames.update(lost)

    def due(self) -> float:
        """Never: ranks stir when anything happens to them."""
        return float("inf")

    def drain(self) -> Iterator[Output]:
        """What is left in the pipes; nobody holds their other ends any more."""
        while self._pipes:
            yield from self.receive(set(self._pipes))

    def pass_on(self, number: int) -> None:
        """To groups, as a terminal would do it: a launcher inside a rank passes it on to its own ranks."""
        for pid in self._running:
            os.killpg(pid, number)

    def relay(self, number: int) -> None:
        """To the ranks that are not reaped yet, so the numbers are still theirs."""
        for pid in self._running:
            os.kill(pid, number)

    def hold(self, stop: bool) -> None:
        """Stops the whole job, or lets it go on."""
        tree.signal_all(signal.SIGSTOP if stop else signal.SIGCONT)

    def ask(self) -> int:
        """SIGTERM for every descendant; a stopped one is woken, since it cannot die of anything but SIGKILL."""
        left = tree.signal_all(signal.SIGTERM)
        tree.signal_all(signal.SIGCONT)
        return left

    def kill(self) -> None:
        """SIGKILL for every descendant."""
        tree.signal_all(signal.SIGKILL)
