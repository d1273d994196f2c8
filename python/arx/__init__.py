"""Collective communication for Python on CPUs: all-reduce arrays in place, without MPI and without torch."""

from arx import compression, functional
from arx._arx import (
    ANY,
    Explanation,
    Group,
    Plan,
    Status,
    Work,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    build_info,
    explain,
    exscan,
    gather,
    is_initialized,
    new_group,
    plan_all_reduce,
    recv,
    reduce,
    reduce_scatter,
    scan,
    scatter,
    send,
    sendrecv,
    world,
)
from arx._bucketer import GradientBucketer
from arx._groups import Mesh, mesh
from arx._many import all_reduce_many, coalesce
from arx._memory import empty, empty_like, zeros
from arx._objects import all_gather_object, broadcast_object, gather_object, scatter_object
from arx._operations import ReduceOp
from arx._sharded import SGD, Adam, ShardedOptimizer
from arx._work import as_completed, wait_all
from arx._world import init, local_rank, local_size, monitored_barrier, node_rank, num_nodes, rank, shutdown, size
from arx.errors import (
    AbortedError,
    ArxError,
    AuthError,
    CollectiveTimeout,
    InitError,
    MismatchError,
    PeerLostError,
    RendezvousError,
)

__version__: str = build_info()["version"]

__all__ = [
    "ANY",
    "SGD",
    "AbortedError",
    "Adam",
    "ArxError",
    "AuthError",
    "CollectiveTimeout",
    "Explanation",
    "GradientBucketer",
    "Group",
    "InitError",
    "Mesh",
    "MismatchError",
    "PeerLostError",
    "Plan",
    "ReduceOp",
    "RendezvousError",
    "ShardedOptimizer",
    "Status",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_many",
    "all_to_all",
    "as_completed",
    "barrier",
    "broadcast",
    "broadcast_object",
    "build_info",
    "coalesce",
    "compression",
    "empty",
    "empty_like",
    "explain",
    "exscan",
    "functional",
    "gather",
    "gather_object",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mesh",
    "monitored_barrier",
    "new_group",
    "node_rank",
    "num_nodes",
    "plan_all_reduce",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatter_object",
    "send",
    "sendrecv",
    "shutdown",
    "size",
    "wait_all",
    "world",
    "zeros",
]

if build_info()["debug"]:
    import warnings

    warnings.warn("arx was built without --release and is slow", RuntimeWarning, stacklevel=2)
