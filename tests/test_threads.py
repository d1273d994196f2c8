"""Threads of one rank: they run while another one waits, and they cannot get into each other's calls."""

import sys
import threading
import time

import numpy as np
from processes import Fault, Job, fault, stage
from rankside import check_usable

import arx

LARGE = 4 << 20  # elements of float32: 16 MiB


def counted_while(call):
    """How often a second thread gets a turn while ``call`` runs in a third, per second."""
    waiting = threading.Thread(target=call)
    count, before = 0, time.monotonic()
    waiting.start()
    while waiting.is_alive():
        count += 1
        time.sleep(1e-5)
    return count / (time.monotonic() - before)


def late_rank_0(call):
    """Rank 0 comes half a second late; the turns of other threads meanwhile, on the other ranks."""
    if arx.rank() == 0:
        time.sleep(0.5)
        call()
        return None
    return counted_while(call)


def waits_in(say):
    arx.init(timeout=300)
    x, y = np.ones(3), np.ones(LARGE, np.float32)
    calls = {
        "barrier": arx.barrier,
        "small": lambda: arx.all_reduce(x),
        "large": lambda: arx.all_reduce(y),
        "broadcast": lambda: arx.broadcast(x),
    }
    turns = {name: late_rank_0(call) for name, call in calls.items()}
    check_usable()
    return turns


def waits_in_init(say):
    return {"init": counted_while(lambda: fault(arx.init, timeout=0.7))}


def waiting():
    with Job(2, waits_in) as job, Job(3, waits_in_init, places=[0, 1]) as init:
        return [end.result for end in (*job.ends([1]), *init.ends())]


def test_other_threads_run_while_one_waits():
    for turns in stage(waiting):
        for name, per_second in turns.items():
            # Free threads get some thousand turns; one that has to wait for the end gets none.
            assert per_second > 100, f"{name}: {per_second:.0f} turns of another thread a second"


def needs_the_other_ranks_thread(say, rounds):
    """Each rank waits in a call until the peer has come, which does so when a thread of Python there says so."""
    rank = arx.init(timeout=300).rank
    free = threading.Semaphore(0)

    def releases():
        for _ in range(rounds):
            time.sleep(0)
            free.release()

    helper = threading.Thread(target=releases)
    helper.start()
    for k in range(rounds):
        free.acquire()
        x = np.full(3, float(rank + k))
        arx.all_reduce(x)
        assert x[0] == 1 + 2 * k
    helper.join()
    return "right"


def thousand():
    with Job(2, needs_the_other_ranks_thread, 1000) as job:
        return [end.result for end in job.ends()]


def test_a_thousand_rounds_that_need_a_thread_of_the_other_rank():
    assert stage(thousand) == ["right", "right"]


def crowds_in(say, calls):
    """Four threads of rank 0 use the group without a lock; the others make as many calls as have to succeed."""
    rank = arx.init(timeout=300).rank
    tickets, refusals, wrong = list(range(calls)), [], []
    sys.setswitchinterval(1e-5)

    def takes_part(mine):
        while True:
            try:
                ticket = tickets.pop()
            except IndexError:
                return
            # So large that the call lets other threads run from its start: they meet inside it.
            x = np.full(20_000, float(rank + 1) * 1000 + mine)
            error = fault(arx.all_reduce, x)
            if isinstance(error, Fault):
                refusals.append(error)
                tickets.append(ticket)
                time.sleep(1e-4)
            # The other ranks add 5000; a refused call leaves its array as it was.
            wanted = 1000 + mine if isinstance(error, Fault) else 6000 + mine
            if rank == 0 and (x != wanted).any():
                wrong.append((mine, x, wanted))

    threads = [threading.Thread(target=takes_part, args=(k,)) for k in range(4 if rank == 0 else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_usable()
    return refusals, wrong


def crowding():
    with Job(3, crowds_in, 500) as job:
        return [end.result for end in job.ends()]


def test_calls_of_several_threads_are_right_or_refused():
    (refused, wrong), *others = stage(crowding)
    assert wrong == []
    assert others == [([], [])] * 2
    assert refused, "the threads never met"
    for error in refused:
        assert error.kind == "RuntimeError"
        assert "another thread" in error.text
        assert "one call at a time" in error.text
    print(f"{len(refused)} calls were refused, 500 were right")
