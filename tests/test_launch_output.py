"""`arx run`: the ranks' output on pipes, in files and on a real terminal, and the keyboard behind the terminal."""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import re
import select
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import ARX, WATCHDOG, launched, numbers, run_arx, until, write_script

Launch = Callable[..., Any]
Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return functools.partial(write_script, tmp_path)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return functools.partial(run_arx, tmp_path)


def by_rank(output: bytes, n: int) -> list[bytes]:
    """What each rank wrote, from marked lines; every line must be marked."""
    ranks = [b""] * n
    for line in output.splitlines(keepends=True):
        match = re.match(rb"\[rank (\d)\] ", line)
        assert match, line[:100]
        ranks[int(match[1])] += line[match.end() :]
    return ranks


def test_lines_are_whole_whatever_the_ranks_write_at_once(launch: Launch, script: Script) -> None:
    path = script("""
        for k in range(5000):
            line = f"{rank} {k} " + "x" * (k * 7919 % 700) + "\\n"
            half = len(line) // 2
            os.write(1, line[:half].encode())  # two writes, so that only the launcher can make it whole
            os.write(1, line[half:].encode())
    """)
    result = launch("-n", 4, path, text=False)
    assert result.returncode == 0, result.stderr
    for rank, output in enumerate(by_rank(result.stdout, 4)):
        expected = "".join(f"{rank} {k} {'x' * (k * 7919 % 700)}\n" for k in range(5000))
        assert output.decode() == expected


def test_bursts_binary_and_unended_lines_all_arrive(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script("""
        import random
        data = random.Random(rank).randbytes(3 << 20) + b"no newline at the end"
        open(f"{marks}/wrote{rank}", "wb").write(data)
        sys.stdout.buffer.write(data)
        sys.stderr.write("the last words")
    """)
    result = launch("-n", 3, "--log-dir", "logs/deep", path, text=False)
    assert result.returncode == 0
    wrote = [(tmp_path / f"wrote{rank}").read_bytes() for rank in range(3)]
    shown: list[list[bytes]] = [[], [], []]
    for line in result.stdout.split(b"\n")[:-1]:
        rank = int(line.removeprefix(b"[rank ")[:1])
        shown[rank].append(line.removeprefix(b"[rank %d] " % rank))
    assert [b"\n".join(lines) for lines in shown] == wrote
    assert sorted(result.stderr.splitlines()) == [b"[rank %d] the last words" % rank for rank in range(3)]
    for rank in range(3):
        log = (tmp_path / f"logs/deep/rank-{rank}.log").read_bytes()
        assert len(log) == len(wrote[rank]) + len(b"the last words")
        assert log.replace(b"the last words", b"") == wrote[rank]


def test_a_line_without_end_is_broken_not_kept(launch: Launch, script: Script) -> None:
    path = script("os.write(1, b'a' * (5 << 20)) if rank == 0 else None")
    result = launch("-n", 2, path, text=False)
    assert by_rank(result.stdout, 2)[0].replace(b"\n", b"") == b"a" * (5 << 20)
    assert result.stdout.count(b"\n") > 1


def test_output_is_left_as_it_is_when_asked_or_alone(launch: Launch, script: Script) -> None:
    path = script("os.write(1, b'out without end'); os.write(2, b'err')")
    for args in (["-n", 1], ["-n", 1, "--prefix", "none", "--log-dir", "logs"]):
        result = launch(*args, path, text=False)
        assert (result.stdout, result.stderr) == (b"out without end", b"err")
    assert launch("-n", 2, "--prefix", "none", path, text=False).stdout == b"out without end" * 2


def test_a_reader_that_stops_reading_stops_the_job(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script("mark(f'ready{rank}', os.getpid())\nwhile True: print('y' * 1000)")
    with launched("-n", 2, path) as process:
        assert process.stdout is not None
        process.stdout.read(100_000)
        process.stdout.close()
        assert process.wait(WATCHDOG) == 128 + signal.SIGPIPE


def test_a_reader_that_sleeps_does_not_block_the_end(script: Script, tmp_path: Path) -> None:
    path = script("mark(f'ready{rank}', os.getpid())\nwhile True: print('y' * 1000)")
    with launched("-n", 2, path) as process:
        numbers(tmp_path, ["ready0", "ready1"])
        assert process.stdout is not None
        full = lambda: not select.select([], [], [], 0.2)[0] and select.select([process.stdout], [], [], 0)[0]  # noqa: E731
        until(full, "output that nobody reads")
        process.terminate()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in numbers(tmp_path, ["ready0", "ready1"])), "end")
        process.terminate()  # the report still waits for its reader; whoever asks again does not want it
        assert process.wait(WATCHDOG) == 143


class Terminal:
    """`arx run` in the foreground of a terminal of its own."""

    def __init__(self, *args: object, env: dict[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        self.shown = b""
        self._process = subprocess.Popen(
            [*ARX, "run", *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": ""} | (env or {}),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.close()

    def close(self) -> int:
        """Closes the window."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
        return self._process.wait(WATCHDOG)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: bytes) -> None:
        def seen() -> bool:
            self._read(0.05)
            return text in self.shown

        until(seen, f"{text!r} on the terminal")

    def end(self) -> int:
        until(lambda: not self._read(0.05) and self._process.poll() is not None, f"the end after {self.shown!r}")
        return self._process.returncode

    def _read(self, patience: float) -> bool:
        if not select.select([self._master], [], [], patience)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # what a terminal says when nobody has its other side open any more
            return False
        self.shown += data
        return data != b""


def test_colours_on_a_terminal(script: Script) -> None:
    path = script("os.write(1, b'hello\\n')")  # print would write the end of the line later: a prompt?
    with Terminal("-n", 3, path) as terminal:
        assert terminal.end() == 0
        assert len(set(re.findall(rb"\x1b\[\d+m\[rank \d\]\x1b\[0m hello", terminal.shown))) == 3
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        with Terminal("-n", 3, path, env=plain) as terminal:
            assert terminal.end() == 0
            assert sorted(terminal.shown.split(b"\r\n")) == [b"", *(b"[rank %d] hello" % rank for rank in range(3))]


@pytest.mark.parametrize("n", [1, 2])
def test_rank_0_can_ask_the_user(script: Script, n: int) -> None:
    path = script("print('got', input('your name? ')) if rank == 0 else None")
    with Terminal("-n", n, path, env={"NO_COLOR": "1"}) as terminal:
        terminal.read_until(b"your name? ")
        terminal.type("Ada\n")
        terminal.read_until(b"got Ada\r\n")
        assert terminal.end() == 0


def test_one_rank_sees_the_terminal_itself(script: Script) -> None:
    with Terminal("-n", 1, script("print([os.isatty(fd) for fd in range(3)])")) as terminal:
        assert terminal.end() == 0
        assert terminal.shown == b"[True, True, True]\r\n"


def test_ctrl_c_reaches_every_rank_once(script: Script, tmp_path: Path) -> None:
    path = script("""
        count = 0
        mark(f"ready{rank}", os.getpid())
        for _ in range(2):
            try:
                time.sleep(1e6 if count == 0 else 0.5)
            except KeyboardInterrupt:
                count += 1
        mark(f"count{rank}", count)
    """)
    with Terminal("-n", 3, path) as terminal:
        numbers(tmp_path, ["ready0", "ready1", "ready2"])
        terminal.type("\x03")
        assert terminal.end() == 130
        assert b"arx run: SIGINT: all ranks have ended" in terminal.shown
    assert numbers(tmp_path, ["count0", "count1", "count2"]) == [1, 1, 1]


def test_a_second_ctrl_c_kills(script: Script, tmp_path: Path) -> None:
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda *_: mark(f"heard{rank}", os.getpid()))
        mark(f"ready{rank}", os.getpid())
        while True:
            time.sleep(1)
    """)
    with Terminal("-n", 2, path) as terminal:
        ranks = numbers(tmp_path, ["ready0", "ready1"])
        terminal.type("\x03")
        numbers(tmp_path, ["heard0", "heard1"])
        terminal.type("\x03")
        assert terminal.end() == 130
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)


def test_ranks_deaf_to_ctrl_c_are_terminated(script: Script, tmp_path: Path) -> None:
    path = script("signal.signal(signal.SIGINT, signal.SIG_IGN); mark(f'ready{rank}', os.getpid()); time.sleep(1e6)")
    with Terminal("-n", 2, path) as terminal:
        numbers(tmp_path, ["ready0", "ready1"])
        terminal.type("\x03")
        assert terminal.end() == 130


def test_a_closed_terminal_ends_the_job(script: Script, tmp_path: Path) -> None:
    path = script("mark(f'ready{rank}', os.getpid()); time.sleep(1e6)")
    with Terminal("-n", 2, path) as terminal:
        ranks = numbers(tmp_path, ["ready0", "ready1"])
        assert terminal.close() == 128 + signal.SIGHUP
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
