"""The ranks but the first of a pytest-benchmark run: make the calls that rank 0, which is pytest itself, times.

Rank 0 says beforehand how many there will be, since a word in between would take longer than the call.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads import all_reduce
from workloads.method import Case, Plan
from workloads.with_arx import Backend

_PATIENCE = 30.0  # seconds that a follower gets to leave


@dataclass
class World:
    """Rank 0's side."""

    backend: Backend
    followers: Sequence[subprocess.Popen[str]]

    def prepare(self, plan: Plan, turns: Sequence[int]) -> Case:
        """The case of a plan with one size and form. All ranks have checked its values when this returns.

        `turns` says how many calls follow until the arrays are filled anew, again and again.
        """
        for follower in self.followers:
            assert follower.stdin is not None
            print(json.dumps([asdict(plan), list(turns)]), file=follower.stdin, flush=True)
        return _checked(self.backend, plan)


@contextlib.contextmanager
def world_of(size: int) -> Iterator[World]:
    """Makes this process rank 0 of a new world; the followers leave when it does."""
    job = secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        followers = []
        for rank in range(1, size):
            command = [sys.executable, __file__, str(rank), str(size), job]
            followers.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            stack.callback(_dismiss, followers[-1])
        backend = Backend(rank=0, world_size=size, job_id=job)
        stack.callback(backend.close)
        yield World(backend, followers)


def _dismiss(follower: subprocess.Popen[str]) -> None:
    try:
        follower.communicate(timeout=_PATIENCE)  # closes its stdin, by which it knows
    except subprocess.TimeoutExpired:
        follower.kill()
        follower.wait()


def _checked(backend: Backend, plan: Plan) -> Case:
    (case,) = all_reduce.cases(backend, plan, plan.sizes[0])
    case.check()
    case.refill()
    backend.barrier()
    return case


def _follow(**place: Any) -> None:
    backend = Backend(**place)
    for line in sys.stdin:
        plan, turns = json.loads(line)
        case = _checked(backend, Plan(**plan))
        for calls in turns:
            for _ in range(calls):
                case.call()
            case.refill()
    backend.close()


if __name__ == "__main__":
    _follow(rank=int(sys.argv[1]), world_size=int(sys.argv[2]), job_id=sys.argv[3])
