"""Cores and thread settings are the user's: neither the library nor the launcher touches them."""

import json
import os

import numpy as np
import pytest
from launching import run_arx, write_script
from processes import Job, stage, ticks

import arx

# Before the import of arx, in the group, in a thread that starts then, after it: mask and settings of BLAS threads.
PROGRAM = """
import json
def settings():
    return sorted(os.sched_getaffinity(0)), {key: os.environ[key] for key in sorted(os.environ) if "THREADS" in key}
found = [settings()]
import threading
import numpy as np
import arx
with arx.init() as world:
    world.all_reduce(np.ones(100_000))
    found.append(settings())
    thread = threading.Thread(target=lambda: found.append(settings()))
    thread.start()
    thread.join()
found.append(settings())
mark(f"of {rank}", json.dumps(found))
"""


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("cores", ["all", "one"])
def test_the_launcher_passes_mask_and_settings_on(p, cores, tmp_path):
    mask = sorted(os.sched_getaffinity(0))[: None if cores == "all" else 1]
    program, threads = write_script(tmp_path, PROGRAM), {"OMP_NUM_THREADS": "7"}
    if cores == "one":
        limited = f"import os, sys; os.sched_setaffinity(0, {mask}); sys.argv[0] = python = sys.executable; "
        limited += "os.execv(python, sys.argv)"
        (tmp_path / "limited.py").write_text(limited)
        done = run_arx(tmp_path, "-n", p, tmp_path / "limited.py", program, env=threads)
    else:
        done = run_arx(tmp_path, "-n", p, program, env=threads)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(p):
        first, *later = json.loads((tmp_path / f"of {rank}").read_text())
        assert first[0] == mask
        assert first[1]["OMP_NUM_THREADS"] == "7"
        assert later == [first] * 3


def one_core(say, core):
    """A group that has to share one core: it works, and its watcher does not take part in the contest."""
    os.sched_setaffinity(0, {core})
    with arx.init(timeout=60) as world:
        for k in range(200):
            x = np.full((10, 3000, 100_000)[k % 3], float(world.rank + k))
            world.all_reduce(x)
            assert (x == 6 + 4 * k).all()
        (watcher,) = (task for task in os.listdir("/proc/self/task") if task != str(os.getpid()))
        return ticks(f"self/task/{watcher}")


def sharing(core):
    with Job(4, one_core, core) as job:
        return [end.result for end in job.ends()]


def test_four_ranks_on_one_core():
    for busy in stage(sharing, min(os.sched_getaffinity(0))):
        assert busy <= 5, "hundredths of a second that the watcher has run"
