"""Slurm's short forms: which hosts a step has, and how many tasks each of them.

SLURM_STEP_NODELIST=n[1-3,7],gpu-[08-10]-x     SLURM_STEP_TASKS_PER_NODE=2(x3),1
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from arx.errors import InitError

# A name is literal text and brackets, which hold numbers and ranges; a comma outside of brackets ends it.
_NAME = re.compile(r"((?:[^\[\],\s]|\[[0-9,-]+\])+)(?:,|$)")
_PART = re.compile(r"\[([0-9,-]+)\]")


def tasks_per_node(text: str) -> list[int]:
    """Numbers of tasks, node by node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if match is None:
            raise InitError(f"SLURM_STEP_TASKS_PER_NODE={text!r} cannot be read: expected a form like '2(x3),1'")
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def nodes(text: str) -> Iterator[str]:
    """Names of nodes, in the order in which the step counts them.

    >>> list(nodes("n[1-3,7],gpu-[08-10]-x"))
    ['n1', 'n2', 'n3', 'n7', 'gpu-08-x', 'gpu-09-x', 'gpu-10-x']
    """
    position = 0
    while position < len(text) or not text:
        match = _NAME.match(text, position)
        if match is None:
            raise InitError(f"SLURM_STEP_NODELIST={text!r} cannot be read: expected a form like 'n[1-3,7],m2'")
        position = match.end()
        # literal, numbers, literal, …: with several brackets the last one counts fastest, as in Slurm
        pieces = [_numbers(piece) if i % 2 else [piece] for i, piece in enumerate(_PART.split(match[1]))]
        yield from ("".join(choice) for choice in itertools.product(*pieces))


def _numbers(text: str) -> list[str]:
    """What a bracket stands for; numbers keep their leading zeros."""
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if match is None:
            raise InitError(f"SLURM_STEP_NODELIST has [{text}], which cannot be read: expected a form like [1-3,7]")
        first, last = match[1], match[2] or match[1]
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers
