"""A client of PMI-1, the text protocol that MPICH and Intel MPI speak with their ranks over the socket `PMI_FD`.

One word is all that arx wants to pass: rank 0 puts it, all meet in a barrier, everybody gets it.

    rank 0   init   get_my_kvsname   put arx-job=9f3c…   barrier_in   get arx-job
    rank r   init   get_my_kvsname                       barrier_in   get arx-job

The socket has one client per process. If MPI was initialised before, it is that client, and the key travels by an MPI
broadcast instead. If MPI comes later it starts over on the same socket, which both process managers allow as long as
nobody said `finalize`. But a rank that leaves without `finalize` is taken for a crash by Intel MPI, which then kills
the others. So arx says it at exit, unless MPI, which says it too, was initialised in between.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from arx.errors import InitError

KEY = "arx-job"
_LINE_LIMIT = 1 << 16  # bytes; replies are a few hundred
_LETTER = 512  # bytes of the broadcast; a word has 100 and the length of a host's name, which is 253 at most
_agreed: dict[int, str] = {}  # by process id: a forked child is no rank


def agree(rank: int, fd: int, timeout: float, decide: Callable[[], str]) -> str:
    """What `decide` returned on rank 0, where alone it is called: a word without spaces. Collective."""
    client = Client(fd, timeout)
    try:
        client.ask("init", pmi_version="1", pmi_subversion="1")
        space = client.ask("get_my_kvsname")["kvsname"]
        if rank == 0:
            client.ask("put", kvsname=space, key=KEY, value=decide())
        client.ask("barrier_in")
        word = client.ask("get", kvsname=space, key=KEY)["value"]
    except BaseException:
        client.close()
        raise
    atexit.register(_finalize, client, os.getpid())
    return _remember(word)


def agreed() -> str | None:
    """The word agreed on before: `init` after `shutdown` is the same job, and a word can be put only once."""
    return _agreed.get(os.getpid())


def _remember(word: str) -> str:
    return _agreed.setdefault(os.getpid(), word)


def _finalize(client: Client, pid: int) -> None:
    mpi = mpi_module()
    if os.getpid() != pid or (mpi is not None and mpi.Is_initialized()):
        return  # a forked child, or MPI will say it
    with contextlib.suppress(InitError):  # the process manager may be gone already
        client.ask("finalize")


def mpi_module() -> Any:
    """mpi4py's `MPI` if this process imported it, else None. It is never imported from here."""
    return sys.modules.get("mpi4py.MPI")


def agree_by_mpi(rank: int, size: int, timeout: float, decide: Callable[[], str]) -> str:
    """As `agree`, by a broadcast of the MPI that this process already uses. Collective."""
    mpi = mpi_module()
    if not mpi.Is_initialized() or mpi.Is_finalized():
        state = "finalized" if mpi.Is_finalized() else "imported but not initialised"
        raise InitError(
            f"mpi4py.MPI is {state}, so it cannot carry what the ranks agree on: call arx.init() while MPI is "
            "initialised or before mpi4py.MPI is imported, or give the same job_id= on every rank"
        )
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (rank, size):
        raise InitError(
            f"the launcher says rank {rank} of {size}, mpi4py says rank {world.Get_rank()} of "
            f"{world.Get_size()}: mpi4py was built for another MPI than the mpiexec that started this process"
        )
    letter = bytearray(_LETTER)
    if rank == 0:
        word = decide().encode()
        letter[: len(word)] = word
    request, deadline = world.Ibcast(letter, root=0), time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > deadline:
            raise InitError(f"nothing from rank 0 by an MPI broadcast in {timeout:g} s: did it call arx.init()?")
        time.sleep(0.001)
    return _remember(letter.rstrip(b"\0").decode())


class Client:
    """One command, one line of reply: `cmd=get kvsname=K key=arx-job` → `cmd=get_result rc=0 value=9f3c…`."""

    def __init__(self, fd: int, timeout: float) -> None:
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise OSError("it is not a socket")
            # A copy stays this socket whatever becomes of the number, and is not inherited by children.
            self._fd = os.dup(fd)
        except OSError as error:
            raise InitError(
                f"PMI_FD={fd} cannot be used ({error.strerror or error}): the variables of an mpiexec were inherited, "
                "its connection was not. Only the process that mpiexec itself started can be a rank; for any other, "
                "unset PMI_FD, PMI_RANK and PMI_SIZE, or give the same job_id= on every rank"
            ) from None
        self._timeout = timeout

    def close(self) -> None:
        """Closes the copy; MPI may still use the original."""
        os.close(self._fd)

    def ask(self, command: str, **fields: str) -> dict[str, str]:
        """Sends `command`, returns the fields of the reply; an `InitError` says what went wrong."""
        line = " ".join([f"cmd={command}", *(f"{name}={value}" for name, value in fields.items())])
        try:
            os.write(self._fd, line.encode() + b"\n")
            reply = self._line(command)
        except OSError as error:
            raise InitError(f"the process manager behind PMI_FD is gone ({error.strerror}), asked {line!r}") from None
        answer = dict(token.split("=", 1) for token in reply.split() if "=" in token)
        if answer.get("rc", "0") != "0" or "cmd" not in answer:
            raise InitError(f"the process manager behind PMI_FD refused {line!r}: {reply!r}")
        return answer

    def _line(self, command: str) -> str:
        # Waits by `poll`: a time-out on the socket itself would make it non-blocking for MPI too.
        poll, deadline, reply = select.poll(), time.monotonic() + self._timeout, b""
        poll.register(self._fd, select.POLLIN)
        while not reply.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise InitError(
                    f"no answer to {command!r} from the process manager behind PMI_FD in {self._timeout:g} s"
                    + (": some rank did not call arx.init()" if command == "barrier_in" else "")
                )
            data = os.read(self._fd, 4096)
            if not data or len(reply) > _LINE_LIMIT:
                raise InitError(f"the process manager behind PMI_FD hung up while asked for {command!r}")
            reply += data
        return reply.decode(errors="replace").strip()
