"""The agent of `arx run --hosts` by itself: what it answers, and that it does not outlive whoever started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import WATCHDOG, alive, until

from arx.launch import frames

SHARE = {"first": 4, "n": 2, "world": 6, "local_first": 0, "local_size": 2, "node": 2, "nodes": 3}


class Agent:
    """An agent, and this end of its pipes."""

    def __init__(self, folder: Path) -> None:
        argv = [sys.executable, "-P", "-m", "arx.launch.agent"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self.process = subprocess.Popen(argv, cwd=folder, **pipes)
        self._frames = frames.Unpacker(after=frames.MAGIC)
        self._came: list[frames.Frame] = []

    def send(self, *messages: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(messages))

    def next(self) -> frames.Frame:
        assert self.process.stdout is not None
        while not self._came:
            data = self.process.stdout.read(65536)
            assert data, "the agent has ended"
            self._came += self._frames.feed(data)
        return self._came.pop(0)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    with agent.process:
        yield agent
        agent.process.kill()


def job(folder: Path, argv: list[str], **more: Any) -> bytes:
    document = {"folder": str(folder), "env": {"GIVEN": "1"}, "paths": {}, "share": SHARE, "script": argv[0]}
    document |= {"args": argv[1:], "module": False, "bind": "none", "silence": WATCHDOG} | more
    return frames.pack(frames.JOB, data=json.dumps(document).encode())


def test_a_job_from_start_to_end(agent: Agent, tmp_path: Path) -> None:
    agent.send(job(tmp_path, ["sh", "-c", "echo $ARX_RANK $GIVEN; exit $ARX_RANK"]))
    assert agent.next().kind == frames.READY
    agent.send(frames.pack(frames.GO))
    came = []
    while len([frame for frame in came if frame.kind == frames.ENDED]) < 2:
        came.append(agent.next())
    assert [frame.rank for frame in came if frame.kind == frames.STARTED] == [4, 5]
    said = {frame.rank: frame.data for frame in came if frame.kind == frames.OUTPUT and frame.data}
    assert said == {4: b"4 1\n", 5: b"5 1\n"}
    assert sorted(frame[1:3] for frame in came if frame.kind == frames.ENDED) == [(4, 4), (5, 5)]
    assert agent.process.wait(WATCHDOG) == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"script": "nosuch"}, "nosuch: no such script"),
        ({"folder": "/no/such"}, "folder of the launcher, /no/such: No"),
    ],
)
def test_what_cannot_be_started_is_refused(agent: Agent, tmp_path: Path, more: dict[str, str], told: str) -> None:
    agent.send(job(Path(more.get("folder", tmp_path)), [more.get("script", "true")]))
    refused = agent.next()
    assert refused.kind == frames.REFUSED
    assert told in refused.data.decode()


@pytest.mark.parametrize("way", ["end of file", "silence", "nobody reads"])
def test_ranks_do_not_outlive_the_launcher(agent: Agent, tmp_path: Path, way: str) -> None:
    line = "trap '' TERM HUP INT; while :; do echo on; sleep 0.01; done"
    agent.send(job(tmp_path, ["sh", "-c", line], silence=0.5 if way == "silence" else WATCHDOG))
    assert agent.next().kind == frames.READY
    agent.send(frames.pack(frames.GO))
    ranks = [agent.next().number for _ in range(2)]
    assert agent.process.stdin is not None
    assert agent.process.stdout is not None
    if way == "end of file":
        agent.process.stdin.close()
    elif way == "nobody reads":
        agent.process.stdout.close()
    assert agent.process.wait(WATCHDOG) == 1
    until(lambda: not any(map(alive, ranks)), "the end of the ranks")


def test_signs_of_life_keep_it_going(agent: Agent, tmp_path: Path) -> None:
    agent.send(job(tmp_path, ["sh", "-c", "echo up; exec sleep 1000000"], silence=2.0))
    assert agent.next().kind == frames.READY
    agent.send(frames.pack(frames.GO))
    ranks = [agent.next().number for _ in range(2)]
    for _ in range(30):  # 3 s
        agent.send(frames.pack(frames.BEAT))
        with pytest.raises(subprocess.TimeoutExpired):
            agent.process.wait(0.1)
    assert all(map(alive, ranks))
    agent.send(frames.pack(frames.ASK))
    assert agent.process.wait(WATCHDOG) == 0


def test_frames_come_out_as_they_went_in() -> None:
    sent = [(frames.OUTPUT, 3, 1, b"x" * 70_000), (frames.ENDED, 4, -9, b""), (frames.READY, 0, 0, b"")]
    stream = b"Welcome\0ar" + frames.MAGIC + b"".join(frames.pack(*frame) for frame in sent)
    for step in (1, 7, 13, 4096, len(stream)):
        unpacker = frames.Unpacker(after=frames.MAGIC)
        came = [tuple(f) for k in range(0, len(stream), step) for f in unpacker.feed(stream[k : k + step])]
        assert came == sent
    unpacker = frames.Unpacker(after=frames.MAGIC)
    assert list(unpacker.feed(b"no agent")) == []
    assert unpacker.before == b"no agent"
