"""`GradientBucketer`: gradients averaged over ranks while the backward pass still computes others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arx import _arx
from arx._agreement import agree
from arx._memory import empty
from arx._overlap import ensure_apart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

_BUCKET = 4 << 20  # bytes: large enough for full bandwidth, small enough to begin early


class _Bucket:
    """Arrays that travel together, one behind the other in `flat`."""

    def __init__(self, names: list[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        first = arrays[names[0]]
        self.names = names
        self.alone = len(names) == 1 and first.flags.c_contiguous
        self.flat = first if self.alone else empty(sum(arrays[n].size for n in names), first.dtype)
        self.views: dict[str, NDArray[Any]] = {}
        at = 0
        for name in names if not self.alone else ():
            x = arrays[name]
            self.views[name] = self.flat[at : at + x.size].reshape(x.shape)
            at += x.size
        self.missing: set[str] = set()


class GradientBucketer:
    """Averages arrays over all ranks in the background, in buckets, as they become ready.

    The arrays are registered once, in the order in which the forward pass needs them. In every step each is marked
    ready, in any order, when its values are final; a bucket is averaged when all its arrays are ready on all ranks.
    `finish` (or `wait`, for one array) returns when the averages are in the arrays.

    Of the buckets that are ready everywhere, that with the arrays that were registered first goes first: the next
    forward pass needs them first. Ranks need not mark in the same order.

        bucketer = arx.GradientBucketer(model.gradients)      # a dict of numpy arrays
        for batch in batches:
            for layer in reversed(model.layers):              # the backward pass
                layer.backward(...)
                bucketer.ready(layer.name)
            bucketer.finish()
            model.update()

    Args:
        arrays: numpy arrays of floats by name (or a list: names are "0", "1", ...), the same names, shapes, dtypes and
            order on all ranks. They are written in place; keep using these very arrays. No two may have an element in
            common.
        bucket_bytes: how much a bucket holds; a larger array is one by itself.
        op: as in `arx.all_reduce`.
        compression: as in `arx.all_reduce`, of each bucket; what is left out comes with the next step. A pipeline with
            clip_norm or warm-up is for calls that see all gradients, or count them.
        group: whose ranks take part; instead of the world. The bucketer works in a group of its own made from it, so
            that the program can use `group` meanwhile. Making one is a collective call.

    Raises:
        TypeError, ValueError: an argument is refused; the other ranks raise `MismatchError`.
        MismatchError: ranks have other names, another order, other shapes, dtypes, `op` or `bucket_bytes`. It says
            which.

    A context manager: leaves its group at the end, as `close` does.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
        *,
        bucket_bytes: int = _BUCKET,
        op: str = "avg",
        compression: Any = None,
        group: _arx.Group | None = None,
    ) -> None:
        """Register `arrays`."""
        parent = _arx.world() if group is None else group
        try:
            self._arrays = _named(arrays)
            ensure_apart("GradientBucketer", list(self._arrays.values()), list(self._arrays))
            if bucket_bytes <= 0:
                msg = f"bucket_bytes must be positive, not {bucket_bytes}"
                raise ValueError(msg)
            self._buckets = [_Bucket(names, self._arrays) for names in _dealt(self._arrays, bucket_bytes)]
            flats = [bucket.flat for bucket in self._buckets]
            # Tried here, where the others hear of what is refused: a group of its own is made by all ranks or by none.
            _arx._Buckets(parent, flats, op, _codecs(compression, None, len(flats)))
        except (TypeError, ValueError, MemoryError) as error:
            raise parent._refuse(error) from None
        kinds = [(name, f"{x.dtype} {x.shape}") for name, x in self._arrays.items()]
        agree(f"GradientBucketer(op={op}, bucket_bytes={bucket_bytes})", kinds, parent)
        self._of = {name: (number, b) for number, b in enumerate(self._buckets) for name in b.names}
        group = parent.new_group(range(parent.size), name="gradients")
        assert group is not None
        self._group = group
        self._core = _arx._Buckets(group, flats, op, _codecs(compression, group, len(flats)))
        self._round: _arx.Work | None = None

    def ready(self, name: str | int) -> None:
        """Say that the array has its values of this step, and will not be touched until it is averaged.

        Raises:
            KeyError: there is no such array.
            ValueError: it was marked already in this step.
        """
        number, bucket = self._find(name)
        if self._round is None:
            for other in self._buckets:
                other.missing = set(other.names)
            self._round = self._core.begin()
        if str(name) not in bucket.missing:
            msg = f"array {str(name)!r} was marked ready twice; call finish() between two steps"
            raise ValueError(msg)
        if not bucket.alone:
            bucket.views[str(name)][...] = self._arrays[str(name)]
        bucket.missing.remove(str(name))
        if not bucket.missing:
            self._core.ready(number)

    def wait(self, name: str | int) -> NDArray[Any]:
        """Return the array when it is averaged, which may be long before the others are.

        Raises:
            RuntimeError: not all arrays of its bucket are marked, so that it would wait for ever.
            ArxError: as `arx.all_reduce`.
        """
        number, bucket = self._find(name)
        self._ensure_marked([bucket])
        if not self._core.wait(number):
            self._end()
        self._take(bucket)
        return self._arrays[str(name)]

    def finish(self) -> None:
        """Return when all arrays hold their averages. The next step may begin.

        Raises:
            RuntimeError: arrays were not marked ready; they are named.
            ArxError: as `arx.all_reduce`. The bucketer is of no use after that.
        """
        self._ensure_marked(self._buckets)
        self._end()
        for bucket in self._buckets:
            self._take(bucket)

    @property
    def group(self) -> _arx.Group:
        """The group that it works in: `pipeline.state_dict(bucketer.group)` is what a pipeline keeps for it."""
        return self._group

    def close(self) -> None:
        """Leave the bucketer's group. Harmless when called twice."""
        self._group.shutdown()

    def _find(self, name: str | int) -> tuple[int, _Bucket]:
        try:
            return self._of[str(name)]
        except KeyError:
            msg = f"no array {str(name)!r} is registered; there are {', '.join(map(repr, self._arrays))}"
            raise KeyError(msg) from None

    def _ensure_marked(self, buckets: Sequence[_Bucket]) -> None:
        missing = [name for bucket in buckets for name in bucket.names if self._round is None or name in bucket.missing]
        if missing and self._buckets:
            msg = f"not marked ready in this step: {', '.join(map(repr, missing))}"
            raise RuntimeError(msg)

    def _end(self) -> None:
        round_, self._round = self._round, None
        if round_ is not None:
            round_.wait()

    def _take(self, bucket: _Bucket) -> None:
        for name, view in bucket.views.items():
            self._arrays[name][...] = view

    def __enter__(self) -> Self:
        """Return the bucketer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave its group."""
        self._group.__exit__(kind, value, trace)


def _codecs(compression: Any, group: _arx.Group | None, count: int) -> list[tuple[_arx._Codec, Any]] | None:
    """Return what the core needs to compress `count` buckets; without a group it keeps nothing, and is only tried."""
    if compression is None:
        return None
    from arx.compression import _pipeline

    return _pipeline.of_buckets(compression, group, count)


def _named(arrays: Any) -> dict[str, NDArray[Any]]:
    import numpy as np

    named = dict(arrays) if hasattr(arrays, "keys") else {str(k): x for k, x in enumerate(arrays)}
    for name, x in named.items():
        if not isinstance(name, str) or not isinstance(x, np.ndarray):
            msg = f"GradientBucketer takes numpy arrays by name, not {type(x).__name__} by {type(name).__name__}"
            raise TypeError(msg)
        if not x.flags.writeable:
            msg = f"array {name!r} is read-only"
            raise ValueError(msg)
    return named


def _dealt(arrays: Mapping[str, NDArray[Any]], limit: int) -> list[list[str]]:
    """Return the names in buckets, filled from the last array on: the backward pass ends with the first."""
    buckets: list[list[str]] = []
    room, dtype = 0, None
    for name in list(arrays)[::-1]:
        x = arrays[name]
        if not buckets or x.nbytes > room or x.dtype != dtype:
            buckets.append([])
            room, dtype = limit, x.dtype
        buckets[-1].append(name)
        room -= x.nbytes
    return [names[::-1] for names in buckets[::-1]]
