"""What ranks must have alike before they begin: arrays by name, in one order, and what each of them is.

All ranks compare a digest, which is one short call; only if that differs do they exchange what they have, so that
each of them can say what is wrong.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from arx._objects import all_gather_object
from arx.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arx import _arx

    Listing = Sequence[tuple[object, str]]


def digest(words: Sequence[object]) -> bytes:
    """Return eight bytes that stand for the words."""
    import hashlib

    return hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=8).digest()


def agree(what: str, mine: Listing, group: _arx.Group, timeout: float | None = None) -> None:
    """Raise `MismatchError` on all ranks unless all of them list the same, in the same order.

    `what` says who asks, and all else that must be the same; `mine` are names, each with what it stands for.
    """
    import numpy as np

    listed = [(repr(name), kind) for name, kind in mine]
    short = np.frombuffer(digest([len(listed), *(word for pair in listed for word in pair)]), np.uint64)
    if len(set(group.all_gather(short, timeout=timeout, name=f"names of {what}").tolist())) > 1:
        everybody = all_gather_object(listed, group=group, timeout=timeout)
        msg = f"{what}: {_difference(everybody)}"
        raise MismatchError(msg)


def _difference(everybody: Sequence[Sequence[tuple[str, str]]]) -> str:
    names = [[name for name, _ in theirs] for theirs in everybody]
    having = Counter(name for theirs in names for name in theirs)
    common = sum(count == len(everybody) for count in having.values())
    if common < len(having):
        most = [name for name, count in having.items() if 2 * count > len(everybody)]
        words = _by_rank([_extra_and_missing(theirs, most) for theirs in names], "{ranks}: {word}", "; ")
        return f"ranks have different names. {common} are the same on all ranks; {words}"
    for places in zip(*names, strict=True):
        if len(set(places)) > 1:
            words = _by_rank(places, "{word} on {ranks}", ", ")
            return f"ranks have the same names in another order. The first that differs is {words}"
    return "; ".join(
        f"{name} is {_by_rank(kinds, '{word} on {ranks}', ', ')}"
        for name, *kinds in zip(names[0], *([kind for _, kind in theirs] for theirs in everybody), strict=True)
        if len(set(kinds)) > 1
    )


def _extra_and_missing(theirs: Sequence[str], most: Sequence[str]) -> str:
    """Return what distinguishes one rank's names from those that most ranks have; empty if nothing does."""
    extra = [name for name in theirs if name not in most]
    missing = [name for name in most if name not in theirs]
    parts = (("extra", extra), ("missing", missing))
    return ", ".join(f"{what} {', '.join(names)}" for what, names in parts if names)


def _by_rank(words: Sequence[str], form: str, between: str) -> str:
    """Return each of the words once, with the ranks that it is true of; an empty word is passed over."""
    ranks: dict[str, list[str]] = {}
    for rank, word in enumerate(words):
        if word:
            ranks.setdefault(word, []).append(str(rank))
    return between.join(
        form.format(word=word, ranks=f"rank{'s' if len(those) > 1 else ''} {', '.join(those)}")
        for word, those in ranks.items()
    )
