"""The ranks' output: whole lines, each with its rank, on one console; and raw in a log file per rank.

    rank 0 stdout ─► Lines ─┐
    rank 0 stderr ─► Lines ─┼─► Console ─► fd 1, fd 2      one writer, so lines never mix
    rank 1 stdout ─► Lines ─┘        └──── full: the pipes are not read, and the ranks wait as for any slow reader

Bytes are never decoded: what is no text passes through unharmed. A line that has no end within 1 MiB is broken.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from collections.abc import Mapping
from typing import IO

LINE_LIMIT = 1 << 20
_HIGH_WATER = 1 << 20  # bytes waiting for the console before the ranks have to
_PIECE = 4096  # PIPE_BUF: when poll says writable, this much goes into a pipe without blocking
_TAIL = 1 << 12  # bytes of each stream kept for the report on the rank that failed
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)  # ANSI; red is left to errors


def wants_colour(fd: int, env: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal whose user did not ask for plain text (no-color.org)."""
    return os.isatty(fd) and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def prefix(rank: int, colour: bool) -> bytes:
    """What stands before each line of a rank."""
    label = f"[rank {rank}]"
    return (f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m " if colour else f"{label} ").encode()


class Lines:
    """Cuts one stream into whole lines and marks each with `prefix`; without a prefix the stream is left as it is.

    An unfinished line waits for its end, unless it is a prompt (`flush`).
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be shown now."""
        if not self._prefix:
            return data
        whole, newline, rest = (self._held + data).rpartition(b"\n")
        shown = self._framed(whole + newline) if newline else b""
        self._held = rest
        if len(rest) >= LINE_LIMIT:
            shown += self._framed(rest + b"\n")
            self._held = b""
        return shown

    @property
    def unfinished(self) -> bool:
        """Whether a line without its end is held back."""
        return self._held != b""

    def flush(self) -> bytes:
        """The unfinished line as it is: a prompt, after whose answer the terminal is on a new line by itself."""
        shown, self._held = self._held, b""
        return self._framed(shown) if shown else b""

    def close(self) -> bytes:
        """The rest at the end of the stream, with the newline that it lacks."""
        shown, self._held = self._held, b""
        return self._framed(shown + b"\n") if shown else b""

    def _framed(self, lines: bytes) -> bytes:
        body, last = lines[:-1], lines[-1:]  # the last byte may be a newline, after which nothing is to be marked
        return self._prefix + body.replace(b"\n", b"\n" + self._prefix) + last


class Console:
    """The launcher's own stdout and stderr, written in order by one queue that never blocks the caller."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, memoryview]] = deque()
        self._size = 0
        self.failed: OSError | None = None
        self._dead: set[int] = set()

    def write(self, fd: int, data: bytes) -> None:
        """Queues `data` for a stream."""
        if data and fd not in self._dead:
            self._queue.append((fd, memoryview(data)))
            self._size += len(data)

    @property
    def waiting_for(self) -> int | None:
        """The stream that must become writable before the next `pump`, None if nothing is queued."""
        return self._queue[0][0] if self._queue else None

    @property
    def full(self) -> bool:
        """Whether the ranks' pipes had better not be read for now."""
        return self._size >= _HIGH_WATER

    def pump(self) -> None:
        """Writes as much as goes without blocking."""
        poll = select.poll()
        while self._queue:
            fd, data = self._queue[0]
            poll.register(fd, select.POLLOUT)
            if not poll.poll(0):
                return
            poll.unregister(fd)
            self._write_piece(fd, data)

    def _write_piece(self, fd: int, data: memoryview) -> None:
        try:
            done = os.write(fd, data[:_PIECE])
        except BlockingIOError:  # someone made it non-blocking; poll again
            return
        except OSError as error:
            self._lose(fd, error)
            return
        self._size -= done
        if done == len(data):
            self._queue.popleft()
        else:
            self._queue[0] = (fd, data[done:])

    def _lose(self, fd: int, error: OSError) -> None:
        """The reader of a stream is gone: what is queued for it is dropped, and so is what will be."""
        self._dead.add(fd)
        if self.failed is None or error.errno == errno.EPIPE:
            self.failed = error
        self._queue = deque(item for item in self._queue if item[0] != fd)
        self._size = sum(len(data) for _, data in self._queue)


class Stream:
    """What one rank writes to one of its fds, on its way to the console and to the rank's log file."""

    def __init__(self, fd: int, mark: bytes, log: IO[bytes] | None = None) -> None:
        self.fd = fd
        self.tail = b""
        self._lines = Lines(mark)
        self._log = log

    def feed(self, data: bytes, console: Console) -> None:
        """Passes on what has arrived; nothing is the end of the stream."""
        if not data:
            console.write(self.fd, self._lines.close())
            return
        self.tail = (self.tail + data)[-_TAIL:]
        console.write(self.fd, self._lines.feed(data))
        if self._log is not None:
            self._log.write(data)

    @property
    def unfinished(self) -> bool:
        """Whether a line without its end is held back."""
        return self._lines.unfinished

    def show_prompt(self, console: Console) -> None:
        """Shows an unfinished line, because somebody may be about to answer it."""
        console.write(self.fd, self._lines.flush())
