"""Several hosts on one machine, for tests: network namespaces on one bridge, each with an address and a name.

    h0 10.77.0.1 ──veth──┐
    h1 10.77.0.2 ──veth──┤ bridge, in a namespace of its own too, so labs never see one another or the machine
    h2 10.77.0.3 ──veth──┘

What runs "on" a host is an ordinary process that was started through `enter`: it shares files, memory and process ids
with all the others, but neither network, abstract unix sockets nor host name. `rsh` writes a program that starts
commands there as `ssh` would, for the launchers that want one. Needs root and iproute2, else the test is skipped.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

_QUICK = 60  # seconds for one call of `ip`; ends a test that hangs
_numbers = itertools.count()

# As ssh has it: the words after the host are one line for a shell there.
_RSH = """\
#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=${{1##*@}}; shift
case "$host" in {names}) ;; *) echo "rsh: $host: no such host" >&2; exit 255;; esac
exec ip netns exec {prefix}$host unshare --uts -- sh -c 'hostname "$0" && exec sh -c "$1"' $host "$*"
"""


class Lab:
    """The hosts of one test: `with Lab(3) as lab`, then `lab.hosts` is h0, h1, h2; gone for certain afterwards."""

    def __init__(self, n: int, rate: str | None = None) -> None:
        self.hosts = [f"h{i}" for i in range(n)]
        self._prefix = f"arx{os.getpid()}x{next(_numbers)}"  # interfaces inside have fixed, short names
        self._rate = rate

    def address(self, host: str) -> str:
        return f"10.77.0.{self.hosts.index(host) + 1}"

    def __enter__(self) -> Lab:
        skip_without_hosts()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def enter(self, host: str) -> list[str]:
        """What stands before a command that runs on `host`."""
        rename = ["unshare", "--uts", "--", "sh", "-c", 'hostname "$0" && exec "$@"', host]
        return ["ip", "netns", "exec", self.namespace(host), *rename]

    def rsh(self, folder: Path) -> Path:
        """A program that is called as `ssh HOST COMMAND…` is, for all hosts of this lab."""
        path = folder / "rsh"
        path.write_text(_RSH.format(prefix=self._prefix, names="|".join(self.hosts)))
        path.chmod(0o755)
        return path

    def cut(self, host: str) -> None:
        """Pulls the plug of a host: nobody is told anything, in either direction."""
        _ip("-n", self.namespace("sw"), "link", "set", f"p{host}", "nomaster")

    def mend(self, host: str) -> None:
        """Puts the plug in again."""
        _ip("-n", self.namespace("sw"), "link", "set", f"p{host}", "master", "br0")

    def received(self, host: str) -> int:
        """Bytes that came in at a host's interface since it is up."""
        counter = "/sys/class/net/e0/statistics/rx_bytes"
        return int(_run("ip", "netns", "exec", self.namespace(host), "cat", counter))

    def namespace(self, host: str) -> str:
        """The name by which `ip netns` knows a host."""
        return self._prefix + host

    def _build(self) -> None:
        switch = self.namespace("sw")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        names = "".join(f"{self.address(host)} {host}\n" for host in self.hosts)
        for host in self.hosts:
            here = self.namespace(host)
            files = Path("/etc/netns", here)  # `ip netns exec` shows these in place of those of /etc
            files.mkdir(parents=True)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            _ip("netns", "add", here)
            _ip("-n", here, "link", "set", "lo", "up")
            _ip("link", "add", "e0", "netns", here, "type", "veth", "peer", "name", f"p{host}", "netns", switch)
            _ip("-n", here, "addr", "add", f"{self.address(host)}/24", "dev", "e0")
            _ip("-n", here, "link", "set", "e0", "up")
            _ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
            if self._rate is not None:
                shape = ("root", "tbf", "rate", self._rate, "burst", "128kb", "latency", "20ms")
                _run("tc", "-n", here, "qdisc", "add", "dev", "e0", *shape)
                _run("tc", "-n", switch, "qdisc", "add", "dev", f"p{host}", *shape)

    def _remove(self) -> None:
        for name in (*self.hosts, "sw"):
            namespace = self.namespace(name)
            listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=_QUICK)
            for pid in listed.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=_QUICK, check=False)
            shutil.rmtree(Path("/etc/netns", namespace), ignore_errors=True)


def skip_without_hosts() -> None:
    """Skips the calling test, with the reason, where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("hosts as network namespaces need root")
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"hosts as network namespaces need the program {program} (iproute2, util-linux)")
    trial = f"arx{os.getpid()}trial"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, timeout=_QUICK)
    if made.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    _ip("netns", "del", trial)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_QUICK, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
