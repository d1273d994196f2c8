"""Jobs over several hosts that do not form, or that form among strangers."""

import contextlib
import ipaddress
import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from hostfaults import (
    calls_until_told,
    joined,
)
from hostranks import HostJob, at_home, enter, free_port, on_hosts
from processes import Fault, fault, stage
from rankside import check_usable

import arx

# Jobs that do not form


def joins(say, limit):
    say("started")
    error = fault(arx.init, timeout=limit)
    if isinstance(error, Fault):
        return error
    check_usable()
    arx.barrier()
    return "joined"


def forming(site, places, limit, of):
    with HostJob(site, joins, limit, places=places, of=of, port=free_port()) as job:
        return job.ends()


FORMING = ["4", "h0 h1 h1 h2"]


@pytest.mark.parametrize(
    ("places", "missing"), [([0, 1, 2], "rank 3"), ([0, 3], "ranks 1 and 2"), ([1, 2, 3], "rank 0")]
)
@pytest.mark.parametrize("where", FORMING)
def test_a_rank_that_does_not_come_is_named_by_all(site, where, places, missing):
    for end in stage(forming, site(where), places, 1, {}):
        assert end.result.kind == "RendezvousError", end
        for word in (missing, "1.00 s", "job"):
            assert word in end.result.text, end


def connected(job, port):
    """How many connections to rank 0 there are."""
    rows = Path(f"/proc/{job.ranks[0].pid}/net/tcp").read_text().splitlines()[1:]
    return sum(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "01" for row in rows)


def forming_hit(site, victim, number):
    """The last rank is missing; ``victim`` gets a signal when all others have come to rank 0."""
    port = free_port()
    with HostJob(site, joins, 300, places=[0, 1, 2], port=port) as job:
        job.hear("started")
        while connected(job, port) < 2:
            time.sleep(0.005)
        time.sleep(0.3)
        job.signal(victim, number)
        return job.ends()


@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("where", FORMING)
def test_a_rank_killed_while_the_job_forms_is_named_by_all(site, where, victim):
    ends = stage(forming_hit, site(where), victim, signal.SIGKILL)
    assert ends.pop(victim).code == -signal.SIGKILL
    for end in ends:
        assert (end.result.kind, end.result.ranks) == ("PeerLostError", (victim,)), end
        assert f"rank {victim}" in end.result.text


@pytest.mark.parametrize("victim", [1, 0])
def test_ctrl_c_leaves_init(site, victim):
    ends = stage(forming_hit, site("4"), victim, signal.SIGINT)
    assert ends.pop(victim).result.kind == "KeyboardInterrupt"
    for end in ends:
        assert end.result.kind == "AbortedError", end
        assert f"rank {victim} was interrupted" in end.result.text


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("where", FORMING)
def test_another_secret_is_said_on_both_sides(site, where, odd):
    of = {rank: {"ARX_SECRET": "another" if rank == odd else "one"} for rank in range(4)}
    ends = stage(forming, site(where), None, 3, of)
    wrong = [ends[rank].result for rank in range(4) if rank and (odd == 0 or rank == odd)]
    for error in wrong:
        assert error.kind == "AuthError", error
        assert "do not have the same secret" in error.text
        assert "ARX_SECRET" in error.text
    for end in (ends[rank] for rank in range(4) if ends[rank].result not in wrong):
        assert end.result.kind == "RendezvousError", end
        assert ("ranks 1, 2 and 3" if odd == 0 else "rank 2") in end.result.text
        assert "secret" in end.result.text, "rank 0 says whom it has turned away, and why"


@pytest.mark.parametrize("where", FORMING)
def test_another_size_of_the_world_is_an_error_that_shows_both(site, where):
    told = {"ARX_WORLD_SIZE": "5"} | ({} if where == "4" else {"ARX_NNODES": "3"})
    for end in stage(forming, site(where), None, 5, {1: told}):
        assert end.result.kind == "RendezvousError", end
        assert "rank 0 was told 4, rank 1 was told 5" in end.result.text


def twice(site):
    """Rank 3 comes a second time: while the job forms, and when it has formed."""
    port = free_port()
    with HostJob(site, holds, places=[0, 1, 3], port=port) as job:
        while connected(job, port) < 2:
            time.sleep(0.005)
        time.sleep(0.3)
        with HostJob(site, joins, 5, places=[3], port=port, job_id=job.id) as double:
            results = [double.ends()[0].result]
        with HostJob(site, holds, places=[2], port=port, job_id=job.id) as last:
            last.hear("joined")
            job.hear("joined")
            with HostJob(site, joins, 5, places=[3], port=port, job_id=job.id) as double:
                results.append(double.ends()[0].result)
            for each in (job, last):
                for rank in range(len(each.ranks)):
                    each.signal(rank, signal.SIGUSR1)
            return results, [tuple(end) for end in [*job.ends(), *last.ends()]]


def holds(say):
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    joined(say)
    while not told:
        time.sleep(0.002)
    check_usable()
    arx.barrier()
    return "undisturbed"


@pytest.mark.parametrize("where", FORMING)
def test_a_rank_that_comes_twice_is_refused_and_the_job_goes_on(site, where):
    doubles, ends = stage(twice, site(where))
    for error in doubles:
        assert error.kind == "InitError", error
        assert "rank 3 of job" in error.text
        assert "already taken by process" in error.text
    assert ends == [("undisturbed", 0)] * 4


def port_taken(site):
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        HostJob(site, joins, 2, port=other.getsockname()[1]) as job,
    ):
        return job.ends()


def test_a_port_that_another_program_has_taken(site):
    zero, *others = stage(port_taken, at_home(3))
    assert zero.result.kind == "InitError"
    assert "another process has taken this port" in zero.result.text
    for end in others:
        assert end.result.kind == "RendezvousError"
        assert "2.00 s" in end.result.text


def test_a_name_that_does_not_resolve(lab):
    of = {rank: {"ARX_MASTER": "no-such-host.invalid:29511"} for rank in range(2)}
    for end in stage(forming, on_hosts(lab, "h0 h1"), None, 1, of):
        assert end.result.kind == "RendezvousError", end
        assert "'no-such-host.invalid'" in end.result.text
        assert "does not resolve" in end.result.text


def test_nobody_comes_from_another_host_without_a_secret(lab):
    of = {rank: {"ARX_SECRET": ""} for rank in range(2)}
    for end in stage(forming, on_hosts(lab, "h0 h1"), None, 5, of):
        assert end.result.kind in ("InitError", "AuthError"), end
        assert "secret" in end.result.text
        assert "ARX_SECRET" in end.result.text


# Strangers


NOISE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0arx\xffhi\n" + bytes(64),
]


def listening(pid):
    """Where a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd))
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    found = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    return [(str(ipaddress.ip_address(bytes.fromhex(at[:8])[::-1])), int(at[9:], 16)) for at in found]


def pesters(namespace, host, ports, told):
    """A process that calls at every port again and again with all sorts of things, and hangs up or does not."""
    enter(namespace, host)
    kept, dice, calls = [], random.Random(5), 0
    while not told():
        for port in ports:
            with contextlib.suppress(OSError):
                caller = socket.create_connection(port, timeout=1)
                caller.sendall(dice.choice([*NOISE, dice.randbytes(dice.randrange(1, 5000))]))
                calls += 1
                kept.append(caller)
        for caller in kept[:-20]:
            caller.close()
        del kept[:-20]
    return calls


def strangers(site, lab):
    with HostJob(site, calls_until_told, port=free_port()) as job:
        job.hear("joined")
        ports = [port for rank in job.ranks for port in listening(rank.pid)]
        until = time.monotonic() + 2
        pid = os.fork()
        if pid == 0:
            code = 9
            with contextlib.suppress(BaseException):
                home = (None, "localhost") if lab is None else (lab.namespace("h2"), "h2")
                code = 0 if pesters(*home, ports, lambda: time.monotonic() > until) > 50 else 8
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for rank in range(len(job.ranks)):
            job.signal(rank, signal.SIGUSR1)
        return code, len(ports), [tuple(end) for end in job.ends()]


@pytest.mark.parametrize("where", ["4", "h0 h1 h0 h1"])
def test_strangers_at_every_port_do_no_harm(request, site, where):
    lab = None if where == "4" else request.getfixturevalue("lab")
    code, ports, ends = stage(strangers, site(where), lab)
    assert ends == [("undisturbed", 0)] * 4
    assert ports == 4
    assert code == 0, "the strangers came in"


def strangers_first(site, lab):
    """They are there before the ranks are, which come one after the other."""
    port = free_port()
    with contextlib.ExitStack() as running:
        job = running.enter_context(HostJob(site, joins, 60, places=[0], port=port))
        while not listening(job.ranks[0].pid):
            time.sleep(0.005)
        (at,) = listening(job.ranks[0].pid)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                home = (None, "localhost") if lab is None else (lab.namespace("h2"), "h2")
                pesters(*home, [at], lambda: False)
            os._exit(0)
        jobs = [job]
        try:
            for rank in (3, 2, 1):
                time.sleep(0.2)
                jobs.append(running.enter_context(HostJob(site, joins, 60, places=[rank], port=port, job_id=job.id)))
            return [end.result for job in jobs for end in job.ends()]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize("where", ["4", "h0 h1 h0 h1"])
def test_a_job_forms_among_strangers(request, site, where):
    lab = None if where == "4" else request.getfixturevalue("lab")
    assert stage(strangers_first, site(where), lab) == ["joined"] * 4
