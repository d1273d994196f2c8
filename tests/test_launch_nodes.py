"""`arx run --nnodes`: a launcher on each host, started there by somebody else."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import hostjob
import pytest
from launching import ARX, WATCHDOG
from netlab import Lab

from arx.launch import master, near


def each(
    lab: Lab, folder: Path, options: list[str], program: list[str], env: dict[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """`arx run --node-rank R` on each host, at the same time."""
    done: list[Any] = [None] * len(lab.hosts)

    def one(node: int, host: str) -> None:
        argv = [*lab.enter(host), *ARX, "run", "--node-rank", str(node), *options, *program]
        done[node] = subprocess.run(
            argv,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WATCHDOG,
            check=False,
            cwd=folder,
        )

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(lab.hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_a_launcher_on_each_host(lab: Lab, tmp_path: Path) -> None:
    options = ["--nnodes", "3", "--master", "h0:29500", "-n", "2"]
    done = each(lab, tmp_path, options, hostjob.program(tmp_path), {"ARX_SECRET": "a" * 64})
    assert [one.returncode for one in done] == [0, 0, 0], done
    found = hostjob.check(tmp_path, ["h0", "h0", "h1", "h1", "h2", "h2"], "ARX_* variables")
    assert [(rank["node_rank"], rank["num_nodes"]) for rank in found] == [(r // 2, 3) for r in range(6)]
    assert found[0]["master"] == "h0:29500"
    first = found[0]["job_id"]
    each(lab, tmp_path, options, hostjob.program(tmp_path), {"ARX_SECRET": "b" * 64})
    assert hostjob.found(tmp_path)[0]["job_id"] != first  # another secret is another launch


def test_ranks_of_one_launcher_are_named_by_their_number_in_the_world(lab: Lab, tmp_path: Path) -> None:
    options = ["--nnodes", "3", "--master", "h0:29500", "-n", "1"]
    done = each(lab, tmp_path, options, ["sh", "-c", "echo at $ARX_RANK; exit $ARX_RANK"], {"ARX_SECRET": "a" * 64})
    assert [one.returncode for one in done] == [0, 1, 2]
    assert [one.stdout for one in done] == [f"[rank {rank}] at {rank}\n" for rank in range(3)]
    assert "arx run: rank 2 of 3 failed first: exit code 2" in done[2].stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--nnodes", "2", "-n", "1"], "--nnodes also needs --master HOST:PORT"),
        (["--nnodes", "2", "--master", "h0:1"], "--nnodes also needs -n"),
        (["--nnodes", "2", "--node-rank", "2", "--master", "h0:1", "-n", "1"], "--node-rank 2 lies outside 0..1"),
        (["--node-rank", "1", "-n", "1"], "--node-rank 1 lies outside 0..0 (--nnodes 1)"),
        (["--master", "h0:1", "-n", "1"], "--master is for several hosts"),
        (["--nnodes", "2", "--master", "h0", "-n", "1"], "--master='h0' is not of the form HOST:PORT"),
        (["--nnodes", "2", "--master", "h0:1", "-n", "1"], "export ARX_SECRET=$(python3 -c 'import secrets; "),
        (["--nnodes", "two"], "'two' is not a number of ranks"),
        (["--node-rank", "-1"], "-1"),
        (["--env", "ARX_MASTER=h:1"], "ARX_MASTER is set by arx run itself"),
        (["--host", "h0"], "unknown option --host; did you mean --hosts?"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, args: list[str], told: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ARX_SECRET"}
    done = subprocess.run(
        [*ARX, "run", *args, "true"],
        env=env,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


def test_without_other_hosts_no_secret_is_needed(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ARX_SECRET"}
    options = ["--nnodes", "2", "--node-rank", "1", "--master", "127.0.0.1:29500", "-n", "1"]
    line = "echo $ARX_RANK $ARX_MASTER ${ARX_SECRET-none}"
    done = subprocess.run(
        [*ARX, "run", *options, "sh", "-c", line],
        env=env,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.stdout == "[rank 1] 1 127.0.0.1:29500 none\n"


def test_this_host_has_one_name() -> None:
    own = socket.gethostname()
    assert near.is_here(own)
    assert near.is_here("localhost")
    assert near.is_here("127.0.0.3")
    assert near.is_here("::1")
    assert not near.is_here(f"not-{own}")
    assert near.master_for([own, "localhost"], "j", master.PORTS) is None
    assert near.master_for(["a@other", own], "j", master.PORTS) == master.candidates("other", "j")
