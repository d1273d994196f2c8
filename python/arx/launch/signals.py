"""The signals that a launcher acts on, as bytes in a pipe that a loop can poll."""

from __future__ import annotations

import os
import signal

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the job; the exit code is 128 + number."""
RELAYED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to the ranks only."""
JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)


def handled() -> list[signal.Signals]:
    """The signals that the launcher acts on: those that whoever started it does not have it ignore."""
    numbers = (*PASSED_ON, *RELAYED, *JOB_CONTROL)
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def as_bytes() -> int:
    """A pipe that gets one byte, its number, for each signal that is not ignored (as SIGHUP is under nohup)."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in handled():
        signal.signal(number, lambda *_: None)
    return reading
