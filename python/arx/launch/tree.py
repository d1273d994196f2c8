"""Every descendant of a process, and how to end them all.

A signal to a rank alone would miss what the rank started (a shell wrapper's program, a pool's workers), and a process
group misses what left the group. So the launcher's processes are *child subreapers*: a descendant whose parent dies
becomes their child instead of leaving the tree, the tree can be walked through /proc, and "no children left" means that
nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

_LAST_RESORT = 5.0  # seconds until a process that SIGKILL cannot end (stuck in the kernel) is given up


def adopt_orphans() -> None:
    """Makes the calling process the parent of its descendants' orphans."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with(parent: int) -> Callable[[], None]:
    """A function for a new child to call: it gets SIGKILL when `parent` dies, and dies now if that already happened."""

    def bind() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above could be heard
            os._exit(1)

    return bind


def descendants(of: int, without: Collection[int] = ()) -> Iterator[int]:
    """Parents before children; `without` names children whose branches are left out."""
    children = defaultdict(list)
    for pid, parent in _parents():
        children[parent].append(pid)
    branch = [of]
    while branch:
        for pid in children[branch.pop()]:
            if pid not in without:
                branch.append(pid)
                yield pid


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # Gone between the listing and the look, or hidden because it is another user's.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # "4711 (any name, even with a parenthesis) S 4710 …"
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def signal_all(number: int, without: Collection[int] = ()) -> int:
    """Sends a signal to every descendant of the calling process, once; returns how many there were."""
    sent = 0
    for pid in list(descendants(os.getpid(), without)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            sent += 1
    return sent


def kill_all(without: Collection[int] = ()) -> None:
    """Ends every descendant of the calling process by SIGKILL and reaps them, also those that fork meanwhile."""
    give_up = time.monotonic() + _LAST_RESORT
    while signal_all(signal.SIGKILL, without) and time.monotonic() < give_up:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)
