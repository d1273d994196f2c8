"""The example people copy, run as they run it."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "train_digits.py"
WATCHDOG = 150

pytest.importorskip("sklearn", reason="scikit-learn has the digits: pip install 'arx[examples]'")


@functools.cache
def trained(ranks, *arguments):
    """What the example printed; `ranks` None starts it without a launcher."""
    launcher = [] if ranks is None else ["-m", "arx", "run", "--prefix", "none", "-n", str(ranks)]
    alone = {key: value for key, value in os.environ.items() if not key.startswith("ARX_")}
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,  # kills the launcher; the ranks do not survive it
        env=alone,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def losses(output):
    return [float(value) for value in re.findall(r"^epoch +\d+  loss (\d+\.\d+)", output, re.MULTILINE)]


def accuracies(output):
    return [float(value) for value in re.findall(r"^epoch .* test accuracy (\d+\.\d+)%", output, re.MULTILINE)]


@pytest.mark.parametrize("ranks", [None, 1, 2, 4])
def test_reaches_97_percent_and_says_so(ranks):
    output = trained(ranks)
    final = re.search(r"^test accuracy (\d+\.\d+)% after \d+\.\d s of training$", output, re.MULTILINE)
    assert final is not None, output
    assert float(final[1]) >= 97
    assert len(accuracies(output)) == 40
    assert float(final[1]) == accuracies(output)[-1]
    shares = re.search(r"^(\d+)% of it in all_reduce: (\d+)% at work, (\d+)% waiting", output, re.MULTILINE)
    assert shares is not None, output
    assert 0 <= int(shares[1]) < 100
    assert abs(int(shares[1]) - int(shares[2]) - int(shares[3])) <= 1
    count = ranks or 1
    assert re.search(rf"^ranks {count}, training images 1437, parameters \d+$", output, re.MULTILINE), output
    assert re.search(rf"^weights identical on all {count} ranks: [0-9a-f]{{64}}$", output, re.MULTILINE), output


@pytest.mark.parametrize("ranks", [2, 4])
def test_accuracy_does_not_depend_on_the_number_of_ranks(ranks):
    assert accuracies(trained(ranks)) == accuracies(trained(1))
    assert losses(trained(ranks)) == losses(trained(1))


@pytest.mark.parametrize(
    ("ranks", "batch"),
    [
        pytest.param(3, 32, id="shares of 11, 11 and 10 images"),
        pytest.param(3, 2, id="a rank with an empty share"),
        pytest.param(2, 1437, id="one batch an epoch"),
    ],
)
def test_each_image_counts_once_however_the_batch_is_cut(ranks, batch):
    arguments = ("--epochs", "2", "--batch", str(batch), "--lr", "0.05", "--seed", "3")
    alone = trained(1, *arguments)
    assert losses(alone)[1] < losses(alone)[0]
    assert losses(trained(ranks, *arguments)) == losses(alone)


def test_refuses_nonsense():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--batch", "0"], capture_output=True, text=True, timeout=WATCHDOG
    )
    assert done.returncode == 2
    assert "--batch must be at least 1" in done.stderr
