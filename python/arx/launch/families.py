"""The families of variables, one per kind of launcher: what each says, and what it leaves open.

                    where the ranks are            where rank 0 is                    secret
    ARX_*           ARX_LOCAL_*, ARX_NNODES        ARX_MASTER                         ARX_SECRET
    torchrun        LOCAL_*, GROUP_*               MASTER_ADDR, a port of our own     ARX_SECRET
    MPICH, Intel    MPI_LOCAL*                     rank 0 tells by PMI_FD             rank 0 tells by PMI_FD
    Open MPI        OMPI_COMM_WORLD_LOCAL_*        mpirun's host, if rank 0 is there  ARX_SECRET
    Slurm step      SLURM_STEP_TASKS_PER_NODE      first of SLURM_STEP_NODELIST       ARX_SECRET

`ARX_JOB_ID`, `ARX_MASTER` and `ARX_SECRET` win over what any of them offers. Each also yields the *job id*, by which
the ranks of one job know each other: the same on all of them, different in every other job.
"""

from __future__ import annotations

import operator
import os
import re
import socket
from dataclasses import replace

from arx.errors import InitError
from arx.launch import pmi
from arx.launch.master import allowed, candidates, is_loopback
from arx.launch.place import TO_BE_AGREED, Family, Given, Place, Variables, Where, on_one_host
from arx.launch.slurm import nodes as slurm_nodes
from arx.launch.slurm import tasks_per_node


def fresh() -> str:
    """A job id for a world of one, which nobody else may meet."""
    return f"single {os.getpid()} {os.urandom(8).hex()}"


def from_arguments(rank: int | None, world_size: int | None, given: Given) -> Place:
    """The place that the arguments of `init` describe."""
    for name, value, other in (("rank", rank, "world_size"), ("world_size", world_size, "rank")):
        if value is None:
            raise InitError(f"init() got {other}= without {name}=: give both, or neither to let the launcher decide")
    try:
        rank, size = operator.index(rank), operator.index(world_size)  # type: ignore[arg-type]
    except TypeError:
        raise InitError(f"rank={rank!r} and world_size={world_size!r} must both be integers") from None
    if size > 1 and given.job_id is None and given.master is None:
        raise InitError(
            "init(rank=, world_size=) also needs job_id= (or ARX_JOB_ID): any text that is the same on every rank of "
            "this job and different in every other job on this host; or, for several hosts, master= (or ARX_MASTER)"
        )
    near = given.master is None or is_loopback(given.master)
    hosts: Where = (rank, size, 0, 1) if near else (None, None, None, None)
    return Place(rank, size, *hosts, _job(given) or fresh(), "arguments of init()", given.master, given.secret)


def _job(given: Given) -> str | None:
    """What the user said, or else what follows from the master: no two jobs have the same one at a time."""
    return given.job_id or (f"master {given.master}" if given.master else None)


def _from_arx(v: Variables, given: Given) -> Place:
    rank, size = v.number("ARX_RANK"), v.number("ARX_WORLD_SIZE")
    near = given.master is None or is_loopback(given.master)
    hosts = _hosts(v, rank, size, ("ARX_LOCAL_RANK", "ARX_LOCAL_SIZE", "ARX_NODE_RANK", "ARX_NNODES"), near)
    place = Place(rank, size, *hosts, _job(given) or fresh(), v.source, given.master, given.secret)
    if _job(given) is None and size > 1 and place.one_host:
        v.text("ARX_JOB_ID", ": any text, the same on every rank of this job and different in every other on this host")
    return place


def _hosts(v: Variables, rank: int, size: int, names: tuple[str, str, str, str], near: bool) -> Where:
    """Local rank and size, number and count of hosts. Where none is said, all ranks are on one host if `near`."""
    local_rank, local_size, node_rank, nodes = map(v.maybe, names)
    silent = local_size is None and nodes is None
    if nodes == 1 or local_size == size or (silent and near):
        return (
            rank if local_rank is None else local_rank,
            size if local_size is None else local_size,
            0 if node_rank is None else node_rank,
            1 if nodes is None else nodes,
        )
    return local_rank, local_size, node_rank, nodes


def _from_torchrun(v: Variables, given: Given) -> Place:
    rank, size = v.number("RANK"), v.number("WORLD_SIZE")
    address = v.env.get("MASTER_ADDR", "")
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    hosts = _hosts(v, rank, size, names, near=not address or is_loopback(address))
    job_id = given.job_id
    if job_id is None and size > 1:
        # The port tells jobs of one host apart, the run id elastic jobs behind one port, the count the restarts of one.
        address, port = v.text("MASTER_ADDR"), v.text("MASTER_PORT")
        run, restart = v.env.get("TORCHELASTIC_RUN_ID", ""), v.env.get("TORCHELASTIC_RESTART_COUNT", "0")
        job_id = f"torchrun {address}:{port} {run} {restart}"
    place = Place(rank, size, *hosts, job_id or fresh(), v.source, given.master, given.secret)
    if place.one_host or given.master is not None:
        return place
    taken = v.maybe("MASTER_PORT")  # by the agent's own store, or by torch.distributed if there is no agent
    return replace(place, master=candidates(v.text("MASTER_ADDR"), place.job_id, allowed(v.env), taken))


def _from_pmi(v: Variables, given: Given) -> Place:
    rank, size = v.number("PMI_RANK"), v.number("PMI_SIZE")
    local_rank, local_size = v.number("MPI_LOCALRANKID", rank), v.number("MPI_LOCALNRANKS", size)
    one = local_size == size
    hosts: Where = (local_rank, local_size, 0, 1) if one else (local_rank, local_size, None, None)
    job_id, master, secret = given.job_id or (fresh() if size == 1 else TO_BE_AGREED), given.master, given.secret
    if not one:
        master, secret = master or TO_BE_AGREED, secret or TO_BE_AGREED
    if TO_BE_AGREED in (job_id, master, secret) and pmi.mpi_module() is None:
        v.text("PMI_FD", ": without it the ranks cannot agree on a job id. Give the same job_id= or ARX_JOB_ID to all")
        v.number("PMI_FD")
        if v.env.get("ARX_PMI") == "0":
            raise InitError(
                "ARX_PMI=0 keeps arx off PMI_FD: import mpi4py.MPI before arx.init(), so that the ranks agree on a job "
                "id by MPI, or give the same job_id= or ARX_JOB_ID to all"
            )
    return Place(rank, size, *hosts, job_id, v.source, master, secret)


def _from_open_mpi(v: Variables, given: Given) -> Place:
    rank, size = v.number("OMPI_COMM_WORLD_RANK"), v.number("OMPI_COMM_WORLD_SIZE")
    local = v.number("OMPI_COMM_WORLD_LOCAL_RANK"), v.number("OMPI_COMM_WORLD_LOCAL_SIZE")
    # Open MPI 5 names its jobs `prterun-<host>-<pid>@<job>`; Open MPI 4 has the address of its mpirun instead.
    named = given.job_id or v.env.get("OMPI_MCA_orte_hnp_uri") or v.text("PMIX_NAMESPACE")
    job_id = given.job_id or f"openmpi {v.env.get('PMIX_NAMESPACE', named)}"
    one = local[1] == size
    hosts: Where = (*local, 0, 1) if one else (*local, None, None)
    master, secret = given.master, given.secret
    if not one and pmi.mpi_module() is not None:  # which can tell all that Open MPI's variables do not
        master, secret = master or TO_BE_AGREED, secret or TO_BE_AGREED
    elif not one and master is None:
        master = _mpiruns_host(v, rank, job_id)
    return Place(rank, size, *hosts, job_id, v.source, master, secret)


def _mpiruns_host(v: Variables, rank: int, job_id: str) -> str | None:
    """Candidates on the host of mpirun, which mostly is that of rank 0; only rank 0 can tell if it is not."""
    if uri := v.env.get("OMPI_MCA_orte_hnp_uri"):  # 4711.0;tcp://10.0.0.1,192.168.0.1:41234
        addresses = re.findall(r"(?<=//|.,)[0-9.]+(?=[,:])", uri)
        host = next((address for address in addresses if not is_loopback(address)), None)
        here = host is not None and _is_mine(host)
    else:
        named = re.fullmatch(r"prterun-(.+)-[0-9]+@[0-9]+", v.env.get("PMIX_NAMESPACE", ""))
        host = named[1] if named else None
        here = host == v.env.get("PMIX_HOSTNAME", socket.gethostname())
    if host is None or (rank == 0 and not here):
        return None
    return candidates(host, job_id, allowed(v.env))


def _is_mine(address: str) -> bool:
    """Whether an address is one of this host's: only then can a socket be bound to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def _from_slurm(v: Variables, given: Given) -> Place:
    rank = v.number("SLURM_PROCID")
    size = v.number("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in v.env else "SLURM_NTASKS")
    node, nodes = v.number("SLURM_NODEID", 0), v.number("SLURM_STEP_NUM_NODES", 1)
    tasks = tasks_per_node(v.env.get("SLURM_STEP_TASKS_PER_NODE") or str(size))
    if not 0 <= node < len(tasks):
        raise InitError(f"SLURM_NODEID={node} has no entry in SLURM_STEP_TASKS_PER_NODE ({v.source})")
    job_id = given.job_id or f"slurm {v.text('SLURM_JOB_ID')}.{v.text('SLURM_STEP_ID')}"
    local = v.number("SLURM_LOCALID", rank), tasks[node]
    place = Place(rank, size, *local, node, nodes, job_id, v.source, given.master, given.secret)
    if place.one_host or given.master is not None:
        return place
    # Task 0 is on the step's first node, whether tasks are dealt out in blocks or round and round.
    first = next(slurm_nodes(v.text("SLURM_STEP_NODELIST")))
    return replace(place, master=candidates(first, job_id, allowed(v.env)))


def _from_other(v: Variables, given: Given) -> Place:
    rank_name, size_name = next(pair for pair in OTHERS if v.has(pair[0]))
    size = v.number(size_name) if size_name in v.env else 0
    if size == 1:
        return on_one_host(0, 1, given.job_id or fresh(), v.source)
    raise InitError(
        f"{rank_name}={v.env[rank_name]} says that a launcher started this process as one of several, but arx does not "
        "know that launcher: set ARX_RANK, ARX_WORLD_SIZE and ARX_JOB_ID, or give init() rank=, world_size= and job_id="
    )


def _alone(v: Variables, given: Given) -> Place:
    return on_one_host(0, 1, given.job_id or fresh(), v.source)


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
    "start mpirun on the host of rank 0, or import mpi4py.MPI before arx.init(), or set ARX_MASTER=HOST:PORT, an "
    "address of rank 0's host with any port that is free there: mpirun -x ARX_MASTER=HOST:PORT -x ARX_SECRET …",
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
