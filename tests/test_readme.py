"""The README shows what the project does: its example is the file in examples/, and prints what the README says."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
README = (TOP / "README.md").read_text()
HELLO = TOP / "examples" / "hello.py"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_example_is_the_file():
    assert HELLO.read_text() in blocks("python")


def test_example_prints_what_the_readme_shows():
    (shown,) = (block for block in blocks("console") if "$ arx run -n 4 examples/hello.py" in block)
    done = subprocess.run(
        [sys.executable, "-m", "arx", "run", "-n", "4", str(HELLO)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # Ranks print in any order.
    assert sorted(done.stdout.splitlines()) == sorted(shown.splitlines()[1:])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_other_blocks_run_one_after_the_other(ranks, tmp_path):
    program = [block for block in blocks("python") if block != HELLO.read_text()]
    assert len(program) > 4
    shown = "shown = [rank, *(a.tolist() for a in (everything, share, part, swapped, evens_or_odds, x))]\n"
    leave = f"open(f'{tmp_path}/{{rank}}', 'w').write(repr(shown))\n"
    script = tmp_path / "readme.py"
    script.write_text("".join([*program, shown, leave]))
    done = subprocess.run(
        [sys.executable, "-m", "arx", "run", "-n", str(ranks), str(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert ast.literal_eval((tmp_path / str(rank)).read_text()) == promised(rank, ranks)


def promised(rank, ranks):
    """What the README's comments say; `x` is passed on, its maximum taken, averaged, and summed by the plan."""
    joined = [r for r in range(ranks) for _ in range(2 + r)]
    share, swapped = [3 * rank, 3 * rank + 1, 3 * rank + 2], [100 * r + rank for r in range(ranks)]
    largest = [max((r - 1) % ranks for r in range(ranks) if r % 2 == parity) for parity in (0, 1)]
    total = sum(largest[r % 2] for r in range(ranks))
    return [rank, joined, share, [[ranks] * 5], swapped, list(range(rank % 2, ranks, 2)), [total] * 4]


def test_links_and_files_exist():
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    targets = linked + re.findall(r"`((?:examples|benches|docs)/[\w./]+)`", README)
    missing = [target for target in targets if not (TOP / target).exists()]
    assert len(targets) > 5
    assert not missing


def test_make_targets_exist():
    makefile = (TOP / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`", README) + blocks("console"))))
    assert {"demo", "test"} <= named
    assert not [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
