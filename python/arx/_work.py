"""What goes with `Work`: callbacks, asyncio, and waiting for several."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from arx import _arx

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from arx._arx import Work

_caller: threading.Thread | None = None
_starting = threading.Lock()


def wait_all(works: Iterable[Work], timeout: float | None = None) -> list[Any]:
    """Wait for all of `works` and return their results in the same order; raise what the first that failed raises.

    `timeout` is in seconds, for all of them together; `TimeoutError` when it ends.
    """
    until = None if timeout is None else time.monotonic() + timeout
    results = []
    for work in _checked(works, "wait_all", "wait"):
        if until is None:
            results.append(work.wait())
        elif work.done():
            results.append(work.result())
        else:
            results.append(work.wait(max(until - time.monotonic(), 1e-9)))
    return results


def as_completed(works: Iterable[Work], timeout: float | None = None) -> Iterator[Work]:
    """Yield each of `works` once, as soon as it is done, well or not.

    `timeout` is in seconds, from the first `next` on; `TimeoutError` when it ends.
    """
    return _completed(_checked(works, "as_completed", "add_done_callback"), timeout)


def _completed(works: Sequence[Work], timeout: float | None) -> Iterator[Work]:
    import queue

    until = None if timeout is None else time.monotonic() + timeout
    done: queue.SimpleQueue[Work] = queue.SimpleQueue()
    for work in works:
        work.add_done_callback(done.put)
    for left in range(len(works), 0, -1):
        try:
            yield done.get(timeout=None if until is None else max(until - time.monotonic(), 0.0))
        except queue.Empty:
            msg = f"{left} of {len(works)} calls are not done after {timeout} s"
            raise TimeoutError(msg) from None


def _checked(works: Iterable[Work], function: str, needed: str) -> list[Work]:
    """Return `works`, if they are some, before any of them is waited for."""
    listed = list(works)
    for work in listed:
        if not hasattr(work, needed):
            msg = f"{function} takes Works, as async_op=True returns them, not {type(work).__name__}"
            raise TypeError(msg)
    return listed


def awaited(work: Work) -> Generator[Any, None, Any]:
    """Return what `await work` runs."""
    import asyncio  # takes longer to load than all of arx

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve() -> None:
        if future.cancelled():
            return
        try:
            future.set_result(work.wait())
        except BaseException as error:
            future.set_exception(error)

    def done(_: Work) -> None:
        # A loop that was closed meanwhile has nobody who awaits.
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve)

    work.add_done_callback(done)
    return future.__await__()


def ensure_caller() -> None:
    """Start the thread that calls callbacks, unless it runs."""
    global _caller
    with _starting:
        if _caller is None or not _caller.is_alive():
            _arx._finish(closed=False)
            _caller = threading.Thread(target=_call, name="arx-callbacks", daemon=True)
            _caller.start()
            atexit.register(_end)


def _call() -> None:
    while (works := _arx._finished()) is not None:
        for work in works:
            for callback in work._callbacks():
                try:
                    callback(work)
                except Exception:
                    sys.excepthook(*sys.exc_info())
        works = None  # a work lives no longer because of this thread


def _end() -> None:
    """End the thread while there is an interpreter for it."""
    global _caller
    with _starting:
        if _caller is not None:
            _arx._finish(closed=True)
            _caller.join()
            _caller = None
            atexit.unregister(_end)
