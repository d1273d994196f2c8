"""Where a process finds its place on one host: every family of variables, whole, half and wrong."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from variables import (
    ARX,
    BATCH,
    OPEN_MPI,
    PMI,
    POD,
    SLURM,
    TORCHRUN,
    TWO_ARX,
    TWO_OPEN_MPI,
    TWO_OPEN_MPI_4,
    TWO_PMI,
    TWO_SLURM,
    TWO_TORCHRUN,
    without,
)

from arx.errors import InitError
from arx.launch.detect import detect, explain
from arx.launch.place import Place
from arx.launch.slurm import nodes, tasks_per_node


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (ARX, (2, 4, 2, 4, 0, 1, "run-x", "ARX_* variables")),
        ({"ARX_RANK": "0", "ARX_WORLD_SIZE": "2", "ARX_JOB_ID": "y"}, (0, 2, 0, 2, 0, 1, "y", "ARX_* variables")),
        (TORCHRUN, (1, 3, 1, 3, 0, 1, "torchrun localhost:29500 none 0", "torchrun's variables")),
        (PMI | {"ARX_JOB_ID": "z"}, (1, 3, 1, 3, 0, 1, "z", "PMI's variables (MPICH, Intel MPI)")),
        (OPEN_MPI, (1, 3, 1, 3, 0, 1, "openmpi prterun-host-4711@1", "Open MPI's variables")),
        (SLURM, (1, 3, 1, 3, 0, 1, "slurm 77.3", "Slurm step's variables")),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": ""}, (1, 3, 1, 3, 0, 1, "slurm 77.3", "Slurm step's variables")),
        # `srun --mpi=pmi2` and `--mpi=pmix`: the step's own number needs no talk
        (
            SLURM | {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "9"},
            (1, 3, 1, 3, 0, 1, "slurm 77.3", "Slurm step's variables"),
        ),
        (
            SLURM | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.77.3"},
            (1, 3, 1, 3, 0, 1, "slurm 77.3", "Slurm step's variables"),
        ),
        # the order
        (ARX | TORCHRUN | PMI | OPEN_MPI | SLURM, (2, 4, 2, 4, 0, 1, "run-x", "ARX_* variables")),
        (
            TORCHRUN | PMI | OPEN_MPI | SLURM,
            (1, 3, 1, 3, 0, 1, "torchrun localhost:29500 none 0", "torchrun's variables"),
        ),
        (OPEN_MPI | SLURM, (1, 3, 1, 3, 0, 1, "openmpi prterun-host-4711@1", "Open MPI's variables")),
    ],
)
def test_each_family_is_read(env: dict[str, str], place: tuple[object, ...]) -> None:
    assert astuple(detect(env))[:8] == place


@pytest.mark.parametrize("env", [{}, BATCH, BATCH | {"SLURM_STEP_ID": "4294967291"}, {"ARX_JOB_ID": "", "RANK": ""}])
def test_without_a_launcher_it_is_a_world_of_one_that_nobody_meets(env: dict[str, str]) -> None:
    one, other = detect(env), detect(env)
    assert astuple(one)[:6] == (0, 1, 0, 1, 0, 1)
    assert one.source == "a world of one"
    assert one.job_id != other.job_id


def test_arguments_win() -> None:
    place = detect(ARX, rank=1, world_size=2, job_id="mine")
    assert place == Place(1, 2, 1, 2, 0, 1, "mine", "arguments of init()")
    assert detect(TORCHRUN, job_id="mine") == Place(1, 3, 1, 3, 0, 1, "mine", "torchrun's variables")
    assert detect({}, rank=0, world_size=1).world_size == 1
    assert detect({"ARX_JOB_ID": "from the shell"}, rank=1, world_size=2).job_id == "from the shell"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TORCHRUN, {"MASTER_PORT": "29501"}),
        (TORCHRUN, {"TORCHELASTIC_RUN_ID": "other"}),
        (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-host-4712@1"}),
        (SLURM, {"SLURM_STEP_ID": "4"}),
        (SLURM, {"SLURM_JOB_ID": "78"}),
    ],
)
def test_two_jobs_at_once_have_two_ids_and_all_ranks_of_one_the_same(
    first: dict[str, str], second: dict[str, str]
) -> None:
    assert detect(first).job_id != detect(first | second).job_id
    ranks = (
        "RANK",
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
    )
    peer = first | {name: "2" for name in ranks if name in first} | {"PMIX_RANK": "2"}
    assert detect(peer).rank == 2
    assert detect(peer).job_id == detect(first).job_id


@pytest.mark.parametrize(
    ("env", "told"),
    [
        # half a family
        (without(ARX, "ARX_WORLD_SIZE"), "ARX_WORLD_SIZE is not set"),
        (without(ARX, "ARX_RANK"), "ARX_RANK is not set"),
        (without(ARX, "ARX_JOB_ID"), "ARX_JOB_ID is not set"),
        (without(TORCHRUN, "WORLD_SIZE"), "WORLD_SIZE is not set"),
        (without(TORCHRUN, "RANK"), "RANK is not set"),
        (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT is not set"),
        (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR is not set"),
        (PMI, "PMI_FD is not set"),
        (without(PMI, "PMI_SIZE"), "PMI_SIZE is not set"),
        ({"PMI_FD": "5"}, "PMI_RANK is not set"),
        (PMI | {"PMI_FD": "5", "ARX_PMI": "0"}, "ARX_PMI=0"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "OMPI_COMM_WORLD_LOCAL_SIZE is not set"),
        (without(OPEN_MPI, "PMIX_NAMESPACE"), "PMIX_NAMESPACE is not set"),
        (without(SLURM, "SLURM_PROCID"), "SLURM_PROCID is not set"),
        (without(SLURM, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS is not set"),
        (without(SLURM, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set"),
        # a value that cannot be
        (ARX | {"ARX_RANK": "two"}, "ARX_RANK='two' is not a number"),
        (ARX | {"ARX_RANK": "4"}, "ARX_RANK=4 lies outside 0..3 (ARX_WORLD_SIZE=4"),
        (ARX | {"ARX_RANK": "-1"}, "ARX_RANK=-1 lies outside 0..3"),
        (ARX | {"ARX_WORLD_SIZE": "0"}, "ARX_WORLD_SIZE=0 must be at least 1"),
        (ARX | {"ARX_LOCAL_RANK": "4"}, "local rank 4 lies outside 0..3"),
        (TORCHRUN | {"WORLD_SIZE": "1e3"}, "WORLD_SIZE='1e3' is not a number"),
        (TORCHRUN | {"RANK": "3"}, "RANK=3 lies outside 0..2 (WORLD_SIZE=3"),
        (PMI | {"PMI_SIZE": "3.0"}, "PMI_SIZE='3.0' is not a number"),
        (PMI | {"PMI_FD": "nine"}, "PMI_FD='nine' is not a number"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "7"}, "OMPI_COMM_WORLD_RANK=7 lies outside 0..2"),
        (SLURM | {"SLURM_PROCID": ""}, "SLURM_PROCID is not set"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3(y1)"}, "SLURM_STEP_TASKS_PER_NODE='3(y1)' cannot be read"),
        (SLURM | {"SLURM_NODEID": "1"}, "SLURM_NODEID=1 has no entry"),
        # hosts that cannot be
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "1 node(s), but 1 of 3 ranks on this one"),
        (ARX | {"ARX_NNODES": "2"}, "2 node(s), but 4 of 4 ranks on this one"),
        (ARX | {"ARX_LOCAL_SIZE": "5"}, "5 ranks on this host of a world of 4"),
        (TWO_ARX | {"ARX_NODE_RANK": "2"}, "node 2 lies outside 0..1"),
        # several hosts: no master
        (without(TWO_ARX, "ARX_MASTER"), "nothing says on which host rank 0 is: set ARX_MASTER=HOST:PORT"),
        (without(TWO_ARX, "ARX_MASTER"), "2 of its 4 ranks on this one, 2 nodes (ARX_* variables)"),
        (without(TWO_TORCHRUN, "MASTER_ADDR") | {"ARX_JOB_ID": "j"}, "MASTER_ADDR is not set"),
        (without(TWO_SLURM, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST is not set"),
        (TWO_SLURM | {"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST='n[1-' cannot be read"),
        (TWO_SLURM | {"SLURM_STEP_NODELIST": "n[1-x]"}, "SLURM_STEP_NODELIST='n[1-x]' cannot be read"),
        (TWO_OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "PMIX_HOSTNAME": "h1"}, "start mpirun on the host of rank 0"),
        (TWO_OPEN_MPI | {"PMIX_NAMESPACE": "foreign"}, "mpirun -x ARX_MASTER=HOST:PORT -x ARX_SECRET"),
        (TWO_OPEN_MPI_4 | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:9"}, "nothing says on which host rank 0 is"),
        (TWO_OPEN_MPI_4 | {"OMPI_COMM_WORLD_RANK": "0"}, "nothing says on which host rank 0 is"),  # not 192.0.2.7
        # several hosts: no secret
        (without(TWO_ARX, "ARX_SECRET"), "which let nobody in without a secret: set ARX_SECRET"),
        (without(TWO_TORCHRUN, "ARX_SECRET"), "export ARX_SECRET=$(python3 -c 'import secrets; "),
        (without(TWO_SLURM, "ARX_SECRET"), "2 of its 3 ranks on this one, 2 nodes (Slurm step's variables), which let"),
        (
            without(TWO_OPEN_MPI, "ARX_SECRET"),
            "2 of its 3 ranks on this one (Open MPI's variables), which let nobody in",
        ),
        (without(POD, "ARX_SECRET"), "the 4 ranks of this job may be on several hosts (ARX_* variables), which let"),
        # a master or a transport that cannot be
        (TWO_ARX | {"ARX_MASTER": "h0"}, "ARX_MASTER='h0' is not of the form HOST:PORT"),
        (TWO_ARX | {"ARX_MASTER": "h0:0"}, "(PORT from 1 to 65535)"),
        (TWO_ARX | {"ARX_MASTER": "h0:65536"}, "is not of the form HOST:PORT"),
        (TWO_ARX | {"ARX_MASTER": "fd00::7:29500"}, "such as node7:29500 or [fd00::7]:29500"),
        (TWO_ARX | {"ARX_MASTER": "h0:1,h0"}, "ARX_MASTER='h0:1,h0' is not of the form"),
        (TWO_ARX | {"ARX_TRANSPORT": "shm"}, "transport shm is memory that all ranks share, but this job has several"),
        (TWO_ARX | {"ARX_TRANSPORT": "udp"}, "ARX_TRANSPORT='udp' is not one of auto, shm, tcp"),
        (ARX | {"ARX_TRANSPORT": "TCP"}, "ARX_TRANSPORT='TCP' is not one of auto, shm, tcp"),
        # launchers that arx does not know
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "n"}, "PMIX_RANK=1 says that a launcher started this process"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, "set ARX_RANK, ARX_WORLD_SIZE and ARX_JOB_ID"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK=0"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "4"}, "FLUX_TASK_RANK=0"),
    ],
)
def test_what_is_half_or_wrong_is_an_error_and_never_a_world_of_one(env: dict[str, str], told: str) -> None:
    with pytest.raises(InitError) as error:
        detect(env)
    assert told in str(error.value)
    assert f"init() would raise InitError: {error.value}" in explain(env)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"rank": 0}, "without world_size="),
        ({"world_size": 2}, "without rank="),
        ({"rank": 0, "world_size": 2}, "also needs job_id="),
        ({"rank": 2, "world_size": 2, "job_id": "j"}, "rank=2 lies outside 0..1"),
        ({"rank": 0, "world_size": 0, "job_id": "j"}, "world_size=0 must be at least 1"),
        ({"rank": "0", "world_size": 2, "job_id": "j"}, "must both be integers"),
        ({"rank": 0.0, "world_size": 2, "job_id": "j"}, "must both be integers"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(InitError) as error:
        detect({}, **arguments)  # type: ignore[arg-type]
    assert told in str(error.value)


def test_a_launcher_that_started_one_process_is_a_world_of_one() -> None:
    assert detect({"PMI_RANK": "0", "PMI_SIZE": "1"}).world_size == 1
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1
    assert detect({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"}).world_size == 1


def test_slurms_short_forms() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("16") == [16]
    with pytest.raises(InitError):
        tasks_per_node("2(x3")
    assert list(nodes("n[1-3,7]")) == ["n1", "n2", "n3", "n7"]
    assert list(nodes("login")) == ["login"]
    assert list(nodes("a,b[098-101],c.d-e")) == ["a", "b098", "b099", "b100", "b101", "c.d-e"]
    assert list(nodes("r[0-1]n[1-2]x")) == ["r0n1x", "r0n2x", "r1n1x", "r1n2x"]
    for wrong in ("", "n[", "n[1-]", "n[a]", "a,,b", "n]1["):
        with pytest.raises(InitError, match="cannot be read"):
            list(nodes(wrong))


def test_the_explanation_shows_what_was_taken_and_why() -> None:
    text = explain(TORCHRUN | SLURM)
    assert text.startswith("rank 1 of 3, from torchrun's variables\nlocal rank 1 of 3, node 0 of 1, job id torchrun ")
    assert "torchrun's variables                 taken: RANK=1 WORLD_SIZE=3\n" in text
    assert "Slurm step's variables               passed over: SLURM_PROCID=1" in text
    assert "a world of one                       taken: no launcher's variables are set" in explain({})
    assert "(no step of srun, such as a batch script): SLURM_PROCID=0" in explain(BATCH)
    assert "the ranks agree on it at init" in explain(PMI | {"PMI_FD": "99"})  # and the fd is not touched
    assert "master (the ranks agree on it at init), with a secret" in explain(TWO_PMI | {"PMI_FD": "99"})
    assert "local rank not said by the launcher, node not said by the launcher" in explain(POD)
