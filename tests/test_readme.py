"""The README shows what the project does: its example is the file in examples/, and prints what the README says."""

import re
import subprocess
import sys
from pathlib import Path

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
