"""Under other launchers: real `mpirun`, `mpiexec` and `torchrun` start this project's Python; Slurm by its variables.

Every rank leaves a file, and waits until all files of the test are there, so that the jobs of a test do run at once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WATCHDOG = 120.0  # seconds; ends a test that hangs
HERE = Path(__file__).parent

MPI_WITH_PMI = ["mpich", "impi"]
LAUNCHERS = ["ompi", *MPI_WITH_PMI, "torch"]
SOURCES = {
    "ompi": "Open MPI's variables",
    "mpich": "PMI's variables (MPICH, Intel MPI)",
    "impi": "PMI's variables (MPICH, Intel MPI)",
    "torch": "torchrun's variables",
    "slurm": "Slurm step's variables",
}
PLACE = """
import dataclasses, json, os, sys, time
folder, expected = sys.argv[1], int(sys.argv[2])
def leave(**what):
    path = f"{folder}/{os.getpid()}"
    with open(path + ".part", "w") as file:
        json.dump(what, file)
    os.rename(path + ".part", path + ".json")
    while sum(name.endswith(".json") for name in os.listdir(folder)) < expected:
        time.sleep(0.01)
from arx.launch.detect import detect
place = dataclasses.asdict(detect())
"""


def load_peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", HERE.parent / "benches" / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peers = load_peers()


def programs(name: str) -> Path:
    try:
        return Path(peers.peer_venv(name, build=name in peers.SMALL)) / "bin"
    except peers.PeerMissing as error:
        pytest.skip(str(error))


def command(name: str, n: int) -> list[str]:
    """How a launcher starts n ranks of a program; both follow."""
    if name == "torch":
        return [f"{programs(name)}/torchrun", "--standalone", f"--nproc-per-node={n}", "--no-python"]
    if name == "ompi":
        return [f"{programs(name)}/mpirun", "-n", str(n), "--oversubscribe"]
    return [f"{programs(name)}/mpiexec", "-n", str(n)]


class Job:
    """One start of a foreign launcher; gone for certain at the end of the `with`."""

    def __init__(self, argv: list[str], env: dict[str, str] | None = None) -> None:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers often are
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        pipes |= {"stdin": subprocess.DEVNULL, "env": os.environ | root | (env or {})}
        self._process = subprocess.Popen(argv, **pipes)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # the launchers take their ranks with them only if they are asked to end
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def succeed(self) -> str:
        output: str = self._process.communicate(timeout=WATCHDOG)[0]
        assert self._process.returncode == 0, output
        return output


def left(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def slurm(rank: int, n: int, step: int) -> dict[str, str]:
    text = (
        f"SLURM_JOB_ID=4711 SLURM_STEP_ID={step} SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_NODEID=0 "
        f"SLURM_STEP_NUM_TASKS={n} SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE={n}"
    )
    return dict(pair.split("=", 1) for pair in text.split())


def start(name: str, n: int, code: str, folder: Path, expected: int, step: int = 0) -> list[Job]:
    program = [sys.executable, "-c", code, str(folder), str(expected)]
    if name == "slurm":
        return [Job(program, slurm(rank, n, step)) for rank in range(n)]
    return [Job([*command(name, n), *program])]


@pytest.mark.parametrize("name", [*LAUNCHERS, "slurm"])
def test_two_jobs_at_once_find_their_places_and_never_meet(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        started = [start(name, 3, PLACE + "leave(**place)", tmp_path, 6, step) for step in (0, 1)]
        jobs = [stack.enter_context(job) for jobs in started for job in jobs]
        for job in jobs:
            job.succeed()
    places = left(tmp_path)
    ids = sorted({place["job_id"] for place in places})
    assert len(ids) == 2
    for job_id in ids:
        ranks = sorted((place for place in places if place["job_id"] == job_id), key=lambda place: place["rank"])
        same = {"world_size": 3, "local_size": 3, "node_rank": 0, "num_nodes": 1, "source": SOURCES[name]}
        same |= {"master": None, "listening": None}  # not needed inside a host
        assert len({rank.pop("secret") for rank in ranks}) == 1
        local = sorted(rank.pop("local_rank") for rank in ranks)  # Open MPI may number them otherwise
        assert local == [0, 1, 2]
        assert ranks == [{"rank": r, "job_id": job_id, **same} for r in range(3)]


@pytest.mark.parametrize("name", [*LAUNCHERS, "slurm"])
def test_two_jobs_at_once_sum_their_own_ranks(name: str, tmp_path: Path) -> None:
    code = PLACE.replace("place = dataclasses.asdict(detect())", "") + (
        "import arx, numpy as np\n"
        "with arx.init(timeout=100) as world:\n"
        "    x = np.arange(5, dtype=np.int64) * 10 + world.rank\n"
        "    arx.all_reduce(x)\n"
        "    arx.barrier()\n"
        "    leave(rank=world.rank, size=world.size, sum=x.tolist())\n"
        "    arx.all_reduce(x)\n"  # after both jobs were seen alive
        "assert x.tolist() == [3 * (30 * i + 3) for i in range(5)], x\n"
    )
    with ExitStack() as stack:
        started = [start(name, 3, code, tmp_path, 6, step) for step in (0, 1)]
        for job in [stack.enter_context(job) for jobs in started for job in jobs]:
            job.succeed()
    found = sorted(left(tmp_path), key=lambda rank: rank["rank"])
    assert found == [{"rank": r, "size": 3, "sum": [30 * i + 3 for i in range(5)]} for r in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("name", MPI_WITH_PMI)
def test_a_rank_may_leave_before_the_others(name: str, tmp_path: Path) -> None:
    code = (
        PLACE
        + "leave(**place); time.sleep(0.5 if place['rank'] != 1 else 0); open(f'{folder}/end{place[\"rank\"]}', 'w')"
    )
    with start(name, 3, code, tmp_path, 3)[0] as job:
        job.succeed()
    assert all((tmp_path / f"end{rank}").exists() for rank in range(3))


@pytest.mark.parametrize("name", MPI_WITH_PMI)
@pytest.mark.parametrize("order", ["arx first", "mpi first", "mpi, and not PMI"])
def test_arx_and_mpi_in_one_program(name: str, order: str, tmp_path: Path) -> None:
    mpi = "from mpi4py import MPI\n"
    after = "leave(sum=MPI.COMM_WORLD.allreduce(place['rank'] + 1), **place)\n"
    code = PLACE + mpi + after if order == "arx first" else mpi + PLACE + after
    argv = [*command(name, 3), f"{programs(name)}/python", "-c", code, str(tmp_path), "3"]
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with Job(argv, env | ({"ARX_PMI": "0"} if order == "mpi, and not PMI" else {})) as job:
        job.succeed()
    ranks = sorted(left(tmp_path), key=lambda rank: rank["rank"])
    assert [(rank["rank"], rank["sum"]) for rank in ranks] == [(0, 6), (1, 6), (2, 6)]
    assert len({rank["job_id"] for rank in ranks}) == 1


@pytest.mark.parametrize("name", ["ompi", *MPI_WITH_PMI])
def test_what_inherits_an_mpi_ranks_variables_is_no_world_of_one(name: str, tmp_path: Path) -> None:
    # subprocess closes the process manager's socket; Open MPI's variables alone would still be a place, twice
    child = "from arx.launch.detect import detect; from arx.errors import InitError\ntry: print(detect().world_size)\n"
    child += "except InitError as error: print('refused', error)"
    code = (
        f"import subprocess\n{PLACE}leave(said=subprocess.check_output([sys.executable, '-c', {child!r}], text=True))"
    )
    with start(name, 2, code, tmp_path, 2)[0] as job:
        job.succeed()
    for rank in left(tmp_path):
        assert rank["said"].startswith("2\n" if name == "ompi" else "refused PMI_FD=")


def test_arx_env_explains_a_foreign_launcher(tmp_path: Path) -> None:
    argv = [*command("mpich", 2), sys.executable, "-m", "arx", "env"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WATCHDOG, check=True, stdin=subprocess.DEVNULL)
    assert "rank 1 of 2, from PMI's variables (MPICH, Intel MPI)\n" in done.stdout
    assert "taken: PMI_RANK=1 PMI_SIZE=2 PMI_FD=" in done.stdout


def test_a_peer_that_cannot_be_had_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARX_PEER_VENVS", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="torch is not installed"):
        programs("torch")
    monkeypatch.setattr(peers.sys, "executable", "/bin/false")
    with pytest.raises(pytest.skip.Exception, match="exit code 1"):
        programs("mpich")
