"""The command `arx`.

    arx run -n 4 train.py --epochs 3     start a job on this host
    arx env                              which launcher this process was started by, as `init()` sees it

A mistake on the command line is told in one line, with exit code 2. Modules are imported by the command that needs
them, so that the launcher starts fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from arx.launch.command import Job, UsageError

_RUN = """\
Starts N ranks of a program on this host and ends when all of them have ended.

SCRIPT is a Python file; with -m, a Python module; else any program. What follows it is passed on to it.
Rank 0 has the launcher's stdin. Output comes in whole lines, each with its rank. The first rank that fails ends the
others, and its exit code is the launcher's (128 + number if a signal killed it). Ctrl-C is passed on to all ranks, and
ends them for certain when pressed again. Nothing that the ranks started outlives the launcher.
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
    from arx.launch import run, spawn

    job = Job(
        script=options.script,
        args=_after_script(options),
        n=options.n or spawn.usable_cores(),
        module=options.module,
        env=dict(options.env),
        log_dir=options.log_dir,
        prefix=options.prefix,
        bind=options.bind,
        timeout=options.timeout,
    )
    try:
        return run.run(job)
    except UsageError as error:
        print(f"arx run: error: {error}", file=sys.stderr)
        return 2


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


COMMANDS = {"run": _run, "env": _env}


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the options of `run` for those who mistype them."""
    parser = _OneLineParser(prog="arx", description="Collective communication for Python on CPUs.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="run | env")
    run = commands.add_parser(
        "run",
        help="start the ranks of a job on this host",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands.add_parser("env", help="show which rank this process is, and by whose variables")
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
    *("ARX_JOB_ID", "ARX_SECRET"),
)


def _meant(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    habits = {"--np": "-n", "--nproc": "-n", "--nproc-per-node": "-n", "--nproc_per_node": "-n"}
    close = [habits[name]] if name in habits else get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
