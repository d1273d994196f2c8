"""Ranks that a test kills, stops and interrupts, and what each of them makes of it.

A *scene* is a function that a test runs by ``stage``, in a fresh process that has arx loaded but is no rank. It forks
its ranks, which takes milliseconds, so that a scene can afford a hundred jobs; a watchdog ends it with all its ranks.

    def scene():
        with Job(3, loop_of_barriers) as job:
            job.hear("ready")
            job.signal(2, signal.SIGKILL)
            return job.ends()

Times are of the machine's monotonic clock, comparable between processes.
"""

import atexit
import contextlib
import os
import secrets
import signal
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from arx.testing import run_ranks

# Seconds; ends what hangs, never a measure of speed.
WATCHDOG = 60

_NO_PLACE = {
    f"ARX_{name}": None for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NNODES", "JOB_ID")
}


class Fault(NamedTuple):
    """An exception as the rank saw it."""

    kind: str
    text: str
    ranks: tuple[int, ...]
    """Those that it blames: ``.ranks`` or ``.missing``."""
    at: float

    @classmethod
    def of(cls, error):
        blamed = getattr(error, "ranks", getattr(error, "missing", ()))
        return cls(type(error).__name__, str(error), blamed, time.monotonic())


class End(NamedTuple):
    """How a rank ended: its result or ``Fault``, and the exit status as ``subprocess`` counts it."""

    result: Any
    code: int


def fault(call, *args, **options):
    """The value of a call, or its ``Fault``."""
    try:
        return call(*args, **options)
    except (Exception, KeyboardInterrupt) as error:
        return Fault.of(error)


def stage(scene, *args, timeout=WATCHDOG, env=None):
    """Run ``scene(*args)`` in a fresh process and return what it returns."""
    return run_ranks(scene, 1, *args, timeout=timeout, env=_NO_PLACE | {"OPENBLAS_NUM_THREADS": "1"} | (env or {}))[0]


def state(pid):
    """The letter that `ps` shows."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ticks(pid):
    """Processor time that a process, or one thread of it, has used, in the hundredths of a second of Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Rank:
    """One forked process, and the end of the pipe on which it speaks."""

    def __init__(self, place, fn, args, others):
        self.said = []
        self.end = None
        self.link, theirs = connection.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.link.close()
            for other in others:
                other.link.close()
                os.close(other.pidfd)
            _live(place, fn, args, theirs)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def look(self):
        """Take in all that it has said; reap it if it has ended."""
        over = bool(connection.wait([self.pidfd], 0))
        # A rank that was killed in the middle of a word has said nothing.
        with contextlib.suppress(EOFError, ConnectionResetError):
            while self.link.poll():
                self.said.append(self.link.recv())
        if over and self.end is None:
            result = self.said.pop() if self.said and isinstance(self.said[-1], _Result) else _Result(None)
            self.end = End(result.value, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))


class _Result(NamedTuple):
    value: Any


class Job:
    """``n`` ranks that run ``fn(say, *args)``; what they ``say`` is heard here. Places are those of ``arx run``."""

    def __init__(self, n, fn, *args, job_id=None, places=None, env=None):
        self.id = job_id or secrets.token_hex(8)
        self.ranks = []
        for number in range(n) if places is None else places:
            place = {"ARX_RANK": str(number), "ARX_WORLD_SIZE": str(n), "ARX_JOB_ID": self.id} | (env or {})
            self.ranks.append(Rank(place, fn, args, self.ranks))

    def signal(self, rank, number):
        """Send a signal to one rank; the time just before."""
        at = time.monotonic()
        os.kill(self.ranks[rank].pid, number)
        return at

    def hear(self, word, ranks=None, wait=WATCHDOG):
        """Return once all ``ranks`` have said ``word``."""
        self._until(lambda: all(word in self.ranks[r].said for r in self._chosen(ranks)), ranks, f"say {word!r}", wait)

    def stopped(self, rank):
        """Return once a rank that was sent SIGSTOP has stopped, every thread of it."""
        tasks = Path(f"/proc/{self.ranks[rank].pid}/task")
        while any(state(f"{self.ranks[rank].pid}/task/{task.name}") != "T" for task in tasks.iterdir()):
            assert state(self.ranks[rank].pid) != "Z", f"rank {rank} ended before it could be stopped"
            time.sleep(0.001)

    def asleep(self, ranks):
        """Return once the main threads of all ``ranks`` sleep, and not just for a moment: they wait in a call."""
        seen = 0
        while seen < 5:
            states = [state(self.ranks[rank].pid) for rank in ranks]
            assert "Z" not in states, f"not all of ranks {ranks} live: {states}"
            seen = seen + 1 if set(states) == {"S"} else 0
            time.sleep(0.01)

    def ends(self, ranks=None, wait=WATCHDOG):
        """How the ranks ended; returns once they have."""
        self._until(lambda: all(self.ranks[r].end for r in self._chosen(ranks)), ranks, "end", wait)
        return [self.ranks[r].end for r in self._chosen(ranks)]

    def _chosen(self, ranks):
        return range(len(self.ranks)) if ranks is None else ranks

    def _until(self, true, ranks, what, wait):
        deadline = time.monotonic() + wait
        while True:
            busy = [self.ranks[r] for r in self._chosen(ranks) if not self.ranks[r].end]
            for rank in busy:
                rank.look()
            if true():
                return
            if all(rank.end for rank in busy) or time.monotonic() > deadline:
                self._show(busy)
                stands = {r: (self.ranks[r].end, self.ranks[r].said) for r in self._chosen(ranks)}
                raise AssertionError(f"not all ranks did {what}: {stands}")
            connection.wait([source for rank in busy for source in (rank.pidfd, rank.link)], 0.2)

    def _show(self, busy):
        """Let those that hang write their stacks into the output of the scene; they end with that."""
        for rank in busy:
            if rank.end is None:
                os.kill(rank.pid, signal.SIGABRT)
                os.kill(rank.pid, signal.SIGCONT)
                connection.wait([rank.pidfd], 2)

    def close(self):
        """Kill those that are left."""
        for rank in self.ranks:
            if rank.end is None:
                os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, 0)
            os.close(rank.pidfd)
            rank.link.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _live(place, fn, args, link):
    """The life of a forked rank, which ends as a program does: with its exit functions."""
    code = 1
    try:
        os.environ.update(place)
        link.send(_Result(fn(link.send, *args)))
        code = 0
    except SystemExit as exit:
        code = exit.code
    except BaseException as error:
        link.send(_Result(Fault.of(error)))
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)
