"""Letters of ranks that leave, and to them: what has been sent arrives, and who has done its part may go."""

import os
import time

import numpy as np
import pytest
from hostfaults import WATCHDOG, joined
from hostranks import HostJob, on_hosts
from netlab import Lab
from processes import Job, fault, stage

import arx

# What was sent before arrives, though the news that its sender has left comes by another connection, and sooner.

LENGTH = 250_000  # of float64: 2 MB, which take a second on such a network


@pytest.fixture(scope="module")
def slow_lab():
    with Lab(2, rate="16mbit") as lab:
        yield lab


def letter():
    return np.arange(LENGTH) * 3.0 + 1


def sends_and_leaves(say, apart, anybody, over):
    world = joined(say)
    group = arx.new_group([1, 0]) if apart else world
    sender = group.ranks.index(1)
    if world.rank == 1:
        group.send(letter(), 1 - sender)
        # The group outlives the world here, and its connections with it.
        arx.shutdown()
        while not over.exists():
            time.sleep(0.01)
        return group.name
    out = np.zeros(LENGTH)
    source = arx.ANY if anybody else sender
    status = group.recv(out, source)
    return (status.source, status.nbytes, bool((out == letter()).all())), fault(group.recv, out, source)


def sending(site, apart, anybody, over):
    with HostJob(site, sends_and_leaves, apart, anybody, over) as job:
        (first,) = job.ends([0])
        over.touch()
        job.ends()
        return first


@pytest.mark.parametrize("anybody", [False, True], ids=["named", "any"])
@pytest.mark.parametrize("apart", [False, True], ids=["world", "group"])
def test_a_letter_arrives_after_the_news_that_its_sender_has_left(slow_lab, tmp_path, apart, anybody):
    site = on_hosts(slow_lab, "h0 h1")
    end = stage(sending, site, apart, anybody, tmp_path / "over", timeout=WATCHDOG)
    assert end.code == 0, end
    found, after = end.result
    assert found == (0 if apart else 1, 8 * LENGTH, True)
    assert (after.kind, after.ranks) == ("PeerLostError", (1,)), after
    assert "left the group" in after.text


# Who needs nothing more of a rank does not mind that it leaves.


def swaps(say, env, leaver, gone):
    """Rank 1 sends to one of the others and receives from the other; rank 0 does its part of that first, and leaves."""
    os.environ |= env
    world = joined(say)
    large = np.arange(1 << 20) * 2.0
    out = np.zeros(2)
    if world.rank == 1:
        found = {"who receives": (large[:2], 0, out, 2), "who sends": (large, 2, out, 0)}[leaver]
        world.sendrecv(*found)
        return tuple(out)
    if world.rank == 0 and leaver == "who receives":
        world.recv(out, 1)
        return tuple(out)
    if world.rank == 0:
        world.send(large[3:5], 1)
        return None
    while not gone.exists():
        time.sleep(0.01)
    time.sleep(0.1)
    if leaver == "who receives":
        world.send(large[5:7], 1)
        return None
    out = np.zeros_like(large)
    world.recv(out, 1)
    return bool((out == large).all())


def swapped(env, leaver, gone):
    with Job(3, swaps, env, leaver, gone) as job:
        job.ends([0])
        gone.touch()
        return job.ends()


@pytest.mark.parametrize("leaver", ["who receives", "who sends"])
@pytest.mark.parametrize("env", [{}, {"ARX_TRANSPORT": "tcp"}], ids=["memory", "tcp"])
def test_who_has_done_its_part_of_a_sendrecv_may_leave(env, leaver, tmp_path):
    ends = stage(swapped, env, leaver, tmp_path / "gone")
    assert [end.code for end in ends] == [0, 0, 0], ends
    expected = {"who receives": [(0.0, 2.0), (10.0, 12.0), None], "who sends": [None, (6.0, 8.0), True]}
    assert [end.result for end in ends] == expected[leaver]
