"""The hosts that other tests stand on: they reach each other by name, at the speed given, and leave nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from netlab import Lab

WATCHDOG = 60.0  # seconds; ends a test that hangs

RECEIVE = """
import socket
with socket.create_server(("", 5000)) as server:
    print("up", flush=True)
    talk, _ = server.accept()
    print(sum(iter(lambda: len(talk.recv(65536)), 0)))
"""
PING = ["python3", "-c", "import socket; socket.create_connection(('h1', 5000), timeout=0.5)"]
SEND = "import socket; socket.create_connection(('h1', 5000)).sendall(bytes(3_000_000))"


def on(lab: Lab, host: str, *command: str) -> str:
    return subprocess.check_output([*lab.enter(host), *command], text=True, timeout=WATCHDOG)


def test_hosts_have_names_and_count_what_they_receive() -> None:
    with Lab(2, rate="200mbit") as lab:
        assert on(lab, "h1", "hostname") == "h1\n"
        assert on(lab, "h0", "getent", "hosts", "h1").split() == ["10.77.0.2", "h1"]
        before = lab.received("h1")
        with subprocess.Popen([*lab.enter("h1"), "python3", "-c", RECEIVE], stdout=subprocess.PIPE, text=True) as sink:
            assert sink.stdout is not None
            assert sink.stdout.readline() == "up\n"
            on(lab, "h0", "python3", "-c", SEND)
            assert sink.communicate(timeout=WATCHDOG)[0] == "3000000\n"
        assert 3_000_000 < lab.received("h1") - before < 3_300_000
        assert "rate 200Mbit" in on(lab, "h0", "tc", "qdisc", "show", "dev", "e0")


def test_two_labs_do_not_meet_and_nothing_is_left() -> None:
    with Lab(2) as one, Lab(2) as other:
        assert one.enter("h0") != other.enter("h0")
        with subprocess.Popen([*one.enter("h1"), "python3", "-c", RECEIVE], stdout=subprocess.PIPE, text=True) as sink:
            assert sink.stdout is not None
            assert sink.stdout.readline() == "up\n"
            with pytest.raises(subprocess.CalledProcessError):
                on(other, "h0", "python3", "-c", SEND)
            one.cut("h0")
            assert subprocess.run([*one.enter("h0"), *PING], timeout=WATCHDOG, check=False).returncode != 0
            one.mend("h0")
            on(one, "h0", *PING)
            sink.kill()
        names = [name for lab in (one, other) for name in (lab.enter("h0")[3], lab.enter("h1")[3])]
        assert all(name in subprocess.check_output(["ip", "netns"], text=True, timeout=WATCHDOG) for name in names)
    assert not any(name in subprocess.check_output(["ip", "netns"], text=True, timeout=WATCHDOG) for name in names)
    assert not any(Path("/etc/netns", name).exists() for name in names)


def test_the_rsh_is_called_as_ssh_is(tmp_path: Path) -> None:
    with Lab(1) as lab:
        rsh = str(lab.rsh(tmp_path))
        line = ["-x", "someone@h0", "echo", "$((1 + 2))", "'a  b';", "hostname"]
        assert subprocess.check_output([rsh, *line], text=True, timeout=WATCHDOG) == "3 a  b\nh0\n"
        refused = subprocess.run([rsh, "h9", "true"], capture_output=True, text=True, timeout=WATCHDOG, check=False)
        assert (refused.returncode, refused.stderr) == (255, "rsh: h9: no such host\n")
