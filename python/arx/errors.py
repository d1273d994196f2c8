"""What arx raises.

Every error is an `ArxError`, and is also the builtin error that a caller who knows nothing of arx would catch
(`ConnectionError`, `TimeoutError`, `ValueError`, `PermissionError`). The core raises these classes; they hold no logic,
but that whoever asked for it (`on_loss`) hears of each rank that is lost.

    ArxError(RuntimeError)
     ├── InitError
     ├── RendezvousError     also ConnectionError
     ├── PeerLostError       also ConnectionError; .ranks
     ├── CollectiveTimeout   also TimeoutError;    .missing
     ├── MismatchError       also ValueError
     ├── AbortedError
     └── AuthError           also PermissionError
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = [
    "AbortedError",
    "ArxError",
    "AuthError",
    "CollectiveTimeout",
    "InitError",
    "MismatchError",
    "PeerLostError",
    "RendezvousError",
]

on_loss: Callable[[tuple[int, ...]], None] | None = None
"""Is told of the ranks that are lost, also if the program catches the error: `init` sets it for the launcher."""


class ArxError(RuntimeError):
    """The parent of every error of arx."""


class InitError(ArxError):
    """`init()` could not find this process's place, was refused it, or arx was used before `init()`."""


class RendezvousError(ArxError, ConnectionError):
    """The ranks of the job did not all meet: the message names those that never came."""


class PeerLostError(ArxError, ConnectionError):
    """A peer's process ended, or its connection did, while this rank needed it. The group is closed for good.

    >>> error = PeerLostError("rank 2 (pid 4711) was killed", ranks=(2,))
    >>> error.ranks
    (2,)
    """

    ranks: tuple[int, ...]
    """The ranks that are gone."""

    def __init__(self, message: str = "", *, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        if on_loss is not None and self.ranks:
            on_loss(self.ranks)


class CollectiveTimeout(ArxError, TimeoutError):
    """A collective did not complete within its time-out although its peers live. The group is closed for good.

    >>> error = CollectiveTimeout("rank 2 did not enter all_reduce #7 in 30 s", missing=(2,))
    >>> error.missing
    (2,)
    """

    missing: tuple[int, ...]
    """The ranks that were waited for."""

    def __init__(self, message: str = "", *, missing: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class MismatchError(ArxError, ValueError):
    """The ranks disagree on the call (collective, op, dtype, shape, root), or one rank's arguments were refused.

    Every rank raises, no data was moved, and the group stays usable.
    """


class AbortedError(ArxError):
    """The group is closed: an earlier call timed out, lost a peer or was interrupted, or the group was shut down."""


class AuthError(ArxError, PermissionError):
    """A peer could not prove that it belongs to this job: its `ARX_SECRET` or its user is not the same."""
