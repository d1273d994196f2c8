"""Where a process finds its place: every family of variables, whole, half and wrong, and PMI's protocol."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple

import pytest

from arx.errors import InitError
from arx.launch import families
from arx.launch.detect import detect, explain
from arx.launch.master import candidates
from arx.launch.place import Place
from arx.launch.slurm import nodes, tasks_per_node

WATCHDOG = 60.0  # seconds; ends a test that hangs


def variables(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


ARX = variables("ARX_RANK=2 ARX_WORLD_SIZE=4 ARX_LOCAL_RANK=2 ARX_LOCAL_SIZE=4 ARX_JOB_ID=run-x")
TORCHRUN = variables(
    "RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
    "MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"
)
PMI = variables("PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3")
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1 PMIX_NAMESPACE=prterun-host-4711@1"
)
SLURM = variables(
    "SLURM_JOB_ID=77 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 "
    "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3"
)

# The same launchers with ranks on two hosts, as they were seen there.
SECRET = {"ARX_SECRET": "5ec2e7"}
TWO_ARX = SECRET | variables(
    "ARX_RANK=3 ARX_WORLD_SIZE=4 ARX_LOCAL_RANK=1 ARX_LOCAL_SIZE=2 ARX_NODE_RANK=1 ARX_NNODES=2 ARX_MASTER=h0:29500"
)
POD = SECRET | variables("ARX_RANK=3 ARX_WORLD_SIZE=4 ARX_MASTER=train-0.train:29500")
TWO_TORCHRUN = (
    TORCHRUN | SECRET | variables("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=3 MASTER_ADDR=h0")
)
TWO_PMI = PMI | {"MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "h0"}
TWO_OPEN_MPI = (
    OPEN_MPI | SECRET | variables("OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-node-a-4711@1 PMIX_HOSTNAME=h1")
)
TWO_OPEN_MPI_4 = without(TWO_OPEN_MPI, "PMIX_NAMESPACE", "PMIX_HOSTNAME") | {
    "OMPI_MCA_orte_hnp_uri": "3145728.0;tcp://127.0.0.1,192.0.2.7,10.0.0.1:41234"
}
TWO_SLURM = (
    SECRET | SLURM | variables("SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=n[07-08]")
)
BATCH = variables("SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=3")


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


# Several hosts


@pytest.mark.parametrize(
    ("env", "where", "master"),
    [
        (TWO_ARX, (3, 4, 1, 2, 1, 2), "h0:29500"),
        (without(TWO_ARX, "ARX_LOCAL_RANK", "ARX_LOCAL_SIZE"), (3, 4, None, None, 1, 2), "h0:29500"),
        (without(TWO_ARX, "ARX_NODE_RANK", "ARX_NNODES"), (3, 4, 1, 2, None, None), "h0:29500"),
        (POD, (3, 4, None, None, None, None), "train-0.train:29500"),
        (POD | {"ARX_MASTER": "[fd00::7]:1,h0:65535"}, (3, 4, None, None, None, None), "[fd00::7]:1,h0:65535"),
        (TWO_TORCHRUN | {"ARX_MASTER": "h9:7"}, (1, 3, 0, 1, 1, 3), "h9:7"),
        (TWO_PMI | SECRET | {"ARX_JOB_ID": "j", "ARX_MASTER": "h9:7"}, (1, 3, 1, 2, None, None), "h9:7"),
        (TWO_OPEN_MPI | {"ARX_MASTER": "h9:7"}, (1, 3, 1, 2, None, None), "h9:7"),
        (TWO_SLURM | {"ARX_MASTER": "h9:7"}, (1, 3, 1, 2, 0, 2), "h9:7"),
        # no secret needed where nobody can come from outside
        (without(TWO_ARX, "ARX_SECRET") | {"ARX_MASTER": "127.0.0.2:5"}, (3, 4, 1, 2, 1, 2), "127.0.0.2:5"),
        (without(TWO_ARX, "ARX_SECRET") | {"ARX_MASTER": "[::1]:5"}, (3, 4, 1, 2, 1, 2), "[::1]:5"),
    ],
)
def test_places_on_several_hosts(env: dict[str, str], where: tuple[object, ...], master: str) -> None:
    place = detect(env)
    assert astuple(place)[:6] == where
    assert (place.master, place.secret) == (master, env.get("ARX_SECRET"))
    assert not place.one_host


def hosts_and_ports(master: str | None) -> tuple[set[str], list[int]]:
    assert master is not None
    pairs = [part.rsplit(":", 1) for part in master.split(",")]
    return {host for host, _ in pairs}, [int(port) for _, port in pairs]


@pytest.mark.parametrize(
    ("env", "host", "other"),
    [
        (TWO_TORCHRUN, "h0", {"TORCHELASTIC_RUN_ID": "x"}),
        (without(TWO_TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"), "h0", {}),
        (TWO_OPEN_MPI, "node-a", {"PMIX_NAMESPACE": "prterun-node-a-4712@1"}),
        (TWO_OPEN_MPI_4, "192.0.2.7", {"OMPI_MCA_orte_hnp_uri": "2.0;tcp://192.0.2.7:41235"}),
        (TWO_SLURM, "n07", {"SLURM_STEP_ID": "4"}),
    ],
)
def test_where_only_the_host_of_rank_0_is_known_all_ranks_try_the_same_ports(
    env: dict[str, str], host: str, other: dict[str, str]
) -> None:
    hosts, ports = hosts_and_ports(detect(env).master)
    assert hosts == {host}
    assert len(set(ports)) == 8
    assert all(20000 <= port < 32000 for port in ports)
    assert detect(env).secret == "5ec2e7"
    if other:
        assert hosts_and_ports(detect(env | other).master)[1] != ports


def test_the_port_of_torchruns_store_is_never_among_the_candidates() -> None:
    _, ports = hosts_and_ports(candidates("h0", "any"))
    hosts, others = hosts_and_ports(candidates("h0", "any", without=ports[0]))
    assert hosts == {"h0"}
    assert others[:7] == ports[1:]
    assert ports[0] not in others
    for store in range(20000, 20100):
        env = TWO_TORCHRUN | {"MASTER_PORT": str(store)}
        assert store not in hosts_and_ports(detect(env).master)[1]


def test_the_ports_that_the_user_allows_are_kept_to() -> None:
    def ports(env: dict[str, str]) -> list[int]:
        return hosts_and_ports(detect(env | {"ARX_PORT_RANGE": "29500-29502"}).master)[1]

    for env in (TWO_TORCHRUN | {"MASTER_PORT": "29400"}, TWO_OPEN_MPI, TWO_OPEN_MPI_4, TWO_SLURM):
        assert sorted(ports(env)) == [29500, 29501, 29502]
    assert sorted(ports(ARX | {"ARX_TRANSPORT": "tcp"})) == [29500, 29501, 29502]
    assert sorted(ports(TWO_TORCHRUN | {"MASTER_PORT": "29501"})) == [29500, 29502]
    with pytest.raises(InitError, match="no other port than 7"):
        candidates("h0", "any", range(7, 8), without=7)
    for wrong in ("29500", "0-5", "9-8", "1-65536", "a-b", "-"):
        with pytest.raises(InitError, match="is not of the form FIRST-LAST"):
            detect(TWO_SLURM | {"ARX_PORT_RANGE": wrong})


def test_rank_0_under_open_mpi_knows_whether_it_is_on_mpiruns_host(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = {"OMPI_COMM_WORLD_RANK": "0"}
    assert detect(TWO_OPEN_MPI | zero | {"PMIX_HOSTNAME": "node-a"}).master == detect(TWO_OPEN_MPI).master
    monkeypatch.setattr(families, "_is_mine", lambda address: address == "192.0.2.7")
    assert detect(TWO_OPEN_MPI_4 | zero).master == detect(TWO_OPEN_MPI_4).master


def test_the_master_as_an_argument() -> None:
    place = detect({}, rank=1, world_size=2, master="h0:7", secret="s3")
    assert place == Place(1, 2, None, None, None, None, "master h0:7", "arguments of init()", "h0:7", "s3")
    assert detect({"ARX_SECRET": "from the shell", "ARX_MASTER": "h1:8"}, rank=1, world_size=2).master == "h1:8"
    assert detect(TWO_SLURM, master="h0:7", secret="s3").secret == "s3"
    for wrong in ("h0", "h0:", ":7", "h0:x", "", "a b:7"):
        with pytest.raises(InitError, match=r"master=.* is not of the form HOST:PORT"):
            detect({}, rank=1, world_size=2, master=wrong)


@pytest.mark.parametrize("env", [ARX, TORCHRUN, OPEN_MPI, SLURM, PMI | {"ARX_JOB_ID": "j"}])
def test_one_host_needs_a_master_for_tcp_only_and_it_is_a_loopback_one(env: dict[str, str]) -> None:
    assert detect(env).master is None
    assert detect(env | {"ARX_MASTER": "h0:7"}).master is None or env is ARX
    place = detect(env, transport="tcp")
    hosts, ports = hosts_and_ports(place.master)
    assert hosts == {"127.0.0.1"}
    assert place == detect(env | {"ARX_TRANSPORT": "tcp"})
    assert hosts_and_ports(detect(env, transport="tcp", job_id="other").master)[1] != ports
    assert detect(env, transport="shm").master is None
    assert detect({}, transport="tcp").master is None  # a world of one


def test_the_secret_is_not_shown() -> None:
    assert "5ec2e7" not in repr(detect(TWO_ARX))
    assert "5ec2e7" not in explain(TWO_ARX)
    assert "master h0:29500, with a secret\n" in explain(TWO_ARX)


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


# PMI-1, against a process manager of our own


class Manager:
    """Serves PMI-1 to `size` clients as Hydra does, except where `answers` says otherwise."""

    def __init__(self, size: int, answers: dict[str, str | None] | None = None) -> None:
        pairs = [socket.socketpair() for _ in range(size)]
        self.clients = [client for client, _ in pairs]
        self.asked: list[list[str]] = [[] for _ in range(size)]
        self._answers = answers or {}
        self._store: dict[str, str] = {}
        self._barrier = threading.Barrier(size)
        self._threads = [threading.Thread(target=self._serve, args=(r, pairs[r][1])) for r in range(size)]

    def __enter__(self) -> Manager:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._barrier.abort()
        for client in self.clients:
            client.shutdown(socket.SHUT_RDWR)
            client.close()
        for thread in self._threads:
            thread.join(WATCHDOG)

    def _serve(self, rank: int, server: socket.socket) -> None:
        with server, server.makefile("rw") as lines, contextlib.suppress(OSError, threading.BrokenBarrierError):
            for line in lines:
                words = dict(word.split("=", 1) for word in line.split())
                self.asked[rank].append(words["cmd"])
                answer = self._answers.get(words["cmd"], "") if words["cmd"] in self._answers else self._answer(words)
                if answer is None:  # hang up
                    server.shutdown(socket.SHUT_RDWR)
                    return
                for part in (answer[:5], answer[5:]):  # a reply may come in pieces
                    lines.write(part)
                    lines.flush()

    def _answer(self, words: dict[str, str]) -> str:
        if words["cmd"] == "put":
            self._store[words["key"]] = words["value"]
        if words["cmd"] == "barrier_in":
            self._barrier.wait(WATCHDOG)
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_1\n",
            "put": "cmd=put_result rc=0\n",
            "barrier_in": "cmd=barrier_out\n",
            "get": f"cmd=get_result rc=0 msg=success value={self._store.get(words.get('key', ''))}\n",
            "finalize": "cmd=finalize_ack\n",
        }[words["cmd"]]


def pmi_environment(manager: Manager, rank: int) -> dict[str, str]:
    fd = manager.clients[rank].fileno()
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(len(manager.clients)), "PMI_FD": str(fd)}


@contextlib.contextmanager
def ranks_under(manager: Manager, code: str, **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    ranks = []
    for rank, client in enumerate(manager.clients):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)} | pmi_environment(manager, rank)
        env |= more | ({"MPI_LOCALRANKID": "0"} if more else {})
        settings = {"pass_fds": [client.fileno()], "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen([sys.executable, "-c", code], env=env, **settings))  # type: ignore[call-overload]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_pmi_ranks_agree_on_a_random_job_id() -> None:
    code = "from arx.launch.detect import detect; a, b = detect(), detect(); assert a == b; print(a.rank, a.job_id)"
    jobs = []
    for _ in range(2):
        with Manager(3) as manager, ranks_under(manager, code) as ranks:
            said = [process.communicate(timeout=WATCHDOG) for process in ranks]
            assert [err for _, err in said] == [""] * 3
            assert [out.split()[0] for out, _ in said] == ["0", "1", "2"]
            ids = {out.split(maxsplit=1)[1] for out, _ in said}
            assert len(ids) == 1
            jobs.append(ids.pop())
            # once, although asked twice; and `finalize` at exit, without which Intel MPI takes a rank for crashed
            assert manager.asked[0] == ["init", "get_my_kvsname", "put", "barrier_in", "get", "finalize"]
            assert manager.asked[2] == ["init", "get_my_kvsname", "barrier_in", "get", "finalize"]
    assert jobs[0] != jobs[1]


AGREE = """
from arx.launch.detect import detect
class Port:
    def __init__(self, asked):
        self.address = asked if self.__class__.opened else asked.replace(":0", ":4242")
        self.__class__.opened.append(asked)
Port.opened = []
first = detect(listen=Port)
again = detect(listen=Port)
assert (first.job_id, first.master, first.secret) == (again.job_id, again.master, again.secret)
assert first.master == "h0:4242" and len(first.secret) == 64, first
assert Port.opened == (["h0:0", "h0:4242"] if first.rank == 0 else []), Port.opened
assert (first.listening is None) == (first.rank != 0)
print(first.rank, first.secret, first.job_id)
"""


def test_pmi_ranks_of_several_hosts_get_address_and_secret_from_rank_0() -> None:
    secrets = []
    for _ in range(2):
        with Manager(3) as manager, ranks_under(manager, AGREE, MPI_LOCALNRANKS="2", PMI_HOSTNAME="h0") as ranks:
            said = [process.communicate(timeout=WATCHDOG) for process in ranks]
            assert [err for _, err in said] == [""] * 3
            assert len({out.split(maxsplit=1)[1] for out, _ in said}) == 1
            secrets.append(said[0][0].split()[1])
            assert manager.asked[0] == ["init", "get_my_kvsname", "put", "barrier_in", "get", "finalize"]
    assert secrets[0] != secrets[1]


def test_what_is_given_is_not_agreed_on() -> None:
    env = TWO_PMI | SECRET | {"ARX_JOB_ID": "j", "ARX_MASTER": "h9:7"}
    with Manager(1) as manager:
        place = detect(env | {"PMI_FD": str(manager.clients[0].fileno())})
        assert (place.job_id, place.master, place.secret, place.listening) == ("j", "h9:7", "5ec2e7", None)
        assert manager.asked == [[]]


@pytest.mark.parametrize(
    ("command", "answer", "told"),
    [
        ("init", None, "hung up while asked for 'init'"),
        ("init", "cmd=response_to_init rc=-1\n", "refused 'cmd=init pmi_version=1 pmi_subversion=1'"),
        ("init", "hello, this is no process manager\n", "refused"),
        ("put", "cmd=put_result rc=-1 msg=duplicate_key\n", "duplicate_key"),
        (
            "barrier_in",
            "",
            "no answer to 'barrier_in' from the process manager behind PMI_FD in 0.2 s: some rank did not",
        ),
        ("get", "cmd=get_result rc=-1 msg=key_not_found value=unknown\n", "key_not_found"),
    ],
)
def test_a_process_manager_that_misbehaves_is_an_error(command: str, answer: str | None, told: str) -> None:
    with Manager(2, {"barrier_in": "cmd=barrier_out\n"} | {command: answer}) as manager:
        with pytest.raises(InitError) as error:
            detect(pmi_environment(manager, 0), timeout=0.2)
        assert told in str(error.value)


def test_a_pmi_fd_that_is_not_the_process_managers_is_an_error() -> None:
    reading, writing = os.pipe()
    with open(os.devnull) as file:
        for fd in (reading, file.fileno()):
            with pytest.raises(InitError, match=rf"PMI_FD={fd} cannot be used \(it is not a socket\)"):
                detect(PMI | {"PMI_FD": str(fd)})
    os.close(reading)
    os.close(writing)
    with pytest.raises(
        InitError, match=r"cannot be used \(Bad file descriptor\): the variables of an mpiexec were inher"
    ):
        detect(PMI | {"PMI_FD": str(reading)})
