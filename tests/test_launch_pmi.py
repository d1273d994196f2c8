"""What MPICH's and Intel MPI's ranks agree on by PMI-1, against a process manager of our own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from variables import PMI, SECRET, TWO_PMI

from arx.errors import InitError
from arx.launch.detect import detect

WATCHDOG = 60.0  # seconds; ends a test that hangs


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
