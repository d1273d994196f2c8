"""`arx run --hosts`: places, environment and output on several hosts, which are namespaces, and every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import hostjob
import pytest
from hostjob import Launcher
from launching import WATCHDOG, until, write_script


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        ("h0:2,h1:2", ["h0", "h0", "h1", "h1"]),
        ("h1:3,h0:1,h2:2", ["h1", "h1", "h1", "h0", "h2", "h2"]),
        ("h2,h1,h2,h1", ["h2", "h1", "h2", "h1"]),
        ("root@h1:1,localhost:1", ["h1", "h0"]),
        ("localhost:1,h2:1", ["h0", "h2"]),
    ],
)
def test_ranks_on_several_hosts_find_each_other(launch_hosts: Launcher, hosts: str, ranks: list[str]) -> None:
    done = launch_hosts("--hosts", hosts, *hostjob.program(launch_hosts.folder))
    assert done.returncode == 0, done.stderr
    found = hostjob.check(launch_hosts.folder, ranks, "ARX_* variables")
    names = list(dict.fromkeys(ranks))
    assert [rank["node_rank"] for rank in found] == [names.index(host) for host in ranks]
    assert {(rank["num_nodes"], rank["folder"]) for rank in found} == {(len(names), str(launch_hosts.folder))}
    host = launch_hosts.lab.address("h0") if hosts.startswith("localhost") else ranks[0]
    assert re.fullmatch(rf"({re.escape(host)}:2\d{{4}},?|{re.escape(host)}:3[01]\d{{3}},?){{8}}", found[0]["master"])


def test_all_on_this_host_is_a_job_of_one_host(launch_hosts: Launcher) -> None:
    line = "echo $ARX_LOCAL_RANK/$ARX_LOCAL_SIZE $ARX_NNODES ${ARX_MASTER-none}"
    done = launch_hosts("--hosts", "localhost:1,h0:1,127.0.0.1:1", "sh", "-c", line)
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {rank}/3 1 none" for rank in range(3)]


def test_the_numbers_of_ranks_that_are_not_said(launch_hosts: Launcher) -> None:
    line = "echo $(hostname)"
    done = launch_hosts("--hosts", "h1,h2:1", "-n", "2", "sh", "-c", line)
    assert sorted(done.stdout.splitlines()) == ["[rank 0] h1", "[rank 1] h1", "[rank 2] h2"]
    assert sorted(launch_hosts("--hosts", "h1,h2", "sh", "-c", line).stdout.splitlines()) == [
        "[rank 0] h1",
        "[rank 1] h2",
    ]


def test_what_goes_along_to_other_hosts(launch_hosts: Launcher) -> None:
    told = {"ARX_ALGO": "ring", "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7", "HOME_OF_MINE": "stays", "LANG": "C"}
    kept = {"ARX_RANK": "9", "PMI_RANK": "4", "ARX_SECRET": "old", "ARX_MASTER": "old:1", "ARX_TAKEN": "1"}
    path = write_script(launch_hosts.folder, "import json; print(json.dumps(dict(os.environ)))")
    # The other host's own environment is not this one's: its program clears it.
    cleared = launch_hosts.folder / "cleared"
    cleared.write_text(f'#!/bin/sh\nexec env -i PATH=/bin:/only/there:/usr/bin:/usr/sbin {launch_hosts.rsh} "$@"\n')
    cleared.chmod(0o755)
    options = ("--rsh", cleared, "--env", "GIVEN=a b'c\"", "--timeout", "12.5", "--prefix", "none")
    mine = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": f"/mine:{os.environ['PATH']}"}
    done = launch_hosts("--hosts", "h1:1", *options, path, env=told | kept | mine)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {name: seen.get(name) for name in told} == told | {"HOME_OF_MINE": None, "LANG": None}
    assert (seen["GIVEN"], seen["ARX_TIMEOUT"], seen["PYTHONPATH"]) == ("a b'c\"", "12.5", mine["PYTHONPATH"])
    assert seen["PATH"].startswith(mine["PATH"])
    assert seen["PATH"].endswith(":/only/there")
    assert len(seen["ARX_SECRET"]) == 64
    assert (seen["ARX_RANK"], "ARX_MASTER" in seen, "PMI_RANK" in seen) == ("0", False, False)


def test_the_secret_is_on_no_command_line(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        import glob
        mark(f"up{rank}")
        while not all(os.path.exists(f"{marks}/up{r}") for r in range(2)):
            time.sleep(0.01)
        lines = []
        for name in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                lines.append(open(name, "rb").read())
            except OSError:
                pass
        assert any(b"arx.launch.agent" in line for line in lines)
        assert not any(os.environ["ARX_SECRET"].encode() in line for line in lines)
        """,
    )
    done = launch_hosts("--hosts", "h1:1,h2:1", path)
    assert done.returncode == 0, done.stderr


def test_output_comes_whole_and_whatever_its_size(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        for k in range(20_000):
            os.write(1, f"{rank} line {k} {'x' * (k % 90)}\\n".encode())
        os.write(2, b"\\xff no text, no end")
        """,
    )
    logs = launch_hosts.folder / "logs"
    done = subprocess.run(
        launch_hosts.command("--hosts", "h1:1,h2:1", "--log-dir", logs, path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WATCHDOG,
        check=True,
    )
    for rank in range(2):
        mark = f"[rank {rank}] "
        own = [line.removeprefix(mark) for line in done.stdout.decode().splitlines() if line.startswith(mark)]
        assert own == [f"{rank} line {k} {'x' * (k % 90)}" for k in range(20_000)]
        log = (logs / f"rank-{rank}.log").read_bytes()
        assert b"\xff no text, no end" in log
        assert len(log) == sum(len(line) + 1 for line in own) + 17
    assert sorted(done.stderr.splitlines()) == [b"[rank 0] \xff no text, no end", b"[rank 1] \xff no text, no end"]


# Mistakes, and hosts that are not as they should be


def test_what_is_wrong_is_said(launch_hosts: Launcher) -> None:
    cases: list[tuple[list[object], str]] = [
        (["--hosts", "h0:0", "true"], "'h0:0' in 'h0:0' is not of the form HOST:RANKS"),
        (["--hosts", "h0:1,,h1", "true"], "'' in 'h0:1,,h1' is not of the form"),
        (["--hosts", "h0:two", "true"], "'h0:two' in"),
        (["--hosts=-oProxyCommand=x", "true"], "'-oProxyCommand=x' in"),
        (["--hosts", "h0 h1", "true"], "'h0 h1' in"),
        (["--hosts", "h1", "--nnodes", "2", "true"], "give one or the other"),
        (["--hosts", "h1", "--master", "h1", "true"], "--master='h1' is not of the form HOST:PORT"),
        (["--hosts", "h1", "--rsh", "", "true"], "--rsh names no program"),
        (["--hosts", "h1", "--rsh", "a 'b", "true"], "No closing quotation"),
        (["--hosts", "h1", "--rsh", "nosuch -x", "true"], "--rsh: cannot start nosuch: No such file or directory"),
        (["--hosts", "h1", "nosuch"], "host h1: nosuch: no such script or program"),
        (["--hosts", "h1,h1", "-m", "no.such"], "host h1: -m no.such: no module named no"),
        (["--hosts", "localhost,nowhere", "true"], "which address of this host would nowhere know"),
    ]
    for args, told in cases:
        done = launch_hosts(*args)
        assert (done.returncode, done.stdout) == (2, ""), args
        assert told in done.stderr
    unreachable = launch_hosts("--hosts", "h0,h1:1,h7:2", "true")
    assert unreachable.returncode == 2
    assert "arx run: error: host h7: no agent started there, " in unreachable.stderr
    assert "rsh ended with exit code 255" in unreachable.stderr
    assert "  | rsh: h7: no such host\n" in unreachable.stderr


def test_a_program_that_cannot_be_started_on_one_host_starts_on_none(launch_hosts: Launcher) -> None:
    # h2's agent looks in a folder that h1's does not have, since the rsh to h1 hides it
    program = launch_hosts.folder / "bin" / "tool"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {launch_hosts.folder}/ran$ARX_RANK\n")
    program.chmod(0o755)
    hiding = launch_hosts.folder / "hiding"
    hide = f"unshare --mount sh -c 'mount -t tmpfs none {program.parent} && exec {launch_hosts.rsh} \"$@\"' -"
    hiding.write_text(f'#!/bin/sh\nif [ "$1" = h1 ]; then exec {hide} "$@"; else exec {launch_hosts.rsh} "$@"; fi\n')
    hiding.chmod(0o755)
    done = launch_hosts("--hosts", "h2:1,h1:1", "--rsh", hiding, program)
    assert done.returncode == 2, done.stderr
    assert f"host h1: {program}: no such script or program" in done.stderr
    assert not (launch_hosts.folder / "ran0").exists()
    assert launch_hosts("--hosts", "h2:1,h2:1", "--rsh", hiding, program).returncode == 0
    assert (launch_hosts.folder / "ran0").exists()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("echo welcome; exit 0", ["rsh ended with exit code 0", "  | welcome"]),
        ("echo not today >&2; exit 1", ["rsh ended with exit code 1", "  | not today"]),
        ("exec /no/such/python", ["rsh ended with exit code 127", "/no/such/python"]),
        ("kill -9 $$", ["rsh died of signal 9"]),
    ],
)
def test_a_host_without_an_agent(launch_hosts: Launcher, line: str, told: list[str]) -> None:
    path = launch_hosts.folder / "broken-rsh"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    done = launch_hosts("--hosts", "h0:1,h1:1", "--rsh", path, "true")
    assert done.returncode == 2
    assert "arx run: error: host h1: no agent started there" in done.stderr
    for part in told:
        assert part in done.stderr


def test_a_login_shell_may_talk_first(launch_hosts: Launcher) -> None:
    path = launch_hosts.folder / "talkative"
    path.write_text(
        f'#!/bin/sh\necho "Welcome to $1. You have mail."\nprintf "\\000ar"\nexec {launch_hosts.rsh} "$@"\n'
    )
    path.chmod(0o755)
    done = launch_hosts("--hosts", "h1:1,h2:1", "--rsh", path, "sh", "-c", "echo $ARX_RANK")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[rank 0] 0", "[rank 1] 1"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_host_does_not_answer(launch_hosts: Launcher, number: signal.Signals, code: int) -> None:
    path = launch_hosts.folder / "silent"
    path.write_text(f"#!/bin/sh\ntouch {launch_hosts.folder}/up\nexec sleep 1000000\n")
    path.chmod(0o755)
    with launch_hosts.start("--hosts", "h0:1,h1:1", "--rsh", path, "true") as process:
        until((launch_hosts.folder / "up").exists, "the connection")
        process.send_signal(number)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == code


@pytest.mark.parametrize("algo", ["ring", "pairwise", "hierarchical+tree"])
@pytest.mark.parametrize("hosts", ["h0:2,h1:2", "h1:3,h0:1"])
def test_links_are_pipes_within_a_host_and_connections_between(launch_hosts: Launcher, hosts: str, algo: str) -> None:
    done = launch_hosts("--hosts", hosts, *hostjob.program(launch_hosts.folder), env={"ARX_ALGO": algo})
    assert done.returncode == 0, done.stderr
    names = ["h0", "h0", "h1", "h1"] if hosts.startswith("h0") else ["h1", "h1", "h1", "h0"]
    hostjob.check(launch_hosts.folder, names, "ARX_* variables")


def test_shared_memory_alone_does_not_reach_another_host(launch_hosts: Launcher) -> None:
    code = "import arx\ntry:\n    arx.init(timeout=30)\nexcept arx.InitError as error:\n    print(error)"
    done = launch_hosts("--hosts", "h0:1,h1:2", sys.executable, "-c", code, env={"ARX_TRANSPORT": "shm"})
    said = sorted(done.stdout.splitlines())
    assert [line.partition("] ")[0] for line in said] == ["[rank 0", "[rank 1", "[rank 2"], done.stderr
    for line, here in zip(said, (1, 2, 2), strict=True):
        assert (
            f"transport shm is memory that all ranks share, but this job has several hosts, with {here} of its 3"
            in line
        )
        assert "use auto or tcp" in line
