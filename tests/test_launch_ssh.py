"""`arx run --hosts` over the real ssh: OpenSSH's daemon on two of the hosts, with keys made for the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import hostjob
import pytest
from hostjob import Launcher
from launching import WATCHDOG, alive, numbers, until, write_script
from netlab import Lab

from arx.launch.command import SSH

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_CONF = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
ClientAliveInterval 1
ClientAliveCountMax 2
"""


@pytest.fixture(scope="module")
def ssh(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What connects to h1 and h2, with nobody's own configuration."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd: as root on Debian, apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=WATCHDOG
        )
    (folder / "sshd.conf").write_text(_CONF.format(folder=folder))
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text("".join(f"{host} {key}" for host in ("h1", "h2")))
    Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
    with contextlib.ExitStack() as stack:
        for host in ("h1", "h2"):
            argv = [*lab.enter(host), SSHD, "-D", "-f", str(folder / "sshd.conf")]
            process = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
        command = f"ssh -F none -i {folder}/user -T -o BatchMode=yes -o UserKnownHostsFile={folder}/known"
        deadline = time.monotonic() + WATCHDOG
        for host in ("h1", "h2"):
            while subprocess.run([*lab.enter("h0"), *command.split(), host, "true"], timeout=WATCHDOG).returncode:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield command


def test_ranks_find_each_other(launch_hosts: Launcher, ssh: str) -> None:
    program = hostjob.program(launch_hosts.folder)
    done = launch_hosts("--rsh", ssh, "--hosts", "h1:2,localhost:1,root@h2:1", *program)
    assert done.returncode == 0, done.stderr
    hostjob.check(launch_hosts.folder, ["h1", "h1", "h0", "h2"], "ARX_* variables")


def test_a_failure_and_its_words_come_through(launch_hosts: Launcher, ssh: str) -> None:
    line = 'echo "it\'s $ARX_RANK  \\"$1\\""; test $ARX_RANK = 0 || { echo why >&2; exit 9; }; exec sleep 1000000'
    done = launch_hosts("--rsh", ssh, "--hosts", "h1,h2", "sh", "-c", line, "-", "a b'c $HOME")
    assert done.returncode == 9
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] it's {rank}  \"a b'c $HOME\"" for rank in range(2)]
    assert "rank 1 of 2 failed first: exit code 9" in done.stderr
    assert "  | why\n" in done.stderr


@pytest.mark.parametrize("way", ["launcher killed", "terminated"])
def test_nothing_survives_behind_ssh(launch_hosts: Launcher, ssh: str, way: str) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        left = subprocess.Popen(["setsid", "sleep", "1000000"])
        mark(f"child{rank}", left.pid)
        mark(f"rank{rank}", os.getpid())
        time.sleep(1e6)
        """,
    )
    with launch_hosts.start("--rsh", ssh, "--hosts", "h1:1,h2:1", path) as process:
        family = numbers(launch_hosts.folder, ["child0", "child1", "rank0", "rank1"])
        if way == "terminated":
            process.terminate()
        else:
            process.kill()
        process.communicate(timeout=WATCHDOG)
        until(lambda: not any(map(alive, family)), f"the end of {family}")


def test_what_ssh_says_is_shown(launch_hosts: Launcher, ssh: str) -> None:
    done = launch_hosts("--rsh", f"{ssh} -i /none -o IdentitiesOnly=yes -l nobody", "--hosts", "h0,h1", "true")
    assert done.returncode == 2
    assert "arx run: error: host h1: no agent started there, ssh ended with exit code 255: ssh -F none" in done.stderr
    assert "Permission denied" in done.stderr
    # by default nobody is asked whether a host whose key is not known can be trusted
    done = launch_hosts("--rsh", f"{SSH} -F none -o UserKnownHostsFile=/dev/null", "--hosts", "h0,h1", "true")
    assert done.returncode == 2
    assert "Host key verification failed" in done.stderr


def test_a_host_that_vanishes_ends_the_job_on_both_sides(launch_hosts: Launcher, ssh: str) -> None:
    path = write_script(launch_hosts.folder, "mark(f'rank{rank}', os.getpid()); time.sleep(1e6)")
    alive_options = "-o ServerAliveInterval=1 -o ServerAliveCountMax=2"
    with launch_hosts.start("--rsh", f"{ssh} {alive_options}", "--hosts", "h0:1,h1:1,h2:1", path) as process:
        ranks = numbers(launch_hosts.folder, ["rank0", "rank1", "rank2"])
        launch_hosts.lab.cut("h2")
        try:
            output = process.communicate(timeout=WATCHDOG)[0].decode()
            until(lambda: not any(map(alive, ranks)), f"the end of {ranks}")
        finally:
            launch_hosts.lab.mend("h2")
    assert process.returncode == 1
    assert "arx run: rank 2 of 3 failed first: lost with host h2, where ssh ended with exit code 255" in output
    assert "  ranks 0, 1: ended by the launcher (SIGTERM)" in output
