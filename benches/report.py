"""Tables that read well on a terminal and as Markdown, and the dated files in record/."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parent / "record"
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns to the right."""
    lines = [head, *lines]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    rows = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])


def microseconds(us: float) -> str:
    """Three digits at least.

    >>> microseconds(1.234), microseconds(56.78), microseconds(12345.6)
    ('1.23', '56.8', '12,346')
    """
    return f"{us:,.{2 if us < 10 else 1 if us < 100 else 0}f}"


def size(nbytes: int) -> str:
    """As in '64 KiB'."""
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= bytes_each and nbytes % bytes_each == 0:
            return f"{nbytes // bytes_each} {unit}"
    return f"{nbytes} B"


def number_of_bytes(text: str) -> int:
    """The opposite of `size`: '64Ki', '64 KiB' and '65536' are the same."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([KMG]?)(?:i?B?)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a number of bytes, as in 8, 64Ki or 4Mi")
    return int(match[1]) * _UNITS[match[2]]


def list_of(item: Callable[[str], Any], known: Sequence[str] = ()) -> Callable[[str], list[Any]]:
    """For argparse: a list with commas, whose items must be `known` where that is given."""

    def parse(text: str) -> list[Any]:
        items = [part for part in text.split(",") if part]
        strange = [part for part in items if known and part not in known]
        if strange:
            raise argparse.ArgumentTypeError(f"{strange[0]!r} is not one of {', '.join(known)}")
        try:
            return [item(part) for part in items]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def arx_variables() -> dict[str, str]:
    """Variables that change how arx behaves."""
    return {
        name: os.environ[name] for name in ("ARX_TUNE", "ARX_SPIN_US", "ARX_ALGO", "ARX_SIMD") if name in os.environ
    }


def command() -> str:
    """This program's command line, as it is typed in the root of the repository."""
    return shlex.join(["python", f"benches/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def write_record(what: str, about: dict[str, Any], rows: Sequence[dict[str, Any]], text: str) -> Path:
    """Writes record/<date>-<what>.md for people and .json with all that was measured; returns the former."""
    stem = _free(f"{datetime.date.today().isoformat()}-{what}")
    head = {key: value for key, value in about.items() if key != "machine"} | about["machine"]
    lines = [f"- {key}: {_as_text(value)}" for key, value in head.items()]
    (RECORD / f"{stem}.md").write_text("\n".join([f"# {stem}", "", *lines, "", text, ""]))
    (RECORD / f"{stem}.json").write_text(_json(about, rows))
    return RECORD / f"{stem}.md"


def _free(stem: str) -> str:
    """A name that no earlier record has."""
    taken = {path.stem for path in RECORD.glob("*.json")}
    names = [stem, *(f"{stem}-{k}" for k in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_as_text(inner)}" for key, inner in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Indented, but with one line for each row, so that records can be compared line by line."""
    head = json.dumps(about, indent=1).removesuffix("\n}")
    body = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{head},\n "rows": [\n  {body}\n ]\n}}\n'
