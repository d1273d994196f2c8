"""Which host is this one, and by which address do other hosts know it?"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from arx.launch.command import UsageError
from arx.launch.master import bracketed, candidates, is_loopback


def is_here(host: str) -> bool:
    """Whether a name that the user gave a host is this one's: nobody needs to connect to it."""
    own = socket.gethostname()
    return is_loopback(host) or host in (own, own.partition(".")[0])


def one_name(host: str) -> str:
    """The same for all names of this host."""
    return "localhost" if is_here(host) else host


def master_for(hosts: Sequence[str], job_id: str, ports: range) -> str | None:
    """Where ranks meet that are started on `hosts` in this order; None if all are on one."""
    if len({one_name(host) for host in hosts}) == 1:
        return None
    first = hosts[0].rpartition("@")[2]
    if is_loopback(first):  # which means another host to each of the others
        other = next(host for host in hosts if not is_here(host))
        first = _address_towards(other.rpartition("@")[2])
    return candidates(first, job_id, ports)


def _address_towards(host: str) -> str:
    """This host's address on the way to another."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(address)  # sends nothing, but chooses the interface
            return bracketed(str(way.getsockname()[0]))
    except OSError as error:
        raise UsageError(
            f"--hosts: which address of this host would {host} know ({error.strerror})? "
            "Say it by --master HOST:PORT, or name this host instead of localhost"
        ) from None
