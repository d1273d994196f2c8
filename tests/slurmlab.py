"""A Slurm cluster for tests: Debian's slurm-wlm, one controller and a daemon per host of a lab, set up from nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from netlab import Lab

_WATCHDOG = 60.0  # seconds; ends a test that hangs

# Without munge: all that takes part here is root in a temporary folder, on networks of its own.
_CONF = """\
ClusterName=arx
SlurmctldHost=h0
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName=h[0-{last}] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo")


@contextlib.contextmanager
def cluster(lab: Lab, folder: Path) -> Iterator[dict[str, str]]:
    """A cluster whose nodes are the lab's hosts; yields the environment in which `srun`, run on h0, finds it."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: as root on Debian, apt-get install slurm-wlm")
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(folder=folder, last=len(lab.hosts) - 1))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # no use is made of it, but it would look for one
    for name in ("state", *(f"spool-{host}" for host in lab.hosts)):
        (folder / name).mkdir()
    env = os.environ | {"SLURM_CONF": str(conf)}
    commands = [("h0", ["slurmctld", "-D"]), *((host, ["slurmd", "-D"]) for host in lab.hosts)]
    with contextlib.ExitStack() as stack:
        for host, command in commands:
            process = subprocess.Popen(
                [*lab.enter(host), *command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        _until_idle(lab, env, folder)
        yield {"SLURM_CONF": str(conf)}


def _until_idle(lab: Lab, env: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + _WATCHDOG
    ask = [*lab.enter("h0"), "sinfo", "--noheader", "--Node", "--format", "%N %t"]
    while True:
        done = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=_WATCHDOG, check=False)
        if sorted(done.stdout.split("\n")) == ["", *(f"{host} idle" for host in lab.hosts)]:
            return
        if time.monotonic() > deadline:
            logs = "".join(path.read_text() for path in folder.glob("*.log"))
            raise AssertionError(f"the cluster is not up after {_WATCHDOG:g} s: {done.stdout}{done.stderr}{logs}")
        time.sleep(0.1)
