"""The ranks of several hosts: one agent per host starts them there and tells what they say and how they end.

    launcher ──┬─ ssh h0 'python -m arx.launch.agent' ─── agent ─┬─ rank 0
               │                                                 └─ rank 1          no rank starts before all agents
               └─ ssh h1 'python -m arx.launch.agent' ─── agent ─── rank 2          are READY

Nothing secret is on a command line: the job comes on the agent's stdin (see `frames`). When the launcher is gone, that
stdin ends or, if its host has vanished, falls silent, and the agent kills its ranks. When an agent is gone, its ranks
count as failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from arx.launch import frames, near, output, tree
from arx.launch.command import Job, UsageError
from arx.launch.ranks import Output
from arx.launch.report import Outcome
from arx.launch.share import Identity, Share, dealt

_READ = 1 << 16
_BEAT = 10.0  # seconds between two signs of life
_SILENCE = 60.0  # seconds without one until an agent believes that the launcher's host has vanished
_PATIENCE = 5.0  # seconds between KILL for the agents and SIGKILL for what connects to them


class Hosts:
    """The ranks of a job on several hosts, as a keeper sees them."""

    def __init__(self, job: Job, env: Mapping[str, str], identity: Identity, console: output.Console) -> None:
        shares = dealt([(near.one_name(host), n) for host, n in job.hosts])
        self.outcomes: list[Outcome] = []
        self._ended: list[Outcome] = []
        self._agents = [
            _Agent(host, job, _document(job, env, identity, share), console)
            for (host, _), share in zip(job.hosts, shares, strict=True)
        ]
        self._started = False
        self._give_up = float("inf")
        self._beat_at = time.monotonic() + _BEAT

    def start(self) -> None:
        """Starts the agents; the ranks follow when all of these are ready."""
        for agent in self._agents:
            agent.start()

    def fds(self, *, reading: bool) -> dict[int, int]:
        """The agents' pipes."""
        return {fd: mask for agent in self._agents for fd, mask in agent.fds(reading=reading).items()}

    def receive(self, ready: set[int]) -> Iterator[Output]:
        """What came from the agents, and out with what waits for them."""
        for agent in self._agents:
            yield from self._hear(agent, agent.receive(ready))
        if not self._started and self._give_up == float("inf") and all(agent.ready for agent in self._agents):
            self._started = True
            self._tell(frames.GO)

    def _hear(self, agent: _Agent, arrived: Iterator[frames.Frame]) -> Iterator[Output]:
        for frame in arrived:
            if frame.kind == frames.OUTPUT:
                yield Output(frame.rank, frame.number, frame.data)
            elif frame.kind == frames.STARTED:
                agent.ranks[frame.rank] = Outcome(frame.rank, frame.number, time.monotonic(), agent.host)
                self.outcomes.append(agent.ranks[frame.rank])
                self.outcomes.sort(key=lambda outcome: outcome.rank)
            elif frame.kind == frames.ENDED:
                agent.ranks[frame.rank].end(frame.number)
                agent.ranks[frame.rank].blames.update(map(int, frame.data.split()))
                self._ended.append(agent.ranks[frame.rank])

    def reap(self) -> tuple[list[Outcome], bool]:
        """The ranks that have ended since the last call, and whether all agents are gone."""
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + _BEAT
            self._tell(frames.BEAT)
        ending = self._give_up < float("inf")
        for agent in self._agents:
            if agent.gone(expected=ending):
                self._lose(agent)
        ended, self._ended = self._ended, []
        return ended, not any(agent.alive for agent in self._agents)

    def due(self) -> float:
        """When the agents need a sign of life."""
        return self._beat_at

    def _lose(self, agent: _Agent) -> None:
        for outcome in agent.ranks.values():
            if outcome.running:
                outcome.lost = f"lost with host {agent.host}, where {agent.fate}"
                outcome.end(1)
                self._ended.append(outcome)

    def drain(self) -> Iterator[Output]:
        """Nothing: an agent counts as gone when all that it said was heard."""
        return iter(())

    def pass_on(self, number: int) -> None:
        """To each rank's group; if there are none yet, there will be none."""
        if self._started:
            self._tell(frames.PASS, number)
        else:
            self.kill()

    def relay(self, number: int) -> None:
        """To each rank."""
        self._tell(frames.RELAY, number)

    def hold(self, stop: bool) -> None:
        """Stops the ranks, or lets them go on."""
        self._tell(frames.HOLD, int(stop))

    def ask(self) -> int:
        """SIGTERM for all processes of the job. How many there were, each agent says itself."""
        if self._started:
            self._tell(frames.ASK)
        else:
            self.kill()
        return 0

    def kill(self) -> None:
        """SIGKILL for all processes of the job, and later for the connections of agents that do not answer."""
        now = time.monotonic()
        if self._give_up == float("inf"):
            self._give_up = now + (_PATIENCE if self._started else 0.0)
            self._tell(frames.KILL)
        if now >= self._give_up:
            tree.signal_all(signal.SIGKILL)

    def _tell(self, kind: bytes, number: int = 0) -> None:
        for agent in self._agents:
            agent.send(frames.pack(kind, number=number))


class _Agent:
    """The launcher's end of one agent."""

    def __init__(self, host: str, job: Job, document: bytes, console: output.Console) -> None:
        self.host = host
        self.ready = False
        self.alive = True
        self.fate = ""
        self.ranks: dict[int, Outcome] = {}
        self._command = _command(host, job.rsh)
        self._frames = frames.Unpacker(after=frames.MAGIC)
        self._outbox = frames.pack(frames.JOB, data=document)
        self._console = console
        self._errors = output.Stream(2, f"[{host}] ".encode())
        self._process: subprocess.Popen[bytes] | None = None
        self._in = self._out = self._err = -1  # this side's ends of its stdin, stdout and stderr

    def start(self) -> None:
        """Starts the program that connects to the host."""
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=tree.die_with(os.getpid()),
            )
        except OSError as error:
            raise UsageError(f"--rsh: cannot start {self._command[0]}: {error.strerror}") from None
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._in, self._out, self._err = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)

    def send(self, frame: bytes) -> None:
        """Queues a message."""
        if self._in >= 0:
            self._outbox += frame

    def fds(self, *, reading: bool) -> dict[int, int]:
        """What to poll, and for what."""
        found = {fd: select.POLLIN for fd in (self._out, self._err) if fd >= 0 and reading}
        if self._in >= 0 and self._outbox:
            found[self._in] = select.POLLOUT
        return found

    def receive(self, ready: set[int]) -> Iterator[frames.Frame]:
        """Messages that came; sends those that wait."""
        if self._in in ready:
            self._flush()
        if self._err in ready:
            self._err = self._read_errors()
        if self._out in ready:
            yield from self._read_frames()

    def _flush(self) -> None:
        try:
            self._outbox = self._outbox[os.write(self._in, self._outbox) :]
        except BlockingIOError:
            pass
        except OSError:  # it is gone, as will be seen
            self._in, self._outbox = -1, b""

    def _read_errors(self) -> int:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._err, _READ)
            self._errors.feed(data, self._console)
            return self._err if data else -1
        return self._err

    def _read_frames(self) -> Iterator[frames.Frame]:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._out, _READ)
            if not data:
                self._out = -1
            for frame in self._frames.feed(data):
                if frame.kind == frames.REFUSED:
                    raise UsageError(f"host {self.host}: {frame.data.decode(errors='replace')}")
                self.ready = self.ready or frame.kind == frames.READY
                yield frame

    def gone(self, *, expected: bool) -> bool:
        """Whether the program that connects has ended, just now or before, and all that it brought was heard."""
        process = self._process
        if not self.alive or process is None or process.poll() is None or self._out >= 0:
            return not self.alive
        if self._err >= 0:
            self._read_errors()
        self._errors.feed(b"", self._console)
        code = process.returncode
        self.fate = f"{self._command[0]} " + (
            f"ended with exit code {code}" if code >= 0 else f"died of signal {-code}"
        )
        self.alive = False
        self._in = self._err = -1
        if not self.ready and not expected:
            raise UsageError(self._unreachable())
        return True

    def _unreachable(self) -> str:
        said = (self._errors.tail or self._frames.before).decode(errors="replace").strip().splitlines()
        lines = [
            f"host {self.host}: no agent started there, {self.fate}: {shlex.join(self._command)}",
            *(f"  | {line}" for line in said[-5:]),
        ]
        return "\n".join(lines)


def _command(host: str, rsh: str) -> list[str]:
    """What starts the agent of a host: the program that connects, the host, and one line for a shell there."""
    agent = [sys.executable, "-P", "-m", "arx.launch.agent"]
    if near.is_here(host):
        return agent
    path = os.environ.get("PYTHONPATH")
    if path:  # arx itself may be found by it
        entries = [os.path.abspath(entry) for entry in path.split(os.pathsep) if entry]
        agent = ["env", f"PYTHONPATH={os.pathsep.join(entries)}", *agent]
    try:
        connect = shlex.split(rsh)
    except ValueError as error:
        raise UsageError(f"--rsh {rsh!r}: {error}") from None
    if not connect:
        raise UsageError("--rsh names no program")
    return [*connect, host, f"exec {shlex.join(agent)}"]


_CARRIED = ("ARX_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_")
_CARRIED_PATHS = ("PATH", "LD_LIBRARY_PATH")


def _document(job: Job, env: Mapping[str, str], identity: Identity, share: Share) -> bytes:
    """All that an agent needs to know, as JSON."""
    carried = {name: value for name, value in env.items() if name.startswith(_CARRIED) or name in job.env}
    return json.dumps(
        {
            "folder": os.getcwd(),
            "env": carried | identity.environment(),
            "paths": {name: env[name] for name in _CARRIED_PATHS if name in env and name not in job.env},
            "share": asdict(share),
            "script": job.script,
            "args": list(job.args),
            "module": job.module,
            "bind": job.bind,
            "silence": _SILENCE,
        }
    ).encode()
