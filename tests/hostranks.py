"""Ranks on several hosts, and the same over TCP on this one.

A *site* says where the ranks of a job are. Sites on hosts need a lab and with it root; those at home need nothing.

    at_home(3)                          three ranks of this host that share no memory
    on_hosts(lab, "h0 h1 h0")           rank 0 on h0, rank 1 on h1, rank 2 on h0

`Crew` keeps ranks for many small cases that must succeed, as `arx.testing.Ranks` does. `HostJob` is a `processes.Job`
for scenes, whose ranks die. Either way a rank is an ordinary process that enters its host before it knows anything of
arx; what hangs is ended by a watchdog, which shows the stack of every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import secrets
import socket
import traceback
from typing import Any, NamedTuple

from netlab import Lab
from processes import Job

from arx import testing

PORT = 29511
SECRET = "known to the ranks alone"
_crews = itertools.count(1)
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000


class Site(NamedTuple):
    """Where the ranks of a job are."""

    hosts: tuple[str, ...]
    """Each rank's."""
    namespaces: tuple[str | None, ...]
    """Each rank's host as the system knows it; None: here."""
    master: str | None
    """The address of rank 0; None: arx finds it by itself."""

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each host, in the order of the first ones; at home every rank is one."""
        if self.master is None:
            return [[rank] for rank in range(self.size)]
        return [[r for r in range(self.size) if self.hosts[r] == host] for host in dict.fromkeys(self.hosts)]

    def variables(self, rank: int, port: int | None) -> dict[str, str]:
        """A rank's, as somebody sets them who has no launcher."""
        told: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": self.size}
        if self.master is None:
            told |= {"TRANSPORT": "tcp"} | ({} if port is None else {"MASTER": f"127.0.0.1:{port}"})
        else:
            (node,) = (node for node in self.nodes if rank in node)
            told |= {"NNODES": len(self.nodes), "NODE_RANK": self.nodes.index(node)}
            told |= {"LOCAL_RANK": node.index(rank), "LOCAL_SIZE": len(node)}
            told |= {"MASTER": f"{self.master}:{port or PORT}", "SECRET": SECRET}
        return {f"ARX_{name}": str(value) for name, value in told.items()}


def at_home(n: int) -> Site:
    return Site(("localhost",) * n, (None,) * n, None)


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def on_hosts(lab: Lab, hosts: str) -> Site:
    each = tuple(hosts.split())
    return Site(each, tuple(lab.namespace(host) for host in each), lab.address(each[0]))


def enter(namespace: str | None, host: str) -> None:
    """Move this process to a host for good."""
    if namespace is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as network:
        if libc.setns(network.fileno(), _CLONE_NEWNET) or libc.unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    socket.sethostname(host)


class Crews:
    """``crews("h0 h1")`` or ``crews("3")``: the crew of that site, which is kept; another if a test has broken it."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self._kept: dict[str, Crew] = {}

    @functools.cached_property
    def lab(self) -> Lab:
        return self._closing.enter_context(Lab(3))

    def site(self, where: str) -> Site:
        return at_home(int(where)) if where.isdecimal() else on_hosts(self.lab, where)

    def __call__(self, where: str) -> Crew:
        if where not in self._kept or self._kept[where].broken:
            self._kept[where] = self._closing.enter_context(Crew(self.site(where)))
        return self._kept[where]

    def __enter__(self) -> Crews:
        return self

    def __exit__(self, *fault: Any) -> None:
        self._closing.__exit__(*fault)


class Crew(testing.Ranks):
    """Ranks of a site that have called ``arx.init()``, and then run one function after another."""

    def __init__(self, site: Site, *, timeout: float = 90, env: dict[str, str | None] | None = None) -> None:
        self.size, self.timeout, self.broken = site.size, timeout, False
        self._party = testing._Party(site.size, env)
        self.run(_join, site, secrets.token_hex(8), PORT + next(_crews))


def _join(site: Site, job: str, port: int) -> None:
    rank = int(os.environ["ARX_RANK"])
    enter(site.namespaces[rank], site.hosts[rank])
    for name in ("LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NNODES"):
        del os.environ[f"ARX_{name}"]
    os.environ |= site.variables(rank, port if site.master else None) | {"ARX_JOB_ID": job}
    import arx

    arx.init(timeout=60)


class HostJob(Job):
    """``fn(say, *args)`` on every rank of a site, or on those of ``places``; ``of`` has variables of single ranks."""

    def __init__(
        self,
        site: Site,
        fn: Any,
        *args: Any,
        port: int | None = None,
        of: dict[int, dict[str, str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(site.size, _on_host, site, port, of or {}, fn, args, **options)


def _on_host(
    say: Any, site: Site, port: int | None, of: dict[int, dict[str, str]], fn: Any, args: tuple[Any, ...]
) -> Any:
    rank = int(os.environ["ARX_RANK"])
    enter(site.namespaces[rank], site.hosts[rank])
    os.environ |= site.variables(rank, port) | of.get(rank, {})
    try:
        return fn(say, *args)
    except BaseException:
        traceback.print_exc()
        raise
