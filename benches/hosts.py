"""Times all-reduce over several hosts, which are network namespaces of this machine with links of a given rate.

    python benches/hosts.py                                          four hosts, 1 Gb/s: choice against each algorithm
    python benches/hosts.py --hosts 2 --ranks 2 --algos auto,ring    hierarchy against one ring over all ranks
    python benches/hosts.py --record hosts                           the same, written to record/

All algorithms take turns, several rounds. `bound` is 2(p-1)/p · n / B for p hosts, at the rate B that a plain TCP
stream reaches over the same link. Needs root, iproute2 and tbf.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import libraries
import machine
import report
from rounds import Row, take_turns
from workloads.method import Plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from netlab import Lab

ALGOS = "auto,ring,recursive,doubling,all_gather_reduce,reduce_broadcast,relay,tree,double_tree:16,pairwise,exchange"
SIZES = "8,1Ki,16Ki,64Ki,256Ki,1Mi,4Mi,16Mi"

# One end sends so many bytes, the other counts them; prints bytes per second.
_STREAM = """
import socket, sys, time
role, address, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "send":
    with socket.create_connection((address, 4999)) as s:
        s.sendall(bytes(total)); s.shutdown(socket.SHUT_WR); s.recv(1)
else:
    with socket.create_server((address, 4999)) as server:
        print("ready", flush=True)
        s, _ = server.accept()
        with s:
            room, got, skip = bytearray(1 << 20), 0, total // 4
            while got < skip: got += s.recv_into(room)
            began, counted = time.perf_counter(), got
            while n := s.recv_into(room): got += n
            print((got - counted) / (time.perf_counter() - began)); s.sendall(b".")
"""


def stream_rate(lab: Lab, total: int = 64 << 20) -> float:
    """Bytes per second of one TCP stream between two hosts, after the first quarter."""
    address, python = lab.address("h1"), [sys.executable, "-c", _STREAM]
    receiver = subprocess.Popen(
        [*lab.enter("h1"), *python, "receive", address, str(total)], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    receiver.stdout.readline()
    subprocess.run([*lab.enter("h0"), *python, "send", address, str(total)], check=True, timeout=300)
    rate = float(receiver.stdout.readline())
    receiver.wait(60)
    return rate


def competitor(lab: Lab, rsh: Path, algo: str) -> libraries.Library:
    """arx with one algorithm, started from host h0."""
    library = libraries.arx(algo, ARX_ALGO=algo)
    hosts = ",".join(lab.hosts)
    launcher = [*lab.enter("h0"), sys.executable, "-m", "arx", "run", "--prefix", "none", "--rsh", str(rsh)]
    return libraries.Library("arx", algo, "arx", [*launcher, "--hosts", hosts, "-n"], [], library.versions, library.env)


def table(rows: Sequence[Row], algos: Sequence[str], hosts: int, rate: float) -> str:
    """Medians; how near the choice is to the best, and to the bound."""
    by = {(row.library, row.bytes): row for row in rows}
    sizes = sorted({row.bytes for row in rows})
    lines = []
    for n in sizes:
        times = {algo: by[algo, n].median for algo in algos if (algo, n) in by}
        others = [time for algo, time in times.items() if algo != "auto"]
        bound = 2 * (hosts - 1) / hosts * n / rate * 1e6
        auto = times.get("auto")
        lines.append(
            [
                report.size(n),
                *(report.microseconds(times[algo]) if algo in times else "-" for algo in algos),
                f"{auto / min(others):.2f}" if auto and others else "-",
                report.microseconds(bound),
                f"{bound / auto:.1%}" if auto else "-",
            ]
        )
    return report.table([f"{hosts} hosts", *algos, "auto / best", "bound", "of bound"], lines)


def main(options: argparse.Namespace) -> int:
    plan = Plan("all_reduce", options.bytes, options.seconds, "float32", "sum", ["in place"], options.timeout)
    with Lab(options.hosts, options.rate) as lab, tempfile.TemporaryDirectory(prefix="arx-hosts-") as folder:
        rsh, rate = lab.rsh(Path(folder)), stream_rate(lab)
        print(f"one TCP stream: {rate * 8e-6:.1f} Mb/s", flush=True)
        outcome = take_turns(
            [competitor(lab, rsh, algo) for algo in options.algos], options.ranks, plan, options.rounds
        )
    text = table(outcome.rows, options.algos, options.hosts, rate)
    print(f"\n{text}\n")
    for title, why in outcome.failures.items():
        print(f"left out: {title}: {why}")
    if options.record and outcome.rows:
        about: dict[str, Any] = {
            "command": report.command(),
            "commit": machine.commit(),
            "machine": machine.describe(),
            "hosts": f"{options.hosts} of {options.ranks} ranks, {options.rate} links, {options.rounds} rounds",
            "one TCP stream": f"{rate * 8e-6:.1f} Mb/s",
            "left out": outcome.failures,
        }
        print("written:", report.write_record(options.record, about, [asdict(row) for row in outcome.rows], text))
    return 0 if outcome.rows else 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="(default %(default)s)")
    add("--ranks", type=int, default=1, help="of each host (default %(default)s)")
    add("--rate", default="1gbit", help="of each link, as tc writes it (default %(default)s)")
    add("--algos", type=report.list_of(str), default=ALGOS, help="as algo= names them (default %(default)s)")
    add("--bytes", type=report.list_of(report.number_of_bytes), default=SIZES, help="sizes (default %(default)s)")
    add("--rounds", type=int, default=3, help="how often the algorithms take turns (default %(default)s)")
    add("--seconds", type=float, default=0.3, help="for each size and round (default %(default)s)")
    add("--timeout", type=float, default=300.0, help="seconds for one launch (default %(default)s)")
    add("--record", metavar="WHAT", help="write benches/record/<date>-WHAT.md and .json")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(main(parse(sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(130)
