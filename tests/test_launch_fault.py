"""`arx run` names the rank at fault and exits with its code, whichever rank is the first to end."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import run_arx, write_script

from arx.launch import blame
from arx.launch.place import Place, on_one_host
from arx.launch.report import Outcome, at_fault

Launch = Callable[..., subprocess.CompletedProcess[str]]
Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return functools.partial(write_script, tmp_path)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return functools.partial(run_arx, tmp_path)


def check(done: subprocess.CompletedProcess[str], n: int, rank: int, how: str, code: int) -> None:
    assert f"arx run: rank {rank} of {n} failed first: {how} (pid" in done.stderr, done.stderr
    assert done.returncode == code, done.stderr


# Rank 1 fails and the others lose it. What it leaves to be done at its end comes after it has left its group: that
# makes it the last to end for certain, which otherwise it is in every other run.

JOB = """
    import atexit, arx
    how, late = sys.argv[1], sys.argv[2] == "late"
    if rank == 1 and late:
        atexit.register(time.sleep, 0.3)

    def fail():
        if how == "exit":
            sys.exit(7)
        if how == "at once":
            os._exit(4)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("boom")

    def work():
        arx.barrier()
        if rank == 1:
            fail()
        arx.barrier()

    if how == "raise in with":
        with arx.init(timeout=60):
            work()
    else:
        arx.init(timeout=60)
        work()
"""
WAYS = [
    ("exit", "exit code 7", 7),
    ("raise", "exit code 1", 1),
    ("raise in with", "exit code 1", 1),
    ("at once", "exit code 4", 4),
    ("killed", "killed by SIGKILL", 137),
]


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize(("how", "told", "code"), WAYS)
def test_the_rank_at_fault_is_named_although_it_ends_last(
    launch: Launch, script: Script, n: int, how: str, told: str, code: int
) -> None:
    done = launch("-n", n, script(JOB), how, "late")
    check(done, n, 1, told, code)
    assert ("  | ValueError: boom\n" in done.stderr) == how.startswith("raise")  # its last lines, not another's


@pytest.mark.parametrize(("how", "told", "code"), WAYS)
def test_the_rank_at_fault_is_named_in_every_race(
    launch: Launch, script: Script, how: str, told: str, code: int
) -> None:
    path = script(JOB)
    for _ in range(8):
        check(launch("-n", 3, path, how, "soon"), 3, 1, told, code)


@pytest.mark.parametrize("answer", ["pass", "sys.exit(3)", "os._exit(3)", "os.abort()"])
def test_it_does_not_matter_what_the_others_make_of_the_loss(launch: Launch, script: Script, answer: str) -> None:
    path = script(f"""
        import atexit, arx
        atexit.register(lambda: time.sleep(0.3) if rank == 1 else None)
        with arx.init(timeout=60):
            arx.barrier()
            if rank == 1:
                sys.exit(7)
            try:
                arx.barrier()
            except arx.PeerLostError:
                {answer}
    """)
    check(launch("-n", 3, path), 3, 1, "exit code 7", 7)


def wrapped(path: str, *args: str) -> tuple[str, ...]:
    """A rank inside a program that takes its time, so that its process is not the first to end in any case."""
    return (
        "sh",
        "-c",
        f'{sys.executable} {path} "$@"; code=$?; [ $ARX_RANK != 1 ] || sleep 0.3; exit $code',
        "sh",
        *args,
    )


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("at once", 4), ("killed", 137)])
def test_a_program_between_launcher_and_rank_is_the_rank(launch: Launch, script: Script, how: str, code: int) -> None:
    check(launch("-n", 3, *wrapped(script(JOB), how, "soon")), 3, 1, f"exit code {code}", code)


def test_a_rank_that_is_lost_while_the_ranks_meet_is_named(launch: Launch, script: Script) -> None:
    path = script("""
        import threading, arx
        if rank == 1:  # has entered when it is gone, while the others wait for rank 2
            threading.Timer(0.5, os._exit, (4,)).start()
        if rank == 2:
            time.sleep(1e6)
        arx.init(timeout=60)
    """)
    check(launch("-n", 3, *wrapped(path)), 3, 1, "exit code 4", 4)


def test_the_loss_is_traced_from_group_to_group(launch: Launch, script: Script) -> None:
    """Rank 0 loses rank 1, rank 2 loses rank 0 and knows nothing of rank 1; they end in the wrong order."""
    path = script("""
        import atexit, arx
        atexit.register(time.sleep, [0.3, 0.6, 0.0][rank])
        arx.init(timeout=60)
        pair = arx.new_group([0, 1]) if rank < 2 else None
        other = arx.new_group([0, 2]) if rank != 1 else None
        arx.barrier()
        if rank == 1:
            pair.shutdown()
            sys.exit(7)
        if rank == 0:
            try:
                pair.barrier()
            finally:
                other.shutdown()
        other.barrier()
    """)
    check(launch("-n", 3, path), 3, 1, "exit code 7", 7)


# Who was lost but did not fail by itself is not at fault


def test_a_rank_that_ended_well_is_not_at_fault(launch: Launch, script: Script) -> None:
    path = script("import arx; arx.init(timeout=60); arx.barrier(); rank == 1 or arx.barrier()")
    done = launch("-n", 2, path)
    check(done, 2, 0, "exit code 1", 1)
    assert "  rank 1: exit code 0\n" in done.stderr


def test_a_rank_that_the_launcher_ended_is_not_at_fault(launch: Launch, script: Script) -> None:
    path = script("""
        import arx
        with arx.init(timeout=60):
            arx.barrier()
            if rank == 0:
                arx.barrier()
        time.sleep(1e6)
    """)
    done = launch("-n", 2, path)
    check(done, 2, 0, "exit code 1", 1)
    assert "  rank 1: ended by the launcher (SIGTERM)\n" in done.stderr


# Rank 0 fails first, of its own doing, and rank 1 by itself a little later. Nobody else may say that 0 has lost 1.

LATER = """
if rank == 1:
    while not os.path.exists(f"{marks}/failing"):
        time.sleep(0.01)
    time.sleep(0.3)
    os._exit(6)
"""


def test_ranks_of_another_job_inside_a_rank_are_not_heard(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("""
import os, arx
def work():
    world = arx.init()
    arx.barrier()
    if world.rank == 1:
        os._exit(3)
    try:
        arx.barrier()
    except arx.PeerLostError as error:
        return error.ranks
""")
    path = script(
        LATER
        + """
if rank == 0:
    from arx.testing import run_ranks
    import inner
    assert run_ranks(inner.work, 2, expect={1: 3}) == [(1,), None]
    mark("failing")
    sys.exit(5)
"""
    )
    check(launch("-n", 2, path), 2, 0, "exit code 5", 5)


def test_a_fork_of_a_rank_is_not_heard(launch: Launch, script: Script) -> None:
    path = script(
        "import arx\narx.init()\narx.barrier()\n"
        + LATER
        + """
child = os.fork()
if child == 0:
    arx.PeerLostError("as it might come from a pool of processes", ranks=(1,))
    os._exit(0)
os.waitpid(child, 0)
mark("failing")
os._exit(5)
"""
    )
    check(launch("-n", 2, path), 2, 0, "exit code 5", 5)


def test_the_name_is_the_launchers_own(launch: Launch, script: Script) -> None:
    path = script(
        "print(os.environ['ARX_LAUNCHER'] != 'x', os.environ['ARX_LAUNCHER'].endswith(os.environ['ARX_JOB_ID']))"
    )
    assert launch("-n", 1, path, env={"ARX_LAUNCHER": "x"}).stdout == "True True\n"
    assert "ARX_LAUNCHER is set by arx run itself" in launch("--env", "ARX_LAUNCHER=x", path).stderr


# The way from rank to launcher


def place(rank: int = 2, job_id: str = "run 1") -> Place:
    return on_one_host(rank, 4, job_id, "a test")


@pytest.fixture
def ear() -> Iterator[blame.Ear]:
    ear = blame.Ear("run 1")
    yield ear
    ear.close()


def told_by(ear: blame.Ear, rank: int = 2) -> Callable[[tuple[int, ...]], None]:
    tell = blame.teller({**ear.environment, "ARX_RANK": str(rank)}, place(rank))
    assert tell is not None
    return tell


def test_what_is_said_is_heard_and_the_rest_is_dropped(ear: blame.Ear) -> None:
    told_by(ear)((1, 3))
    name = ear.environment[blame.LAUNCHER].split()[0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        for junk in (b"", b"x", b"1 2 x", b"\xff" * 100_000):
            way.sendto(junk, f"\0{name}")
            assert list(ear.hear()) == ([(2, [1, 3])] if junk == b"" else [])


def test_nobody_speaks_who_counts_otherwise_or_has_no_launcher(ear: blame.Ear) -> None:
    env = {**ear.environment, "ARX_RANK": "2"}
    assert blame.teller(env, place()) is not None
    assert blame.teller(env, place(job_id="run 2")) is None
    assert blame.teller(env, place(rank=3)) is None
    assert blame.teller({"ARX_RANK": "2"}, place()) is None


def test_a_launcher_that_is_gone_is_not_missed(ear: blame.Ear) -> None:
    tell = told_by(ear)
    ear.close()
    tell((1,))


def test_more_ranks_than_the_kernel_keeps_messages_are_all_heard(ear: blame.Ear) -> None:
    heard: list[tuple[int, list[int]]] = []
    ranks = [threading.Thread(target=told_by(ear, rank), args=((1,),)) for rank in range(40)]
    for rank in ranks:
        rank.start()
    while any(rank.is_alive() for rank in ranks):
        heard += ear.hear()
        time.sleep(0.01)
    heard += ear.hear()
    assert sorted(heard) == [(rank, [1]) for rank in range(40)]


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_another_user_is_not_heard(ear: blame.Ear) -> None:
    tell = told_by(ear)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        tell((1,))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(ear.hear()) == []


# Who is named


def ended(rank: int, code: int, at: float, *blames: int, asked: bool = False) -> Outcome:
    return Outcome(rank, 100 + rank, 0.0, running=False, code=code, lasted=at, asked=asked, blames=set(blames))


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([], 0),
        ([ended(1, 7, 2.0)], 0),  # rank 0 has lost nobody
        ([ended(1, 0, 0.5)], 0),
    ],
)
def test_who_has_lost_nobody_is_at_fault(others: list[Outcome], named: int) -> None:
    first = ended(0, 1, 1.0)
    assert at_fault(first, [first, *others]).rank == named


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([ended(1, 7, 2.0)], 1),
        ([ended(1, 0, 0.5)], 0),
        ([ended(1, -signal.SIGTERM, 2.0, asked=True)], 0),
        ([ended(1, 7, 2.0), ended(2, 8, 1.5)], 1),  # nobody has lost rank 2
        ([ended(1, 1, 2.0, 2), ended(2, 8, 3.0)], 2),
        ([ended(1, 0, 2.0, 2), ended(2, 8, 3.0)], 2),
        ([ended(1, 1, 2.0, 2), ended(2, 0, 0.5)], 1),
        ([ended(1, 1, 2.0, 0)], 0),  # each says that it has lost the other: the first
        ([ended(1, -signal.SIGSEGV, 2.0, 0)], 1),
    ],
)
def test_who_was_lost_is_at_fault_if_it_failed_by_itself(others: list[Outcome], named: int) -> None:
    first = ended(0, 1, 1.0, 1)
    assert at_fault(first, [first, *others]).rank == named


def test_of_several_that_were_lost_it_is_the_one_that_had_lost_none_of_them() -> None:
    first, victim, culprit = ended(2, 1, 1.0, 0, 1), ended(0, 1, 1.1, 1), ended(1, 7, 1.2)
    assert at_fault(first, [victim, culprit, first]) is culprit
