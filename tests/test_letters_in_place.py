"""Letters that stay where they are until they have been read there: long ones between ranks of a host, if these share
cores, or with `kernel=`. Every number says who sent it, and which it was."""

import contextlib
import os
import signal
import time

import numpy as np
import oracle
import pytest
from processes import Job, fault, stage
from rankside import assert_refused, check_usable, outcome

import arx
from arx.testing import run_ranks

LEAST = 50_000  # bytes
ENV = {"ARX_TUNE": f"kernel={LEAST},pipe=4096"}
NOT_SO = {"ARX_TUNE": "kernel=off,pipe=4096"}
LONG = (17 << 20) + 3  # more than a reader reads before it gives a sign


def letter(source, number, count):
    return oracle.values("uint8", count, source, seed=number * 7 + count)


def everywhere(memory, count):
    arx.init()
    world = arx.world()
    before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for number in range(2):
        x = arx.empty(count, np.uint8) if memory == "symmetric" else np.empty(count, np.uint8)
        x[:] = letter(world.rank, number, count)
        out = np.zeros(count + 5, np.uint8)
        status = arx.sendrecv(x, after, out, before, tag=number)
        assert (status.source, status.tag, status.nbytes) == (before, number, count)
        assert out[:count].tobytes() == letter(before, number, count).tobytes()
        assert not out[count:].any(), "nothing is written behind it"
        out[:] = 0
        for sends in (world.rank % 2 == 0, world.rank % 2 == 1):
            arx.send(x, after, tag=7) if sends else arx.recv(out, before, tag=7)
        assert out[:count].tobytes() == letter(before, number, count).tobytes()
    check_usable()


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("count", [LEAST - 1, LEAST, LEAST + 1, 99_991, (1 << 20) + 1, LONG])
@pytest.mark.parametrize("n", [2, 4])
def test_every_length(n, count, memory):
    run_ranks(everywhere, n, memory, count, env=ENV)


def all_at_once(count):
    """Everybody sends to everybody before anybody asks."""
    arx.init()
    me, size = arx.rank(), arx.size()
    others = [(me + k) % size for k in range(1, size)]
    for peer in others:
        arx.send(letter(me, peer, count), peer)
    for peer in others:
        out = np.zeros(count, np.uint8)
        arx.recv(out, peer)
        assert out.tobytes() == letter(peer, me, count).tobytes(), peer
    check_usable()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_all_send_before_anybody_asks(n):
    run_ranks(all_at_once, n, 3_000_001, env=ENV)


def test_ranks_that_share_cores_do_so_by_themselves():
    """Where every rank has a core, it goes through the rings; the program does not see it."""
    run_ranks(all_at_once, 6, 3_000_001)


LENGTHS = (10, 300_000, 0, LEAST, 1, 2_000_001, LEAST - 1, 300_000)


def in_order(how):
    """Short and long ones, with two tags, of two ranks; the receiver asks for any, or by tag from behind."""
    arx.init()
    me = arx.rank()
    if me < 2:
        works = [arx.send(letter(me, k, n), 2, tag=k % 2, async_op=True) for k, n in enumerate(LENGTHS)]
        for work in works:
            work.wait()
        return
    source, tags = {"any": (arx.ANY, [arx.ANY] * 16), "tag": (arx.ANY, [1] * 8 + [0] * 8)}[how]
    seen = {}
    for tag in tags:
        out = np.zeros(max(LENGTHS), np.uint8)
        status = arx.recv(out, source, tag=tag)
        number = seen.setdefault((status.source, status.tag), status.tag)
        seen[status.source, status.tag] += 2
        want = letter(status.source, number, LENGTHS[number])
        assert (status.nbytes, out[: want.size].tobytes()) == (want.size, want.tobytes()), (status, number)
    assert seen == {(source, tag): 8 + tag for source in (0, 1) for tag in (0, 1)}


@pytest.mark.parametrize("how", ["any", "tag"])
def test_order_of_short_and_long_ones(how):
    run_ranks(in_order, 3, how, env=ENV)


def layouts():
    arx.init()
    me = arx.rank()
    whole = oracle.values("int32", 240_000, me).reshape(1200, 200)
    want = oracle.values("int32", 240_000, 1 - me).reshape(1200, 200)
    for give, take in [
        (np.asfortranarray(whole), np.zeros((1200, 200), np.int32)),
        (whole, np.zeros((200, 1200), np.int32).T),
        (whole[::-1][::-1], np.zeros((2400, 200), np.int32)[::-2]),
    ]:
        arx.sendrecv(give, 1 - me, take, 1 - me)
        np.testing.assert_array_equal(take, want)
        take[...] = 0
        works = [arx.recv(take, 1 - me, async_op=True), arx.send(give, 1 - me, async_op=True)]
        arx.barrier()
        for work in works:
            work.wait()
        np.testing.assert_array_equal(take, want)


def test_any_layout_on_either_side():
    run_ranks(layouts, 2, env=ENV)


def without_a_wait():
    """Nobody waits for the letters: the threads of the ranks do it all."""
    arx.init()
    me, size = arx.rank(), arx.size()
    out = np.zeros((5, 400_000), np.uint8)
    asked = [arx.recv(out[k], (me - 1) % size, tag=k, async_op=True) for k in range(5)]
    sent = [arx.send(letter(me, k, 400_000), (me + 1) % size, tag=k, async_op=True) for k in (3, 1, 4, 0, 2)]
    while not all(work.done() for work in asked + sent):
        time.sleep(0.001)
    for k, work in enumerate(asked):
        assert work.wait().nbytes == 400_000
        assert out[k].tobytes() == letter((me - 1) % size, k, 400_000).tobytes()


@pytest.mark.parametrize("n", [2, 3])
def test_nobody_waits(n):
    run_ranks(without_a_wait, n, env=ENV)


def too_long(early):
    arx.init()
    if arx.rank() == 0:
        if not early:
            arx.recv(np.zeros(1), 1)
        arx.send(letter(0, 1, LONG), 1, tag=4)
        arx.send(letter(0, 2, LEAST), 1, tag=4)
        if early:
            arx.send(np.zeros(1), 1, tag=9)
        return None
    if early:
        arx.recv(np.zeros(1), 0, tag=9)
    else:
        arx.send(np.zeros(1), 0)
    found = outcome(arx.recv, np.zeros(2_000_000, np.uint8), 0, tag=4)
    out = np.zeros(LEAST, np.uint8)
    arx.recv(out, 0, tag=4)
    assert out.tobytes() == letter(0, 2, LEAST).tobytes()
    return found


@pytest.mark.parametrize("early", [False, True])
def test_one_that_is_too_long_ends_alone(early):
    for env in (ENV, NOT_SO):
        _, found = run_ranks(too_long, 2, early, env=env)
        assert_refused(found, "MismatchError", f"{LONG} bytes", "room for 2000000")


def in_a_group():
    world = arx.init()
    group = arx.new_group([3, 1], name="odd")
    if group is None:
        return
    peer = 1 - group.rank
    works = [group.send(letter(world.rank, 1, 2_000_000), peer, async_op=True)]
    works.append(arx.send(letter(world.rank, 2, 2_000_000), group.ranks[peer], async_op=True))
    out = np.zeros(2_000_000, np.uint8)
    for number, where, source in ((2, world, group.ranks[peer]), (1, group, peer)):
        where.recv(out, source)
        assert out.tobytes() == letter(group.ranks[peer], number, out.size).tobytes()
    for work in works:
        work.wait()


def test_in_a_group():
    run_ranks(in_a_group, 4, env=ENV)


# What goes wrong


def joined(say):
    os.environ |= ENV
    world = arx.init(timeout=100)
    # Whoever is past the second one knows that all are past the first.
    world.barrier()
    world.barrier()
    return world


HUGE = 200 << 20


def dies(say, when, source):
    """Rank 2 is killed in a send, of which nothing has been read, or something, or perhaps all."""
    world = joined(say)
    if world.rank == 2:
        x = np.full(HUGE, 7, np.uint8)
        world.barrier()
        say("sends")
        arx.send(x, 0)
        time.sleep(600)
    world.barrier()
    if world.rank == 1:
        return fault(world.barrier)
    out = np.zeros(HUGE, np.uint8)
    if when is None:
        time.sleep(0.5)
    found = fault(arx.recv, out, source)
    return found if getattr(found, "kind", None) else bool((out == 7).all())


def killed(when, source):
    with Job(3, dies, when, source) as job:
        job.hear("sends", [2])
        time.sleep(when or 0.1)
        job.signal(2, signal.SIGKILL)
        return job.ends([0, 1])


@pytest.mark.parametrize("source", [2, None], ids=["named", "any"])
@pytest.mark.parametrize("when", [None, 0.001, 0.01, 0.03, 0.06])
def test_a_sender_that_dies(when, source):
    first, second = stage(killed, when, source)
    if when is None or first.result is not True:
        assert (first.result.kind, first.result.ranks) == ("PeerLostError", (2,)), first
    assert (second.result.kind, second.result.ranks) == ("PeerLostError", (2,)), second


def gives_up(say, how, peers):
    """Rank 0 gives up sending, and uses its array for something else."""
    world = joined(say)
    if world.rank == 1:
        while not peers.exists():
            time.sleep(0.001)
        out = np.zeros(LONG, np.uint8)
        return fault(arx.recv, out, 0)
    x = letter(0, 0, LONG)
    say("sends")
    found = fault(arx.send, x, 1, timeout=0.3 if how == "time-out" else None)
    x[:] = 0xBB
    say("gave up")
    while not peers.exists():
        time.sleep(0.001)
    time.sleep(0.5)
    return found


def given_up(how, path):
    with Job(2, gives_up, how, path) as job:
        if how == "interrupt":
            job.hear("sends", [0])
            job.asleep([0])
            job.signal(0, signal.SIGINT)
        job.hear("gave up", [0])
        path.touch()
        return job.ends()


@pytest.mark.parametrize("how", ["time-out", "interrupt"])
def test_a_sender_that_gives_up_delivers_nothing(how, tmp_path):
    first, second = stage(given_up, how, tmp_path / "go")
    assert first.result.kind == {"time-out": "CollectiveTimeout", "interrupt": "KeyboardInterrupt"}[how], first
    assert (second.result.kind, second.result.ranks) == ("PeerLostError", (0,)), second


def leaves(say, raised):
    """Rank 0 leaves the group while a letter is on offer; rank 1 asks for it afterwards."""
    world = joined(say)
    if world.rank == 0:
        arx.send(letter(0, 0, LONG), 1, async_op=True)
        with contextlib.suppress(KeyError), world:
            if raised:
                raise KeyError(raised)
        return None
    time.sleep(0.5)
    out = np.zeros(LONG, np.uint8)
    found = fault(arx.recv, out, 0)
    return found if raised else out.tobytes() == letter(0, 0, LONG).tobytes()


def left(raised):
    with Job(2, leaves, raised) as job:
        return job.ends()


def test_who_leaves_has_its_letters_taken_first():
    first, second = stage(left, False)
    assert (first.code, second.code, second.result) == (0, 0, True), (first, second)


def test_who_leaves_with_an_exception_does_not():
    _, second = stage(left, True)
    assert (second.result.kind, second.result.ranks) == ("PeerLostError", (0,)), second


def leaves_in_a_hurry(say, path, pause):
    """Rank 0 leaves with an exception while a collective of its own goes on; rank 1 asks for its letter then."""
    world = joined(say)
    if world.rank == 0:
        arx.send(letter(0, 0, LONG), 1, async_op=True)
        arx.all_reduce(np.ones(3), async_op=True)
        time.sleep(0.02)
        with contextlib.suppress(KeyError), world:
            path.touch()
            raise KeyError
        return None
    out = np.zeros(LONG, np.uint8)
    while not path.exists():
        pass
    time.sleep(pause)
    return fault(arx.recv, out, 0)


def left_in_a_hurry(folder):
    ends = []
    for number, pause in enumerate((0, 0.002, 0.005, 0.01, 0.02)):
        with Job(2, leaves_in_a_hurry, folder / str(number), pause) as job:
            ends.append(job.ends()[1])
    return ends


def test_an_offer_is_not_taken_back_before_it_is_said_why(tmp_path):
    for end in stage(left_in_a_hurry, tmp_path):
        assert (end.result.kind, end.result.ranks) == ("PeerLostError", (0,)), end
