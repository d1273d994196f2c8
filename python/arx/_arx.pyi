"""The compiled core. Users import these names from `arx`."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar, final

__all__ = [
    "ANY",
    "Explanation",
    "Group",
    "Listening",
    "Status",
    "_after_fork_in_child",
    "all_reduce",
    "barrier",
    "broadcast",
    "build_info",
    "connect",
    "explain",
    "is_initialized",
    "listen",
    "new_group",
    "recv",
    "send",
    "sendrecv",
    "shutdown",
    "world",
]

_X = TypeVar("_X")

class _Settings(TypedDict):
    rank: int
    world_size: int
    job_id: str
    generation: int
    timeout: float
    spin_us: float
    tune: str | None
    algo: str
    master: str | None
    secret: str | None
    transport: str
    iface: str | None
    port_range: str | None
    heartbeat: float
    listening: Any  # a Listening of this module

@final
class Listening:
    @property
    def address(self) -> str: ...

@final
class Explanation:
    @property
    def algorithm(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def candidates(self) -> dict[str, float]: ...

@final
class _Any:
    """Any rank, or any tag."""

ANY: Final[_Any]

@final
class Status:
    """What has been received: from whom, with which tag, and how many bytes."""

    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def count(self, dtype: Any) -> int: ...

@final
class Group:
    """Ranks that communicate. Made by `arx.init`, `new_group` and `split`; a context manager that shuts the group down.

    `rank`, roots and peers are numbers in the group; `ranks`, and every error, say the numbers in the world.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def name(self) -> str: ...
    def new_group(self, ranks: Iterable[int], *, name: str | None = None) -> Group | None: ...
    def split(self, color: int | None, key: int | None = None) -> Group | None: ...
    @property
    def local(self) -> Group: ...
    @property
    def cross(self) -> Group: ...
    def all_reduce(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> _X: ...
    def broadcast(
        self, x: _X, root: int | None = None, *, timeout: float | None = None, name: str | None = None
    ) -> _X: ...
    def barrier(self, *, timeout: float | None = None) -> None: ...
    def send(self, x: Any, dst: int, *, tag: int | None = None, timeout: float | None = None) -> None: ...
    def recv(
        self,
        out: Any,
        src: int | _Any | None = None,
        *,
        tag: int | _Any | None = None,
        timeout: float | None = None,
    ) -> Status: ...
    def sendrecv(
        self,
        x: Any,
        dst: int,
        out: Any,
        src: int | _Any | None = None,
        *,
        tag: int | None = None,
        recv_tag: int | _Any | None = None,
        timeout: float | None = None,
    ) -> Status: ...
    def explain(self, x: Any, op: str | None = None, *, algo: str | None = None) -> Explanation: ...
    def shutdown(self) -> None: ...
    def _survey(self, rounds: int) -> list[float] | None: ...
    def _allocate(self, nbytes: int) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

def all_reduce(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> _X: ...
def broadcast(
    x: _X, root: int | None = None, *, group: Group | None = None, timeout: float | None = None, name: str | None = None
) -> _X: ...
def barrier(*, group: Group | None = None, timeout: float | None = None) -> None: ...
def send(
    x: Any, dst: int, *, tag: int | None = None, group: Group | None = None, timeout: float | None = None
) -> None: ...
def recv(
    out: Any,
    src: int | _Any | None = None,
    *,
    tag: int | _Any | None = None,
    group: Group | None = None,
    timeout: float | None = None,
) -> Status: ...
def sendrecv(
    x: Any,
    dst: int,
    out: Any,
    src: int | _Any | None = None,
    *,
    tag: int | None = None,
    recv_tag: int | _Any | None = None,
    group: Group | None = None,
    timeout: float | None = None,
) -> Status: ...
def explain(x: Any, op: str | None = None, *, group: Group | None = None, algo: str | None = None) -> Explanation: ...
def build_info() -> dict[str, Any]: ...
def new_group(ranks: Iterable[int], *, name: str | None = None) -> Group | None: ...
def listen(address: str | None, iface: str | None, port_range: str | None) -> Listening: ...
def connect(settings: _Settings) -> Group: ...
def world() -> Group: ...
def is_initialized() -> bool: ...
def shutdown(raised: bool = False) -> None: ...
def _after_fork_in_child() -> list[int]: ...
