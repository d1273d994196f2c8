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
from arx.launch.detect import Place, detect, explain, tasks_per_node

WATCHDOG = 60.0  # seconds; ends a test that hangs


def variables(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


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
    assert astuple(detect(env)) == place


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


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


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
        # several hosts
        (ARX | {"ARX_LOCAL_SIZE": "2", "ARX_LOCAL_RANK": "0", "ARX_NNODES": "2"}, "spans several hosts: 2 of its 4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "spans several hosts: 1 of its 3"),
        (PMI | {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0", "PMI_FD": "99"}, "spans several hosts"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "Worlds inside one host work today"),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NUM_NODES": "2"},
            "spans several hosts: 2 of its 3 ranks on this one, 2 node(s)",
        ),
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


def test_slurms_short_form() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("16") == [16]
    with pytest.raises(InitError):
        tasks_per_node("2(x3")


def test_the_explanation_shows_what_was_taken_and_why() -> None:
    text = explain(TORCHRUN | SLURM)
    assert text.startswith("rank 1 of 3, from torchrun's variables\nlocal rank 1 of 3, node 0 of 1, job id torchrun ")
    assert "torchrun's variables                 taken: RANK=1 WORLD_SIZE=3\n" in text
    assert "Slurm step's variables               passed over: SLURM_PROCID=1" in text
    assert "a world of one                       taken: no launcher's variables are set" in explain({})
    assert "(no step of srun, such as a batch script): SLURM_PROCID=0" in explain(BATCH)
    assert "the ranks agree on it at init" in explain(PMI | {"PMI_FD": "99"})  # and the fd is not touched


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
def ranks_under(manager: Manager, code: str) -> Iterator[list[subprocess.Popen[str]]]:
    ranks = []
    for rank, client in enumerate(manager.clients):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)} | pmi_environment(manager, rank)
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
