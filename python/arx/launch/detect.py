"""Which rank is this process, of how many, and where does it meet the others?

The first family of variables that is there decides; a family that is there but incomplete or wrong is an error, never a
reason to look further: four processes must not each believe that they are rank 0 of 1.

    arguments → ARX_* → torchrun → PMI_FD (MPICH, Intel MPI) → Open MPI → Slurm step → world of one

Ranks of one host find each other by the job id alone. Ranks of several also need a *master*, an address of rank 0, and
a *secret*, without which nobody is let in from another host.

Only MPI's ways to agree talk to anyone here, and only there is a port opened: rank 0's, by the caller's `listen`.
"""

from __future__ import annotations

import os
from dataclasses import replace

from arx.errors import InitError
from arx.launch import agreement
from arx.launch.families import ALONE, FAMILIES, PMI, SLURM, from_arguments
from arx.launch.master import allowed, candidates, checked, is_loopback
from arx.launch.place import TO_BE_AGREED, Env, Family, Given, Listen, Place, Variables

TAKEN = "ARX_TAKEN"
"""Set by `init` in its own environment, so that a child that inherits a rank's variables is told apart."""
TRANSPORTS = ("auto", "shm", "tcp")
MAKE_A_SECRET = "export ARX_SECRET=$(python3 -c 'import secrets; print(secrets.token_hex(32))')"


def detect(
    env: Env | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    job_id: str | None = None,
    master: str | None = None,
    secret: str | None = None,
    transport: str | None = None,
    timeout: float = 300.0,
    listen: Listen | None = None,
) -> Place:
    """This process's place, from the arguments or else from `env` (by default this process's environment).

    Under MPICH and Intel MPI this may be collective: the ranks agree on what is not given, within `timeout` seconds.
    `listen` opens the port of rank 0 there, if the ranks are on several hosts.
    """
    env = os.environ if env is None else env
    given = _given(env, job_id, master, secret)
    if rank is not None or world_size is not None:
        family = replace(ALONE, source="arguments of init()")
        place = _checked(from_arguments(rank, world_size, given), ("rank", "world_size"))
    else:
        family = _family(env)
        place = _read(family, env, given)
    if TO_BE_AGREED in (place.job_id, place.master, place.secret):
        place = agreement.reach(place, env, timeout, listen)
    return _reachable(place, family, env, transport_of(env, transport))


def transport_of(env: Env, given: str | None = None) -> str:
    """The transport that an argument or else `ARX_TRANSPORT` asks for."""
    name, value = ("transport", given) if given is not None else ("ARX_TRANSPORT", env.get("ARX_TRANSPORT") or "auto")
    if value not in TRANSPORTS:
        raise InitError(f"{name}={value!r} is not one of {', '.join(TRANSPORTS)}")
    return value


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
        place = _reachable(_read(family, env, _given(env)), family, env, transport_of(env))
    except InitError as error:
        return "\n".join([f"init() would raise InitError: {error}", "looked at, in this order:", *lines])
    return "\n".join([*_described(place), "looked at, in this order:", *lines])


def _described(place: Place) -> list[str]:
    local = "not said by the launcher" if place.local_size is None else f"{place.local_rank} of {place.local_size}"
    node = "not said by the launcher" if place.num_nodes is None else f"{place.node_rank} of {place.num_nodes}"
    lines = [
        f"rank {place.rank} of {place.world_size}, from {place.source}",
        f"local rank {local}, node {node}, job id {place.job_id}",
    ]
    if place.master is not None:
        lines.append(f"master {place.master}, " + ("no secret" if place.secret is None else "with a secret"))
    return lines


def _given(env: Env, job_id: str | None = None, master: str | None = None, secret: str | None = None) -> Given:
    if master is not None:
        master = checked(master, "master")
    elif env.get("ARX_MASTER"):
        master = checked(env["ARX_MASTER"], "ARX_MASTER")
    return Given(job_id or env.get("ARX_JOB_ID") or None, master, secret or env.get("ARX_SECRET") or None)


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


def _in_slurm_step(env: Env) -> bool:
    # An sbatch script also sees SLURM_PROCID=0 and the tasks of the whole job, but it is one process, not a step. Ids
    # from 0xfffffff0 on are Slurm's own steps (batch, interactive, extern).
    step = env.get("SLURM_STEP_ID", "")
    return step != "" and not (step.isdecimal() and int(step) >= 0xFFFFFFF0)


def _slurm_says_the_same(env: Env) -> bool:
    # `srun --mpi=pmi2` sets both families; the step's number is a job id that needs no talk with anyone.
    same = (env.get("SLURM_PROCID"), env.get("SLURM_STEP_NUM_TASKS")) == (env.get("PMI_RANK"), env.get("PMI_SIZE"))
    return same and _in_slurm_step(env) and "MPI_LOCALNRANKS" not in env


def _read(family: Family, env: Env, given: Given) -> Place:
    return _checked(family.read(Variables(env, family.source), given), family.names)


def _checked(place: Place, names: tuple[str, str]) -> Place:
    """The same place, if it can be one."""
    rank_name, size_name = names
    size, local_size, nodes = place.world_size, place.local_size, place.num_nodes
    if size < 1:
        raise InitError(f"{size_name}={size} must be at least 1 ({place.source})")
    if not 0 <= place.rank < size:
        raise InitError(f"{rank_name}={place.rank} lies outside 0..{size - 1} ({size_name}={size}, {place.source})")
    if local_size is not None and not 1 <= local_size <= size:
        raise InitError(f"{local_size} ranks on this host of a world of {size}: that cannot be ({place.source})")
    for what, number, count in (("local rank", place.local_rank, local_size), ("node", place.node_rank, nodes)):
        if number is not None and count is not None and not 0 <= number < count:
            raise InitError(f"{what} {number} lies outside 0..{count - 1} ({place.source})")
    if local_size is not None and nodes is not None and (local_size == size) != (nodes == 1):
        raise InitError(
            f"{nodes} node(s), but {local_size} of {size} ranks on this one: that cannot be ({place.source})"
        )
    return place


def _reachable(place: Place, family: Family, env: Env, transport: str) -> Place:
    """The same place with all that a connection needs, and no more."""
    if place.world_size == 1 or (place.one_host and transport != "tcp"):
        return replace(place, master=None)
    if transport == "shm":
        raise InitError(f"transport shm is memory that all ranks share, but {_spread(place)}: use auto or tcp")
    if place.one_host and place.master is None:
        agreed = place.job_id != TO_BE_AGREED
        master = candidates("127.0.0.1", place.job_id, allowed(env)) if agreed else TO_BE_AGREED
        place = replace(place, master=master)
    if place.master is None:
        raise InitError(f"{_spread(place)}, and nothing says on which host rank 0 is: {family.no_master}")
    if place.secret is None and place.master != TO_BE_AGREED and not is_loopback(place.master):
        raise InitError(
            f"{_spread(place)}, which let nobody in without a secret: set ARX_SECRET (or secret= of init) to the same "
            f"random text for all ranks before they are started, such as by\n    {MAKE_A_SECRET}"
        )
    return place


def _spread(place: Place) -> str:
    """Where the ranks of a job of several hosts are."""
    if place.local_size is None:
        return f"the {place.world_size} ranks of this job may be on several hosts ({place.source})"
    nodes = "" if place.num_nodes is None else f", {place.num_nodes} nodes"
    return (
        f"this job has several hosts, with {place.local_size} of its {place.world_size} ranks on this one{nodes} "
        f"({place.source})"
    )
