"""What ranks of one MPI job tell each other before they meet: rank 0 decides, and its MPI carries the word.

    rank 0    opens a port, makes a job key and a secret ──► "key|secret|host:port" ──► every rank

The carrier is the process manager (PMI_FD) or, if this process has MPI already, an MPI broadcast.
"""

from __future__ import annotations

import os
from dataclasses import replace

from arx.errors import InitError
from arx.launch import pmi
from arx.launch.place import TO_BE_AGREED, Env, Listen, Listening, Place

_HOST = ("PMI_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST", "PMIX_HOSTNAME")
"""This host's name as MPICH, Intel MPI and Open MPI know it, which is how the user named it to them."""


def reach(place: Place, env: Env, timeout: float, listen: Listen | None) -> Place:
    """The same place with everything in it that was to be agreed on. Collective."""
    listening: Listening | None = None

    def decide() -> str:
        nonlocal listening
        if place.master == TO_BE_AGREED:
            listening = _open(env, listen)
        address = "" if listening is None else listening.address
        return f"{os.urandom(16).hex()}|{os.urandom(32).hex()}|{address}"

    word = pmi.agreed()
    if word is None:
        by_mpi = pmi.mpi_module() is not None
        word = (
            pmi.agree_by_mpi(place.rank, place.world_size, timeout, decide)
            if by_mpi
            else pmi.agree(place.rank, int(env["PMI_FD"]), timeout, decide)
        )
    key, secret, address = word.split("|")
    if place.rank == 0 and place.master == TO_BE_AGREED and listening is None:
        # `init` after `shutdown`: the others know this address already
        listening = _open(env, listen, address)
    return replace(
        place,
        job_id=f"mpi {key}" if place.job_id == TO_BE_AGREED else place.job_id,
        master=address if place.master == TO_BE_AGREED else place.master,
        secret=secret if place.secret in (TO_BE_AGREED, None) else place.secret,
        listening=listening,
    )


def _open(env: Env, listen: Listen | None, address: str | None = None) -> Listening:
    if listen is None:
        raise InitError("this job has several hosts, and rank 0 was given no means to open a port (listen=)")
    name = next((env[variable] for variable in _HOST if env.get(variable)), None)
    return listen(address or (f"{name}:0" if name else None))
