"""`arx.explain` and `arx tune`: what is chosen, why, and that the choice does not depend on what was measured."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from launching import ARX, WATCHDOG, write_script

EXPLAIN = """
import numpy as np, arx
with arx.init() as world:
    for x in (np.ones(2, np.float32), np.ones(1 << 20, np.float32), np.ones(1 << 20, np.int64)):
        e = arx.explain(x)
        assert e.algorithm in str(e) and e.why in str(e)
        names = list(e.candidates)
        assert sorted(e.candidates.values()) == list(e.candidates.values())
        if world.rank == 0:
            print(x.dtype, x.size, e.algorithm, e.seconds is not None, ",".join(names))
    if world.num_nodes > 1:
        assert arx.explain(np.ones(9), algo="ring").algorithm == "ring"
        assert arx.explain(np.ones(9), algo="hierarchical+tree").algorithm == "hierarchical+tree"
    else:
        assert arx.explain(np.ones(9), algo="staged").algorithm == "staged"
        assert arx.explain(arx.empty(1 << 20)).algorithm == "symmetric"
    arx.barrier()
"""


def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `arx run …` and takes the marks off: only marked lines are whole, a rank writes a line and its end apart."""
    done = subprocess.run(
        [*ARX, "run", *map(str, args)],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    done.stdout = re.sub(r"^\[rank \d+\] ", "", done.stdout, flags=re.MULTILINE)
    return done


def test_on_one_host_the_size_decides(tmp_path: Path) -> None:
    done = run("-n", 2, write_script(tmp_path, EXPLAIN))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "float32 2 lines False ",
        "float32 1048576 staged False ",
        "int64 1048576 staged False ",
    ]


def test_between_hosts_the_model_decides_but_not_about_the_order_of_a_sum(tmp_path: Path) -> None:
    done = run("-n", 3, write_script(tmp_path, EXPLAIN), ARX_TRANSPORT="tcp")
    assert done.returncode == 0, done.stderr
    small, large, whole = (line.split() for line in done.stdout.splitlines())
    names = ("exchange", "pairwise", "all_gather_reduce", "reduce_broadcast", "relay")
    in_order = {f"hierarchical+{name}" for name in names}
    assert set(small[4].split(",")) == set(large[4].split(",")) == in_order
    assert in_order < set(whole[4].split(","))
    assert {small[3], large[3], whole[3]} == {"True"}


def test_numbers_that_are_told_are_not_measured(tmp_path: Path) -> None:
    told = "alpha_ns=1000000,overhead_ns=2000,beta_fs=8000000,gamma_fs=100000"
    text = "import numpy as np, arx\nwith arx.init() as w:\n    print(arx.explain(np.ones(4)).why)\n    arx.barrier()\n"
    done = run("-n", 2, write_script(tmp_path, text), ARX_TRANSPORT="tcp", ARX_TUNE=told)
    assert done.returncode == 0, done.stderr
    expected = "latency 1000.0 us and 2.0 us a message, 1.00 Gb/s, combining 10.0 GB/s"
    assert [expected in line for line in done.stdout.splitlines()] == [True, True]


def test_what_a_codec_costs_and_saves_is_said_in_numbers(tmp_path: Path) -> None:
    """100 Mb/s: a MiB gains; at 2 Gb/s a few KiB gain a little, and eight bytes nothing."""
    text = """
import numpy as np, arx
with arx.init() as w:
    for count in (1 << 18, 1 << 10, 2):
        e = arx.explain(np.ones(count, np.float32), "avg", compression="auto")
        assert sorted(e.candidates.values()) == list(e.candidates.values())
        if w.rank == 0:
            print(f"{e.algorithm}; {e.why}")
    arx.barrier()
"""
    script = write_script(tmp_path, text)
    for beta, expected in (
        (80_000_000, ("int8:256; it is predicted to be the fastest", "int8:256", "uncompressed")),
        (4_000_000, ("int8:256", "int8:256; it is predicted to be the fastest", "uncompressed")),
    ):
        told = f"alpha_ns=16000,overhead_ns=500,beta_fs={beta},gamma_fs=100000"
        done = run("-n", 4, script, ARX_TRANSPORT="tcp", ARX_TUNE=told)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line.startswith(start) for line, start in zip(lines, expected, strict=True)] == [True] * 3, lines
        sum_ = r"int8:256: [\d.]+ us coding \+ [\d.]+ [mu]s on the wire ([<≥]) [\d.]+ [mu]s uncompressed"
        signs = [re.search(sum_, line) for line in lines]
        assert [sign and sign[1] for sign in signs] == ["<", "<", "≥"], lines


def test_tune_writes_what_init_then_takes(tmp_path: Path) -> None:
    done = run("-n", 2, "-m", "arx", "tune", "--rounds", 1, ARX_TRANSPORT="tcp", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "arx" / "tune").read_text().strip()
    assert f"ARX_TUNE={written}" in done.stdout
    latency = re.fullmatch(r"alpha_ns=(\d+),overhead_ns=\d+,beta_fs=\d+,gamma_fs=\d+,rooted_pct=100", written)
    assert latency is not None
    text = "import numpy as np, arx\nwith arx.init() as w:\n    print(arx.explain(np.ones(4)).why)\n    arx.barrier()\n"
    again = run("-n", 2, write_script(tmp_path, text), ARX_TRANSPORT="tcp", XDG_CACHE_HOME=str(tmp_path))
    assert f"latency {int(latency[1]) / 1000:.1f} us" in again.stdout, again.stdout + again.stderr


def test_tune_on_one_host_says_what_to_do() -> None:
    done = run("-n", 2, "-m", "arx", "tune")
    assert done.returncode == 2
    assert "arx run --hosts h0:1,h1:1 -m arx tune" in done.stderr
