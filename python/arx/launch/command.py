"""What each rank executes: a Python script, a Python module (`-m`), or any program.

Mistakes that would fail alike in every rank (no such script, no such module) are found here, before any is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SSH = "ssh -T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
"""Nobody is asked for a password, since there is no terminal for it; a host that vanishes is missed after 15 s."""


@dataclass(frozen=True)
class Job:
    """What the user asked `arx run` for."""

    script: str
    args: Sequence[str] = ()
    n: int = 1
    module: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    log_dir: str | None = None
    prefix: str = "auto"
    bind: str = "none"
    timeout: float | None = None
    nodes: int = 1  # launchers like this one, each started on its host by somebody else
    node_rank: int = 0
    master: str | None = None
    hosts: Sequence[tuple[str, int]] = ()  # or else hosts and their ranks, which this launcher starts
    rsh: str = SSH


class UsageError(Exception):
    """The user's mistake, told in one line; the exit code is 2."""


def command(job: Job, env: Mapping[str, str]) -> list[str]:
    """The argument list of every rank."""
    script, args = job.script, job.args
    python = [sys.executable, "-u"]
    if job.module:
        _check_module(script, env)
        return [*python, "-m", script, *args]
    if os.path.isfile(script):
        runs_itself = not script.endswith(".py") and os.access(script, os.X_OK)
        return [os.path.abspath(script), *args] if runs_itself else [*python, script, *args]
    if os.path.isfile(os.path.join(script, "__main__.py")):  # a folder that Python can run
        return [*python, script, *args]
    program = None if os.sep in script or script.endswith(".py") else _on_path(script, env)
    if program is None:
        if os.path.isdir(script):
            raise UsageError(f"{script}: a folder without a __main__.py")
        raise UsageError(f"{script}: no such script or program{_meant(script)}")
    return [program, *args]


def _on_path(name: str, env: Mapping[str, str]) -> str | None:
    import shutil  # slow to import, for the sake of archives

    return shutil.which(name, path=env.get("PATH"))


def _meant(script: str) -> str:
    import difflib

    folder, name = os.path.split(script)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return f" (there is no folder {folder})"
    close = difflib.get_close_matches(name, there, n=1)
    return f"; did you mean {os.path.join(folder, close[0])}?" if close else ""


def _check_module(name: str, env: Mapping[str, str]) -> None:
    """Looks for a module as `python -m` will, but without importing its parents, which may be slow or print."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, *rest = name.split(".")
    extra = [os.getcwd(), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    spec = PathFinder.find_spec(top, extra) or (find_spec(top) if top else None)
    full = top
    for part in [*rest, "__main__"]:
        if spec is None:
            break
        if spec.submodule_search_locations is None:
            if part == "__main__":  # a plain module
                return
            raise UsageError(f"-m {name}: {full} is a module, not a package")
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    if spec is None:
        package = full == f"{name}.__main__"
        raise UsageError(f"-m {name}: " + (f"a package without {full}" if package else f"no module named {full}"))
