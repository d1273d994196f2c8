"""Groups laid out as a grid."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Self

from arx import _arx

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Mesh:
    """Ranks in rows and columns, each of which is a group. Made by `mesh`; a context manager that shuts both down."""

    def __init__(self, group: _arx.Group, shape: tuple[int, int]) -> None:
        """Make this rank's row and column; all ranks of `group` do so."""
        rows, cols = shape
        row, col = divmod(group.rank, cols)
        self.group = group
        self.shape = shape
        self.coords = (row, col)
        self.row = _made(group, range(row * cols, (row + 1) * cols), f"rows[{row}]")
        self.col = _made(group, range(col, rows * cols, cols), f"cols[{col}]")

    def shutdown(self) -> None:
        """Shut down the groups of this rank's row and column. Harmless when called twice."""
        self.row.shutdown()
        self.col.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.row.__exit__(kind, error, trace)
        self.col.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<arx.Mesh {self.shape[0]} x {self.shape[1]} of '{self.group.name}': at {self.coords}>"


def mesh(shape: Sequence[int], *, group: _arx.Group | None = None) -> Mesh:
    """Return the ranks of a group as a grid of `shape` (rows, cols), filled row by row.

    All ranks of the group call it. On each, `row` is the group of the ranks in its row, `col` that of those in its
    column, `coords` its place: `row.rank` is `coords[1]`, and the other way round.

    Args:
        shape: rows and columns; their product is the size of the group.
        group: instead of the world.

    Raises:
        ValueError: the shape is not that of so many ranks.

    Example: sum over each row, then over each column.

    >>> grid = arx.mesh((2, arx.size() // 2))  # doctest: +SKIP
    >>> grid.row.all_reduce(x)  # doctest: +SKIP
    >>> grid.col.all_reduce(x)  # doctest: +SKIP
    """
    group = _arx.world() if group is None else group
    dims = tuple(map(operator.index, shape))
    if len(dims) != 2 or min(dims) < 1 or dims[0] * dims[1] != group.size:
        msg = f"a mesh of shape {dims} does not have {group.size} places in two dimensions"
        raise ValueError(msg)
    return Mesh(group, (dims[0], dims[1]))


def _made(group: _arx.Group, ranks: range, name: str) -> _arx.Group:
    made = group.new_group(ranks, name=name)
    assert made is not None, "a rank is in its own row and column"
    return made
