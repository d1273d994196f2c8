"""Sweeps one setting of arx over sizes, the settings in turn, and marks what was best: how the defaults were found.

    python benches/tune.py --what chunk --ranks 2
    python benches/tune.py --what symmetric --ranks 2,4 --values 1,1Gi --record

Sizes in ARX_TUNE are bytes (what they mean: rust/communicator/config.rs); ARX_SPIN_US is in microseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import libraries
import machine
import report
from rounds import Row, take_turns
from workloads.method import Plan


@dataclass(frozen=True)
class Knob:
    values: str  # tried by default
    sizes: str  # of arrays
    ranks: str = "2"
    form: str = "in place"
    tuned: bool = True  # a key of ARX_TUNE; otherwise ARX_SPIN_US


KNOBS = {
    "chunk": Knob("16Ki,32Ki,64Ki,128Ki,256Ki,512Ki", "16Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi"),
    "round": Knob("64Ki,128Ki,256Ki,384Ki,512Ki", "64Ki,256Ki,1Mi,4Mi,16Mi,64Mi", ranks="4"),
    "ring": Knob("1Mi,2Mi,4Mi,7Mi,16Mi", "64Ki,256Ki,1Mi,4Mi,16Mi,64Mi"),
    # The least combines every array where it lies, the largest stages every array.
    "symmetric": Knob("1,1Gi", "16Ki,64Ki,256Ki,1Mi,2Mi,4Mi,8Mi,16Mi,64Mi", form="symmetric"),
    "spin": Knob("0,5,20,50,200,1000", "8,1Ki,16Ki,64Ki,1Mi", tuned=False),
}


def setting(what: str, value: int) -> libraries.Library:
    """arx with one value of the knob; the other keys of ARX_TUNE keep the values that they have here."""
    if not KNOBS[what].tuned:
        return libraries.arx(f"{value} us", ARX_SPIN_US=str(value))
    others = [word for word in report.arx_variables().get("ARX_TUNE", "").split(",") if word]
    kept = [word for word in others if word.partition("=")[0] != what]
    return libraries.arx(report.size(value), ARX_TUNE=",".join([*kept, f"{what}={value}"]))


def tabled(what: str, rows: Sequence[Row], titles: Sequence[str], sizes: Sequence[int]) -> str:
    """Sizes by settings, with a star at the fastest of each line, and how much slower the slowest is."""
    medians = {(row.bytes, row.library): row.median for row in rows}
    lines = []
    for nbytes in sizes:
        times = {title: medians[nbytes, title] for title in titles if (nbytes, title) in medians}
        best = min(times.values())
        cells = [_cell(times.get(title), best) for title in titles]
        lines.append([report.size(nbytes), *cells, f"{max(times.values()) / best:.2f}"])
    return report.table([f"{what}, {rows[0].ranks} ranks", *titles, "worst / best"], lines)


def _cell(us: float | None, best: float) -> str:
    return "-" if us is None else report.microseconds(us) + ("*" if us == best else " ")


def main(options: argparse.Namespace) -> int:
    knob = KNOBS[options.what]
    competitors = [setting(options.what, value) for value in options.values]
    about = {
        "command": report.command(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "versions": competitors[0].versions,
        "measured": f"all_reduce {options.op} of {options.dtype}, {knob.form}, {options.rounds} rounds in turn",
        "settings": report.arx_variables(),
    }
    plan = Plan("all_reduce", options.bytes, options.seconds, options.dtype, options.op, [knob.form], options.timeout)
    rows: list[Row] = []
    parts: list[str] = []
    failed = False
    for ranks in options.ranks:
        outcome = take_turns(competitors, ranks, plan, options.rounds)
        failed |= bool(outcome.failures)
        rows += outcome.rows
        if outcome.rows:
            parts.append(tabled(options.what, outcome.rows, [entry.title for entry in competitors], options.bytes))
            print(f"\nMedian, us (* the fastest):\n\n{parts[-1]}\n", flush=True)
    if options.record and rows:
        text = "\n\n".join(["Median, us (* the fastest):", *parts])
        print("written:", report.write_record(f"tune-{options.what}", about, [asdict(row) for row in rows], text))
    return 1 if failed else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    numbers = report.list_of(report.number_of_bytes)
    add("--what", choices=KNOBS, required=True, help="spin is ARX_SPIN_US, the others are keys of ARX_TUNE")
    add("--values", type=numbers, help="settings to try (default: by --what)")
    add("--ranks", type=report.list_of(int), help="numbers of ranks (default: by --what)")
    add("--bytes", type=numbers, help="sizes of arrays (default: by --what)")
    add("--rounds", type=int, default=5, help="how often the settings take turns (default %(default)s)")
    add("--seconds", type=float, default=0.2, help="for each size, setting and round (default %(default)s)")
    add("--dtype", default="float32", help="numpy's name of it (default %(default)s)")
    add("--op", choices=("sum", "prod", "min", "max"), default="sum")
    add("--timeout", type=float, default=120.0, help="seconds for one launch (default %(default)s)")
    add("--record", action="store_true", help="write benches/record/<date>-tune-WHAT.md and .json")
    options = parser.parse_args(argv)
    options.values = options.values or numbers(KNOBS[options.what].values)
    options.ranks = options.ranks or report.list_of(int)(KNOBS[options.what].ranks)
    options.bytes = options.bytes or numbers(KNOBS[options.what].sizes)
    return options


if __name__ == "__main__":
    try:
        sys.exit(main(parse(sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(130)
