"""Where the ranks of several hosts meet: the *master*, an address of rank 0.

    "10.0.0.1:29500"             one address
    "node7:21034,node7:30112"    candidates: rank 0 binds the first port that is free, the others try them in turn

A launcher that names rank 0's host but no port (torchrun's own store listens on `MASTER_PORT`) gets candidates that are
computed from the job id, so that all ranks know them without a word. Should another job sit on one of them, the
handshake tells right from wrong. Nothing here resolves a name or opens a connection.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping

from arx.errors import InitError

PORTS = range(20000, 32000)
"""Below what Linux gives out by itself (from 32768 on), above what services have."""
CANDIDATES = 8

_LOOPBACK = re.compile(r"localhost|::1|(::ffff:)?127(\.[0-9]+){3}")
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


def allowed(env: Mapping[str, str]) -> range:
    """The ports that the user allows, by ARX_PORT_RANGE=FIRST-LAST, or else those that are good for candidates."""
    text = env.get("ARX_PORT_RANGE", "").strip()
    if not text:
        return PORTS
    match = re.fullmatch(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})", text)
    if match is None or not 0 < int(match[1]) <= int(match[2]) < 65536:
        raise InitError(f"ARX_PORT_RANGE={text!r} is not of the form FIRST-LAST, such as 29500-29600")
    return range(int(match[1]), int(match[2]) + 1)


def ensure_enough(ports: range, ranks: int) -> None:
    """Raise if so many ranks of one host cannot connect by `ports`, of ARX_PORT_RANGE."""
    # Each listens on one. Who calls another needs one too, and all may call the same rank at the same time.
    needed = 2 * ranks - 1
    if len(ports) < needed:
        raise InitError(
            f"ARX_PORT_RANGE={ports[0]}-{ports[-1]} has {len(ports)} ports, and {ranks} ranks on this host need at "
            f"least {needed}: each listens on one, and all but one call others from one"
        )


def candidates(host: str, job_id: str, ports: range = PORTS, without: int | None = None) -> str:
    """Addresses on `host` that are the same for all ranks of a job, and most likely others for another job."""
    count = min(CANDIDATES, len(ports) - (without in ports))
    if count == 0:
        raise InitError(f"ARX_PORT_RANGE has no other port than {without}, which is the launcher's own (MASTER_PORT)")
    chosen: list[int] = []
    for number in itertools.count():
        digest = hashlib.sha256(f"{job_id} {number}".encode()).digest()
        port = ports[int.from_bytes(digest[:8], "big") % len(ports)]
        if port not in chosen and port != without:
            chosen.append(port)
        if len(chosen) == count:
            break
    return ",".join(f"{bracketed(host)}:{port}" for port in chosen)


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(address: str) -> bool:
    """Whether a master (or a bare host) can be reached from its own host only. Names are not resolved."""
    return all(_LOOPBACK.fullmatch(_host(part).lower()) for part in address.split(","))


def _host(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    return (match[1] if match else address).strip("[]")
