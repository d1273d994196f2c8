"""Collectives of Python objects, by pickle.

A pickle can run any code when it is loaded: use these only among ranks that trust each other. Ranks of one job prove to
each other that they know its secret; what they then send is not looked at. Arrays are faster without pickle.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

from arx import _arx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")
_FIRST = 1024  # what goes without a second message; an arrival on one host carries as much


def broadcast_object(
    obj: Any = None, root: int = 0, *, group: _arx.Group | None = None, timeout: float | None = None
) -> Any:
    """Return the object of rank `root` on every rank; on the root itself the same object. By pickle: trust the root.

    What the other ranks pass does not count. Errors as in `arx.all_reduce`; what cannot be pickled raises on the root,
    and `MismatchError` elsewhere.
    """
    import numpy as np

    group = _arx.world() if group is None else group
    mine = group.rank == root
    first = np.zeros(_FIRST, np.uint8)
    data = np.empty(0, np.uint8)
    if mine:
        data = _pickled(obj, group)
        start = _LENGTH.pack(len(data)) + data[: _FIRST - _LENGTH.size].tobytes()
        first[: len(start)] = np.frombuffer(start, np.uint8)
    group.broadcast(first, root, timeout=timeout, name="object")
    (length,) = _LENGTH.unpack_from(first.data)
    if length <= _FIRST - _LENGTH.size:
        return obj if mine else pickle.loads(first[_LENGTH.size : _LENGTH.size + length].data)
    if not mine:
        data = np.empty(length, np.uint8)
    group.broadcast(data, root, timeout=timeout, name="object")
    return obj if mine else pickle.loads(data.data)


def all_gather_object(obj: Any, *, group: _arx.Group | None = None, timeout: float | None = None) -> list[Any]:
    """Return the objects of all ranks, in rank order, on every rank. By pickle: trust all ranks.

    Errors as in `arx.all_reduce`; what cannot be pickled raises on its rank, and `MismatchError` elsewhere.
    """
    group = _arx.world() if group is None else group
    return _objects(group.all_gather(_framed(obj, group), timeout=timeout, name="object"), obj, group.rank)


def gather_object(
    obj: Any, root: int = 0, *, group: _arx.Group | None = None, timeout: float | None = None
) -> list[Any] | None:
    """Return the objects of all ranks, in rank order, on rank `root`; None elsewhere. By pickle: the root trusts all
    ranks.

    Errors as in `all_gather_object`.
    """
    group = _arx.world() if group is None else group
    gathered = group.gather(_framed(obj, group), root, timeout=timeout, name="object")
    return None if gathered is None else _objects(gathered, obj, group.rank)


def scatter_object(
    objs: Sequence[Any] | None = None, root: int = 0, *, group: _arx.Group | None = None, timeout: float | None = None
) -> Any:
    """Return object r of the sequence that rank `root` has, on rank r. By pickle: trust the root.

    What the other ranks pass does not count. Errors as in `broadcast_object`; `ValueError` on the root if it has not as
    many objects as there are ranks, `TypeError` if what it has is no sequence.
    """
    import numpy as np

    group = _arx.world() if group is None else group
    mine = group.rank == root
    pickles = []
    if mine:
        try:
            objs = _one_each(objs, group)
        except (TypeError, ValueError) as error:
            raise group._refuse(error) from None
        pickles = [_framed(obj, group) for obj in objs]
    lengths = np.array([len(data) for data in pickles] or [0] * group.size, np.int64)
    longest = int(group.broadcast(lengths, root, timeout=timeout, name="object").max())
    blocks = np.zeros((group.size, longest), np.uint8) if mine else None
    for block, data in zip(blocks if blocks is not None else (), pickles, strict=False):
        block[: len(data)] = data
    out = np.empty((1, longest), np.uint8)
    group.scatter(blocks, root, out=out, timeout=timeout, name="object")
    if mine:
        assert objs is not None
        return objs[group.rank]
    (length,) = _LENGTH.unpack_from(out.data)
    return pickle.loads(out[0, _LENGTH.size : _LENGTH.size + length].data)


def _one_each(objs: Any, group: _arx.Group) -> list[Any]:
    """Return the objects of a root, if there is one for each rank."""
    needed = f"scatter_object needs a sequence of {group.size} objects on the root, one per rank"
    if objs is None:
        msg = f"{needed}, not none"
        raise ValueError(msg)
    is_sequence = hasattr(objs, "__len__") and hasattr(objs, "__getitem__") and not hasattr(objs, "keys")
    if not is_sequence or getattr(objs, "ndim", 1) == 0:
        msg = f"{needed}, not {type(objs).__name__}"
        raise TypeError(msg)
    if len(objs) != group.size:
        msg = f"{needed}, not {len(objs)}"
        raise ValueError(msg)
    return list(objs)


def scatter_new(group: _arx.Group, x: Any, root: Any, timeout: float | None, name: str | None) -> Any:
    """Scatter to ranks that do not know what comes: the root tells them."""
    import numpy as np

    root = 0 if root is None else root
    what = None
    if group.rank == root:
        if x is None:
            raise group._refuse(ValueError(f"rank {root} is the root of this scatter, and must pass x"))
        try:
            shape, dtype = tuple(x.shape), x.dtype
        except AttributeError:
            x = np.asarray(x)
            shape, dtype = x.shape, x.dtype
        # What cannot be cut is refused below, where the others hear of it.
        what = ((shape[0] // group.size, *shape[1:]) if shape and shape[0] % group.size == 0 else None, dtype)
    shape, dtype = broadcast_object(what, root, group=group, timeout=timeout)
    if shape is None:
        return group.scatter(x, root, out=np.empty(0), timeout=timeout, name=name)
    out = x.new_empty(shape) if hasattr(x, "new_empty") and group.rank == root else _empty(shape, dtype)
    return group.scatter(x, root, out=out, timeout=timeout, name=name)


def _empty(shape: tuple[int, ...], dtype: Any) -> Any:
    import numpy as np

    if type(dtype).__module__.startswith("torch"):
        import importlib

        return importlib.import_module("torch").empty(shape, dtype=dtype)
    return np.empty(shape, dtype)


def _pickled(obj: Any, group: _arx.Group) -> NDArray[Any]:
    import numpy as np

    try:
        return np.frombuffer(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise group._refuse(error) from error


def _framed(obj: Any, group: _arx.Group) -> NDArray[Any]:
    import numpy as np

    data = _pickled(obj, group)
    return np.concatenate([np.frombuffer(_LENGTH.pack(len(data)), np.uint8), data])


def _objects(frames: NDArray[Any], mine: Any, rank: int) -> list[Any]:
    objects: list[Any] = []
    at = 0
    while at < len(frames):
        (length,) = _LENGTH.unpack_from(frames.data, at)
        at += _LENGTH.size
        objects.append(mine if len(objects) == rank else pickle.loads(frames[at : at + length].data))
        at += length
    return objects
