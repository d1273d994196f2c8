"""Ranks on several hosts under other launchers: real `mpiexec`, `mpirun`, `torchrun` and `srun` over namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hostjob
import pytest
from netlab import Lab
from slurmlab import cluster
from test_launch_peers import programs

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SECRET = {"ARX_SECRET": "c" * 64}
PMI, OPEN_MPI = "PMI's variables (MPICH, Intel MPI)", "Open MPI's variables"


def hydra(name: str, rsh: Path, hosts: str) -> list[str]:
    """`mpiexec` of MPICH or Intel MPI, with two ranks on each host."""
    n = 2 * (hosts.count(",") + 1)
    launcher = ["-launcher", "ssh", "-launcher-exec", str(rsh)]
    return [f"{programs(name)}/mpiexec", "-hosts", hosts, "-ppn", "2", "-n", str(n), *launcher]


def mpirun(rsh: Path, hosts: str) -> list[str]:
    """`mpirun` of Open MPI."""
    return [f"{programs('ompi')}/mpirun", "--host", hosts, "--prtemca", "plm_ssh_agent", str(rsh)]


@pytest.mark.parametrize("name", ["mpich", "impi"])
@pytest.mark.parametrize("hosts", ["h0,h1", "h2,h1,h0"])
def test_mpiexec_needs_nothing_more(lab: Lab, tmp_path: Path, name: str, hosts: str) -> None:
    hostjob.run([*lab.enter("h0"), *hydra(name, lab.rsh(tmp_path), hosts), *hostjob.program(tmp_path)])
    ranks = [host for host in hosts.split(",") for _ in range(2)]
    found = hostjob.check(tmp_path, ranks, PMI)
    assert found[0]["master"].rpartition(":")[0] == lab.address(ranks[0])


def test_two_mpiexec_at_once_are_two_jobs(lab: Lab, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with ExitStack() as stack:
        jobs = []
        for folder in folders:
            folder.mkdir()
            argv = [*lab.enter("h0"), *hydra("mpich", lab.rsh(folder), "h0,h1"), *hostjob.program(folder)]
            jobs.append(stack.enter_context(subprocess.Popen(argv, stdin=subprocess.DEVNULL)))
        assert [job.wait(hostjob.WATCHDOG) for job in jobs] == [0, 0]
    one, other = (hostjob.check(folder, ["h0", "h0", "h1", "h1"], PMI)[0] for folder in folders)
    assert one["job_id"] != other["job_id"]
    assert one["secret"] != other["secret"]


def test_mpirun_meets_on_its_own_host(lab: Lab, tmp_path: Path) -> None:
    options = [*mpirun(lab.rsh(tmp_path), "h0:2,h1:1"), "-n", "3", "-x", "ARX_SECRET"]
    hostjob.run([*lab.enter("h0"), *options, *hostjob.program(tmp_path)], AS_ROOT | SECRET)
    found = hostjob.check(tmp_path, ["h0", "h0", "h1"], OPEN_MPI)
    assert {part.split(":")[0] for part in found[0]["master"].split(",")} == {"h0"}


def test_mpirun_from_elsewhere_needs_to_be_told_where_rank_0_is(lab: Lab, tmp_path: Path) -> None:
    options = [*mpirun(lab.rsh(tmp_path), "h1:1,h2:1"), "-n", "2", "-x", "ARX_SECRET"]
    job = hostjob.program(tmp_path)
    untold = subprocess.run(
        [*lab.enter("h0"), *options, *job],
        env=os.environ | AS_ROOT | SECRET,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=hostjob.WATCHDOG,
        check=False,
    )
    assert untold.returncode != 0
    assert "nothing says on which host rank 0 is: start mpirun on the host of rank 0" in untold.stderr
    hostjob.run([*lab.enter("h0"), *options, "-x", "ARX_MASTER=h1:29511", *job], AS_ROOT | SECRET)
    assert hostjob.check(tmp_path, ["h1", "h2"], OPEN_MPI)[0]["master"] == "h1:29511"


@pytest.mark.parametrize("name", ["mpich", "impi", "ompi"])
def test_by_way_of_mpi4py_nothing_more_is_needed_either(lab: Lab, tmp_path: Path, name: str) -> None:
    _, path, folder = hostjob.program(tmp_path)
    Path(path).write_text("from mpi4py import MPI\n" + Path(path).read_text())
    rsh, python = lab.rsh(tmp_path), f"{programs(name)}/python"
    if name == "ompi":
        argv = [*mpirun(rsh, "h1:2,h2:2"), "-n", "4", "-x", "PYTHONPATH", python, path, folder]
    else:
        argv = [*hydra(name, rsh, "h1,h2"), python, path, folder]
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    hostjob.run([*lab.enter("h0"), *argv], env | (AS_ROOT if name == "ompi" else {}))
    hostjob.check(tmp_path, ["h1", "h1", "h2", "h2"], OPEN_MPI if name == "ompi" else PMI)


def test_torchrun(lab: Lab, tmp_path: Path) -> None:
    torchrun, job = f"{programs('torch')}/torchrun", hostjob.program(tmp_path)
    options = ["--nnodes=3", "--master-addr=h0", "--master-port=29400", "--nproc-per-node=2", "--no-python"]
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                subprocess.Popen(
                    [*lab.enter(host), torchrun, f"--node-rank={node}", *options, *job],
                    env=os.environ | SECRET,
                    stdin=subprocess.DEVNULL,
                )
            )
            for node, host in enumerate(lab.hosts)
        ]
        assert [job.wait(hostjob.WATCHDOG) for job in jobs] == [0, 0, 0]
    found = hostjob.check(tmp_path, ["h0", "h0", "h1", "h1", "h2", "h2"], "torchrun's variables")
    assert [(rank["node_rank"], rank["num_nodes"]) for rank in found] == [(r // 2, 3) for r in range(6)]
    assert ":29400" not in found[0]["master"]


@pytest.fixture(scope="module")
def slurm(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(lab, tmp_path_factory.mktemp("slurm")) as env:
        yield env


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (["-N2", "-n3"], ["h0", "h0", "h1"]),
        (["-N3", "-n6", "--ntasks-per-node=2", "-m", "cyclic"], ["h0", "h1", "h2", "h0", "h1", "h2"]),
        (["-w", "h1,h2", "-n4", "--ntasks-per-node=2"], ["h1", "h1", "h2", "h2"]),
        (["-N2", "-n2", "--mpi=pmi2"], ["h0", "h1"]),
    ],
)
def test_srun(lab: Lab, slurm: dict[str, str], tmp_path: Path, options: list[str], ranks: list[str]) -> None:
    hostjob.run([*lab.enter("h0"), "srun", *options, *hostjob.program(tmp_path)], slurm | SECRET)
    found = hostjob.check(tmp_path, ranks, "Slurm step's variables")
    names = sorted(set(ranks))
    assert [rank["node_rank"] for rank in found] == [names.index(host) for host in ranks]
    assert {part.split(":")[0] for part in found[0]["master"].split(",")} == {ranks[0]}


def test_srun_without_a_secret_says_how_to_make_one(lab: Lab, slurm: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*lab.enter("h0"), "srun", "-N2", "-n2", *hostjob.program(tmp_path)],
        env={name: value for name, value in os.environ.items() if name != "ARX_SECRET"} | slurm,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=hostjob.WATCHDOG,
        check=False,
    )
    assert done.returncode != 0
    assert "2 nodes (Slurm step's variables), which let nobody in without a secret: set ARX_SECRET" in done.stderr
