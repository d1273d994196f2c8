"""What the tests of the launcher share: programs for ranks, launchers to start, patience, and a look at processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WATCHDOG = 60.0  # seconds; ends a test that hangs, never a measure of speed
ARX = (sys.executable, "-m", "arx")

_HEAD = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["ARX_RANK"])
marks = {marks!r}
def mark(name, text=""):
    part = f"{{marks}}/{{name}}.{{os.getpid()}}.part"  # its own, for ranks may leave the same mark
    open(part, "w").write(str(text))
    os.rename(part, f"{{marks}}/{{name}}")
"""


def write_script(folder: Path, body: str, name: str = "job.py") -> str:
    """Writes the ranks' program; it finds its rank in `rank`, and `mark(name, text)` leaves a file in `folder`."""
    (folder / name).write_text(_HEAD.format(marks=str(folder)) + textwrap.dedent(body))
    return str(folder / name)


def run_arx(folder: Path, *args: object, env: dict[str, str] | None = None, **settings: Any) -> Any:
    """Runs `arx run …` to its end."""
    settings = {"capture_output": True, "text": True, "timeout": WATCHDOG, "cwd": folder, "check": False} | settings
    return subprocess.run([*ARX, "run", *map(str, args)], env=os.environ | (env or {}), **settings)


@contextlib.contextmanager
def launched(*args: object, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts `arx run …`; on the way out it is certainly gone."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL} | settings
    with subprocess.Popen([*ARX, "run", *map(str, args)], **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def until(true: Callable[[], object], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + WATCHDOG
    while not true():
        assert time.monotonic() < deadline, f"waited {WATCHDOG} s for: {what}"
        time.sleep(0.01)


def state(pid: int) -> str:
    """The letter that `ps` shows, X for a process that is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return state(pid) not in "ZX"


def numbers(folder: Path, names: list[str]) -> list[int]:
    """What the ranks marked, once all have."""
    until(lambda: all((folder / name).exists() for name in names), f"{names}, there is {os.listdir(folder)}")
    return [int((folder / name).read_text()) for name in names]


@contextlib.contextmanager
def watched(pids: list[int]) -> Iterator[None]:
    """What a test expects to be dead is dead after it, even if the test fails."""
    try:
        yield
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def keeper_of(launcher: int) -> int:
    """The launcher's second process."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    until(lambda: children.read_text().split(), "the keeper")
    return int(children.read_text().split()[0])
