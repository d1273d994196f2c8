"""Collective communication for Python on CPUs: all-reduce arrays in place, without MPI and without torch."""

from arx import functional
from arx._arx import (
    ANY,
    Explanation,
    Group,
    Status,
    all_reduce,
    barrier,
    broadcast,
    build_info,
    explain,
    is_initialized,
    new_group,
    recv,
    send,
    sendrecv,
    world,
)
from arx._groups import Mesh, mesh
from arx._memory import empty, empty_like, zeros
from arx._operations import ReduceOp
from arx._world import init, local_rank, local_size, node_rank, num_nodes, rank, shutdown, size
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
    "AbortedError",
    "ArxError",
    "AuthError",
    "CollectiveTimeout",
    "Explanation",
    "Group",
    "InitError",
    "Mesh",
    "MismatchError",
    "PeerLostError",
    "ReduceOp",
    "RendezvousError",
    "Status",
    "__version__",
    "all_reduce",
    "barrier",
    "broadcast",
    "build_info",
    "empty",
    "empty_like",
    "explain",
    "functional",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mesh",
    "new_group",
    "node_rank",
    "num_nodes",
    "rank",
    "recv",
    "send",
    "sendrecv",
    "shutdown",
    "size",
    "world",
    "zeros",
]

if build_info()["debug"]:
    import warnings

    warnings.warn("arx was built without --release and is slow", RuntimeWarning, stacklevel=2)
