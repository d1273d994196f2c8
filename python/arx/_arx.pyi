"""The compiled core. Users import these names from `arx`."""

from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, final

X = TypeVar("X")

class _Settings(TypedDict):
    rank: int
    world_size: int
    job_id: str
    generation: int
    timeout: float
    spin_us: float
    tune: str | None
    algo: str

@final
class Group:
    """Ranks that communicate. Made by `arx.init`; a context manager that shuts the group down."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def name(self) -> str: ...
    def all_reduce(
        self,
        x: X,
        op: str | None = None,
        *,
        out: Any = None,
        algo: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> X: ...
    def broadcast(self, x: X, root: int | None = None, *, timeout: float | None = None, name: str | None = None) -> X: ...
    def barrier(self, *, timeout: float | None = None) -> None: ...
    def shutdown(self) -> None: ...
    def _allocate(self, nbytes: int) -> Block: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Block:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def all_reduce(
    x: X,
    op: str | None = None,
    *,
    out: Any = None,
    group: Group | None = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> X: ...
def broadcast(
    x: X, root: int | None = None, *, group: Group | None = None, timeout: float | None = None, name: str | None = None
) -> X: ...
def barrier(*, group: Group | None = None, timeout: float | None = None) -> None: ...
def build_info() -> dict[str, Any]: ...
def connect(settings: _Settings) -> Group: ...
def world() -> Group: ...
def is_initialized() -> bool: ...
def shutdown() -> None: ...
def _after_fork_in_child() -> None: ...
