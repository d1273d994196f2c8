"""Calls that do not wait: their results, their order, what is kept alive, and how they end."""

import asyncio
import gc
import os
import signal
import threading
import time

import numpy as np
import oracle
import pytest
from processes import Job, fault, stage
from rankside import assert_refused, check_usable, outcome

import arx


def calls(p, me):
    """Each collective with `async_op`, and what its `wait` must return."""
    x = [oracle.exact("sum", "float32", 6 * p, rank) for rank in range(p)]
    total = oracle.exactly("sum", "float32", 6 * p, p)
    mine = slice(6 * me, 6 * me + 6)
    out = np.empty(6, np.float32)
    return {
        "all_reduce": (lambda **o: arx.all_reduce(x[me].copy(), **o), total),
        "all_reduce of every second": (lambda **o: arx.all_reduce(np.repeat(x[me], 2)[::2], **o), total),
        "reduce": (lambda **o: arx.reduce(x[me].copy(), p - 1, **o), total if me == p - 1 else None),
        "broadcast": (lambda **o: arx.broadcast(x[me].copy(), p - 1, **o), x[p - 1]),
        "all_gather": (lambda **o: arx.all_gather(x[me], **o), np.concatenate(x)),
        "all_gather, uneven": (
            lambda **o: arx.all_gather(x[me][:me], **o),
            np.concatenate([x[r][:r] for r in range(p)]),
        ),
        "gather": (lambda **o: arx.gather(x[me], **o), None if me else np.concatenate(x)),
        "scatter": (lambda **o: arx.scatter(x[0], out=out, **o), x[0][mine]),
        "reduce_scatter": (lambda **o: arx.reduce_scatter(x[me], **o), total[mine]),
        "all_to_all": (lambda **o: arx.all_to_all(x[me], **o), np.concatenate([y[mine] for y in x])),
        "all_to_all, counts": (
            lambda **o: arx.all_to_all(x[me], send_counts=[6] * p, **o),
            np.concatenate([y[mine] for y in x]),
        ),
        "scan": (lambda **o: arx.scan(x[me].copy(), **o), oracle.expected("sum", x[: me + 1])),
        "barrier": (lambda **o: arx.barrier(**o), None),
    }


def same(got, want, case):
    if want is None:
        assert got is None, case
    else:
        oracle.check(got, want, case)


def every_collective():
    world = arx.world()
    works = {name: (call(async_op=True), want) for name, (call, want) in calls(world.size, world.rank).items()}
    for name, (work, want) in reversed(works.items()):
        same(work.wait(), want, name)
        same(work.result(), want, f"{name}, again")
        assert work.done()
        assert work.exception() is None
    check_usable()


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_every_collective(ranks, p):
    ranks(p).run(every_collective)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0"])
def test_every_collective_between_hosts(crew, where):
    crew(where).run(every_collective)


def in_order():
    world = arx.world()
    x = np.full(4, world.rank + 1.0)
    first = arx.all_reduce(x, async_op=True)
    second = arx.all_reduce(x, "max", async_op=True)
    total = np.ones(3)
    arx.all_reduce(total)  # after all that was begun
    assert first.done()
    assert second.done()
    assert (total == world.size).all()
    assert (x == sum(range(1, world.size + 1))).all()


def test_a_group_does_its_calls_in_order(ranks):
    ranks(3).run(in_order)


def many_of_them():
    world = arx.world()
    works = []
    for k in range(300):
        count = [1, 300, 20_000, 100_000][k % 4]
        works.append(arx.all_reduce(np.full(count, k + world.rank, np.int64), async_op=True))
    for k, x in enumerate(arx.wait_all(works)):
        want = world.size * k + sum(range(world.size))
        assert (x == want).all(), k


def test_many_at_once(ranks):
    ranks(2).run(many_of_them)
    ranks(4).run(many_of_them)


def dropped():
    world = arx.world()
    arrays = [np.full(1000, world.rank + k, np.float64) for k in range(50)]
    scattered = np.full((2, 1000), float(world.rank))
    for x in (*arrays, scattered[:, ::2]):
        arx.all_reduce(x, async_op=True)  # nobody keeps the handle
    arx.barrier()
    for k, x in enumerate(arrays):
        assert (x == world.size * k + sum(range(world.size))).all()
    assert (scattered[:, ::2] == sum(range(world.size))).all()
    assert (scattered[:, 1::2] == world.rank).all()


def test_a_dropped_handle_does_not_cancel(ranks):
    ranks(3).run(dropped)


def kept_alive():
    world = arx.world()
    if world.rank == 0:
        time.sleep(0.3)
    buffer = bytearray(8 * 100)
    np.frombuffer(buffer)[:] = world.rank + 1
    works = [
        arx.all_reduce(np.full(100_000, 1.0), async_op=True),
        arx.all_reduce(memoryview(buffer).cast("d"), async_op=True),
    ]
    gc.collect()
    try:
        buffer.extend(b"x" * 10_000)
        moved = not works[1].done()  # it may have been done already
    except BufferError:
        moved = False
    assert not moved
    assert (works[0].wait() == world.size).all()
    works[1].wait()
    assert (np.frombuffer(buffer)[:100] == sum(range(1, world.size + 1))).all()


def test_arrays_are_kept_alive_and_in_place(ranks):
    ranks(2).run(kept_alive)


def exceptions():
    world = arx.world()
    work = arx.all_reduce(np.ones(3 + world.rank), async_op=True)
    error = work.exception()
    assert isinstance(error, arx.MismatchError)
    assert "(3,)" in str(error)
    assert_refused(outcome(work.wait), "MismatchError", "(4,)")
    assert_refused(outcome(work.result), "MismatchError", "(4,)")
    refusal = outcome(arx.all_reduce, np.ones(3), "total" if world.rank == 0 else "sum", async_op=True)
    if world.rank == 0:
        assert_refused(refusal, "ValueError", "total")
    else:
        assert_refused(outcome(refusal.wait), "MismatchError", "total")
    check_usable()


def test_exceptions_arrive_where_it_is_waited(ranks):
    ranks(2).run(exceptions)


def timeouts():
    world = arx.world()
    if world.rank == 0:
        time.sleep(0.5)
    work = arx.all_reduce(np.ones(2), async_op=True)
    if world.rank == 1:
        assert_refused(outcome(work.wait, 0.05), "TimeoutError", "goes on")
        assert not work.done()
        assert_refused(outcome(arx.wait_all, [work], 0.05), "TimeoutError")
        assert_refused(outcome(work.wait, -1.0), "ValueError", "timeout")
    assert (work.wait() == world.size).all()
    check_usable()


def test_a_wait_may_end_before_the_call(ranks):
    ranks(2).run(timeouts)


def callbacks():
    world = arx.world()
    got, done = [], threading.Event()
    work = arx.all_reduce(np.full(5, 2.0), async_op=True)
    work.add_done_callback(lambda w: got.append((w is work, w.result()[0])))
    work.add_done_callback(lambda w: 1 / 0)  # printed, and no harm
    work.add_done_callback(lambda w: done.set())
    assert done.wait(30)
    assert got == [(True, 2.0 * world.size)]
    late = threading.Event()
    work.add_done_callback(lambda w: late.set())
    assert late.wait(30)
    works = [arx.all_reduce(np.full(5, float(k)), async_op=True) for k in range(5)]
    values = sorted(w.result()[0] for w in arx.as_completed(works))
    assert values == [world.size * float(k) for k in range(5)]


def test_callbacks_and_as_completed(ranks):
    ranks(2).run(callbacks)


def what_is_no_work():
    work = arx.all_reduce(np.ones(3), async_op=True)
    for call in (arx.wait_all, arx.as_completed):  # before any of them is waited for
        refusal = outcome(call, [work, 3])
        assert_refused(refusal, "TypeError", f"{call.__name__} takes Works, as async_op=True returns them, not int")
    assert (arx.wait_all([work])[0] == arx.size()).all()
    assert list(arx.as_completed(w for w in [work])) == [work]
    together = arx.all_reduce_many([np.ones(3)], async_op=True)
    assert_refused(outcome(together.add_done_callback, 3), "TypeError", "takes a function, not int")
    assert (arx.wait_all([together])[0][0] == arx.size()).all()
    check_usable()


def test_what_is_no_work_is_not_waited_for(ranks):
    ranks(2).run(what_is_no_work)


def awaits():
    world = arx.world()

    async def main():
        one = await arx.all_reduce(np.ones(3), async_op=True)
        works = [arx.all_reduce(np.full(4, float(k)), async_op=True) for k in range(3)]
        others = await asyncio.gather(*(asyncio.wait_for(_of(w), 30) for w in works))
        try:
            await arx.all_reduce(np.ones(2 + world.rank), async_op=True)
        except arx.MismatchError:
            return one, others
        raise AssertionError("no error")

    one, others = asyncio.run(main())
    assert (one == world.size).all()
    assert [x[0] for x in others] == [world.size * float(k) for k in range(3)]
    check_usable()


async def _of(work):
    return await work


def test_asyncio(ranks):
    ranks(2).run(awaits)


def computing():
    """The caller computes while the call is done: no Python of this thread runs in it."""
    world = arx.world()
    work = arx.all_reduce(np.ones(1 << 20), async_op=True)
    turns = 0
    while not work.done():
        turns += 1
    assert (work.wait() == world.size).all()
    return turns


def test_the_call_goes_on_while_the_caller_computes(ranks):
    assert all(turns > 0 for turns in ranks(2).run(computing))


def short_ones():
    """Short calls: waited for at once, only looked at, left to themselves, or brought together and waited for last."""
    world, kept = arx.world(), []
    for k in range(400):
        x = np.full(1 + k % 5, float(world.rank * 1000 + k))
        work = arx.all_reduce(x, async_op=True)
        kept.append((k, x, work))
        if k % 7 == 0:
            work.wait()
        elif k % 7 == 1:
            while not work.done():
                pass
        elif k % 7 == 2:
            work.wait(timeout=60)
    arx.wait_all(work for _, _, work in kept)
    below = sum(rank * 1000 for rank in range(world.size))
    return all((x == below + world.size * k).all() for k, x, _ in kept)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_short_calls_are_done_whoever_does_them(ranks, size):
    assert all(ranks(size).run(short_ones))


def ends_with_work(say):
    """The program ends without waiting for what it began; the others get their results."""
    world = arx.init(timeout=60)
    x = np.full(1000, float(world.rank))
    work = arx.all_reduce(x, async_op=True)
    if world.rank == 0:
        del work
        return None
    return work.wait()[0]


def ending():
    with Job(3, ends_with_work) as job:
        return [end.result for end in job.ends()]


def test_a_program_that_ends_finishes_what_it_began():
    assert stage(ending) == [None, 3.0, 3.0]


def loses_a_rank(say):
    world = arx.init(timeout=60)
    arx.barrier()
    if world.rank == 1:
        signal.raise_signal(signal.SIGKILL)
    works = [arx.all_reduce(np.ones(100_000), async_op=True) for _ in range(3)]
    return [repr(fault(work.wait)) for work in works]


def losing():
    with Job(3, loses_a_rank) as job:
        return [end.result for end in job.ends([0, 2])]


def test_a_lost_rank_ends_every_call_that_waits():
    for faults in stage(losing):
        assert all("PeerLostError" in text for text in faults), faults


def _native():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            yield file.read().strip()


def one_thread():
    before = [*_native()]
    for _ in range(20):
        arx.all_reduce(np.ones(3), async_op=True).wait()
        time.sleep(0.01)
    after = [*_native()]
    return before.count("arx-progress"), after.count("arx-progress")


def test_one_thread_per_group_from_the_first_use_on(ranks):
    fresh = ranks(2)
    for _, after in fresh.run(one_thread):
        assert after == 1


def ends(say):
    """The thread is gone when the group is."""
    arx.init(timeout=60)
    before = [*_native()].count("arx-progress")
    arx.all_reduce(np.ones(3), async_op=True).wait()
    deadline = time.monotonic() + 30
    while "arx-progress" not in _native():  # a thread gives itself its name
        assert time.monotonic() < deadline
    arx.shutdown()
    return before, [*_native()].count("arx-progress")


def ending_threads():
    with Job(2, ends) as job:
        return [end.result for end in job.ends()]


def test_the_thread_ends_with_the_group():
    assert stage(ending_threads) == [(0, 0)] * 2


def forks(say):
    """A child that was forked while calls were under way ends as any other, whatever it drops."""
    world = arx.init(timeout=60)
    group = world.new_group(range(world.size))
    works = [group.all_reduce(np.ones(100_000), async_op=True) for _ in range(5)]
    child = os.fork()
    if child == 0:
        found = fault(works[-1].wait)
        right = isinstance(found, np.ndarray) or found.kind == "InitError"  # it may have been done before
        del works, group
        gc.collect()
        os._exit(0 if right else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, [float(work.wait()[0]) for work in works]


def forking():
    with Job(2, forks) as job:
        return [end.result for end in job.ends()]


def test_a_forked_child_waits_for_no_thread():
    assert stage(forking) == [(0, [2.0] * 5)] * 2
