"""`arx run` over several hosts, which are network namespaces: agents on each, ranks, signals, and every kind of end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostjob
import pytest
from launching import ARX, WATCHDOG, alive, keeper_of, numbers, until, watched, write_script
from netlab import Lab

from arx.launch import master, near


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3) as lab:
        yield lab


class Launcher:
    """`arx run` on h0 of a lab, with an rsh that enters the other hosts."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.rsh = str(lab.rsh(folder))

    def command(self, *args: object) -> list[str]:
        return [*self.lab.enter("h0"), *ARX, "run", "--rsh", self.rsh, *map(str, args)]

    def __call__(self, *args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": WATCHDOG, "cwd": self.folder}
        return subprocess.run(
            self.command(*args), env=os.environ | (env or {}), stdin=subprocess.DEVNULL, check=False, **settings
        )

    def start(self, *args: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
        )


@pytest.fixture
def launch(lab: Lab, tmp_path: Path) -> Launcher:
    return Launcher(lab, tmp_path)


# From one place: places, environment, secret


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
def test_ranks_on_several_hosts_find_each_other(launch: Launcher, hosts: str, ranks: list[str]) -> None:
    done = launch("--hosts", hosts, *hostjob.program(launch.folder))
    assert done.returncode == 0, done.stderr
    found = hostjob.check(launch.folder, ranks, "ARX_* variables")
    names = list(dict.fromkeys(ranks))
    assert [rank["node_rank"] for rank in found] == [names.index(host) for host in ranks]
    assert {(rank["num_nodes"], rank["folder"]) for rank in found} == {(len(names), str(launch.folder))}
    host = launch.lab.address("h0") if hosts.startswith("localhost") else ranks[0]
    assert re.fullmatch(rf"({re.escape(host)}:2\d{{4}},?|{re.escape(host)}:3[01]\d{{3}},?){{8}}", found[0]["master"])


def test_all_on_this_host_is_a_job_of_one_host(launch: Launcher) -> None:
    line = "echo $ARX_LOCAL_RANK/$ARX_LOCAL_SIZE $ARX_NNODES ${ARX_MASTER-none}"
    done = launch("--hosts", "localhost:1,h0:1,127.0.0.1:1", "sh", "-c", line)
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {rank}/3 1 none" for rank in range(3)]


def test_the_numbers_of_ranks_that_are_not_said(launch: Launcher) -> None:
    line = "echo $(hostname)"
    done = launch("--hosts", "h1,h2:1", "-n", "2", "sh", "-c", line)
    assert sorted(done.stdout.splitlines()) == ["[rank 0] h1", "[rank 1] h1", "[rank 2] h2"]
    assert sorted(launch("--hosts", "h1,h2", "sh", "-c", line).stdout.splitlines()) == ["[rank 0] h1", "[rank 1] h2"]


def test_what_goes_along_to_other_hosts(launch: Launcher) -> None:
    told = {"ARX_ALGO": "ring", "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7", "HOME_OF_MINE": "stays", "LANG": "C"}
    kept = {"ARX_RANK": "9", "PMI_RANK": "4", "ARX_SECRET": "old", "ARX_MASTER": "old:1", "ARX_TAKEN": "1"}
    path = write_script(launch.folder, "import json; print(json.dumps(dict(os.environ)))")
    # The other host's own environment is not this one's: its program clears it.
    cleared = launch.folder / "cleared"
    cleared.write_text(f'#!/bin/sh\nexec env -i PATH=/bin:/only/there:/usr/bin:/usr/sbin {launch.rsh} "$@"\n')
    cleared.chmod(0o755)
    options = ("--rsh", cleared, "--env", "GIVEN=a b'c\"", "--timeout", "12.5", "--prefix", "none")
    mine = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": f"/mine:{os.environ['PATH']}"}
    done = launch("--hosts", "h1:1", *options, path, env=told | kept | mine)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {name: seen.get(name) for name in told} == told | {"HOME_OF_MINE": None, "LANG": None}
    assert (seen["GIVEN"], seen["ARX_TIMEOUT"], seen["PYTHONPATH"]) == ("a b'c\"", "12.5", mine["PYTHONPATH"])
    assert seen["PATH"].startswith(mine["PATH"])
    assert seen["PATH"].endswith(":/only/there")
    assert len(seen["ARX_SECRET"]) == 64
    assert (seen["ARX_RANK"], "ARX_MASTER" in seen, "PMI_RANK" in seen) == ("0", False, False)


def test_the_secret_is_on_no_command_line(launch: Launcher) -> None:
    path = write_script(
        launch.folder,
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
    done = launch("--hosts", "h1:1,h2:1", path)
    assert done.returncode == 0, done.stderr


def test_output_comes_whole_and_whatever_its_size(launch: Launcher) -> None:
    path = write_script(
        launch.folder,
        """
        for k in range(20_000):
            os.write(1, f"{rank} line {k} {'x' * (k % 90)}\\n".encode())
        os.write(2, b"\\xff no text, no end")
        """,
    )
    logs = launch.folder / "logs"
    done = subprocess.run(
        launch.command("--hosts", "h1:1,h2:1", "--log-dir", logs, path),
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


# Ends


def test_the_first_failure_ends_all_and_is_named_with_its_host(launch: Launcher) -> None:
    line = "test $ARX_RANK != 2 || { echo note >&2; exit 7; }; exec sleep 1000000"
    done = launch("--hosts", "h0:1,h1:1,h2:2", "sh", "-c", line)
    assert done.returncode == 7
    assert re.search(r"arx run: rank 2 of 4 failed first: exit code 7 \(pid \d+ on h2, after \d+\.\d s\)", done.stderr)
    assert "  | note\n" in done.stderr
    assert "  ranks 0, 1, 3: ended by the launcher (SIGTERM)" in done.stderr


def test_death_by_signal_is_named(launch: Launcher) -> None:
    done = launch("--hosts", "h1:1,h2:1", "sh", "-c", "test $ARX_RANK = 0 || kill -9 $$; exec sleep 1000000")
    assert done.returncode == 137
    assert re.search(r"rank 1 of 2 failed first: killed by SIGKILL \(pid \d+ on h2,", done.stderr)


def test_a_rank_deaf_to_sigterm_is_killed_on_its_host(launch: Launcher) -> None:
    line = "test $ARX_RANK = 0 && exit 3; trap '' TERM; while :; do sleep 1; done"
    done = launch("--hosts", "h1:1,h2:1", "sh", "-c", line)
    assert done.returncode == 3
    assert "rank 1: killed by the launcher, since SIGTERM did not end it" in done.stderr


def test_what_ranks_leave_behind_is_ended_on_every_host(launch: Launcher) -> None:
    path = write_script(launch.folder, "mark(f'left{rank}', subprocess.Popen(['setsid', 'sleep', '1000000']).pid)")
    done = launch("--hosts", "h1:1,h2:1", path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("arx run: ending 1 process(es) that the ranks left behind") == 2
    assert not any(map(alive, numbers(launch.folder, ["left0", "left1"])))


FAMILY = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    left = subprocess.Popen(["setsid", "sleep", "1000000"])
    mark(f"child{rank}", left.pid)
    mark(f"rank{rank}", os.getpid())
    time.sleep(1e6)
"""
NAMES = [f"{kind}{rank}" for rank in range(3) for kind in ("child", "rank")]


def agents(of: int) -> dict[str, list[int]]:
    """The launcher's agents, outer and inner, by host; in namespaces all are its descendants."""
    found: dict[str, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if b"-P\0-m\0arx.launch.agent" in line and of in ancestors(int(path.name)):
            enter = ["nsenter", "--uts", "-t", path.name]
            name = subprocess.check_output([*enter, "hostname"], text=True, timeout=WATCHDOG).strip()
            found.setdefault(name, []).append(int(path.name))
    return found


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("launcher killed", -9),
        ("keeper killed", 137),
        ("both killed", -9),
        ("terminated", 143),
        ("agent killed", 1),
        ("agent's outer process killed", 1),
    ],
)
def test_nothing_survives_on_any_host(launch: Launcher, way: str, code: int) -> None:
    path = write_script(launch.folder, FAMILY)
    with launch.start("--hosts", "h1:2,h2:1", path) as process:
        everyone = numbers(launch.folder, NAMES)
        keeper = keeper_of(process.pid)
        served = agents(process.pid)
        assert sorted(served) == ["h1", "h2"]
        assert [len(pids) for pids in served.values()] == [2, 2]
        outer = min(served["h2"], key=lambda pid: len(ancestors(pid)))
        (inner,) = (pid for pid in served["h2"] if pid != outer)
        everyone += [keeper, *served["h1"], *served["h2"]]
        with watched(everyone):
            if way == "launcher killed":
                process.kill()
            elif way == "keeper killed":
                os.kill(keeper, signal.SIGKILL)
            elif way == "both killed":
                os.kill(process.pid, signal.SIGSTOP)  # so that it cannot clean up in between
                os.kill(keeper, signal.SIGKILL)
                process.kill()
            elif way == "terminated":
                process.terminate()
            else:
                os.kill(inner if way == "agent killed" else outer, signal.SIGKILL)
            output = process.communicate(timeout=WATCHDOG)[0].decode()
            assert process.returncode == code
            until(lambda: not any(map(alive, everyone)), f"the end of {everyone}")
    if way.startswith("agent"):
        assert re.search(r"rank 2 of 3 failed first: lost with host h2, where \S*rsh (died of signal 9|ended)", output)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_a_signal_reaches_each_rank_of_each_host_once(launch: Launcher, number: signal.Signals, code: int) -> None:
    path = write_script(
        launch.folder,
        f"""
        heard = []
        signal.signal({int(number)}, lambda n, _: heard.append(n))
        mark(f"ready{{rank}}", os.getpid())
        while not heard:
            time.sleep(0.01)
        time.sleep(0.3)
        mark(f"heard{{rank}}", len(heard))
        """,
    )
    with launch.start("--hosts", "h0:1,h1:2", path) as process:
        numbers(launch.folder, [f"ready{rank}" for rank in range(3)])
        process.send_signal(number)
        output = process.communicate(timeout=WATCHDOG)[0].decode()
    assert process.returncode == code
    assert f"arx run: {number.name}: all ranks have ended" in output
    assert numbers(launch.folder, [f"heard{rank}" for rank in range(3)]) == [1, 1, 1]


def test_signals_for_the_ranks_are_relayed_and_ctrl_c_twice_is_the_end(launch: Launcher) -> None:
    path = write_script(
        launch.folder,
        """
        signal.signal(signal.SIGUSR1, lambda *_: mark(f"told{rank}", 1))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        mark(f"ready{rank}", 1)
        while True:
            time.sleep(0.1)
        """,
    )
    with launch.start("--hosts", "h1:1,h2:1", path) as process:
        numbers(launch.folder, ["ready0", "ready1"])
        process.send_signal(signal.SIGUSR1)
        numbers(launch.folder, ["told0", "told1"])
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals at once would be one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == 130


# Mistakes, and hosts that are not as they should be


def test_what_is_wrong_is_said(launch: Launcher) -> None:
    cases: list[tuple[list[object], str]] = [
        (["--hosts", "h0:0", "true"], "'h0:0' in 'h0:0' is not of the form HOST:RANKS"),
        (["--hosts", "h0:1,,h1", "true"], "'' in 'h0:1,,h1' is not of the form"),
        (["--hosts", "h0:two", "true"], "'h0:two' in"),
        (["--hosts=-oProxyCommand=x", "true"], "'-oProxyCommand=x' in"),
        (["--hosts", "h0 h1", "true"], "'h0 h1' in"),
        (["--hosts", "h1", "--nnodes", "2", "true"], "give one or the other"),
        (["--hosts", "h1", "--master", "h1", "true"], "--master='h1' is not of the form HOST:PORT"),
        (["--hosts", "h1", "--rsh", "nosuch -x", "true"], "--rsh: cannot start nosuch: No such file or directory"),
        (["--hosts", "h1", "nosuch"], "host h1: nosuch: no such script or program"),
        (["--hosts", "h1,h1", "-m", "no.such"], "host h1: -m no.such: no module named no"),
        (["--hosts", "localhost,nowhere", "true"], "which address of this host would nowhere know"),
    ]
    for args, told in cases:
        done = launch(*args)
        assert (done.returncode, done.stdout) == (2, ""), args
        assert told in done.stderr
    unreachable = launch("--hosts", "h0,h1:1,h7:2", "true")
    assert unreachable.returncode == 2
    assert "arx run: error: host h7: no agent started there, " in unreachable.stderr
    assert "rsh ended with exit code 255" in unreachable.stderr
    assert "  | rsh: h7: no such host\n" in unreachable.stderr


def test_a_program_that_cannot_be_started_on_one_host_starts_on_none(launch: Launcher) -> None:
    # h2's agent looks in a folder that h1's does not have, since the rsh to h1 hides it
    program = launch.folder / "bin" / "tool"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {launch.folder}/ran$ARX_RANK\n")
    program.chmod(0o755)
    hiding = launch.folder / "hiding"
    hide = f"unshare --mount sh -c 'mount -t tmpfs none {program.parent} && exec {launch.rsh} \"$@\"' -"
    hiding.write_text(f'#!/bin/sh\nif [ "$1" = h1 ]; then exec {hide} "$@"; else exec {launch.rsh} "$@"; fi\n')
    hiding.chmod(0o755)
    done = launch("--hosts", "h2:1,h1:1", "--rsh", hiding, program)
    assert done.returncode == 2, done.stderr
    assert f"host h1: {program}: no such script or program" in done.stderr
    assert not (launch.folder / "ran0").exists()
    assert launch("--hosts", "h2:1,h2:1", "--rsh", hiding, program).returncode == 0
    assert (launch.folder / "ran0").exists()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("echo welcome; exit 0", ["rsh ended with exit code 0", "  | welcome"]),
        ("echo not today >&2; exit 1", ["rsh ended with exit code 1", "  | not today"]),
        ("exec /no/such/python", ["rsh ended with exit code 127", "/no/such/python"]),
        ("kill -9 $$", ["rsh died of signal 9"]),
    ],
)
def test_a_host_without_an_agent(launch: Launcher, line: str, told: list[str]) -> None:
    path = launch.folder / "broken-rsh"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    done = launch("--hosts", "h0:1,h1:1", "--rsh", path, "true")
    assert done.returncode == 2
    assert "arx run: error: host h1: no agent started there" in done.stderr
    for part in told:
        assert part in done.stderr


def test_a_login_shell_may_talk_first(launch: Launcher) -> None:
    path = launch.folder / "talkative"
    path.write_text(f'#!/bin/sh\necho "Welcome to $1. You have mail."\nprintf "\\000ar"\nexec {launch.rsh} "$@"\n')
    path.chmod(0o755)
    done = launch("--hosts", "h1:1,h2:1", "--rsh", path, "sh", "-c", "echo $ARX_RANK")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[rank 0] 0", "[rank 1] 1"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_host_does_not_answer(launch: Launcher, number: signal.Signals, code: int) -> None:
    path = launch.folder / "silent"
    path.write_text(f"#!/bin/sh\ntouch {launch.folder}/up\nexec sleep 1000000\n")
    path.chmod(0o755)
    with launch.start("--hosts", "h0:1,h1:1", "--rsh", path, "true") as process:
        until((launch.folder / "up").exists, "the connection")
        process.send_signal(number)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == code


# A launcher on each host


def each(
    lab: Lab, folder: Path, options: list[str], program: list[str], env: dict[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """`arx run --node-rank R` on each host, at the same time."""
    done: list[Any] = [None] * len(lab.hosts)

    def one(node: int, host: str) -> None:
        argv = [*lab.enter(host), *ARX, "run", "--node-rank", str(node), *options, *program]
        done[node] = subprocess.run(
            argv,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WATCHDOG,
            check=False,
            cwd=folder,
        )

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(lab.hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_a_launcher_on_each_host(lab: Lab, tmp_path: Path) -> None:
    options = ["--nnodes", "3", "--master", "h0:29500", "-n", "2"]
    done = each(lab, tmp_path, options, hostjob.program(tmp_path), {"ARX_SECRET": "a" * 64})
    assert [one.returncode for one in done] == [0, 0, 0], done
    found = hostjob.check(tmp_path, ["h0", "h0", "h1", "h1", "h2", "h2"], "ARX_* variables")
    assert [(rank["node_rank"], rank["num_nodes"]) for rank in found] == [(r // 2, 3) for r in range(6)]
    assert found[0]["master"] == "h0:29500"
    first = found[0]["job_id"]
    if hostjob.CONNECTS:
        return
    each(lab, tmp_path, options, hostjob.program(tmp_path), {"ARX_SECRET": "b" * 64})
    assert hostjob.found(tmp_path)[0]["job_id"] != first  # another secret is another launch


def test_ranks_of_one_launcher_are_named_by_their_number_in_the_world(lab: Lab, tmp_path: Path) -> None:
    options = ["--nnodes", "3", "--master", "h0:29500", "-n", "1"]
    done = each(lab, tmp_path, options, ["sh", "-c", "echo at $ARX_RANK; exit $ARX_RANK"], {"ARX_SECRET": "a" * 64})
    assert [one.returncode for one in done] == [0, 1, 2]
    assert [one.stdout for one in done] == [f"[rank {rank}] at {rank}\n" for rank in range(3)]
    assert "arx run: rank 2 of 3 failed first: exit code 2" in done[2].stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--nnodes", "2", "-n", "1"], "--nnodes also needs --master HOST:PORT"),
        (["--nnodes", "2", "--master", "h0:1"], "--nnodes also needs -n"),
        (["--nnodes", "2", "--node-rank", "2", "--master", "h0:1", "-n", "1"], "--node-rank 2 lies outside 0..1"),
        (["--node-rank", "1", "-n", "1"], "--node-rank 1 lies outside 0..0 (--nnodes 1)"),
        (["--master", "h0:1", "-n", "1"], "--master is for several hosts"),
        (["--nnodes", "2", "--master", "h0", "-n", "1"], "--master='h0' is not of the form HOST:PORT"),
        (["--nnodes", "2", "--master", "h0:1", "-n", "1"], "export ARX_SECRET=$(python3 -c 'import secrets; "),
        (["--nnodes", "two"], "'two' is not a number of ranks"),
        (["--node-rank", "-1"], "-1"),
        (["--env", "ARX_MASTER=h:1"], "ARX_MASTER is set by arx run itself"),
        (["--host", "h0"], "unknown option --host; did you mean --hosts?"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, args: list[str], told: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ARX_SECRET"}
    done = subprocess.run(
        [*ARX, "run", *args, "true"],
        env=env,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


def test_without_other_hosts_no_secret_is_needed(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ARX_SECRET"}
    options = ["--nnodes", "2", "--node-rank", "1", "--master", "127.0.0.1:29500", "-n", "1"]
    line = "echo $ARX_RANK $ARX_MASTER ${ARX_SECRET-none}"
    done = subprocess.run(
        [*ARX, "run", *options, "sh", "-c", line],
        env=env,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.stdout == "[rank 1] 1 127.0.0.1:29500 none\n"


def test_this_host_has_one_name() -> None:
    own = socket.gethostname()
    assert near.is_here(own)
    assert near.is_here("localhost")
    assert near.is_here("127.0.0.3")
    assert near.is_here("::1")
    assert not near.is_here(f"not-{own}")
    assert near.master_for([own, "localhost"], "j", master.PORTS) is None
    assert near.master_for(["a@other", own], "j", master.PORTS) == master.candidates("other", "j")
