"""How the ranks of each library are started, as its users start them, and how one launch is seen to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peers
from workloads.method import Plan

RANK = Path(__file__).resolve().parent / "rank.py"
_GRACE = 10.0  # seconds that a launcher gets to end its ranks


class Failed(Exception):
    """A launch that gave no result; the message says why."""


@dataclass(frozen=True)
class Library:
    name: str  # on command lines
    title: str  # in tables
    backend: str  # workloads/with_<backend>.py
    launcher: Sequence[str]  # the command that starts ranks, up to their number
    python: Sequence[str]  # what it starts
    versions: str
    env: Mapping[str, str] = field(default_factory=dict)


def arx(label: str = "arx", transport: str = "auto", **env: str) -> Library:
    """The arx of this interpreter, with these variables."""
    from arx import __version__, build_info

    versions = f"arx {__version__} ({build_info()['simd']}), numpy {version('numpy')}"
    launcher = [sys.executable, "-m", "arx", "run", "--prefix", "none", "-n"]
    if transport != "auto":
        env["ARX_TRANSPORT"] = transport
    return Library("arx", label, "arx", launcher, [], versions, env)


def peer(name: str, transport: str = "auto") -> Library:
    """Another library, built if need be; raises `peers.PeerMissing`."""
    title, venv_name, backend, options, env = _PEERS[name]
    if transport == "tcp":
        more, variables = _OVER_TCP[name]
        options, env = [*more, *options], env | variables
    venv = peers.peer_venv(venv_name, build=True)
    launcher = [str(venv / "bin" / peers.PEERS[venv_name].launcher), *options]
    # torchrun starts its own interpreter.
    python = [] if backend == "torch" else [str(venv / "bin" / "python")]
    return Library(
        name, title, backend, launcher, python, ", ".join(map(" ".join, peers.peer_versions(venv_name).items())), env
    )


# name: title, environment (peers.py), backend, options of the launcher that end with the number of ranks, variables
_PEERS: dict[str, tuple[str, str, str, list[str], dict[str, str]]] = {
    "ompi": (
        "Open MPI",
        "ompi",
        "mpi",
        ["--oversubscribe", "-n"],
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
    "mpich": ("MPICH", "mpich", "mpi", ["-n"], {}),
    "impi": ("Intel MPI", "impi", "mpi", ["-n"], {}),
    "gloo": ("gloo", "torch", "torch", ["--standalone", "--nproc-per-node"], {}),
}
PEER_NAMES = tuple(_PEERS)
# What makes a library use TCP on one host: options of the launcher, variables. Not all obey at every size, which
# is why segments are counted (workloads/method.py).
_OVER_TCP: dict[str, tuple[list[str], dict[str, str]]] = {
    "ompi": (["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"], {}),
    "mpich": ([], {"UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"}),
    "impi": ([], {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp"}),
    "gloo": ([], {}),
}


def run(library: Library, ranks: int, plan: Plan) -> list[dict[str, Any]]:
    """Measures a plan in `ranks` new processes; returns what `workloads.method.measure` returned on rank 0."""
    with tempfile.TemporaryDirectory(prefix="arx-bench-") as folder:
        output = Path(folder) / "samples"
        arguments = [str(RANK), library.backend, json.dumps(asdict(plan)), str(output)]
        command = [*library.launcher, str(ranks), *library.python, *arguments]
        _see_to_its_end(command, _environment(library), plan.timeout)
        return [json.loads(line) for line in output.read_text().splitlines()]


def _environment(library: Library) -> dict[str, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **library.env}
    if library.backend != "arx":
        env.pop("PYTHONPATH", None)  # meant for this interpreter, not for the peer's
    return env


def _see_to_its_end(command: Sequence[str], env: Mapping[str, str], timeout: float) -> None:
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        ) as launcher,
    ):
        try:
            launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done in {timeout:g} s") from None
        finally:
            _end(launcher)
        if launcher.returncode:
            said.seek(0)
            raise Failed(_reason(said.read().decode(errors="replace"), launcher.returncode))


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Ends a launcher that still runs, and what is left of its session."""
    if launcher.poll() is None:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)


def _reason(said: str, code: int) -> str:
    """The line that tells most: the last one that names an exception, else the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line or "error: " in line]
    return (telling or lines or ["no word"])[-1][:300] + f" (exit code {code})"
