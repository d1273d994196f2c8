"""All-reduce with a codec in Python: the payloads of all ranks to all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arx import _arx
    from arx.compression._codecs import Codec


class Feedback:
    """What is left out of one array, for the next call."""

    def __init__(self, momentum: float) -> None:
        """Nothing is kept yet."""
        if momentum:
            msg = "momentum needs a codec of arx: it ends where values were picked"
            raise ValueError(msg)
        self.of: tuple[Any, ...] | None = None
        self.residual: Any = None
        self.steps = 0

    def begin(self, x: Any) -> None:
        """Start anew for another array."""
        import numpy as np

        of = (x.shape, x.dtype.name)
        if self.of != of:
            self.of, self.residual, self.steps = of, np.zeros(x.size, np.float32), 0

    def state(self) -> dict[str, Any] | None:
        """Return all of it, as the core's does."""
        if self.of is None:
            return None
        shape, dtype = self.of
        kept = {"residual": self.residual.tobytes(), "velocity": b"", "basis": b""}
        return {"shape": list(shape), "dtype": dtype, "start": 0, "steps": self.steps, **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.of = (tuple(state["shape"]), state["dtype"])
        self.residual, self.steps = state["residual"].copy(), state["steps"]


def all_reduce(
    group: _arx.Group,
    codec: Codec,
    feedback: Feedback | None,
    source: Any,
    op: str,
    timeout: float | None,
    x: Any,
    out: Any,
) -> Any:
    """Add up what all ranks' payloads say of `source`, in the order of ranks."""
    import numpy as np

    into = x if out is None else out
    if group.num_nodes == 1:
        return group.all_reduce(source, op, out=None if source is into else into, timeout=timeout)
    array, target = np.asarray(source), np.asarray(into)
    try:
        flat, payload = _brought(codec, feedback, array, target)
    except Exception as error:
        raise group._refuse(error) from None
    # What ranks must agree on, for the core to compare.
    call = f"all_reduce(op={op}, dtype={array.dtype}, shape={array.shape}, compression={type(codec).__name__})"
    lengths = group.all_gather(np.array([payload.size]), timeout=timeout, name=call)
    payloads = group.all_gather(payload, timeout=timeout, name=call)
    total = np.zeros(flat.size, np.float32)
    for rank, part in enumerate(np.split(payloads, np.cumsum(lengths)[:-1])):
        said = np.asarray(codec.decode(part, flat.size), np.float32).reshape(-1)
        if said.size != flat.size:
            msg = f"decode returned {said.size} elements for the payload of rank {rank}, not {flat.size}"
            raise ValueError(msg)
        total += said
        if rank == group.rank:
            rest = flat - said
    if feedback is not None and np.isfinite(total).all():
        feedback.residual, feedback.steps = np.where(np.isfinite(rest), rest, 0), feedback.steps + 1
    if op == "avg":
        total /= group.size
    target[...] = total.reshape(target.shape)
    return into


def _brought(codec: Codec, feedback: Feedback | None, array: Any, target: Any) -> tuple[Any, Any]:
    """Return what this rank brings, with what was kept of it, and the payload of that."""
    import numpy as np

    if not target.flags.writeable:
        msg = "the destination is read-only: pass a writable array, or a writable out="
        raise ValueError(msg)
    if (target.shape, target.dtype) != (array.shape, array.dtype):
        msg = f"out has shape {target.shape} and dtype {target.dtype}, the array {array.shape} and {array.dtype}"
        raise ValueError(msg)
    flat = array.astype(np.float32).reshape(-1)
    if feedback is not None:
        feedback.begin(array)
        flat += feedback.residual
    return flat, np.frombuffer(memoryview(codec.encode(flat)).cast("B"), np.uint8)
