"""The compiled core. Users import these names from `arx`."""

from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, final, overload

__all__ = [
    "ANY",
    "Explanation",
    "Group",
    "Listening",
    "Plan",
    "Status",
    "Work",
    "_Buckets",
    "_Codec",
    "_Feedback",
    "_after_fork_in_child",
    "_coalescing",
    "_finish",
    "_finished",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "build_info",
    "connect",
    "explain",
    "exscan",
    "gather",
    "is_initialized",
    "listen",
    "new_group",
    "plan_all_reduce",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
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
class Work:
    """A call that was begun with `async_op=True`."""

    def wait(self, timeout: float | None = None) -> Any: ...
    def result(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def add_done_callback(self, fn: Callable[[Work], object]) -> None: ...
    def _callbacks(self) -> list[Callable[[Work], object]]: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Plan:
    """A call of `all_reduce` on always the same arrays. Calling it does it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...  # takes nothing; a slot has no signature of its own

@final
class _Buckets:
    def __new__(
        cls,
        group: Group,
        arrays: Sequence[Any],
        op: str,
        codecs: Sequence[tuple[_Codec, _Feedback | None]] | None = None,
    ) -> Self: ...
    def begin(self) -> Work: ...
    def ready(self, number: int) -> None: ...
    def wait(self, number: int) -> bool: ...

@final
class _Codec:
    """A codec, with its parameters checked."""

    @staticmethod
    def auto() -> _Codec: ...
    @staticmethod
    def dense(name: str, block: int, stochastic: bool) -> _Codec: ...
    @staticmethod
    def sparse(pick: str, amount: float, values: str, shared: bool) -> _Codec: ...
    @staticmethod
    def low_rank(rank: int) -> _Codec: ...
    def encode(self, x: Any, seed: int) -> memoryview: ...
    def decode(self, payload: bytes, count: int) -> memoryview: ...

@final
class _Feedback:
    """What one array's calls leave behind for the next ones."""

    def __new__(cls, momentum: float) -> Self: ...
    @property
    def steps(self) -> int: ...
    def state(self) -> dict[str, Any] | None: ...
    def restore(self, state: dict[str, Any]) -> None: ...

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
    @overload
    def all_reduce(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        compression: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> _X: ...
    @overload
    def all_reduce(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        compression: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def broadcast(
        self,
        x: _X,
        root: int | None = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> _X: ...
    @overload
    def broadcast(
        self,
        x: _X,
        root: int | None = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def barrier(self, *, timeout: float | None = None, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, timeout: float | None = None, async_op: Literal[True]) -> Work: ...
    @overload
    def reduce(
        self,
        x: _X,
        root: int | None = None,
        op: str | None = None,
        *,
        out: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> _X | None: ...
    @overload
    def reduce(
        self,
        x: _X,
        root: int | None = None,
        op: str | None = None,
        *,
        out: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        axis: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> Any: ...
    @overload
    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        axis: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def gather(
        self,
        x: Any,
        root: int | None = None,
        *,
        out: Any = None,
        axis: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> Any: ...
    @overload
    def gather(
        self,
        x: Any,
        root: int | None = None,
        *,
        out: Any = None,
        axis: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def scatter(
        self,
        x: Any = None,
        root: int | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> Any: ...
    @overload
    def scatter(
        self,
        x: Any = None,
        root: int | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        x: Any,
        op: str | None = None,
        *,
        out: Any = None,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> Any: ...
    @overload
    def reduce_scatter(
        self,
        x: Any,
        op: str | None = None,
        *,
        out: Any = None,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> Any: ...
    @overload
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def scan(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> _X: ...
    @overload
    def scan(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def exscan(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[False] = False,
    ) -> _X: ...
    @overload
    def exscan(
        self,
        x: _X,
        op: str | None = None,
        *,
        out: Any = None,
        timeout: float | None = None,
        name: str | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def send(
        self,
        x: Any,
        dst: int,
        *,
        tag: int | None = None,
        timeout: float | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def send(
        self,
        x: Any,
        dst: int,
        *,
        tag: int | None = None,
        timeout: float | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def recv(
        self,
        out: Any,
        src: int | _Any | None = None,
        *,
        tag: int | _Any | None = None,
        timeout: float | None = None,
        async_op: Literal[False] = False,
    ) -> Status: ...
    @overload
    def recv(
        self,
        out: Any,
        src: int | _Any | None = None,
        *,
        tag: int | _Any | None = None,
        timeout: float | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
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
        async_op: Literal[False] = False,
    ) -> Status: ...
    @overload
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
        async_op: Literal[True],
    ) -> Work: ...
    def explain(
        self, x: Any, op: str | None = None, *, compression: Any = None, algo: str | None = None
    ) -> Explanation: ...
    def shutdown(self) -> None: ...
    def _survey(self, rounds: int) -> list[float] | None: ...
    def _refuse(self, error: BaseException) -> BaseException: ...
    def _allocate(self, nbytes: int) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@overload
def all_reduce(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    compression: Any = None,
    algo: str | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> _X: ...
@overload
def all_reduce(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    compression: Any = None,
    algo: str | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def broadcast(
    x: _X,
    root: int | None = None,
    *,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> _X: ...
@overload
def broadcast(
    x: _X,
    root: int | None = None,
    *,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def barrier(*, group: Group | None = None, timeout: float | None = None, async_op: Literal[False] = False) -> None: ...
@overload
def barrier(*, group: Group | None = None, timeout: float | None = None, async_op: Literal[True]) -> Work: ...
@overload
def reduce(
    x: _X,
    root: int | None = None,
    op: str | None = None,
    *,
    out: Any = None,
    algo: str | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> _X | None: ...
@overload
def reduce(
    x: _X,
    root: int | None = None,
    op: str | None = None,
    *,
    out: Any = None,
    algo: str | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def all_gather(
    x: Any,
    *,
    out: Any = None,
    axis: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> Any: ...
@overload
def all_gather(
    x: Any,
    *,
    out: Any = None,
    axis: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def gather(
    x: Any,
    root: int | None = None,
    *,
    out: Any = None,
    axis: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> Any: ...
@overload
def gather(
    x: Any,
    root: int | None = None,
    *,
    out: Any = None,
    axis: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def scatter(
    x: Any = None,
    root: int | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> Any: ...
@overload
def scatter(
    x: Any = None,
    root: int | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def reduce_scatter(
    x: Any,
    op: str | None = None,
    *,
    out: Any = None,
    counts: Sequence[int] | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> Any: ...
@overload
def reduce_scatter(
    x: Any,
    op: str | None = None,
    *,
    out: Any = None,
    counts: Sequence[int] | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def all_to_all(
    x: Any,
    *,
    out: Any = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> Any: ...
@overload
def all_to_all(
    x: Any,
    *,
    out: Any = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def scan(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> _X: ...
@overload
def scan(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def exscan(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[False] = False,
) -> _X: ...
@overload
def exscan(
    x: _X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: Literal[True],
) -> Work: ...
def plan_all_reduce(
    x: Any,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    compression: Any = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Plan: ...
@overload
def send(
    x: Any,
    dst: int,
    *,
    tag: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def send(
    x: Any,
    dst: int,
    *,
    tag: int | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
def recv(
    out: Any,
    src: int | _Any | None = None,
    *,
    tag: int | _Any | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: Literal[False] = False,
) -> Status: ...
@overload
def recv(
    out: Any,
    src: int | _Any | None = None,
    *,
    tag: int | _Any | None = None,
    group: Group | None = None,
    timeout: float | None = None,
    async_op: Literal[True],
) -> Work: ...
@overload
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
    async_op: Literal[False] = False,
) -> Status: ...
@overload
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
    async_op: Literal[True],
) -> Work: ...
def explain(
    x: Any, op: str | None = None, *, group: Group | None = None, compression: Any = None, algo: str | None = None
) -> Explanation: ...
def build_info() -> dict[str, Any]: ...
def new_group(ranks: Iterable[int], *, name: str | None = None) -> Group | None: ...
def listen(address: str | None, iface: str | None, port_range: str | None) -> Listening: ...
def connect(settings: _Settings) -> Group: ...
def world() -> Group: ...
def is_initialized() -> bool: ...
def shutdown(raised: bool = False) -> None: ...
def _after_fork_in_child() -> list[int]: ...
def _coalescing(change: int) -> None: ...
def _finished() -> list[Work] | None: ...
def _finish(closed: bool) -> None: ...
