"""One rank: its environment, its cores, its streams, its bond to the launcher.

A rank leads a session of its own. Ctrl-C on the terminal therefore reaches the launcher only, which passes it on
exactly once; and rank 0, whose stdin the terminal is, may read from it without being stopped as a background job.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from arx.launch import blame, detect, families, tree
from arx.launch.command import UsageError

_HIDDEN_PREFIXES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "TORCHELASTIC_", "HYDI_", "HYDRA_BSTRAP_")
_HIDDEN = frozenset(
    {
        detect.TAKEN,
        blame.LAUNCHER,
        *(
            "ARX_JOB_ID",
            "ARX_SECRET",
            "ARX_MASTER",
            "MASTER_ADDR",
            "MASTER_PORT",
            "NODE_RANK",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
        ),
        *("GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PRTE_LAUNCHED"),
        *("OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_ess_base_vpid"),
        *("SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEPID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"),
        *(name for family in families.FAMILIES for name in family.marks),
        *(size for _, size in families.OTHERS),
    }
)


def job_environment(env: Mapping[str, str], given: Mapping[str, str], timeout: float | None) -> dict[str, str]:
    """What all ranks of a new job share: `env` without the place that this process itself may have in another job.

    `given` comes from the user and wins over `env`.
    """
    shared = {name: value for name, value in env.items() if not _says_a_place(name)} | dict(given)
    if timeout is not None:
        shared["ARX_TIMEOUT"] = f"{timeout:g}"
    return shared


def _says_a_place(name: str) -> bool:
    return name in _HIDDEN or name.startswith(_HIDDEN_PREFIXES)


def usable_cores() -> int:
    """How many ranks can run at once: the cores of this process's mask, or fewer if its cgroup has a quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, cores if quota is None else min(cores, round(quota)))


def _cgroup_quota() -> float | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except OSError:
        try:
            with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as q, open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as p:
                quota, period = q.read(), p.read()
        except OSError:
            return None
    return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)


def spawn(
    command: Sequence[str], env: Mapping[str, str], *, streams: bool, core: int | None, stdin: bool
) -> subprocess.Popen[bytes]:
    """Starts one rank; with `streams` its output comes through pipes, else it writes where the launcher would."""
    bond = tree.die_with(os.getpid())
    output = subprocess.PIPE if streams else None
    try:
        return subprocess.Popen(
            command,
            env=env,
            stdin=None if stdin else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_prepare(bond, core),
        )
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None


def _prepare(bond: Callable[[], None], core: int | None) -> Callable[[], None]:
    def prepare() -> None:
        bond()
        if core is not None:
            os.sched_setaffinity(0, {core})

    return prepare
