"""What `arx run --hosts` starts on each host (`python -m arx.launch.agent`): starts ranks and does as it is told.

It decides nothing: which rank failed first, who is ended when, is the launcher's business. Only when its stdin ends or
is silent for too long, which means that the launcher is gone, does it kill everything by itself; and `guard` does if
the agent is killed.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from arx.launch import frames, guard, output, signals, spawn, tree
from arx.launch.command import Job, UsageError, command
from arx.launch.ranks import Ranks
from arx.launch.share import Share

_READ = 1 << 16


class Agent:
    """One host's part of one job."""

    def __init__(self, lifeline: int) -> None:
        self._lifeline = lifeline
        self._frames = frames.Unpacker()
        self._console = output.Console()  # the launcher reads it
        self._ranks: Ranks | None = None
        self._over = False
        self._silence = self._silent_at = float("inf")  # how long the launcher may say nothing, and until when
        self._wake = signals.as_bytes()
        self._console.write(1, frames.MAGIC)

    def run(self) -> int:
        """Serves the launcher until no process of the job is left; returns the exit code."""
        started = childless = False
        while not self._over and not childless:
            ready = self._wait()
            if self._lifeline in ready:
                self._over = True
            elif self._wake in ready:
                self._over = bool(set(os.read(self._wake, 4096)) & set(signals.PASSED_ON))
            if 0 in ready:
                self._hear()
            if self._ranks is not None:
                started = started or bool(self._ranks.outcomes)
                self._report(ready)
                ended, left_nobody = self._ranks.reap()
                childless = started and left_nobody
                if childless:
                    self._report(None)
                for outcome in ended:
                    blames = " ".join(map(str, outcome.blames)).encode()
                    self._console.write(1, frames.pack(frames.ENDED, outcome.rank, outcome.code, blames))
            self._console.pump()
            self._over = self._over or self._console.failed is not None
        tree.kill_all()
        while self._console.waiting_for is not None and not self._over:
            self._flush()
        return 1 if self._over else 0

    def _flush(self) -> None:
        """The last messages, to a launcher that may be slow or gone."""
        ready = self._wait()
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._lifeline in ready or (0 in ready and not os.read(0, _READ)):
            self._over = True
        self._console.pump()
        self._over = self._over or self._console.failed is not None

    def _wait(self) -> set[int]:
        poll = select.poll()
        for fd in (0, self._lifeline, self._wake):
            poll.register(fd, select.POLLIN)
        if self._ranks is not None:
            for fd, mask in self._ranks.fds(reading=not self._console.full).items():
                poll.register(fd, mask)
        if (waiting := self._console.waiting_for) is not None:
            poll.register(waiting, select.POLLOUT)
        now = time.monotonic()
        limit = None if self._silent_at == float("inf") else max(0.0, self._silent_at - now) * 1000
        ready = {fd for fd, _ in poll.poll(limit)}
        self._over = self._over or time.monotonic() >= self._silent_at
        return ready

    def _report(self, ready: set[int] | None) -> None:
        """Passes on what the ranks wrote; without `ready`, all that is left of it."""
        assert self._ranks is not None
        for said in self._ranks.drain() if ready is None else self._ranks.receive(ready):
            self._console.write(1, frames.pack(frames.OUTPUT, said.rank, said.fd, said.data))

    def _hear(self) -> None:
        data = os.read(0, _READ)
        if not data:
            self._over = True
        self._silent_at = time.monotonic() + self._silence
        for frame in self._frames.feed(data):
            if frame.kind == frames.JOB:
                self._try(functools.partial(self._prepare, json.loads(frame.data)))
            elif self._ranks is not None:
                self._obey(self._ranks, frame)

    def _try(self, step: Callable[[], None]) -> None:
        """What is the user's mistake is told to the launcher, which then ends this agent."""
        try:
            step()
        except UsageError as error:
            self._console.write(1, frames.pack(frames.REFUSED, data=str(error).encode()))

    def _prepare(self, job: dict[str, Any]) -> None:
        """Checks that the ranks can be started here."""
        self._silence = job["silence"]
        self._silent_at = time.monotonic() + self._silence
        try:
            os.chdir(job["folder"])
        except OSError as error:
            raise UsageError(f"the folder of the launcher, {job['folder']}: {error.strerror}") from None
        env = spawn.job_environment(os.environ, job["env"], None)
        for name, value in job["paths"].items():
            env[name] = _joined(value, env.get(name, ""))
        share = Share(**job["share"])
        env |= share.environment()
        argv = command(Job(job["script"], job["args"], module=job["module"]), env)
        self._ranks = Ranks(argv, env, share, streams=True, bind=job["bind"], stdin=False)
        self._console.write(1, frames.pack(frames.READY))

    def _obey(self, ranks: Ranks, frame: frames.Frame) -> None:
        if frame.kind == frames.GO:
            self._try(functools.partial(self._start, ranks))
        elif frame.kind == frames.PASS:
            ranks.pass_on(frame.number)
        elif frame.kind == frames.RELAY:
            ranks.relay(frame.number)
        elif frame.kind == frames.HOLD:
            ranks.hold(bool(frame.number))
        elif frame.kind == frames.ASK:
            nobody = not any(outcome.running for outcome in ranks.outcomes)
            left = ranks.ask()
            if nobody and left:
                os.write(2, f"arx run: ending {left} process(es) that the ranks left behind\n".encode())
        elif frame.kind == frames.KILL:
            ranks.kill()

    def _start(self, ranks: Ranks) -> None:
        ranks.start()
        for outcome in ranks.outcomes:
            self._console.write(1, frames.pack(frames.STARTED, outcome.rank, outcome.pid))


def _joined(first: str, then: str) -> str:
    """Two search paths as one, the second without what the first has."""
    known = first.split(os.pathsep)
    return os.pathsep.join([*known, *(entry for entry in then.split(os.pathsep) if entry and entry not in known)])


def main() -> int:
    """The agent's life."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return guard.guarded(lambda lifeline: Agent(lifeline).run, "arx agent")


if __name__ == "__main__":
    sys.exit(main())
