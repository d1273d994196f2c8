"""A process's place in its job, and the variables of launchers that it is read from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from arx.errors import InitError

Env = Mapping[str, str]

TO_BE_AGREED = "(the ranks agree on it at init)"
"""Stands for a job id, a master or a secret that the ranks get from one another by way of their launcher."""


class Listening(Protocol):
    """A port that rank 0 holds open before the others know of it."""

    @property
    def address(self) -> str:
        """Where they will find it, as HOST:PORT."""


Listen = Callable[[str | None], Listening]
"""Opens such a port; the argument is the name of this host as others know it, if the launcher told."""


Where = tuple[int | None, int | None, int | None, int | None]
"""Local rank, local size, number of this host, count of hosts."""


@dataclass(frozen=True)
class Place:
    """This process's place in its job. What a launcher does not say about hosts is None."""

    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None
    node_rank: int | None
    num_nodes: int | None
    job_id: str
    source: str
    master: str | None = None
    secret: str | None = field(default=None, repr=False)
    listening: Listening | None = None

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.world_size == 1 or self.num_nodes == 1 or self.local_size == self.world_size


@dataclass(frozen=True)
class Given:
    """What the user said, by argument or ARX_* variable, about how ranks find and trust each other."""

    job_id: str | None = None
    master: str | None = None
    secret: str | None = field(default=None, repr=False)


def on_one_host(rank: int, size: int, job_id: str, source: str) -> Place:
    """A place in a job that is known to have one host."""
    return Place(rank, size, rank, size, 0, 1, job_id, source)


@dataclass(frozen=True)
class Variables:
    """The environment as one family sees it; what it cannot read is an `InitError` that names variable and value."""

    env: Env
    source: str

    def has(self, name: str) -> bool:
        """Whether a variable is set and not empty."""
        return self.env.get(name, "") != ""

    def text(self, name: str, why: str = "") -> str:
        """The value of a variable that must be set."""
        value = self.env.get(name, "")
        if value == "":
            raise InitError(f"{name} is not set, although other {self.source} are{why}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """The value of a variable that must be a number; `default` if it may also be missing."""
        if default is not None and not self.has(name):
            return default
        value = self.text(name)
        if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
            raise InitError(f"{name}={value!r} is not a number ({self.source})")
        return int(value)

    def maybe(self, name: str) -> int | None:
        """The value of a variable that is a number if it is set."""
        return self.number(name) if self.has(name) else None


Reader = Callable[[Variables, Given], Place]


@dataclass(frozen=True, eq=False)
class Family:
    """The variables of one kind of launcher. It is there when one of `marks` is set."""

    source: str
    marks: tuple[str, ...]
    read: Reader
    names: tuple[str, str] = ("rank", "world size")
    no_master: str = "set ARX_MASTER=HOST:PORT, an address of rank 0's host with any port that is free there"
    """What to do when it does not tell on which host rank 0 is."""

    def present(self, env: Env) -> bool:
        """Whether this launcher started the process, as far as the environment tells."""
        return any(env.get(name, "") != "" for name in self.marks)
