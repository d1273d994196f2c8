"""Which rank is this process, and of how many?

The first family of variables that is there decides; a family that is there but incomplete or wrong is an error, never a
reason to look further: four processes must not each believe that they are rank 0 of 1.

    arguments → ARX_* → torchrun → PMI_FD (MPICH, Intel MPI) → Open MPI → Slurm step → world of one

Each also yields the *job id*: the same on every rank of a job, different in every other job that may run on this host
at the same time, because ranks find each other by it. `ARX_JOB_ID` or the argument replaces what the family offers.

No port is bound or guessed here (torchrun's own store listens on `MASTER_PORT`), and only PMI needs to talk to anyone.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from arx.errors import InitError
from arx.launch import pmi

Env = Mapping[str, str]

TO_BE_AGREED = "(the ranks agree on it at init)"
TAKEN = "ARX_TAKEN"
"""Set by `init` in its own environment, so that a child that inherits a rank's variables is told apart."""


@dataclass(frozen=True)
class Place:
    """This process's place in its job."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    job_id: str
    source: str


def detect(
    env: Env | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    job_id: str | None = None,
    timeout: float = 300.0,
) -> Place:
    """This process's place, from the arguments or else from `env` (by default this process's environment).

    Under MPICH and Intel MPI without a `job_id` this is collective: the ranks agree on one, within `timeout` seconds.
    """
    env = os.environ if env is None else env
    job_id = job_id or env.get("ARX_JOB_ID") or None
    if rank is not None or world_size is not None:
        return _checked(_from_arguments(rank, world_size, job_id), ("rank", "world_size"))
    family = _family(env)
    place = _read(family, env, job_id)
    return replace(place, job_id=_agree(place, env, timeout)) if place.job_id == TO_BE_AGREED else place


def explain(env: Env | None = None) -> str:
    """For `arx env`: which launcher's variables were taken and why, and what they say."""
    env = os.environ if env is None else env
    family = _family(env)
    lines = []
    for other in FAMILIES:
        found = " ".join(f"{name}={env[name]}" for name in other.marks if env.get(name, "") != "")
        verdict = "taken" if other is family else f"passed over{_passed_over(other, env)}" if found else "not set"
        lines.append(f"  {other.source:<36} {verdict}{': ' if found else ''}{found}")
    lines.append(f"  {ALONE.source:<36} " + ("taken: no launcher's variables are set" if family is ALONE else "no"))
    try:
        place = _read(family, env, env.get("ARX_JOB_ID") or None)
    except InitError as error:
        return "\n".join([f"init() would raise InitError: {error}", "looked at, in this order:", *lines])
    head = f"rank {place.rank} of {place.world_size}, from {place.source}"
    what = f"local rank {place.local_rank} of {place.local_size}, node {place.node_rank} of {place.num_nodes}"
    return "\n".join([head, f"{what}, job id {place.job_id}", "looked at, in this order:", *lines])


@dataclass(frozen=True)
class Variables:
    """The environment as one family sees it; what it cannot read is an `InitError` that names variable and value."""

    env: Env
    source: str

    def text(self, name: str, why: str = "") -> str:
        """The value of a variable that must be set."""
        value = self.env.get(name, "")
        if value == "":
            raise InitError(f"{name} is not set, although other {self.source} are{why}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """The value of a variable that must be a number; `default` if it may also be missing."""
        if default is not None and self.env.get(name, "") == "":
            return default
        value = self.text(name)
        if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
            raise InitError(f"{name}={value!r} is not a number ({self.source})")
        return int(value)


Reader = Callable[[Variables, str | None], Place]


@dataclass(frozen=True, eq=False)
class Family:
    """The variables of one kind of launcher. It is there when one of `marks` is set."""

    source: str
    marks: tuple[str, ...]
    read: Reader
    names: tuple[str, str] = ("rank", "world size")

    def present(self, env: Env) -> bool:
        """Whether this launcher started the process, as far as the environment tells."""
        return any(env.get(name, "") != "" for name in self.marks)


def _family(env: Env) -> Family:
    for family in FAMILIES:
        if family.present(env) and not _passed_over(family, env):
            return family
    return ALONE


def _passed_over(family: Family, env: Env) -> str:
    """Why a family whose variables are set is no place for this process, or nothing."""
    if family is PMI and _slurm_says_the_same(env):
        return " (the Slurm step says the same)"
    if family is SLURM and not _in_slurm_step(env):
        return " (no step of srun, such as a batch script)"
    return ""


def _read(family: Family, env: Env, job_id: str | None) -> Place:
    return _checked(family.read(Variables(env, family.source), job_id), family.names)


def _checked(place: Place, names: tuple[str, str]) -> Place:
    rank_name, size_name = names
    if place.world_size < 1:
        raise InitError(f"{size_name}={place.world_size} must be at least 1 ({place.source})")
    if not 0 <= place.rank < place.world_size:
        raise InitError(
            f"{rank_name}={place.rank} lies outside 0..{place.world_size - 1} "
            f"({size_name}={place.world_size}, {place.source})"
        )
    if place.num_nodes > 1 or place.local_size != place.world_size:
        raise InitError(
            f"this job spans several hosts: {place.local_size} of its {place.world_size} ranks on this one, "
            f"{place.num_nodes} node(s) ({place.source}). Worlds inside one host work today, worlds of several hosts "
            "are not supported yet: start all ranks on one host"
        )
    if not 0 <= place.local_rank < place.local_size:
        raise InitError(f"local rank {place.local_rank} lies outside 0..{place.local_size - 1} ({place.source})")
    return place


# The families, in the order in which they are looked at.


def _from_arguments(rank: int | None, world_size: int | None, job_id: str | None) -> Place:
    for name, value, other in (("rank", rank, "world_size"), ("world_size", world_size, "rank")):
        if value is None:
            raise InitError(f"init() got {other}= without {name}=: give both, or neither to let the launcher decide")
    try:
        rank, size = operator.index(rank), operator.index(world_size)  # type: ignore[arg-type]
    except TypeError:
        raise InitError(f"rank={rank!r} and world_size={world_size!r} must both be integers") from None
    if size > 1 and job_id is None:
        raise InitError(
            "init(rank=, world_size=) also needs job_id= (or ARX_JOB_ID): any text that is the same on every rank of "
            "this job and different in every other job on this host"
        )
    return _on_one_host(rank, size, job_id or _fresh(), "arguments of init()")


def _from_arx(v: Variables, job_id: str | None) -> Place:
    rank, size = v.number("ARX_RANK"), v.number("ARX_WORLD_SIZE")
    if job_id is None and size > 1:
        v.text("ARX_JOB_ID", ": any text, the same on every rank of this job and different in every other on this host")
    return Place(
        rank,
        size,
        v.number("ARX_LOCAL_RANK", rank),
        v.number("ARX_LOCAL_SIZE", size),
        v.number("ARX_NODE_RANK", 0),
        v.number("ARX_NNODES", 1),
        job_id or _fresh(),
        v.source,
    )


def _from_torchrun(v: Variables, job_id: str | None) -> Place:
    rank, size = v.number("RANK"), v.number("WORLD_SIZE")
    if job_id is None and size > 1:
        # The port tells jobs of one host apart, the run id elastic jobs behind one port, the count the restarts of one.
        address, port = v.text("MASTER_ADDR"), v.text("MASTER_PORT")
        run, restart = v.env.get("TORCHELASTIC_RUN_ID", ""), v.env.get("TORCHELASTIC_RESTART_COUNT", "0")
        job_id = f"torchrun {address}:{port} {run} {restart}"
    return Place(
        rank,
        size,
        v.number("LOCAL_RANK", rank),
        v.number("LOCAL_WORLD_SIZE", size),
        v.number("GROUP_RANK", 0),
        v.number("GROUP_WORLD_SIZE", 1),
        job_id or _fresh(),
        v.source,
    )


def _from_pmi(v: Variables, job_id: str | None) -> Place:
    rank, size = v.number("PMI_RANK"), v.number("PMI_SIZE")
    local_rank, local_size = v.number("MPI_LOCALRANKID", rank), v.number("MPI_LOCALNRANKS", size)
    if job_id is None:
        job_id = TO_BE_AGREED if size > 1 else _fresh()
    if job_id == TO_BE_AGREED and pmi.mpi_module() is None:
        v.text("PMI_FD", ": without it the ranks cannot agree on a job id. Give the same job_id= or ARX_JOB_ID to all")
        v.number("PMI_FD")
        if v.env.get("ARX_PMI") == "0":
            raise InitError(
                "ARX_PMI=0 keeps arx off PMI_FD: import mpi4py.MPI before arx.init(), so that the ranks agree on a job "
                "id by MPI, or give the same job_id= or ARX_JOB_ID to all"
            )
    return Place(rank, size, local_rank, local_size, 0, 1, job_id, v.source)


def _agree(place: Place, env: Env, timeout: float) -> str:
    if (key := pmi.agreed()) is None:
        by_mpi = pmi.mpi_module() is not None
        key = (
            pmi.agree_by_mpi(place.rank, place.world_size, timeout)
            if by_mpi
            else pmi.agree(place.rank, int(env["PMI_FD"]), timeout)
        )
    return f"pmi {key}"


def _from_open_mpi(v: Variables, job_id: str | None) -> Place:
    rank, size = v.number("OMPI_COMM_WORLD_RANK"), v.number("OMPI_COMM_WORLD_SIZE")
    # Open MPI 5 names its jobs `prterun-<host>-<pid>@<job>`; Open MPI 4 has the address of its mpirun instead.
    named = job_id or v.env.get("OMPI_MCA_orte_hnp_uri") or v.text("PMIX_NAMESPACE")
    return Place(
        rank,
        size,
        v.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        v.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        0,
        1,
        job_id or f"openmpi {v.env.get('PMIX_NAMESPACE', named)}",
        v.source,
    )


def _from_slurm(v: Variables, job_id: str | None) -> Place:
    rank = v.number("SLURM_PROCID")
    size = v.number("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in v.env else "SLURM_NTASKS")
    node, nodes = v.number("SLURM_NODEID", 0), v.number("SLURM_STEP_NUM_NODES", 1)
    tasks = tasks_per_node(v.env.get("SLURM_STEP_TASKS_PER_NODE") or str(size))
    if not 0 <= node < len(tasks):
        raise InitError(f"SLURM_NODEID={node} has no entry in SLURM_STEP_TASKS_PER_NODE ({v.source})")
    named = job_id or f"slurm {v.text('SLURM_JOB_ID')}.{v.text('SLURM_STEP_ID')}"
    return Place(rank, size, v.number("SLURM_LOCALID", rank), tasks[node], node, nodes, named, v.source)


def _from_other(v: Variables, job_id: str | None) -> Place:
    rank_name, size_name = next(pair for pair in OTHERS if v.env.get(pair[0], "") != "")
    size = v.number(size_name) if size_name in v.env else 0
    if size == 1:
        return _on_one_host(0, 1, job_id or _fresh(), v.source)
    raise InitError(
        f"{rank_name}={v.env[rank_name]} says that a launcher started this process as one of several, but arx does not "
        "know that launcher: set ARX_RANK, ARX_WORLD_SIZE and ARX_JOB_ID, or give init() rank=, world_size= and job_id="
    )


def _alone(v: Variables, job_id: str | None) -> Place:
    return _on_one_host(0, 1, job_id or _fresh(), v.source)


def _on_one_host(rank: int, size: int, job_id: str, source: str) -> Place:
    return Place(rank, size, rank, size, 0, 1, job_id, source)


def _fresh() -> str:
    """A job id for a world of one, which nobody else may meet."""
    return f"single {os.getpid()} {os.urandom(8).hex()}"


def tasks_per_node(text: str) -> list[int]:
    """Slurm's short form, node by node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if match is None:
            raise InitError(f"SLURM_STEP_TASKS_PER_NODE={text!r} cannot be read: expected a form like '2(x3),1'")
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _in_slurm_step(env: Env) -> bool:
    # An sbatch script also sees SLURM_PROCID=0 and the tasks of the whole job, but it is one process, not a step. Ids
    # from 0xfffffff0 on are Slurm's own steps (batch, interactive, extern).
    step = env.get("SLURM_STEP_ID", "")
    return step != "" and not (step.isdecimal() and int(step) >= 0xFFFFFFF0)


def _slurm_says_the_same(env: Env) -> bool:
    # `srun --mpi=pmi2` sets both families; the step's number is a job id that needs no talk with anyone.
    same = (env.get("SLURM_PROCID"), env.get("SLURM_STEP_NUM_TASKS")) == (env.get("PMI_RANK"), env.get("PMI_SIZE"))
    return same and _in_slurm_step(env) and "MPI_LOCALNRANKS" not in env


OTHERS = (
    ("PMIX_RANK", "PMIX_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("MLX_RANK", "MLX_WORLD_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
)
"""Launchers that arx does not know: rank and size. Better an error than every process being rank 0 of 1."""

ARX = Family(
    "ARX_* variables",
    ("ARX_RANK", "ARX_WORLD_SIZE", "ARX_LOCAL_RANK", "ARX_LOCAL_SIZE", "ARX_NODE_RANK", "ARX_NNODES"),
    _from_arx,
    ("ARX_RANK", "ARX_WORLD_SIZE"),
)
TORCHRUN = Family("torchrun's variables", ("RANK", "WORLD_SIZE"), _from_torchrun, ("RANK", "WORLD_SIZE"))
PMI = Family(
    "PMI's variables (MPICH, Intel MPI)", ("PMI_RANK", "PMI_SIZE", "PMI_FD"), _from_pmi, ("PMI_RANK", "PMI_SIZE")
)
OPEN_MPI = Family(
    "Open MPI's variables",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _from_open_mpi,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
SLURM = Family(
    "Slurm step's variables",
    ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    _from_slurm,
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
OTHER = Family("another launcher's variables", tuple(rank for rank, _ in OTHERS), _from_other)
ALONE = Family("a world of one", (), _alone)
FAMILIES = (ARX, TORCHRUN, PMI, OPEN_MPI, SLURM, OTHER)
