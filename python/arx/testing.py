"""Run a function on n real ranks, for tests.

Each rank is a fresh process (never a fork), placed by ``ARX_RANK`` and its companions as a launcher would place it.
A rank that raises, dies or hangs ends the run with an exception that shows where every rank stood, and no process
outlives the run. Save this as ``test_sum.py`` and run it with pytest, or as a script:

    import numpy as np

    import arx
    from arx.testing import run_ranks


    def total():
        with arx.init() as world:
            x = np.full(3, world.rank + 1.0)
            arx.all_reduce(x)
            return x.tolist()


    def test_sum():
        assert run_ranks(total, 4) == [[10.0, 10.0, 10.0]] * 4


    if __name__ == "__main__":
        test_sum()

Starting the processes takes most of the time of a small test; ``Ranks`` keeps them for many calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from arx import _testing_rank

__all__ = ["RankFailed", "Ranks", "RanksHung", "run_ranks"]

# Once a rank has failed its peers fail too, by themselves; one that has not after this many seconds is stuck.
_GRACE = 10.0
# Seconds that a rank gets to write its stacks before it is killed.
_DUMP = 0.5
# Bytes of a rank's output that a failure shows: the end of it.
_SHOWN = 16 * 1024
_BOOT = """
import sys, json
sys.path[:] = json.loads(sys.argv[1])
from arx._testing_rank import serve
serve(*map(int, sys.argv[2:]))
"""


class RankFailed(RuntimeError):
    """At least one rank raised, or ended otherwise than expected.

    The message shows them all; ``failures`` maps each of them to its traceback, or to how it ended.
    """

    def __init__(self, message: str, failures: Mapping[int, str]) -> None:
        """Keep ``failures`` beside the message."""
        super().__init__(message)
        self.failures = dict(failures)


class RanksHung(RuntimeError):
    """The ranks were not done in the time given; the message shows where each of them stood."""


def run_ranks(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
    expect: Mapping[int, int | None] | None = None,
) -> list[Any]:
    """Run ``fn(*args)`` in ``n`` fresh processes and return its results by rank.

    ``fn`` is a function at the top level of a file; it calls ``arx.init()`` itself. Arguments and results travel as
    pickles. ``env`` sets variables of the ranks, and removes those given as None. ``expect`` names ranks that are to
    die: ``{2: -9}`` says that rank 2 ends by signal 9 (``{2: 3}``: with exit status 3), ``{2: None}`` that its end does
    not matter, and that it is killed when the others are done. The result of a rank that died is None.

    Raises ``RankFailed`` when a rank raises or ends otherwise, ``RanksHung`` when ``timeout`` seconds were not enough.

    >>> import os
    >>> from arx.testing import run_ranks
    >>> run_ranks(os.getenv, 3, "ARX_RANK")
    ['0', '1', '2']
    """
    message = _pack(fn, args, last=True)
    with _Party(n, env) as party:
        return party.run(message, _name(fn), timeout, dict(expect or {}), until_ended=True)


class Ranks:
    """``n`` processes that have called ``arx.init()`` and then run one function after another.

    A thousand small cases start processes only once. After a failure the ranks are gone (``broken``): start new ones.

    >>> import arx
    >>> from arx.testing import Ranks
    >>> with Ranks(2) as ranks:
    ...     ranks.run(arx.size), ranks.run(arx.rank)
    ([2, 2], [0, 1])
    """

    def __init__(self, n: int, *, timeout: float = 60, env: Mapping[str, str | None] | None = None) -> None:
        """Start ``n`` ranks with the variables ``env``; ``timeout`` holds for each ``run`` that has none of its own."""
        self.size = n
        self.timeout = timeout
        self.broken = False
        self._party = _Party(n, env)
        self.run(_testing_rank.join)

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Run ``fn(*args)`` on every rank and return the results by rank; errors are those of ``run_ranks``."""
        message = _pack(fn, args, last=False)
        with self._in_doubt():
            return self._party.run(message, _name(fn), timeout or self.timeout, {}, until_ended=False)

    def close(self) -> None:
        """Let the ranks call ``arx.shutdown()`` and leave; raises ``RankFailed`` where that goes wrong."""
        if not self.broken:
            with self._in_doubt():
                message = _pack(_testing_rank.leave, (), last=True)
                self._party.run(message, "arx.shutdown", self.timeout, {}, until_ended=True)
            self.kill()

    def kill(self) -> None:
        """End the processes as they are."""
        self.broken = True
        self._party.end()

    @contextlib.contextmanager
    def _in_doubt(self) -> Iterator[None]:
        if self.broken:
            raise RuntimeError("these ranks are gone, closed or after a failure: start new ones")
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        """Return the ranks themselves."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close; after an exception kill, since then the ranks may not be able to leave in step."""
        if kind is None:
            self.close()
        else:
            self.kill()


# The side of the runner.


def _name(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


def _pack(fn: Callable[..., Any], args: tuple[Any, ...], *, last: bool) -> bytes:
    """A call as bytes. The function goes by name, so that test files need not be importable packages."""
    module = sys.modules.get(fn.__module__)
    path = getattr(module, "__file__", None)
    with contextlib.suppress(AttributeError):
        if _testing_rank.member(module, fn.__qualname__) is fn and not (path is None and fn.__module__ == "__main__"):
            return pickle.dumps((fn.__module__, path, fn.__qualname__, pickle.dumps(args), last))
    raise TypeError(f"{_name(fn)} is not at the top level of a file: another process cannot find it by name")


def _environment(rank: int, n: int, job: str, extra: Mapping[str, str | None]) -> dict[str, str]:
    place: dict[str, Any] = {"ARX_RANK": rank, "ARX_WORLD_SIZE": n, "ARX_LOCAL_RANK": rank, "ARX_LOCAL_SIZE": n}
    place |= {"ARX_NODE_RANK": 0, "ARX_NNODES": 1, "ARX_JOB_ID": job}
    # Of a job that the runner itself may belong to.
    outer: dict[str, Any] = {"ARX_MASTER": None, "ARX_SECRET": None, "ARX_TAKEN": None}
    return {key: str(value) for key, value in (os.environ | outer | place | dict(extra)).items() if value is not None}


class _Party:
    """The processes of one job."""

    def __init__(self, n: int, env: Mapping[str, str | None] | None) -> None:
        job = secrets.token_hex(8)
        self.ranks: list[_Rank] = []
        try:
            for number in range(n):
                self.ranks.append(_Rank(number, _environment(number, n, job, env or {})))
        except BaseException:
            self.end()
            raise

    def run(
        self, message: bytes, name: str, timeout: float, expect: dict[int, int | None], *, until_ended: bool
    ) -> list[Any]:
        """Send a call to every rank, and wait until each has answered, or until each has ended."""
        for rank in self.ranks:
            rank.send(message)
        stuck = self._wait(timeout, expect, until_ended=until_ended)
        reports = {rank: rank.standing() for rank in stuck}
        faults = {rank: text for rank in self.ranks if (text := rank.fault(expect))}
        if faults:
            reports = faults | {rank: f"{text}, long after the failure" for rank, text in reports.items()}
            headline = f"{len(faults)} of {len(self.ranks)} ranks failed in {name}"
            raise RankFailed(_report(headline, reports), {rank.number: text for rank, text in faults.items()})
        if stuck:
            headline = f"{len(stuck)} of {len(self.ranks)} ranks hung in {name} for {timeout:g} s"
            raise RanksHung(_report(headline, reports))
        return [rank.result for rank in self.ranks]

    def _wait(self, timeout: float, expect: dict[int, int | None], *, until_ended: bool) -> list[_Rank]:
        """Returns the ranks that are not done in time."""
        deadline = time.monotonic() + timeout
        failed = False
        while busy := [rank for rank in self.ranks if not (rank.ended or (rank.answered and not until_ended))]:
            if all(expect.get(rank.number, 0) is None for rank in busy):
                return []
            left = deadline - time.monotonic()
            if left <= 0:
                return busy
            connection.wait([source for rank in busy for source in rank.sources()], left)
            for rank in busy:
                rank.look()
            if not failed and any(rank.fault(expect) for rank in busy):
                failed, deadline = True, min(deadline, time.monotonic() + _GRACE)
        return []

    def end(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.ranks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class _Rank:
    """One process, as its runner sees it."""

    def __init__(self, number: int, env: dict[str, str]) -> None:
        self.number = number
        self.result: Any = None
        self.error: str | None = None
        self.answered = False
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rank; without a name, so nothing stays behind
        self.link, theirs = connection.Pipe()
        # Nothing is ever written to it: when the runner is gone, however it went, the kernel tells the rank.
        life, self.life = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno()), str(life)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), life),
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(life)
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    def send(self, message: bytes) -> None:
        self.result, self.error, self.answered = None, None, False
        # One that has died meanwhile is reported by how it ended.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.send_bytes(message)

    def sources(self) -> list[Any]:
        """What to wait on for news."""
        return [self.pidfd] if self.answered or self.link.closed else [self.pidfd, self.link]

    def look(self) -> None:
        """Take the news in: an answer, the end of the process, or both."""
        over = bool(connection.wait([self.pidfd], 0))
        try:
            if not self.answered and not self.link.closed and self.link.poll():
                self.result, self.error = pickle.loads(self.link.recv_bytes())
                self.answered = True
        except (EOFError, ConnectionResetError):
            self.link.close()
        if over:
            self._reap()

    def fault(self, expect: Mapping[int, int | None]) -> str | None:
        """What is wrong with this rank, if anything is."""
        wanted = expect.get(self.number, 0)
        code = self.process.returncode
        if wanted is None or (self.error is None and code is None):
            return None
        if self.error is not None:
            return self.error
        if code != wanted:
            after = f", not {_ending(wanted)}" if wanted else " after it had returned" if self.answered else ""
            return f"{_ending(code)}{after}"
        return None if self.answered or self.number in expect else "ended without returning"

    def standing(self) -> str:
        """Where a rank that does not get on stands; it is asked to write its stacks into its output."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            place = Path(f"/proc/{self.process.pid}/wchan").read_text()
        except OSError:
            state, place = "?", ""
        os.kill(self.process.pid, signal.SIGUSR1)
        connection.wait([self.pidfd], _DUMP)
        doing = {"R": "running", "T": "stopped by a signal"}.get(state, f"waiting ({place or state})")
        return f"{doing}{', after it had returned' if self.answered else ''}"

    def text(self) -> str:
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _SHOWN))
        return self.output.read().decode(errors="replace")

    def close(self) -> None:
        if not self.ended:
            self._reap()
        self.link.close()
        self.output.close()
        os.close(self.life)
        os.close(self.pidfd)

    def _reap(self) -> None:
        # The group before its leader: until that is waited for, the number cannot belong to anybody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with status {code}"


def _report(headline: str, texts: Mapping[_Rank, str]) -> str:
    """The headline, each different text once, then what the ranks have printed."""
    groups: dict[str, list[str]] = {}
    for rank, text in texts.items():
        groups.setdefault(text.strip(), []).append(str(rank.number))
    parts = [headline, *(f"rank {', '.join(numbers)}: {text}" for text, numbers in groups.items())]
    parts += [f"output of rank {rank.number}:\n{text}" for rank in texts if (text := rank.text().strip())]
    return "\n\n".join(parts)
