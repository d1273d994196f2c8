"""A launcher is two processes, because each can clean up after the other.

outer    what the user started: has the terminal, hears its signals, passes them on; does nothing else, so it can
 │       only die by SIGKILL, which the inner sees (the lifeline pipe closes) and answers by killing the job
 └─ inner    does the work; should it die, its ranks get SIGKILL from the kernel (parent-death signal), and their
      │      own children, which become the outer's because it adopts orphans, get it from the outer
      ├─ rank 0
      └─ rank 1 …
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from arx.launch import signals, tree
from arx.launch.command import UsageError

Work = Callable[[int], Callable[[], int]]
"""Given the lifeline, prepares (signals are held back meanwhile) and returns what then runs to the exit code."""


def guarded(work: Work, name: str) -> int:
    """Does `work` in a child process that cannot leave anything behind; returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some parents leave it, it would hide how children end
    tree.adopt_orphans()
    strangers = set(tree.descendants(os.getpid()))  # of a shell that became this process by `exec`
    lifeline, held = os.pipe()
    heard = {signal.SIGCHLD, *signals.handled()}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # none is lost between fork and the loop below
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()  # else the child would write it a second time
    child = os.fork()
    if child == 0:
        os.close(held)
        _work(work, name, lifeline, before)
    os.close(lifeline)
    code = _relay(child, heard)
    tree.kill_all(without=strangers)
    if code < 0:
        print(f"{name}: its keeper (pid {child}) died of signal {-code}, so all ranks were killed", file=sys.stderr)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(held)
    return code if code >= 0 else 128 - code


def _work(work: Work, name: str, lifeline: int, mask: set[int | signal.Signals]) -> None:
    """The inner process's whole life; never returns."""
    code = 1
    try:
        os.setsid()  # so that the terminal's signals come once, by way of the outer one
        tree.adopt_orphans()
        run = work(lifeline)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = run()
    except UsageError as error:
        os.write(2, f"{name}: error: {error}\n".encode())
        code = 2
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _relay(child: int, heard: set[signal.Signals]) -> int:
    """Passes every signal on to the child until it ends; returns its exit code, negative for a signal."""
    while True:
        number = signal.sigwait(heard)
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
        else:
            os.kill(child, number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
