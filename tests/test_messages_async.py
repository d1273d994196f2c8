"""send, recv and sendrecv that do not wait: what arrives, in which order, and that nobody keeps another from going on.

Over shared memory, over TCP on this host, and between hosts; every number says who sent it, and which it was.
"""

import asyncio
import gc
import random
import threading
import time
import weakref

import numpy as np
import pytest
from rankside import assert_refused, check_usable, outcome

import arx

SHARED = [f"shared {p}" for p in (2, 3, 5)]
SITES = ["2", "4", "h0 h1", "h0 h1 h0 h1"]


def letter(source, target, number, count):
    """What rank ``source`` sends as its letter of that number."""
    return np.arange(count, dtype=np.float64) + 1e9 * source + 1e7 * target + 1e4 * number


def everybody_at_once():
    """All receives, then all sends, then the waits in another order."""
    world = arx.world()
    for count in (0, 1, 1000, 300_000):
        outs = [np.full(count, -1.0) for _ in range(world.size)]
        asked = [arx.recv(out, source, tag=count, async_op=True) for source, out in enumerate(outs)]
        sent = [
            arx.send(letter(world.rank, target, 1, count), target, tag=count, async_op=True)
            for target in range(world.size)
        ]
        for source, work in reversed([*enumerate(asked)]):
            status = work.wait()
            assert (status.source, status.tag, status.nbytes) == (source, count, 8 * count)
            assert (outs[source] == letter(source, world.rank, 1, count)).all()
            assert work.result() is status
            assert work.done()
        assert arx.wait_all(sent) == [None] * world.size
    check_usable()


@pytest.mark.parametrize("where", ["shared 1", *SHARED, "shared 9", *SITES])
def test_everybody_to_everybody(run, where):
    run(where, everybody_at_once)


def beside_a_collective():
    """Rank 0 asks for what is sent after a collective, and sends what is asked for after the next."""
    world = arx.world()
    large = np.zeros(500_000)
    if world.rank == 0:
        asked = arx.recv(large, 1, async_op=True)
        sent = arx.send(large + 5, 1, tag=1, async_op=True)
    total = arx.all_reduce(np.full(3, world.rank + 1.0))
    later = arx.all_reduce(np.full(100_000, 1.0), async_op=True)
    if world.rank == 1:
        arx.send(letter(1, 0, 0, large.size), 0)
    arx.barrier()
    if world.rank == 1:
        arx.recv(large, 0, tag=1)
        assert (large == 5).all()
    if world.rank == 0:
        asked.wait()
        sent.wait()
        assert (large == letter(1, 0, 0, large.size)).all()
    assert (later.wait() == world.size).all()
    assert total[0] == sum(range(1, world.size + 1))


@pytest.mark.parametrize("where", [*SHARED, *SITES])
def test_neither_waits_for_a_collective_nor_the_other_way_round(run, where):
    run(where, beside_a_collective)


def in_posting_order():
    """What is asked for first gets the first that fits, whatever call asks, and with ANY too."""
    world = arx.world()
    if world.rank == 0:
        for number in range(6):
            arx.send(letter(0, 1, number, 3), 1, tag=number % 2)
    elif world.rank == 1:
        outs = [np.zeros(3) for _ in range(6)]
        works = [
            arx.recv(outs[0], 0, tag=1, async_op=True),
            arx.recv(outs[1], async_op=True),
            arx.recv(outs[2], 0, tag=0, async_op=True),
        ]
        last = arx.recv(outs[3], 0)  # behind all of them
        rest = [arx.recv(outs[4], tag=0, async_op=True), arx.recv(outs[5], 0, tag=arx.ANY, async_op=True)]
        tags = [work.wait().tag for work in works] + [last.tag] + [work.wait().tag for work in rest]
        numbers = [round((out[0] - 1e7) / 1e4) for out in outs]
        assert numbers == [1, 0, 2, 3, 4, 5]
        assert tags == [1, 0, 0, 1, 0, 1]
    arx.barrier()


@pytest.mark.parametrize("where", ["shared 2", "2", "h0 h1"])
def test_requests_are_answered_in_their_order(run, where):
    run(where, in_posting_order)


def random_exchange(seed):
    """200 messages among all ranks, which do with them what they like; each arrives where and as it should."""
    world = arx.world()
    dice = random.Random(seed)
    plan = []
    numbers = {}
    for _ in range(200):
        source, target, tag = dice.randrange(world.size), dice.randrange(world.size), dice.randrange(3)
        number = numbers[source, target, tag] = numbers.get((source, target, tag), -1) + 1
        plan.append((source, target, tag, number, dice.choice([0, 1, 7, 500, 20_000, 150_000])))
    mine = random.Random(seed * 100 + world.rank)
    sends = [m for m in plan if m[0] == world.rank]
    asks = [m for m in plan if m[1] == world.rank]
    works = []
    while sends or asks:
        out_of = sends if sends and (not asks or mine.random() < 0.5) else asks
        source, target, tag, number, count = out_of.pop(0)
        if out_of is sends:
            works.append((arx.send(letter(source, target, 3 * number + tag, count), target, tag=tag, async_op=True), 0))
        else:
            out = np.zeros(150_000)
            works.append((arx.recv(out, source, tag=tag, async_op=True), (out, source, tag, number, count)))
        if mine.random() < 0.05:
            time.sleep(0.001)
    mine.shuffle(works)
    for work, asked in works:
        status = work.wait()
        if asked:
            out, source, tag, number, count = asked
            assert (status.source, status.tag, status.nbytes) == (source, tag, 8 * count)
            assert (out[:count] == letter(source, world.rank, 3 * number + tag, count)).all()
            assert (out[count:] == 0).all()
    arx.barrier()


@pytest.mark.parametrize("where", ["shared 1", *SHARED, *SITES])
def test_two_hundred_in_any_order(run, where):
    for seed in range(3):
        run(where, random_exchange, seed)


def a_ring():
    world = arx.world()
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    x = np.full(70_000, float(world.rank))
    work = arx.sendrecv(x, right, x, left, tag=4, async_op=True)  # a copy travels, since x is overwritten
    status = work.wait()
    assert (status.source, status.tag) == (left, 4)
    assert (x == left).all()
    # Every second column, of which a shorter message fills the first half.
    table = np.full((100, 4), -1.0)
    work = arx.recv(table[:, ::2], left, async_op=True)
    arx.send(np.asfortranarray(letter(world.rank, right, 0, 100).reshape(10, 10)).T, right, async_op=True)
    assert work.wait().count("f8") == 100
    want = letter(left, world.rank, 0, 100).reshape(10, 10).T.ravel()
    assert (table[:50, ::2].ravel() == want).all()
    assert (table[50:] == -1).all()
    assert (table[:, 1::2] == -1).all()


@pytest.mark.parametrize("where", ["shared 1", *SHARED, "4", "h0 h1"])
def test_sendrecv_and_arrays_with_gaps(run, where):
    run(where, a_ring)


def dropped():
    """Nobody keeps the handles."""
    world = arx.world()
    other = (world.rank + 1) % world.size
    outs = [np.zeros((60_000, 2)) for _ in range(4)]
    for number, out in enumerate(outs):
        arx.recv(out[:, 0], tag=number, async_op=True)
    arrays = [letter(world.rank, other, number, 60_000) for number in range(4)]
    kept = [weakref.ref(x) for x in arrays]
    for number, x in enumerate(arrays):
        arx.send(x, other, tag=number, async_op=True)
    del arrays, x
    gc.collect()
    arx.send(np.zeros(1), other, tag=9)
    arx.recv(np.zeros(1), tag=9)
    source = (world.rank - 1) % world.size
    while any(not out[-1, 0] for out in outs) or any(ref() is not None for ref in kept):
        time.sleep(0.001)
        arx.send(np.zeros(1), world.rank, async_op=True).wait()
        arx.recv(np.zeros(1), world.rank)
    for number, out in enumerate(outs):
        assert (out[:, 0] == letter(source, world.rank, number, 60_000)).all()
        assert (out[:, 1] == 0).all()


@pytest.mark.parametrize("where", ["shared 3", "2"])
def test_a_dropped_handle_neither_cancels_nor_leaks(run, where):
    run(where, dropped)


def while_computing():
    """No call of arx is made until all is there."""
    world = arx.world()
    out = np.zeros(3 << 20)
    works = [
        arx.recv(out, 1 - world.rank, async_op=True),
        arx.send(letter(world.rank, 1 - world.rank, 0, out.size), 1 - world.rank, async_op=True),
    ]
    while not all(work.done() for work in works):
        time.sleep(0.001)
    assert (out == letter(1 - world.rank, world.rank, 0, out.size)).all()
    return works[0].result().nbytes


@pytest.mark.parametrize("where", ["shared 2", "2", "h0 h1"])
def test_it_goes_on_while_the_caller_computes(run, where):
    assert run(where, while_computing) == [24 << 20] * 2


def awaits():
    world = arx.world()
    other = 1 - world.rank

    async def main():
        out = np.zeros((5, 1000))
        asked = [arx.recv(row, other, tag=k, async_op=True) for k, row in enumerate(out)]
        for k in reversed(range(5)):
            await arx.send(letter(world.rank, other, k, 1000), other, tag=k, async_op=True)
        found = await asyncio.gather(*(asyncio.wait_for(_of(work), 30) for work in asked))
        assert [status.tag for status in found] == [*range(5)]
        for k in range(5):
            assert (out[k] == letter(other, world.rank, k, 1000)).all()

    asyncio.run(main())
    outs = [np.zeros(1) for _ in range(4)]
    works = [arx.recv(out, other, tag=k, async_op=True) for k, out in enumerate(outs)]
    for k in range(4):
        arx.send(np.array([k + 1.0]), other, tag=k)
    assert sorted(work.result().tag for work in arx.as_completed(works)) == [0, 1, 2, 3]
    called = threading.Event()
    work = arx.recv(outs[0], other, async_op=True)
    work.add_done_callback(lambda w: called.set())
    arx.send(np.array([9.0]), other)
    assert called.wait(30)
    assert outs[0][0] == 9


async def _of(work):
    return await work


@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_asyncio_and_callbacks(run, where):
    run(where, awaits)


def in_a_group():
    world = arx.world()
    group = arx.new_group([2, 0])
    if group:
        other = 1 - group.rank
        out, apart = np.zeros(2), np.zeros(2)
        works = [
            group.recv(out, other, async_op=True),
            arx.recv(apart, group.ranks[other], async_op=True),
            arx.send(np.full(2, world.rank + 10.0), group.ranks[other], async_op=True),
            arx.send(np.full(2, world.rank + 20.0), other, group=group, async_op=True),
        ]
        assert arx.wait_all(works)[0].source == other
        assert (out == group.ranks[other] + 20.0).all()
        assert (apart == group.ranks[other] + 10.0).all()
    arx.barrier()


@pytest.mark.parametrize("where", ["shared 3", "4", "h0 h1 h0 h1"])
def test_groups_have_messages_of_their_own(run, where):
    run(where, in_a_group)


def what_is_refused():
    world = arx.world()
    x, other = np.zeros(4), (world.rank + 1) % world.size
    found = [
        outcome(arx.send, x, world.size, async_op=True),
        outcome(arx.recv, x, tag=-1, async_op=True),
        outcome(arx.send, np.array([object()]), 0, async_op=True),
        outcome(arx.recv, x, world.rank, tag=8, async_op=True),
    ]
    work = arx.recv(x[:2], async_op=True)
    arx.send(np.zeros(3), other, async_op=True)
    long = outcome(work.wait)
    early = arx.recv(x, async_op=True)
    arx.barrier()
    waited = outcome(early.wait, 0.01)
    arx.barrier()
    arx.send(x, other)
    early.wait()
    check_usable()
    return [*found[:3], outcome(found[3].wait), long, waited]


@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_arguments_are_refused_at_once_and_other_errors_come_with_the_wait(run, where):
    for bad_rank, bad_tag, objects, own, long, waited in run(where, what_is_refused):
        assert_refused(bad_rank, "ValueError", "not a rank")
        assert_refused(bad_tag, "ValueError", "tag")
        assert_refused(objects, "TypeError")
        assert_refused(own, "ValueError", "of its own")
        assert_refused(long, "MismatchError", "24 bytes", "room for 16")
        assert_refused(waited, "TimeoutError", "goes on")
