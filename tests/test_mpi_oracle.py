"""MPI as an oracle: under a real `mpiexec` every rank calls arx and MPI with the same inputs (`mpicases`)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from test_launch_peers import Job, command, programs

# All three are asked the same, MPICH longest: the others spin while they wait, and where ranks outnumber cores each of
# their calls takes a turn of the scheduler.
ROUNDS = {"ompi": 3, "mpich": 8, "impi": 3}
PROGRAM = Path(__file__).parent / "mpicases.py"
CASES = {
    *("all_reduce", "average", "reduce", "broadcast", "gather", "scatter", "scan", "exscan"),
    *("all_gather", "all_gather_uneven", "all_gather_along_another_axis", "reduce_scatter", "reduce_scatter_by_counts"),
    *("all_to_all", "all_to_all_by_counts", "sendrecv", "mail_by_address", "mail_by_any"),
}

# The AVX kernels of Open MPI 5.0 saturate sums of 8 and 16 bits where MPI, like arx, has them wrap.
SETTINGS = {"ompi": {"OMPI_MCA_op": "^avx"}, "mpich": {}, "impi": {}}


def compared(name: str, n: int, seed: int, **env: str) -> dict[str, int]:
    """How often each case was compared, over all ranks and groups."""
    argv = [*command(name, n), f"{programs(name)}/python", str(PROGRAM), str(seed), str(ROUNDS[name])]
    with Job(argv, {"PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), *sys.path])} | SETTINGS[name] | env) as job:
        output = job.succeed()
    tally: dict[str, int] = json.loads(output.splitlines()[-1])
    return tally


def check(name: str, n: int, seed: int, **env: str) -> None:
    tally = compared(name, n, seed, **env)
    groups = {key: tally.pop(key) for key in list(tally) if key.startswith("groups of ")}
    assert tally == dict.fromkeys(CASES, ROUNDS[name] * sum(groups.values()))
    assert groups[f"groups of {n}"] >= n, "the world"
    assert len(groups) > 1, "no group was smaller"


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("name", ["ompi", "mpich", "impi"])
def test_the_same_bits_as_mpi(name: str, n: int) -> None:
    for seed in range(n, n + 3):
        check(name, n, seed)


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_bits_as_mpi_by_messages(n: int) -> None:
    check("mpich", n, 10 + n, ARX_TRANSPORT="tcp")
