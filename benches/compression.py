"""Times compressed all-reduce: where it pays, where it loses, and whether "auto" knows.

    python benches/compression.py                          all of it, some 10 minutes
    python benches/compression.py --parts codecs,auto      some
    python benches/compression.py --record compression     the same, written to record/

    codecs    four hosts, links of 200 Mb/s, 16 MiB: each codec against none
    auto      four hosts, five sizes at four rates: "auto" against the best of none, fp16 and int8
    loses     small arrays, fast links, and what coding alone takes inside one host
    torch     the same links: torch's own hooks over gloo (if `python benches/peers.py torch` has been there)

Hosts are network namespaces with shaped links; that needs root, iproute2 and tbf. The codecs' own rates: cargo bench.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import report
from overlap import Ranks, Rows
from peers import PeerMissing, peer_venv

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from netlab import Lab

HOSTS = 4
GOALS = {"fp16": 1.9, "int8": 3.3, "int4": 5.5, "topk:0.01": 20.0}
CODECS = ["none", "fp16", "bf16", "int8", "int4", "topk:0.01", "topk:0.01+fp16", "topk:0.01:shared", "randomk:0.01"]
AUTO = ["none", "fp16", "int8", "auto"]
SIZES = [4 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20]
RATES = ["50mbit", "200mbit", "1gbit", "10gbit"]
HOOKS = {"fp16_compress_hook": ("fp16", 1.3), "quantization_perchannel_hook": ("int8", 5.0)}
PLACEMENTS = [(4, 1), (2, 2)]  # hosts, and ranks on each
SIDE = 2048  # rows and columns of float32: 16 MiB


def codecs(options: argparse.Namespace, folder: Path) -> Rows:
    with Lab(HOSTS, "200mbit") as lab:
        return Ranks(folder, options.timeout, lab)(
            1, "compressed", codecs=CODECS, sizes=[16 << 20], rounds=options.rounds
        )


def codecs_table(rows: Rows) -> str:
    (row,) = rows
    lines = []
    for codec in CODECS:
        ratio = row["none"] / row[codec]
        goal = GOALS.get(codec)
        verdict = "" if goal is None else f"{'reached' if ratio >= goal else 'MISSES'} ≥ {goal:g}"
        lines.append([codec, f"{row[codec] / 1e3:.1f}", f"{ratio:.2f}", verdict])
    return report.table(["4 hosts, 200 Mb/s, 16 MiB", "ms", "times faster", "goal"], lines)


def auto(options: argparse.Namespace, folder: Path) -> Rows:
    rows: Rows = []
    for rate in RATES:
        with Lab(HOSTS, rate) as lab:
            ranks = Ranks(folder, options.timeout, lab)
            found = ranks(1, "compressed", codecs=AUTO, sizes=SIZES, rounds=options.rounds)
            rows += [row | {"rate": rate} for row in found]
    return rows


def auto_table(rows: Rows) -> str:
    lines, within = [], 0
    for row in rows:
        fixed = {codec: row[codec] for codec in AUTO[:-1]}
        loss = row["auto"] / min(fixed.values())
        within += loss <= 1.1
        times = [report.microseconds(row[codec]) for codec in AUTO]
        lines.append([row["rate"], report.size(row["bytes"]), *times, row["explained"], f"{loss:.2f}"])
    table = report.table(["link", "bytes", *(f"{codec}, us" for codec in AUTO), "auto takes", "auto / best"], lines)
    return f"{table}\n\nWithin 10 % of the best: {within} of {len(rows)}."


def loses(options: argparse.Namespace, folder: Path) -> Rows:
    return Ranks(folder, options.timeout)(2, "coding", sizes=SIZES, rounds=options.rounds)


def loses_table(rows: Rows) -> str:
    lines = []
    for row in rows:
        times = [report.microseconds(row[name]) for name in ("all_reduce", "fp16", "int8", "int4", "topk:0.01")]
        lines.append([report.size(row["bytes"]), *times])
    head = ["2 ranks, one host", "all_reduce, us", *(f"{c} alone, us" for c in ("fp16", "int8", "int4", "topk 1 %"))]
    note = "Inside a host the whole all-reduce takes less than encoding and decoding once, into new memory as here."
    return f"{report.table(head, lines)}\n\n{note}\nSmall arrays and fast links: the rows above in which none is best."


def torch(options: argparse.Namespace, folder: Path) -> Rows:
    try:
        python = peer_venv("torch") / "bin" / "python"
    except PeerMissing as missing:
        print(f"left out: torch: {missing}", flush=True)
        return []
    rows: Rows = []
    for hosts, each in PLACEMENTS:
        with Lab(hosts, "200mbit") as lab:
            (own,) = Ranks(folder, options.timeout, lab)(
                each, "compressed", codecs=["none", "fp16", "int8"], sizes=[4 * SIDE**2], rounds=options.rounds
            )
            hooks = _hooks(python, lab, each, folder / f"hooks-{hosts}", options)
        rows.append({"hosts": hosts, "each": each, "hooks": hooks, "own": own})
    return rows


def _hooks(python: Path, lab: Lab, each: int, output: Path, options: argparse.Namespace) -> Rows:
    """Torch's hooks with `each` ranks on every host."""
    words = [str(python), str(Path(__file__).parent / "workloads" / "hooks.py")]
    words += [json.dumps({"side": SIDE, "rounds": options.rounds}), str(output)]
    places = [host for host in lab.hosts for _ in range(each)]
    common = {"WORLD_SIZE": str(len(places)), "MASTER_ADDR": lab.address("h0"), "MASTER_PORT": "29600"}
    ranks = [
        subprocess.Popen(
            [*lab.enter(host), *words], env=os.environ | common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"}
        )
        for rank, host in enumerate(places)
    ]
    until = time.monotonic() + 10 * options.timeout
    try:
        for rank in ranks:
            rank.wait(max(1.0, until - time.monotonic()))
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(line) for line in output.read_text().splitlines()]


def torch_table(rows: Rows) -> str:
    if not rows:
        return "torch: not installed"
    lines = []
    for row in rows:
        for hook in row["hooks"]:
            us, alone = (sorted(hook[name])[len(hook[name]) // 2] for name in ("us", "alone"))
            codec, goal = HOOKS.get(hook["hook"], ("none", 1.0))
            own = row["own"][codec]
            ratio = (us - alone) / own
            verdict = f"{'reached' if ratio >= goal else 'MISSES'} ≥ {goal:g}"
            place = f"{row['hosts']} x {row['each']}"
            lines.append([place, hook["hook"], f"{us / 1e3:.0f}", f"{alone / 1e3:.0f}", codec, f"{own / 1e3:.0f}"])
            lines[-1] += [f"{ratio:.2f}", verdict]
    head = ["hosts x ranks", "torch over gloo", "step, ms", "of it computing, ms", "arx", "ms", "times faster", "goal"]
    return report.table(head, lines)


Part = tuple[Callable[[argparse.Namespace, Path], Rows], Callable[[Rows], str]]
PARTS: dict[str, Part] = {
    "codecs": (codecs, codecs_table),
    "auto": (auto, auto_table),
    "loses": (loses, loses_table),
    "torch": (torch, torch_table),
}


def main(options: argparse.Namespace) -> None:
    tables, rows = [], []
    for name in options.parts:
        measure, table = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="arx-compression-") as folder:
            found = measure(options, Path(folder))
        tables.append(table(found))
        rows += [{"part": name} | row for row in found]
        print(f"{tables[-1]}\n", flush=True)
    if options.record:
        from arx import __version__, build_info

        about: dict[str, Any] = {
            "command": report.command(),
            "commit": machine.commit(),
            "arx": f"{__version__} ({build_info()['simd']})",
            "machine": machine.describe(),
        }
        print("written:", report.write_record(options.record, about, rows, "\n\n".join(tables)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--parts", type=report.list_of(str, tuple(PARTS)), default=list(PARTS), help="(default all)")
    add("--rounds", type=int, default=5, help="how often the forms take turns (default %(default)s)")
    add("--timeout", type=float, default=300.0, help="seconds for one launch (default %(default)s)")
    add("--record", metavar="WHAT", help="write benches/record/<date>-WHAT.md and .json")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main(parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
