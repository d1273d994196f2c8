"""Ranks tell their launcher whom they have lost, so that it can name the rank at fault and not the first to end.

    rank 1    raises, leaves the group ──────────── its traceback, the rest of its end ────► ends
                       │
    rank 2             └► PeerLostError (rank 1) ──► ends, and may well be the faster
                             │ "2 1", a datagram
                             ▼
    launcher, or the agent of this host: when rank 2 has ended, it has heard this

The socket has an abstract name, which the ranks find in ARX_LAUNCHER: there is no descriptor that somebody could
inherit, and nothing is left behind. Behind the name stands the job id, since the variable is inherited: the ranks of
another job, such as one of `arx.testing` inside a rank, are silent. So is who cannot be heard, for a launcher is not
needed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

from arx.launch.place import Place

LAUNCHER = "ARX_LAUNCHER"
_LONGEST = 1 << 16  # bytes of a message, for ten thousand ranks
_PATIENCE = 1.0  # seconds; the kernel keeps as few as ten messages, and a launcher takes them as they come
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the sender, as the kernel saw them


def teller(env: Mapping[str, str], place: Place) -> Callable[[tuple[int, ...]], None] | None:
    """What tells the launcher of this rank that others are lost, if there is one that counts the ranks as `place`."""
    name, _, job_id = env.get(LAUNCHER, "").partition(" ")
    if not name or job_id != place.job_id or env.get("ARX_RANK") != str(place.rank):
        return None

    def tell(lost: tuple[int, ...]) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.settimeout(_PATIENCE)
            way.sendto(" ".join(map(str, (place.rank, *lost))).encode(), f"\0{name}")

    return tell


class Ear:
    """The launcher's end."""

    def __init__(self, job_id: str) -> None:
        name = f"arx-{os.urandom(16).hex()}"
        self.environment = {LAUNCHER: f"{name} {job_id}"}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")

    def close(self) -> None:
        """Ranks that speak from now on are not kept waiting."""
        self._socket.close()

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def hear(self) -> Iterator[tuple[int, list[int]]]:
        """All that was said since the last call: which rank, and whom it has lost."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, extra, _, _ = self._socket.recvmsg(_LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
                with contextlib.suppress(ValueError):  # nobody but ranks of this user is meant to speak here
                    rank, *lost = map(int, data.split())
                    if _user(extra) == os.getuid():
                        yield rank, lost


def _user(extra: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack(data)[1])
    return None
