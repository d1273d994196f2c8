"""What `arx run --hosts` and its agent on a host say to each other, over the stdin and stdout of `ssh`.

    launcher → agent    JOB {…}   GO   PASS n   RELAY n   HOLD 0|1   ASK   KILL   BEAT …
    agent → launcher    MAGIC   READY | REFUSED text   STARTED rank pid …   OUTPUT rank fd data …   ENDED rank code lost

`lost` are the ranks that this one had lost when it ended. The end of the agent's stdin, or a silence of several BEATs,
means that the launcher is gone. A frame is 13 bytes of head (kind, rank, number, length) and its data. What a login
shell prints before MAGIC is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\0arx agent 2\n"  # the number is the version of all this
_HEAD = struct.Struct("<cIiI")

JOB, GO, PASS, RELAY, HOLD, ASK, KILL, BEAT = b"J", b"G", b"P", b"U", b"H", b"T", b"K", b"B"
READY, REFUSED, STARTED, OUTPUT, ENDED = b"R", b"X", b"S", b"O", b"E"


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    rank: int
    number: int
    data: bytes


def pack(kind: bytes, rank: int = 0, number: int = 0, data: bytes = b"") -> bytes:
    """A message as it travels."""
    return _HEAD.pack(kind, rank, number, len(data)) + data


class Unpacker:
    """Cuts a stream of bytes into frames."""

    def __init__(self, *, after: bytes = b"") -> None:
        self._held = b""
        self._awaited = after

    @property
    def before(self) -> bytes:
        """What came although MAGIC was awaited, as long as it is."""
        return self._held if self._awaited else b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now."""
        self._held += data
        if self._awaited:
            _, found, rest = self._held.partition(self._awaited)
            if not found:
                return
            self._held, self._awaited = rest, b""
        while len(self._held) >= _HEAD.size:
            kind, rank, number, length = _HEAD.unpack_from(self._held)
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            frame = Frame(kind, rank, number, self._held[_HEAD.size : end])
            self._held = self._held[end:]
            yield frame
