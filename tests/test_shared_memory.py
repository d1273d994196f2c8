"""Shared memory without names: it works whatever /dev/shm is, nothing outlives the ranks, little of it is touched."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes import WATCHDOG, Job, stage

import arx

# What is done to /dev/shm, in a mount namespace of its own.
PLACES = {
    "of 1 MiB": "mount -t tmpfs -o size=1m tmpfs /dev/shm",
    "full": "mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c 1M /dev/zero > /dev/shm/full",
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    # A /dev that has none; /dev/shm itself must not be removed, which would remove that of the machine.
    "missing": "mount -t tmpfs tmpfs $0 && touch $0/null $0/zero $0/urandom && for file in null zero urandom; do "
    "mount --bind /dev/$file $0/$file; done && mount --rbind $0 /dev && ! test -e /dev/shm",
}
PROGRAM = """
import os, numpy as np, arx
from pathlib import Path
shm = Path("/dev/shm")
before = sorted(shm.iterdir()) if shm.exists() else None
with arx.init() as world:
    x = np.empty((8 << 20,), np.float32)  # 32 MiB
    y = arx.empty_like(x)
    for a in (x, y):
        a[:] = np.arange(a.size) % 1000 + world.rank
        world.all_reduce(a)
        assert (a == world.size * (np.arange(a.size) % 1000) + sum(range(world.size))).all()
    assert before == (sorted(shm.iterdir()) if shm.exists() else None), "arx has made files"
    world.barrier()
    print("right,", "missing" if before is None else "full" if before else "empty", flush=True)
"""


@functools.cache
def namespace():
    """The command that makes a mount namespace, or why there is none."""
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            done = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
        except FileNotFoundError:
            return None, "there is no unshare command"
        if done.returncode == 0:
            return command, None
    return None, f"no mount namespace can be made here: {done.stderr.strip()}"


@pytest.mark.parametrize("place", PLACES)
def test_dev_shm_does_not_matter(place, tmp_path):
    command, why_not = namespace()
    if why_not:
        pytest.skip(why_not)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "dev").mkdir()
    run = [sys.executable, "-m", "arx", "run", "-n", "3", str(tmp_path / "program.py")]
    shell = ["sh", "-c", f'{PLACES[place]} && exec "$@"', str(tmp_path / "dev"), *run]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, *shell], capture_output=True, text=True, timeout=WATCHDOG, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {"full": "full", "missing": "missing"}.get(place, "empty")
    assert done.stdout.count(f"right, {wanted}") == 3, done.stdout + done.stderr


def holds(say):
    """A rank with memory of every kind that waits for its end."""
    arx.init(timeout=300)
    x = np.full(1 << 20, 1.0)
    for array in (x, arx.zeros(1 << 20)):
        arx.all_reduce(array)
    say("joined")
    arx.barrier()
    while True:
        time.sleep(60)


def names(job):
    """Abstract sockets that bear the name of a job, and files of shared memory that might be arx's."""
    sockets = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if f"-{job}-" in line]
    files = [str(file) for file in Path("/dev/shm").iterdir() if "arx" in file.name or job in file.name]
    return sockets, files


def killing(victims):
    """What there is of a job while it runs, and when ``victims`` have been killed and the others have ended."""
    with Job(3, holds, job_id="of-shared-memory") as job:
        job.hear("joined")
        during = names(job.id)
        for victim in victims:
            job.signal(victim, signal.SIGKILL)
        job.ends(victims)
        for rank in {0, 1, 2} - set(victims):
            job.signal(rank, signal.SIGTERM)
        job.ends()
        children = Path("/proc/self/task").glob("*/children")
        return during, names(job.id), [child for task in children for child in task.read_text().split()]


@pytest.mark.parametrize("victims", [(0,), (1,), (1, 2), (0, 1, 2)], ids=str)
def test_nothing_outlives_killed_ranks(victims):
    (sockets, files), after, children = stage(killing, victims)
    assert len(sockets) >= 1, "the name of the socket has changed: this test looks for another one"
    assert all(name.startswith("@arx-") for name in sockets)
    assert files == []
    assert after == ([], [])
    assert children == []


def touches(say, sizes):
    """A rank that has reduced private arrays of these sizes: its share of the shared memory, in bytes."""
    arx.init(timeout=300)
    for dtype in (np.float32, np.float16):
        for size in sizes:
            x = np.ones(size // np.dtype(dtype).itemsize, dtype)
            arx.all_reduce(x)
            arx.broadcast(x, 1)
            assert x[0] == x[-1] == arx.size()
    arx.barrier()
    share = shared(Path("/proc/self/smaps").read_text())
    arx.barrier()  # pages are counted while all ranks have them mapped
    return share


def shared(smaps):
    """Proportional size of what is mapped of memfds: the sum over ranks is the memory that is really there."""
    total, counts = 0, False
    for line in smaps.splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            counts = any("memfd:" in word for word in rest)
        elif counts and key == "Pss:":
            total += int(rest[0]) << 10
    return total


def touching(p, sizes):
    with Job(p, touches, sizes) as job:
        return [end.result for end in job.ends()]


@pytest.mark.parametrize("p", [2, 3, 5])
def test_staging_touches_at_most_8_mib_per_rank(p):
    shares = stage(touching, p, [8, 1000, 1 << 16, 1 << 20, 1 << 22, 40 << 20])
    print(f"{p} ranks: {sum(shares) / p / (1 << 20):.2f} MiB each")
    assert all(share > 0 for share in shares), "no memfd is mapped: this test looks for another kind of memory"
    assert sum(shares) / p <= 8 << 20


def idle(say):
    arx.init(timeout=300)
    arx.barrier()
    share = shared(Path("/proc/self/smaps").read_text())
    arx.barrier()
    return share


def idling():
    with Job(4, idle) as job:
        return [end.result for end in job.ends()]


def test_memory_is_touched_when_it_is_used_only():
    assert sum(stage(idling)) / 4 < 256 << 10
