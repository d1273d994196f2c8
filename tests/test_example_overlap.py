"""The example of gradient buckets, run as people run it: on one host, without a launcher, and between hosts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "overlap.py"
WATCHDOG = 100
SMALL = ("--steps", "4", "--width", "64", "--layers", "5", "--batch", "32", "--bucket", "20000")


def ran(ranks, *arguments):
    """What the example printed; `ranks` None starts it without a launcher."""
    launcher = [] if ranks is None else ["-m", "arx", "run", "--prefix", "none", "-n", str(ranks)]
    alone = {key: value for key, value in os.environ.items() if not key.startswith("ARX_")}
    command = [sys.executable, *launcher, str(EXAMPLE), *SMALL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, env=alone)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def losses(output, title):
    """One for each step."""
    found = re.findall(rf"^{title}, step +(\d+): +\d+\.\d\d ms, loss (\d\.\d+)$", output, re.MULTILINE)
    assert [int(step) for step, _ in found] == [1, 2, 3, 4], output
    return [float(loss) for _, loss in found]


def check(output, ranks):
    assert f"ranks {ranks}, layers 5 of width 64, gradients 0.1 MiB\n" in output
    first, second = (losses(output, title) for title in ("without overlap", "with overlap"))
    assert second == first
    assert first[-1] < first[0]
    weights = re.search(rf"^weights identical on all {ranks} ranks: ([0-9a-f]{{64}})$", output, re.MULTILINE)
    assert weights is not None, output
    medians = re.findall(
        r"^with(?:out)? overlap, medians: step .* ms, .*; weights ([0-9a-f]{12})$", output, re.MULTILINE
    )
    assert len(medians) == 2
    assert weights[1].startswith(medians[1])
    hidden = re.findall(r"^hidden behind computation: -?\d+% of \d+\.\d\d ms$", output, re.MULTILINE)
    assert len(hidden) == (ranks > 1), output
    return medians


@pytest.mark.parametrize("ranks", [None, 1, 2, 4])
def test_on_one_host_both_ways_give_the_same_weights(ranks):
    before, beside = check(ran(ranks), ranks or 1)
    assert before == beside


def test_what_a_rank_learns_depends_on_all_ranks():
    assert len({check(ran(ranks), ranks)[1] for ranks in (1, 2, 3)}) == 3


def test_between_hosts(launch_hosts):
    done = launch_hosts("--prefix", "none", "--hosts", "h0,h1", "-n", "1", EXAMPLE, *SMALL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    check(done.stdout, 2)


def test_refuses_nonsense():
    command = [sys.executable, str(EXAMPLE), "--width", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG)
    assert done.returncode == 2
    assert "must be at least 1" in done.stderr
