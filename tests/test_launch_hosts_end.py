"""`arx run --hosts`: whatever ends, nothing is left on any host, and every signal arrives."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hostjob import Launcher
from launching import WATCHDOG, alive, keeper_of, numbers, state, until, watched, write_script


def test_the_first_failure_ends_all_and_is_named_with_its_host(launch_hosts: Launcher) -> None:
    line = "test $ARX_RANK != 2 || { echo note >&2; exit 7; }; exec sleep 1000000"
    done = launch_hosts("--hosts", "h0:1,h1:1,h2:2", "sh", "-c", line)
    assert done.returncode == 7
    assert re.search(r"arx run: rank 2 of 4 failed first: exit code 7 \(pid \d+ on h2, after \d+\.\d s\)", done.stderr)
    assert "  | note\n" in done.stderr
    assert "  ranks 0, 1, 3: ended by the launcher (SIGTERM)" in done.stderr


def test_death_by_signal_is_named(launch_hosts: Launcher) -> None:
    done = launch_hosts("--hosts", "h1:1,h2:1", "sh", "-c", "test $ARX_RANK = 0 || kill -9 $$; exec sleep 1000000")
    assert done.returncode == 137
    assert re.search(r"rank 1 of 2 failed first: killed by SIGKILL \(pid \d+ on h2,", done.stderr)


def test_a_rank_deaf_to_sigterm_is_killed_on_its_host(launch_hosts: Launcher) -> None:
    line = "test $ARX_RANK = 0 && exit 3; trap '' TERM; while :; do sleep 1; done"
    done = launch_hosts("--hosts", "h1:1,h2:1", "sh", "-c", line)
    assert done.returncode == 3
    assert "rank 1: killed by the launcher, since SIGTERM did not end it" in done.stderr


def test_what_ranks_leave_behind_is_ended_on_every_host(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder, "mark(f'left{rank}', subprocess.Popen(['setsid', 'sleep', '1000000']).pid)"
    )
    done = launch_hosts("--hosts", "h1:1,h2:1", path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("arx run: ending 1 process(es) that the ranks left behind") == 2
    assert not any(map(alive, numbers(launch_hosts.folder, ["left0", "left1"])))


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
def test_nothing_survives_on_any_host(launch_hosts: Launcher, way: str, code: int) -> None:
    path = write_script(launch_hosts.folder, FAMILY)
    with launch_hosts.start("--hosts", "h1:2,h2:1", path) as process:
        everyone = numbers(launch_hosts.folder, NAMES)
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
def test_a_signal_reaches_each_rank_of_each_host_once(
    launch_hosts: Launcher, number: signal.Signals, code: int
) -> None:
    path = write_script(
        launch_hosts.folder,
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
    with launch_hosts.start("--hosts", "h0:1,h1:2", path) as process:
        numbers(launch_hosts.folder, [f"ready{rank}" for rank in range(3)])
        process.send_signal(number)
        output = process.communicate(timeout=WATCHDOG)[0].decode()
    assert process.returncode == code
    assert f"arx run: {number.name}: all ranks have ended" in output
    assert numbers(launch_hosts.folder, [f"heard{rank}" for rank in range(3)]) == [1, 1, 1]


def test_signals_for_the_ranks_are_relayed_and_ctrl_c_twice_is_the_end(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        signal.signal(signal.SIGUSR1, lambda *_: mark(f"told{rank}", 1))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        mark(f"ready{rank}", 1)
        while True:
            time.sleep(0.1)
        """,
    )
    with launch_hosts.start("--hosts", "h1:1,h2:1", path) as process:
        numbers(launch_hosts.folder, ["ready0", "ready1"])
        process.send_signal(signal.SIGUSR1)
        numbers(launch_hosts.folder, ["told0", "told1"])
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals at once would be one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == 130


def test_a_job_on_several_hosts_can_be_stopped_and_continued(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        mark(f"rank{rank}", os.getpid())
        while not os.path.exists(f"{marks}/go"):
            time.sleep(0.01)
        """,
    )
    with launch_hosts.start("--hosts", "h0:1,h1:1", path) as process:
        everyone = [process.pid, *numbers(launch_hosts.folder, ["rank0", "rank1"])]
        process.send_signal(signal.SIGTSTP)
        until(lambda: [state(pid) for pid in everyone] == ["T"] * 3, "the stop")
        process.send_signal(signal.SIGCONT)
        until(lambda: "T" not in [state(pid) for pid in everyone], "the continuation")
        (launch_hosts.folder / "go").touch()
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0


def test_a_killed_rank_is_named_by_the_ranks_of_all_hosts(launch_hosts: Launcher) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        import arx, numpy as np
        world = arx.init(timeout=100)
        arx.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                arx.all_reduce(np.ones(1000))
        except arx.PeerLostError as error:
            print("lost", *error.ranks, flush=True)
            raise
        """,
    )
    done = launch_hosts("--hosts", "h0:2,h1:2", path)
    assert done.returncode == 137
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] lost 2" for rank in (0, 1, 3)]
    assert re.search(r"arx run: rank 2 of 4 failed first: killed by SIGKILL \(pid \d+ on h1,", done.stderr)


@pytest.mark.parametrize("hosts", ["h0:1,h1:2", "h0:2,h0:1"])
def test_the_rank_at_fault_is_named_although_others_end_before_it(launch_hosts: Launcher, hosts: str) -> None:
    path = write_script(
        launch_hosts.folder,
        """
        import atexit, arx
        atexit.register(lambda: time.sleep(0.3) if rank == 1 else None)
        with arx.init(timeout=100):
            arx.barrier()
            if rank == 1:
                sys.exit(7)
            arx.barrier()
        """,
    )
    done = launch_hosts("--hosts", hosts, path)
    assert done.returncode == 7, done.stderr
    assert re.search(r"arx run: rank 1 of 3 failed first: exit code 7 \(pid \d+ on h[01],", done.stderr)
