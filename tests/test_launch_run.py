"""`arx run`, always the real thing: real launchers, real ranks, real signals, a real terminal."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import ARX, WATCHDOG, alive, keeper_of, launched, numbers, run_arx, state, until, watched, write_script

Launch = Callable[..., subprocess.CompletedProcess[str]]
Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return functools.partial(write_script, tmp_path)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return functools.partial(run_arx, tmp_path)


# The ranks' environment


def test_every_rank_is_told_its_place(launch: Launch, script: Script) -> None:
    path = script("import json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('ARX_')}))")
    result = launch("-n", 3, "--timeout", 12.5, "--env", "ARX_ALGO=ring", "--env", "X=a=b", path)
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    ranks = [json.loads(line.removeprefix(f"[rank {rank}] ")) for rank, line in enumerate(lines)]
    assert [r["ARX_RANK"] for r in ranks] == [r["ARX_LOCAL_RANK"] for r in ranks] == ["0", "1", "2"]
    for r in ranks:
        assert (r["ARX_WORLD_SIZE"], r["ARX_LOCAL_SIZE"], r["ARX_NODE_RANK"], r["ARX_NNODES"]) == ("3", "3", "0", "1")
        assert (r["ARX_TIMEOUT"], r["ARX_ALGO"]) == ("12.5", "ring")
        assert len(r["ARX_SECRET"]) == 64
    assert len({(r["ARX_JOB_ID"], r["ARX_SECRET"]) for r in ranks}) == 1
    again = launch("-n", 1, path)
    other = json.loads(again.stdout)
    assert other["ARX_JOB_ID"] != ranks[0]["ARX_JOB_ID"]
    assert other["ARX_SECRET"] != ranks[0]["ARX_SECRET"]
    assert "ARX_TIMEOUT" not in other


def variables(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def test_other_launchers_places_are_hidden_and_the_rest_is_kept(launch: Launch, script: Script) -> None:
    foreign = variables(
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=x MASTER_PORT=1 TORCHELASTIC_RUN_ID=r PMI_RANK=1 PMI_SIZE=2 "
        "PMI_FD=9 PMIX_NAMESPACE=n OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=3 SLURM_STEP_ID=0 "
        "MPI_LOCALRANKID=1 ARX_TAKEN=1 ARX_MASTER=h:1 HOROVOD_RANK=1 ARX_JOB_ID=j"
    )
    kept = variables("SLURM_JOB_ID=77 OMP_NUM_THREADS=3 OMPI_MCA_btl=self ARX_SIMD=scalar")
    path = script("print(chr(10).join(f'{k}={v}' for k, v in os.environ.items()))")
    seen = set(launch("-n", 1, path, env=foreign | kept).stdout.splitlines())
    assert {f"{k}={v}" for k, v in kept.items()} <= seen
    assert not {f"{k}={v}" for k, v in foreign.items()} & seen
    assert {line.partition("=")[0] for line in seen} & foreign.keys() == {"ARX_JOB_ID"}


def test_a_job_inside_a_rank_is_a_job_of_its_own(launch: Launch, script: Script) -> None:
    inner = script("print('inner', os.environ['ARX_WORLD_SIZE'], os.environ['ARX_JOB_ID'])", "inner.py")
    outer = script(f"subprocess.run([*{ARX!r}, 'run', '-n', '3', {inner!r}], check=True)")
    lines = launch("-n", 2, outer).stdout.splitlines()
    jobs = [line.split(" ", 4)[4:] for line in lines]
    found = re.findall(r"^\[rank ([01])\] \[rank ([012])\] inner 3 (.+)$", "\n".join(lines), re.MULTILINE)
    assert sorted(f[:2] for f in found) == [(a, b) for a in "01" for b in "012"], jobs
    assert len({job for _, _, job in found}) == 2


def test_what_is_run(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script("print(sys.argv[1:], sys.stdout.write_through, __name__)")
    assert launch("-n", 1, path, "-n", "4", "--env", "x").stdout == "['-n', '4', '--env', 'x'] True __main__\n"
    assert launch("-n", 1, path, "--", "-x").stdout == "['--', '-x'] True __main__\n"
    assert launch("-n", 1, "--", path, "--", "-x").stdout == "['--', '-x'] True __main__\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("print('imported once')")
    (tmp_path / "package" / "__main__.py").write_text("import sys; print('module', sys.argv[1:])")
    assert launch("-n", 1, "-m", "package", "-m", "y").stdout == "imported once\nmodule ['-m', 'y']\n"
    (tmp_path / "own").write_text("#!/bin/sh\necho own $ARX_RANK $1\n")
    (tmp_path / "own").chmod(0o755)
    assert sorted(launch("-n", 2, "own", "a b").stdout.splitlines()) == ["[rank 0] own 0 a b", "[rank 1] own 1 a b"]
    assert launch("-n", 1, "sh", "-c", "echo $ARX_WORLD_SIZE").stdout == "1\n"


def test_the_default_number_of_ranks_is_the_usable_cores(launch: Launch, script: Script) -> None:
    core = min(os.sched_getaffinity(0))
    path = script("print(os.environ['ARX_WORLD_SIZE'])")
    assert launch(path, preexec_fn=lambda: os.sched_setaffinity(0, {core})).stdout == "1\n"


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cores_are_left_alone_unless_asked(launch: Launch, script: Script, n: int) -> None:
    path = script("os.write(1, f'{sorted(os.sched_getaffinity(0))}\\n'.encode())")
    cores = sorted(os.sched_getaffinity(0))
    free = launch("-n", n, "--prefix", "none", path)
    assert free.stdout.splitlines() == [str(cores)] * n
    bound = launch("-n", n, "--prefix", "none", "--bind", "core", path)
    assert sorted(bound.stdout.splitlines()) == sorted(str([cores[rank % len(cores)]]) for rank in range(n))


def test_rank_0_has_stdin_the_others_have_none(launch: Launch, script: Script) -> None:
    result = launch("-n", 3, script("print(repr(sys.stdin.read()))"), input="typed\n")
    assert sorted(result.stdout.splitlines()) == ["[rank 0] 'typed\\n'", "[rank 1] ''", "[rank 2] ''"]


# Exit codes, and the end of the others


def test_the_first_failure_is_the_launchers_exit_code(launch: Launch, script: Script) -> None:
    path = script("print('note', file=sys.stderr) if rank == 2 else None; sys.exit([0, 0, 7, 0][rank])")
    result = launch("-n", 4, path)
    assert result.returncode == 7
    report = result.stderr.split("-" * 72)[1]
    assert re.search(r"arx run: rank 2 of 4 failed first: exit code 7 \(pid \d+, after \d+\.\d s\)", report)
    assert "  | note\n" in report
    assert "  ranks 0, 1, 3: exit code 0\n" in report


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGRTMIN + 3, 165)])
def test_death_by_signal_is_named(launch: Launch, script: Script, number: int, code: int) -> None:
    result = launch("-n", 2, script(f"os.kill(os.getpid(), {int(number)}) if rank == 1 else time.sleep(1e6)"))
    assert result.returncode == code
    name = number.name if isinstance(number, signal.Signals) else f"signal {number}"
    assert f"rank 1 of 2 failed first: killed by {name} (pid" in result.stderr
    assert "rank 0: ended by the launcher (SIGTERM)" in result.stderr
    assert ("memory ran out" in result.stderr) == (number == signal.SIGKILL)


def test_a_rank_that_dies_before_it_did_anything(launch: Launch, tmp_path: Path) -> None:
    line = "test $ARX_RANK != 3 || kill -9 $$; exec sleep 1000000"
    result = launch("-n", 4, "sh", "-c", line)
    assert result.returncode == 137
    assert "rank 3 of 4 failed first: killed by SIGKILL" in result.stderr


def test_the_others_get_sigterm_then_sigkill(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script("""
        if rank == 0:
            signal.signal(signal.SIGTERM, lambda *_: (mark("asked"), sys.exit(0)))
        if rank == 1:
            signal.signal(signal.SIGTERM, lambda *_: mark("deaf"))
        mark(f"ready{rank}")
        while rank == 2 and not all(os.path.exists(f"{marks}/ready{r}") for r in range(4)):
            time.sleep(0.01)
        if rank == 2:
            sys.exit(9)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(1)
    """)
    result = launch("-n", 4, path)
    assert result.returncode == 9
    assert (tmp_path / "asked").exists()
    assert (tmp_path / "deaf").exists()
    assert "rank 0: exit code 0" in result.stderr
    assert "rank 1: killed by the launcher, since SIGTERM did not end it" in result.stderr
    assert "rank 3: ended by the launcher (SIGTERM)" in result.stderr  # a stopped one is woken to hear it


def test_the_others_may_say_more_before_they_are_ended(launch: Launch, script: Script) -> None:
    path = script("sys.exit(4) if rank == 1 else (time.sleep(0.3), sys.exit('peer 1 is gone'))")
    result = launch("-n", 2, path)
    assert result.returncode == 4
    assert "[rank 0] peer 1 is gone" in result.stderr
    assert "rank 0: exit code 1" in result.stderr


# Nothing survives

TREE = """
    # A wrapper's child, a daemon that left session and parent, and a rank that does not listen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deaf = "trap '' TERM INT HUP; echo $$ > {0}.part && mv {0}.part {0}; while :; do sleep 1; done"
    subprocess.Popen(["sh", "-c", deaf.format(f"{marks}/child{rank}") + " & wait"])
    subprocess.Popen(["setsid", "sh", "-c", deaf.format(f"{marks}/daemon{rank}")])
    mark(f"rank{rank}", os.getpid())
"""
NAMES = [f"{kind}{rank}" for kind in ("rank", "child", "daemon") for rank in range(2)]


@pytest.mark.parametrize("way", ["launcher killed", "keeper killed", "terminated", "a rank fails"])
def test_nothing_survives(script: Script, tmp_path: Path, way: str) -> None:
    end = "time.sleep(1e6)"
    if way == "a rank fails":
        end = f"while not all(os.path.exists(f'{{marks}}/{{n}}') for n in {NAMES}): time.sleep(0.01)\n"
        end += "sys.exit(5) if rank == 1 else time.sleep(1e6)"
    with launched("-n", 2, script(textwrap.dedent(TREE) + end)) as process:
        family = numbers(tmp_path, NAMES)
        keeper = keeper_of(process.pid)
        with watched([keeper, *family]):
            assert all(map(alive, family)) or way == "a rank fails"
            if way == "launcher killed":
                process.kill()
            elif way == "keeper killed":
                os.kill(keeper, signal.SIGKILL)
            elif way == "terminated":
                process.terminate()
            code = process.wait(WATCHDOG)
            assert code == {"launcher killed": -9, "keeper killed": 137, "terminated": 143, "a rank fails": 5}[way]
            until(lambda: not any(map(alive, [keeper, *family])), f"the end of {family}")


def test_ranks_die_even_if_both_launcher_processes_are_killed(script: Script, tmp_path: Path) -> None:
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN); mark(f'rank{rank}', os.getpid()); time.sleep(1e6)")
    with launched("-n", 3, path) as process:
        ranks = numbers(tmp_path, ["rank0", "rank1", "rank2"])
        keeper = keeper_of(process.pid)
        with watched([keeper, *ranks]):
            os.kill(process.pid, signal.SIGSTOP)  # so that it cannot clean up in between
            os.kill(keeper, signal.SIGKILL)
            process.kill()
            process.wait(WATCHDOG)
            until(lambda: not any(map(alive, ranks)), f"the end of {ranks}")


def test_what_ranks_leave_behind_is_ended(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script("""
        left = subprocess.Popen(["setsid", "sleep", "1000000"])
        mark(f"left{rank}", left.pid)
    """)
    result = launch("-n", 2, path)
    assert result.returncode == 0, result.stderr
    assert "ending 2 process(es) that the ranks left behind" in result.stderr
    assert not any(map(alive, numbers(tmp_path, ["left0", "left1"])))


def test_what_was_there_before_is_not_touched(script: Script, tmp_path: Path) -> None:
    path = script("mark('ran')")
    line = f"sleep 1000000 & echo $! > {tmp_path}/before; exec {sys.executable} -m arx run -n 2 {path}"
    with (tmp_path / "said").open("w") as said:  # a pipe would stay open with what was there before
        code = subprocess.run(["sh", "-c", line], stdout=said, stderr=said, timeout=WATCHDOG, check=False).returncode
    assert code == 0, (tmp_path / "said").read_text()
    before = int((tmp_path / "before").read_text())
    assert (tmp_path / "ran").exists()
    assert alive(before)
    os.kill(before, signal.SIGKILL)


# Signals to the launcher


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_a_signal_reaches_each_rank_once(script: Script, tmp_path: Path, number: signal.Signals, code: int) -> None:
    path = script(f"""
        heard = []
        signal.signal({int(number)}, lambda n, _: heard.append(n))
        mark(f"ready{{rank}}", os.getpid())
        while not heard:
            time.sleep(0.01)
        time.sleep(0.3)
        mark(f"heard{{rank}}", len(heard))
    """)
    with launched("-n", 3, path) as process:
        numbers(tmp_path, [f"ready{rank}" for rank in range(3)])
        process.send_signal(number)
        output = process.communicate(timeout=WATCHDOG)[0].decode()
    assert process.returncode == code
    assert f"arx run: {number.name}: all ranks have ended" in output
    assert numbers(tmp_path, [f"heard{rank}" for rank in range(3)]) == [1, 1, 1]


def test_a_signal_reaches_the_ranks_of_a_job_inside_a_rank_once(script: Script, tmp_path: Path) -> None:
    inner = script(
        """
        heard = []
        signal.signal(signal.SIGINT, lambda n, _: heard.append(n))
        mark(f"ready{sys.argv[1]}{rank}", os.getpid())
        while not heard:
            time.sleep(0.01)
        time.sleep(0.3)
        mark(f"heard{sys.argv[1]}{rank}", len(heard))
        """,
        "inner.py",
    )
    outer = script(f"os.execv(sys.executable, [*{ARX!r}, 'run', '-n', '2', {inner!r}, str(rank)])")
    names = ["00", "01", "10", "11"]
    with launched("-n", 2, outer) as process:
        numbers(tmp_path, [f"ready{name}" for name in names])
        process.send_signal(signal.SIGINT)
        assert process.wait(WATCHDOG) == 130
    assert numbers(tmp_path, [f"heard{name}" for name in names]) == [1] * 4


def test_signals_for_the_ranks_are_relayed(script: Script, tmp_path: Path) -> None:
    path = script("""
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
        mark(f"ready{rank}", os.getpid())
        time.sleep(1e6)
    """)
    with launched("-n", 2, path) as process:
        numbers(tmp_path, ["ready0", "ready1"])
        process.send_signal(signal.SIGUSR1)
        assert process.wait(WATCHDOG) == 0


def test_under_nohup_a_hangup_is_nothing(script: Script, tmp_path: Path) -> None:
    path = script("""
        mark(f"ready{rank}", os.getpid())
        while not os.path.exists(f"{marks}/go"):
            time.sleep(0.01)
    """)
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    with launched("-n", 2, path, preexec_fn=ignore) as process:
        numbers(tmp_path, ["ready0", "ready1"])
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert process.wait(WATCHDOG) == 0


def test_a_job_can_be_stopped_and_continued(script: Script, tmp_path: Path) -> None:
    path = script("""
        mark(f"rank{rank}", os.getpid())
        while not os.path.exists(f"{marks}/go"):
            time.sleep(0.01)
    """)
    with launched("-n", 2, path) as process:
        everyone = [process.pid, *numbers(tmp_path, ["rank0", "rank1"])]
        process.send_signal(signal.SIGTSTP)
        until(lambda: [state(pid) for pid in everyone] == ["T"] * 3, "the stop")
        process.send_signal(signal.SIGCONT)
        until(lambda: "T" not in [state(pid) for pid in everyone], "the continuation")
        (tmp_path / "go").touch()
        assert process.wait(WATCHDOG) == 0


# Mistakes


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["-n", "0", "job.py"], "'0' is not a number of ranks, which is at least 1"),
        (["-n", "two", "job.py"], "'two' is not a number of ranks"),
        (["-n", "-1", "job.py"], "-1"),
        (["jbo.py"], "jbo.py: no such script or program; did you mean job.py?"),
        (["nowhere/job.py"], "there is no folder nowhere"),
        (["."], "a folder without a __main__.py"),
        (["-m", "nosuch.thing"], "-m nosuch.thing: no module named nosuch"),
        (["-m", "json.toool"], "-m json.toool: no module named json.toool"),
        (["-m", "job.part"], "-m job.part: job is a module, not a package"),
        (["-m", "logging"], "a package without logging.__main__"),
        (["-m", ""], "no module named"),
        (["--evn", "A=1", "job.py"], "unknown option --evn; did you mean --env?"),
        (["--nproc-per-node=4", "job.py"], "unknown option --nproc-per-node=4; did you mean -n?"),
        (["--env", "A", "job.py"], "'A' is not of the form NAME=VALUE"),
        (["--env", "ARX_RANK=0", "job.py"], "ARX_RANK is set by arx run itself"),
        (["--timeout", "0", "job.py"], "'0' is not a positive number of seconds"),
        (["--timeout", "nan", "job.py"], "'nan' is not a positive number of seconds"),
        (["--bind", "socket", "job.py"], "--bind"),
        (["--log-dir", "job.py/x", "job.py"], "--log-dir job.py/x: Not a directory"),
        (["./noformat"], "cannot start"),
        ([], "required: SCRIPT"),
    ],
)
def test_a_mistake_is_told_in_one_line(launch: Launch, script: Script, args: list[str], told: str) -> None:
    folder = Path(script("")).parent
    (folder / "noformat").write_bytes(b"\x00\x01")
    (folder / "noformat").chmod(0o755)
    result = launch(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr
    assert result.stderr.startswith(("arx run: error: ", "arx: error: "))
    assert result.stderr.count("\n") == 1


def test_unknown_commands_and_the_version() -> None:
    def arx(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*ARX, *args], capture_output=True, text=True, timeout=WATCHDOG, check=False)

    wrong = arx("rnu", "x.py")
    assert (wrong.returncode, wrong.stderr) == (2, "arx: error: no command 'rnu'; did you mean run? (see arx --help)\n")
    assert arx().returncode == 2
    assert "arx run" in arx("run", "--help").stdout


def test_arx_env_tells_the_place_but_not_the_secret(launch: Launch) -> None:
    result = launch("-n", 1, sys.executable, "-m", "arx", "env")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("rank 0 of 1, from ARX_* variables\n")
    assert "ARX_SECRET=(hidden)\n" in result.stdout


def test_the_launcher_does_without_numpy() -> None:
    code = "import sys, arx.cli, arx.launch.run; print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=WATCHDOG) == "False\n"
