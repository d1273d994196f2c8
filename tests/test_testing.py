"""The runner of the other tests: results, failures, deaths and hangs of real processes."""

import doctest
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import arx.testing
from arx.testing import RankFailed, Ranks, RanksHung, run_ranks


def place():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NNODES", "JOB_ID")
    return [os.environ[f"ARX_{name}"] for name in names]


def rank():
    return int(os.environ["ARX_RANK"])


def raise_on(*ranks):
    if rank() in ranks:
        print("printed before", rank())
        raise ValueError(f"bad {rank() // 10}")
    return rank()


def kill_self(who):
    if rank() == who:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank()


def leave_with(status):
    if rank() == 1:
        sys.exit(status)
    return rank()


def stall(who, sign=None):
    if rank() == who:
        if sign:
            os.kill(os.getpid(), sign)
        time.sleep(1000)
    return rank()


def start_a_grandchild():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    return os.getpid(), process.pid


def value(name):
    return os.environ.get(name)


def not_a_pickle():
    return lambda: None


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_dead(pids):
    """A process may need a moment to go after its signal; the watchdog of the test is pytest's."""
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)


def test_results_come_by_rank_and_places_are_those_of_one_host():
    places = run_ranks(place, 3)
    assert [p[:-1] for p in places] == [[str(r), "3", str(r), "3", "0", "1"] for r in range(3)]
    jobs = {p[-1] for p in places} | {p[-1] for p in run_ranks(place, 2)}
    assert len(jobs) == 2, "ranks of one run share a job, two runs do not"


def test_env_sets_and_removes_variables(monkeypatch):
    monkeypatch.setenv("KEPT", "a")
    monkeypatch.setenv("GONE", "b")
    monkeypatch.setenv("ARX_MASTER", "of an outer job")
    env = {"NEW": "c", "GONE": None}
    found = [run_ranks(value, 1, name, env=env)[0] for name in ("KEPT", "GONE", "NEW", "ARX_MASTER")]
    assert found == ["a", None, "c", None]


def test_an_exception_is_shown_with_its_traceback_and_what_the_rank_printed():
    with pytest.raises(RankFailed) as caught:
        run_ranks(raise_on, 4, 1, 3)
    text = str(caught.value)
    assert "2 of 4 ranks failed in test_testing.raise_on" in text
    assert text.count("ValueError: bad 0") == 1, "ranks that fail alike are shown together"
    assert "rank 1, 3: Traceback" in text
    assert "output of rank 3:\nprinted before 3" in text
    assert set(caught.value.failures) == {1, 3}


def test_a_death_by_signal_is_named():
    with pytest.raises(RankFailed, match=r"rank 2: ended by signal 9 \(SIGKILL\)"):
        run_ranks(kill_self, 3, 2)


def test_a_death_that_is_expected_gives_none():
    assert run_ranks(kill_self, 3, 2, expect={2: -9}) == [0, 1, None]
    assert run_ranks(leave_with, 2, 3, expect={1: 3}) == [0, None]


def test_a_death_that_is_expected_and_does_not_come_is_a_failure():
    with pytest.raises(RankFailed, match=r"rank 1: ended with status 0, not ended by signal 9 \(SIGKILL\)"):
        run_ranks(rank, 2, expect={1: -9})


def test_a_rank_that_leaves_without_an_answer_is_a_failure():
    with pytest.raises(RankFailed, match="rank 1: ended without returning"):
        run_ranks(leave_with, 2, 0)


def test_a_hang_ends_with_the_stacks_of_those_that_hang():
    with pytest.raises(RanksHung) as caught:
        run_ranks(stall, 3, 1, timeout=3)
    text = str(caught.value)
    assert "1 of 3 ranks hung in test_testing.stall for 3 s" in text
    assert "rank 1: waiting" in text
    assert "test_testing.py" in text
    assert "in stall" in text


def test_a_stopped_rank_is_said_to_be_stopped():
    with pytest.raises(RanksHung, match="rank 0: stopped by a signal"):
        run_ranks(stall, 2, 0, signal.SIGSTOP, timeout=3)


def test_a_rank_whose_end_does_not_matter_is_killed_when_the_others_are_done():
    assert run_ranks(stall, 3, 1, signal.SIGSTOP, expect={1: None}) == [0, None, 2]


def test_a_result_that_cannot_travel_says_so():
    with pytest.raises(RankFailed, match="pickle"):
        run_ranks(not_a_pickle, 1)


def test_a_function_without_a_name_is_refused():
    with pytest.raises(TypeError, match="top level of a file"):
        run_ranks(lambda: None, 1)


def test_nothing_outlives_a_run():
    pids = run_ranks(start_a_grandchild, 2)
    wait_until_dead([pid for pair in pids for pid in pair])


def test_nothing_outlives_a_runner_that_is_killed(tmp_path):
    script = tmp_path / "runner.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "from arx.testing import run_ranks\n"
        "def stay():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "    with open(os.environ['PIDS'], 'a') as f:\n"
        "        f.write(f'{os.getpid()}\\n{child.pid}\\n')\n"
        "    time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    run_ranks(stay, 2)\n"
    )
    pids = tmp_path / "pids"
    runner = subprocess.Popen([sys.executable, script], env=os.environ | {"PIDS": str(pids)})
    while not pids.exists() or len(pids.read_text().splitlines()) < 4:
        assert runner.poll() is None
        time.sleep(0.01)
    runner.kill()
    runner.wait()
    wait_until_dead([int(line) for line in pids.read_text().split()])


def test_ranks_stay_for_many_calls_and_leave_no_process():
    with Ranks(2) as ranks:
        first, second = ranks.run(os.getpid), ranks.run(os.getpid)
        assert first == second
        assert len(set(first)) == 2
    assert ranks.broken
    wait_until_dead(first)


def nested():
    """A rank that starts ranks of its own: another job."""
    with arx.init() as world:
        inner = run_ranks(place_in_a_group, 2)
        arx.barrier()
        return world.rank, inner


def place_in_a_group():
    with arx.init() as world:
        arx.barrier()
        return world.rank, world.size


def test_a_rank_may_start_ranks():
    assert run_ranks(nested, 3) == [(rank, [(0, 2), (1, 2)]) for rank in range(3)]


def test_ranks_that_failed_are_gone():
    ranks = Ranks(2)
    pids = ranks.run(os.getpid)
    with pytest.raises(RankFailed, match="ValueError: bad 0"):
        ranks.run(raise_on, 1)
    wait_until_dead(pids)
    with pytest.raises(RuntimeError, match="start new ones"):
        ranks.run(rank)


def test_the_examples_of_the_docstrings_run():
    results = doctest.testmod(arx.testing)
    assert results.failed == 0
    assert results.attempted > 0


def test_the_example_of_the_module_runs_as_a_script_and_under_pytest(tmp_path):
    lines = [line for line in arx.testing.__doc__.splitlines() if not line or line.startswith("    ")]
    script = tmp_path / "test_sum.py"
    script.write_text("\n".join(line[4:] for line in lines))
    for command in ([sys.executable, script], [sys.executable, "-m", "pytest", "-q", script]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
