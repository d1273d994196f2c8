"""The command that says what compression costs in accuracy: that it runs, and what its table says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parent.parent / "benches" / "accuracy.py"
WATCHDOG = 150

pytest.importorskip("sklearn", reason="scikit-learn has the digits: pip install 'arx[examples]'")


def run(*arguments):
    command = [sys.executable, str(COMMAND), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)


def cells(output):
    """The rows of the table, by their first cell."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


def test_every_way_to_average_runs():
    done = run("--seeds", 1, "--ranks", 2, "--epochs", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(done.stdout)
    goals = {way: row[3] for way, row in found.items() if row[3]}
    assert goals == {"fp16": "-0.1", "bf16": "-0.1", "int8": "-0.3", "int4": "-0.5", "topk:0.01": "-1.0"}
    assert len(found) == 12
    for way, row in found.items():
        assert re.fullmatch(r"\d+\.\d\d", row[0]), (way, row)
        assert (row[2] == "one seed") == (way != "float32")
    # A power of two in the loss is one in every scale: not a bit is different.
    assert found["fp16 of a large loss"][0] == found["fp16"][0]


def test_seeds_make_an_interval():
    done = run("--seeds", 2, "--ranks", 3, "--epochs", 2, "--ways", "float32,fp16")
    assert done.returncode == 0, done.stdout + done.stderr
    mean, interval = cells(done.stdout)["fp16"][1:3]
    low, high = map(float, interval.split(" to "))
    assert low <= float(mean) <= high
    assert abs(low + high - 2 * float(mean)) < 0.03


@pytest.mark.parametrize(
    ("arguments", "words"), [(("--ways", "zip"), "'zip' is not one of"), (("--seeds", 0), "must be at least 1")]
)
def test_refuses_nonsense(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
