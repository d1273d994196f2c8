"""What one host has of a job: which ranks, and what they are told.

--hosts h0:3,h1:1,h0:2          h0: ranks 0 1 2, local 0 1 2 of 5, node 0 of 2
                                h1: rank  3,     local 0     of 1, node 1 of 2
                                h0: ranks 4 5,   local 3 4   of 5, node 0 of 2
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Share:
    """`n` ranks from `first` on, out of `world`, on host `node` of `nodes`."""

    first: int
    n: int
    world: int
    local_first: int
    local_size: int
    node: int
    nodes: int

    def environment(self) -> dict[str, str]:
        """What all of these ranks are told about their place."""
        return {
            "ARX_WORLD_SIZE": str(self.world),
            "ARX_LOCAL_SIZE": str(self.local_size),
            "ARX_NODE_RANK": str(self.node),
            "ARX_NNODES": str(self.nodes),
        }

    def place(self, index: int) -> dict[str, str]:
        """What one of them is told, the one at `index` from 0."""
        return {"ARX_RANK": str(self.first + index), "ARX_LOCAL_RANK": str(self.local_first + index)}


def alone(n: int) -> Share:
    """All ranks on one host."""
    return Share(0, n, n, 0, n, 0, 1)


def one_of(nodes: int, node: int, n: int) -> Share:
    """The same number of ranks on each host."""
    return Share(node * n, n, nodes * n, 0, n, node, nodes)


def dealt(sizes: Sequence[tuple[str, int]]) -> list[Share]:
    """One share for each (host, number of ranks), in this order; a host may come more than once."""
    hosts = list(dict.fromkeys(host for host, _ in sizes))
    locals_ = {host: sum(n for name, n in sizes if name == host) for host in hosts}
    world, first = sum(n for _, n in sizes), 0
    seen = dict.fromkeys(hosts, 0)
    shares = []
    for host, n in sizes:
        shares.append(Share(first, n, world, seen[host], locals_[host], hosts.index(host), len(hosts)))
        first, seen[host] = first + n, seen[host] + n
    return shares


@dataclass(frozen=True)
class Identity:
    """What the ranks of one launch have in common and no others have."""

    job_id: str
    secret: str | None = field(repr=False)
    master: str | None = None

    def environment(self) -> dict[str, str]:
        """The variables that say it."""
        found = {"ARX_JOB_ID": self.job_id, "ARX_SECRET": self.secret, "ARX_MASTER": self.master}
        return {name: value for name, value in found.items() if value is not None}


def fresh(master: str | None = None) -> Identity:
    """A new one, for a launcher that starts all ranks itself."""
    return Identity(f"run {os.urandom(16).hex()}", os.urandom(32).hex(), master)


def in_common(master: str, secret: str | None) -> Identity:
    """One that launchers on several hosts come to without a word, given the same master and secret."""
    mark = hashlib.sha256(f"{master} {secret}".encode()).hexdigest()[:16]
    return Identity(f"run {master} {mark}", secret, master)
