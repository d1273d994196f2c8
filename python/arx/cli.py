"""The command `arx`.

    arx run -n 4 train.py --epochs 3              start a job on this host
    arx run --hosts h0:2,h1:2 train.py            … on several
    arx env                                       who started this process, as `init()` sees it
    arx run --hosts h0:2,h1:2 -m arx tune         measure the network between hosts, and keep what was found

A mistake on the command line is told in one line, with exit code 2. Modules are imported by the command that needs
them, so that the launcher starts fast.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from arx.launch.command import SSH, Job, UsageError

_RUN = """\
Starts ranks of a program, N on this host or as many as --hosts says, and ends when all of them have ended.

SCRIPT is a Python file; with -m, a Python module; else any program. What follows it is passed on to it.
Rank 0 has the launcher's stdin. Output comes in whole lines, each with its rank. The first rank that fails ends the
others, and its exit code is the launcher's (128 + number if a signal killed it), also if ranks that have lost it end
before it does. Ctrl-C is passed on to all ranks, and ends them for certain when pressed again. Nothing that the ranks
started outlives the launcher.

Several hosts, from one place: --hosts h0:2,h1:2 connects to each by ssh (--rsh says by what else) and starts the same
Python in the same folder there. ARX_*, PYTHON*, OMP_*, MKL_*, OPENBLAS_* and --env variables go along, and PATH and
LD_LIBRARY_PATH in front of what the host has. A secret for the job is made; it is on no command line.

Several hosts, one launcher on each: --nnodes K --node-rank R --master HOST:PORT -n N, the same on all but for R.
ARX_SECRET must be in their environment, the same everywhere.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv`, by default this process's; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser, run_options = _parser()
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        parser.error(f"no command {argv[0]!r}{_meant(argv[0], COMMANDS)}")
    options, unknown = parser.parse_known_args(argv, argparse.Namespace(argv=argv))
    if unknown:
        parser.error(f"unknown option {unknown[0]}{_meant(unknown[0].partition('=')[0], run_options)}")
    if options.version:
        import arx

        print(f"arx {arx.__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return int(COMMANDS[options.command](options))


def _run(options: argparse.Namespace) -> int:
    from arx.launch import run

    try:
        return run.run(_job(options))
    except UsageError as error:
        print(f"arx run: error: {error}", file=sys.stderr)
        return 2


def _job(options: argparse.Namespace) -> Job:
    from arx.launch import spawn

    _check_hosts(options)
    return Job(
        script=options.script,
        args=_after_script(options),
        n=options.n or (1 if options.hosts else spawn.usable_cores()),
        module=options.module,
        env=dict(options.env),
        log_dir=options.log_dir,
        prefix=options.prefix,
        bind=options.bind,
        timeout=options.timeout,
        nodes=options.nnodes,
        node_rank=options.node_rank,
        master=options.master,
        hosts=[(host, n or options.n or 1) for host, n in options.hosts],
        rsh=options.rsh,
    )


def _check_hosts(options: argparse.Namespace) -> None:
    """Options that must or must not come together."""
    several = options.nnodes > 1
    wrong = None
    if options.hosts and (several or options.node_rank):
        wrong = "--hosts starts the ranks of all hosts, --nnodes and --node-rank those of one: give one or the other"
    elif several and options.master is None:
        wrong = "--nnodes also needs --master HOST:PORT, an address of node 0 with any port that is free there"
    elif several and options.n is None:
        wrong = "--nnodes also needs -n, how many ranks each host has"
    elif not options.node_rank < options.nnodes:
        wrong = f"--node-rank {options.node_rank} lies outside 0..{options.nnodes - 1} (--nnodes {options.nnodes})"
    elif options.master is not None and not (several or options.hosts):
        wrong = "--master is for several hosts: --nnodes or --hosts says which"
    if wrong is not None:
        raise UsageError(wrong)


def _after_script(options: argparse.Namespace) -> list[str]:
    """The script's own arguments. argparse swallows a `--` that stands first among them, which is the script's too."""
    args: list[str] = options.args
    before = options.argv[: len(options.argv) - len(args)]
    return ["--", *args] if before[-2:] == [options.script, "--"] else args


def _env(_: argparse.Namespace) -> int:
    from arx.launch.detect import explain

    print(explain())
    settings = [name for name in sorted(os.environ) if name.startswith("ARX_")]
    for name in settings:
        print(f"{name}={'(hidden)' if name == 'ARX_SECRET' else os.environ[name]}")
    return 0


def _tune(options: argparse.Namespace) -> int:
    from arx import tune

    return tune.main(options.rounds, not options.dry_run)


COMMANDS = {"run": _run, "env": _env, "tune": _tune}


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the options of `run` for those who mistype them."""
    parser = _OneLineParser(prog="arx", description="Collective communication for Python on CPUs.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="run | env | tune")
    run = commands.add_parser(
        "run",
        help="start the ranks of a job on this host",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands.add_parser("env", help="show which rank this process is, and by whose variables")
    tune = commands.add_parser(
        "tune", help="as a program of a job: measure the network between its hosts", allow_abbrev=False
    )
    tune.add_argument("--rounds", type=_ranks, default=10, metavar="N", help="how carefully (default: %(default)s)")
    tune.add_argument("--dry-run", action="store_true", help="write no file")
    return parser, _add_run_options(run)


def _add_run_options(run: argparse.ArgumentParser) -> list[str]:
    add = run.add_argument
    options = [
        add("-n", "-np", type=_ranks, metavar="N", help="how many ranks (default: the cores that may be used)"),
        add("--env", type=_assignment, action="append", default=[], metavar="K=V", help="set a variable in all ranks"),
        add("--log-dir", metavar="D", help="also write what rank R prints to D/rank-R.log"),
        add(
            "--prefix",
            choices=("auto", "none"),
            default="auto",
            help="auto: '[rank R] ' before each line if N > 1, coloured on a terminal; none: output as it is",
        ),
        add(
            "--bind",
            choices=("none", "core"),
            default="none",
            help="none: all ranks may use all of the launcher's cores; core: rank R the R-th of them, and round again",
        ),
        add("--hosts", type=_hosts, default=[], metavar="H:N,…", help="ranks on several hosts; N: as -n says, or 1"),
        add("--rsh", default=SSH, metavar="CMD", help="what connects to a host, as CMD HOST LINE (default: ssh)"),
        add("--nnodes", type=_ranks, default=1, metavar="K", help="how many hosts, each with a launcher of its own"),
        add("--node-rank", type=_index, default=0, metavar="R", help="which of them this is, from 0"),
        add("--master", metavar="H:P", help="where the ranks meet: an address of rank 0's host, and a free port"),
        add("--timeout", type=_seconds, metavar="S", help="how long a rank waits for its peers (ARX_TIMEOUT)"),
        add("-m", dest="module", action="store_true", help="SCRIPT is a Python module, as in python -m"),
    ]
    add("script", metavar="SCRIPT", help="a Python script, or a program")
    add("args", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return [name for option in options for name in option.option_strings if name.startswith("--")]


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, which is at least 1")
    return int(text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def _hosts(text: str) -> list[tuple[str, int]]:
    """Hosts and their numbers of ranks, 0 where none is said."""
    hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:,\s\[\]]+)(?::([1-9][0-9]*))?", part)
        if match is None or match[1].startswith("-"):
            raise argparse.ArgumentTypeError(
                f"{part!r} in {text!r} is not of the form HOST:RANKS, such as node7:4 or [fd00::7]:4"
            )
        hosts.append((match[1].strip("[]"), int(match[2] or 0)))
    return hosts


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    if name in _GIVEN_BY_RUN:
        raise argparse.ArgumentTypeError(f"{name} is set by arx run itself")
    return name, value


_GIVEN_BY_RUN = (
    *("ARX_RANK", "ARX_WORLD_SIZE", "ARX_LOCAL_RANK", "ARX_LOCAL_SIZE", "ARX_NODE_RANK", "ARX_NNODES"),
    *("ARX_JOB_ID", "ARX_SECRET", "ARX_MASTER", "ARX_LAUNCHER"),
)


def _meant(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    habits = {"--np": "-n", "--nproc": "-n", "--nproc-per-node": "-n", "--nproc_per_node": "-n"}
    close = [habits[name]] if name in habits else get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
