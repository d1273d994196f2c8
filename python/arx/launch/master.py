"""Where the ranks of several hosts meet: the *master*, an address of rank 0.

    "10.0.0.1:29500"             one address
    "node7:21034,node7:30112"    candidates: rank 0 binds the first port that is free, the others try them in turn

A launcher that names rank 0's host but no port (torchrun's own store listens on `MASTER_PORT`) gets candidates that are
computed from the job id, so that all ranks know them without a word. Should another job sit on one of them, the
handshake tells right from wrong. Nothing here resolves a name or opens a connection.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from arx.errors import InitError

PORTS = range(20000, 32000)
"""Below what Linux gives out by itself (from 32768 on), above what services have."""
CANDIDATES = 8

_ADDRESS = re.compile(r"(\[[^\[\]\s]+\]|[^:,\s\[\]]+):([0-9]{1,5})")


def checked(text: str, said_by: str) -> str:
    """The same master, if it is one or several of HOST:PORT; an IPv6 host stands in brackets."""
    for part in text.split(","):
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match[2]) < 65536:
            raise InitError(
                f"{said_by}={text!r} is not of the form HOST:PORT, such as node7:29500 or [fd00::7]:29500 "
                "(PORT from 1 to 65535)"
            )
    return text


def candidates(host: str, job_id: str, without: Iterable[int] = ()) -> str:
    """Addresses on `host` that are the same for all ranks of a job, and most likely others for another job."""
    taken, round_ = set(without), 0
    ports: list[int] = []
    while len(ports) < CANDIDATES:
        number = int.from_bytes(hashlib.sha256(f"{job_id} {round_}".encode()).digest()[:8], "big")
        port, round_ = PORTS[number % len(PORTS)], round_ + 1
        if port not in taken:
            taken.add(port)
            ports.append(port)
    return ",".join(f"{bracketed(host)}:{port}" for port in ports)


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(address: str) -> bool:
    """Whether a master (or a bare host) can be reached from its own host only. Names are not resolved."""
    return all(_host(part) in ("localhost", "::1") or _host(part).startswith("127.") for part in address.split(","))


def _host(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    return (match[1] if match else address).strip("[]")
