"""Many small all-reduces as few large ones: `all_reduce_many` and `coalesce`."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

from arx import _arx
from arx._agreement import agree, digest
from arx._overlap import ensure_apart, overlapping

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

_LARGE = 1 << 20  # bytes; an array of this size or more gains nothing from company, and would be copied
_SHOWN = 200  # characters of the names in an error

_open = threading.local()


def all_reduce_many(
    xs: Sequence[Any] | Mapping[str, Any],
    op: str = "sum",
    *,
    group: _arx.Group | None = None,
    compression: Any = None,
    algo: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
    async_op: bool = False,
) -> Any:
    """Combine each of several arrays over all ranks, in place; small ones share a transfer.

    Args:
        xs: a list or tuple of arrays, the same number, shapes and dtypes on all ranks; or a dict of them, which ranks
            match by name whatever the order. What `arx.all_reduce` takes; no two may have an element in common.
        op: as in `arx.all_reduce`, for all of them.
        group: instead of the world.
        compression: as in `arx.all_reduce`, of the arrays that travel together as of one. What is left out is kept if
            there is a `name`.
        algo: as in `arx.all_reduce`.
        timeout: as in `arx.all_reduce`.
        name: part of what ranks must agree on. Lists that are compressed need different ones.
        async_op: return at once, with an object like a `Work`; `wait()` returns `xs`.

    Returns:
        `xs`.

    Raises:
        MismatchError: names or shapes differ between ranks. Names that not all ranks have are listed; nothing has
            moved.
        ValueError: two arrays have memory in common. It says which; the other ranks raise `MismatchError`.
        Exception: as in `arx.all_reduce`.
    """
    group = _arx.world() if group is None else group
    try:
        arrays, names = _listed(xs)
    except TypeError as error:
        raise group._refuse(error) from None
    if names is not None:
        agree("all_reduce_many", [(key, "") for key in names], group, timeout)
    settings = {"op": op, "algo": algo, "timeout": timeout, "async_op": async_op}
    if compression is not None:
        settings["compression"] = _kept(compression, name, group)
    views = [_numpy(x) for x in arrays]
    try:
        ensure_apart("all_reduce_many", views, names)
    except ValueError as error:
        raise group._refuse(error) from None
    fused = _Fused(zip(arrays, views, strict=True), group, settings, _label(arrays, names, name))
    fused.begin()
    together = Together(fused, xs)
    return together if async_op else together.wait()


def _listed(xs: Any) -> tuple[list[Any], list[str] | None]:
    if hasattr(xs, "keys"):
        wrong = [key for key in xs if not isinstance(key, str)]
        if wrong:
            msg = f"all_reduce_many matches arrays by name: keys must be strings, not {type(wrong[0]).__name__}"
            raise TypeError(msg)
        names = sorted(xs)
        return [xs[name] for name in names], names
    if not isinstance(xs, list | tuple):
        msg = f"all_reduce_many takes a list, a tuple or a dict of arrays, not {type(xs).__name__}"
        raise TypeError(msg)
    return list(xs), None


def _kept(compression: Any, name: str | None, group: _arx.Group) -> Any:
    """Return the pipeline; one that keeps nothing if the list has no name: a label says what is alike, not the same."""
    from arx.compression import _pipeline

    try:
        chosen = _pipeline.pipeline(compression)
        return chosen if name is not None else chosen.forgetful()
    except (TypeError, ValueError) as error:
        raise group._refuse(error) from None


@functools.cache
def _word(dtype: object) -> str:
    """Return what a dtype is called, which numpy takes 20 us to say."""
    return str(dtype)


def _shape(x: Any) -> str:
    return f"{_word(getattr(x, 'dtype', '?'))}{tuple(getattr(x, 'shape', ()))}"


def _label(arrays: Sequence[Any], names: Sequence[str] | None, name: str | None) -> str:
    """Return what ranks must agree on besides the length of all arrays together."""
    shapes = [_shape(x) for x in arrays]
    words = shapes if names is None else [f"{n}: {s}" for n, s in zip(names, shapes, strict=True)]
    shown = ", ".join(words)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return f"{name or 'all_reduce_many'} {digest(words).hex()} of {len(arrays)}: {shown}"


class _Fused:
    """Arrays of one dtype after another, each with its place in the array that is reduced for them."""

    def __init__(
        self, arrays: Iterable[tuple[Any, Any]], group: _arx.Group, settings: dict[str, Any], label: str
    ) -> None:
        """Take each array with what `_numpy` makes of it."""
        self._group, self._settings, self._label = group, settings, label
        self._works: list[_arx.Work] = []
        self._unpack: list[tuple[Any, Any]] = []
        self._views = list(arrays)
        self._calls = 0
        self._done = False

    def begin(self) -> None:
        """Do the calls, or begin them."""
        import numpy as np

        if not self._views:
            # Others may have arrays, and would wait for this rank.
            self._settings = {"timeout": self._settings["timeout"], "async_op": self._settings["async_op"]}
            self._reduce(np.empty(0))
        small: dict[Any, list[Any]] = {}
        for x, view in self._views:
            if view is None or view.nbytes >= _LARGE:
                self._reduce(x)
            else:
                small.setdefault(view.dtype, []).append(view)
        for views in small.values():
            if len(views) == 1:
                self._reduce(views[0])
                continue
            flat = np.empty(sum(view.size for view in views), views[0].dtype)
            at = 0
            for view in views:
                place = flat[at : at + view.size].reshape(view.shape)
                place[...] = view
                self._unpack.append((view, place))
                at += view.size
            self._reduce(flat)

    def _reduce(self, x: Any) -> None:
        name = self._label
        if "compression" in self._settings:
            name = f"{name} ({self._calls})"  # each keeps what it leaves out by itself
        self._calls += 1
        work = self._group.all_reduce(x, **self._settings, name=name)
        if self._settings["async_op"]:
            self._works.append(work)

    @property
    def works(self) -> list[_arx.Work]:
        return self._works

    def finish(self) -> None:
        """Put the results where they belong, once all calls are done."""
        if not self._done:
            self._done = True
            for view, place in self._unpack:
                view[...] = place


def _numpy(x: Any, *, to_write: bool = True) -> Any:
    """Return `x` as a numpy array on the same memory; None if it may not be written, or numpy lacks its dtype."""
    import numpy as np

    if isinstance(x, np.ndarray):
        usable = x.flags.writeable or not to_write
        return x if usable and not isinstance(x, np.ma.MaskedArray) and not x.dtype.hasobject else None
    if hasattr(x, "data_ptr") and hasattr(x, "numpy"):
        try:
            return x.detach().numpy()
        except (TypeError, RuntimeError):
            return None
    return None


class Together:
    """Several calls that are waited for together; what `Work` has, it has."""

    def __init__(self, fused: _Fused, result: Any) -> None:
        """Wait for `fused`, and return `result`."""
        self._fused, self._result = fused, result

    def wait(self, timeout: float | None = None) -> Any:
        """As `Work.wait`."""
        from arx._work import wait_all

        wait_all(self._fused.works, timeout)
        self._fused.finish()
        return self._result

    result = wait

    def done(self) -> bool:
        """As `Work.done`."""
        return all(work.done() for work in self._fused.works)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Work.exception`."""
        try:
            self.wait(timeout)
        except Exception as error:
            if isinstance(error, TimeoutError) and not self.done():
                raise
            return error
        return None

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """As `Work.add_done_callback`."""
        if not callable(fn):
            msg = f"add_done_callback takes a function, not {type(fn).__name__}"
            raise TypeError(msg)
        left = threading.Semaphore(len(self._fused.works) - 1) if self._fused.works else None
        if left is None:
            fn(self)
            return

        def one(_: _arx.Work) -> None:
            if not left.acquire(blocking=False):
                fn(self)

        for work in self._fused.works:
            work.add_done_callback(one)

    def __await__(self) -> Generator[Any, None, Any]:
        """Await all of them."""
        for work in self._fused.works:
            yield from work.__await__()
        return self.wait()


@contextlib.contextmanager
def coalesce() -> Iterator[None]:
    """Put off the calls of `all_reduce` in the block, and do them together when it ends: small arrays share transfers.

    In the block a call returns its array at once, with its old content; with `async_op` it returns an object whose
    `wait()` is allowed after the block. All ranks make the same calls in the same order. Other collectives in the block
    are not put off.

    What one call of the block changes no other may take or change: the calls are not done one after the other.
    Otherwise the end of the block raises ValueError, which says which two.

    If the block raises, nothing is done, and the other ranks get `MismatchError`.

    >>> with arx.coalesce():  # doctest: +SKIP
    ...     for gradient in gradients:
    ...         arx.all_reduce(gradient, "avg")
    """
    if getattr(_open, "calls", None) is not None:
        yield  # the outer block does it all
        return
    calls: list[_PutOff] = []
    _open.calls = calls
    _arx._coalescing(1)
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception):
            _refuse_all({call.group for call in calls}, error)
        raise
    finally:
        _open.calls = None
        _arx._coalescing(-1)
    _do(calls)


class _PutOff:
    """One call of a block."""

    def __init__(self, group: _arx.Group, x: Any, arguments: dict[str, Any]) -> None:
        self.group, self.x, self.out = group, x, arguments.pop("out")
        self.later = arguments.pop("async_op")
        self.arguments = arguments
        self.is_done = False

    @property
    def array(self) -> Any:
        return self.x if self.out is None else self.out

    def done(self) -> bool:
        return self.is_done

    def wait(self, timeout: float | None = None) -> Any:
        del timeout
        if not self.is_done:
            msg = "this call was put off by arx.coalesce(): it may be waited for when its block has ended"
            raise RuntimeError(msg)
        return self.array

    result = wait


def put_off(group: _arx.Group, x: Any, arguments: dict[str, Any]) -> Any:
    """Keep a call for the end of its block; None if this thread is in no block. Called by the core."""
    calls = getattr(_open, "calls", None)
    if calls is None:
        return None
    call = _PutOff(group, x, arguments)
    calls.append(call)
    return call if call.later else call.array


def _refuse_all(groups: Iterable[_arx.Group], error: Exception) -> None:
    for group in groups:
        group._refuse(error)


def _do(calls: list[_PutOff]) -> None:
    """Do the calls of a block, those alike together, in the order in which their kinds first came."""
    alike: dict[Any, list[_PutOff]] = {}
    for call in calls:
        key = (id(call.group), *(str(call.arguments[name]) for name in ("op", "algo", "timeout")))
        alike.setdefault(key, []).append(call)
    try:
        views = _prepared(calls)
    except (TypeError, ValueError) as error:
        _refuse_all({call.group for call in calls}, error)
        raise
    left = list(alike.values())
    while left:
        some = left.pop(0)
        first = some[0]
        names = [str(call.arguments["name"]) for call in some]
        arrays = [call.array for call in some]
        settings = {name: first.arguments[name] for name in ("op", "algo", "timeout")} | {"async_op": False}
        label = _label(arrays, None if set(names) == {"None"} else names, "coalesce")
        fused = _Fused([(call.array, views[call]) for call in some], first.group, settings, label)
        try:
            fused.begin()
        except Exception as error:
            # Who is with this rank in other groups only must not wait there for what will not come.
            _refuse_all({others[0].group for others in left} - {first.group}, error)
            raise
        Together(fused, None).wait()
        for call in some:
            call.is_done = True


def _prepared(calls: Sequence[_PutOff]) -> dict[_PutOff, Any]:
    """Copy each `x` into its `out`, if the calls of a block may go together; `_numpy` of what each of them changes."""
    copied = [call for call in calls if call.out is not None and call.out is not call.x]
    views = {call: _numpy(call.array) for call in calls}
    read = {call: _numpy(call.x, to_write=False) for call in copied}
    pair = overlapping(list(views.values()), [read.get(call) for call in calls])
    if pair is not None:
        one, other = (f"{k} ({_shape(calls[k].array)})" for k in pair)
        msg = (
            f"coalesce: calls {one} and {other} of the block, counted from 0, have memory in common: an array that one "
            "call changes may be in no other of the block"
        )
        raise ValueError(msg)
    for call in copied:
        x, out = read[call], views[call]
        if x is not None and out is not None and (x.shape, x.dtype) != (out.shape, out.dtype):
            msg = f"out must have the shape and dtype of x, {_shape(x)}, not {_shape(out)}"
            raise ValueError(msg)
        call.out[...] = call.x
    return views
