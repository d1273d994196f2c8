"""Ranks of several hosts that disagree, or whose arguments are refused: all raise, and the group is closed."""

import numpy as np
import pytest
from hostfaults import SITES, WATCHDOG, assert_all, joined
from hostranks import HostJob, free_port
from processes import Fault, fault, stage

import arx

# Ranks that disagree


DIFFERENCES = {
    "op": (lambda x: arx.all_reduce(x, "max"), "op=max"),
    "dtype": (lambda x: arx.all_reduce(x.astype(np.int32)), "int32"),
    "shape": (lambda x: arx.all_reduce(x.reshape(-1, 2)), "(2, 2)"),
    "length": (lambda x: arx.all_reduce(np.ones(60_000, np.float32)), "(60000,)"),
    "collective": (lambda x: arx.broadcast(x, 0), "broadcast(root=0"),
    "barrier": (lambda x: arx.barrier(), "barrier()"),
    "algo": (lambda x: arx.all_reduce(x, algo="ring"), "algo=ring"),
    "name": (lambda x: arx.all_reduce(x, name="bias"), "name='bias'"),
}


def disagrees(say, odd, how, large):
    """In the call in question or, if that has ended before anybody knew, in the next one."""
    world = joined(say)
    x = np.ones(1_000_000 if large else 4, np.float32)
    first = fault(DIFFERENCES[how][0] if world.rank == odd else arx.all_reduce, x)
    return [*([first] if isinstance(first, Fault) else []), fault(arx.barrier)]


def disagreeing(site, cases):
    stories = []
    for odd, how, large in cases:
        with HostJob(site, disagrees, odd, how, large, port=free_port()) as job:
            stories.append(job.ends())
    return stories


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("where", SITES)
def test_ranks_that_disagree_all_raise_with_both_descriptions(site, where, odd):
    cases = [(odd, how, large) for how in DIFFERENCES for large in (False, True) if how != "length" or not large]
    for case, ends in zip(cases, stage(disagreeing, site(where), cases, timeout=WATCHDOG), strict=True):
        _, how, large = case
        shape = "(1000000,)" if large else "(4,)"
        theirs = DIFFERENCES[how][1].replace("(2, 2)", "(500000, 2)" if large else "(2, 2)")
        words = ["call #3 differs between ranks", f"called all_reduce(op=sum, dtype=float32, shape={shape})"]
        # The root of a broadcast may have sent all of it, and gone on, before anybody knows.
        gone_on = how == "collective" and odd == 0
        words += [f"rank {odd}"] if gone_on else [f"rank {odd} called", theirs]
        assert_all(ends, "MismatchError", (), *words, "The group is closed", case=f"{case}")
        assert sum(len(end.result) == 2 for end in ends) >= 4 - gone_on, f"{case}: {ends}"


def refuses(say, odd, large):
    world = joined(say)
    x = np.ones(1_000_000 if large else 4)
    bad = x.astype(">f8") if odd == 3 else 3.0
    return fault(arx.all_reduce, bad if world.rank == odd else x), fault(arx.barrier), fault(arx.all_reduce, x)


def refusing(site, odd, large):
    with HostJob(site, refuses, odd, large) as job:
        return job.ends()


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("where", SITES)
def test_a_rank_whose_arguments_are_refused_closes_the_group(site, where, odd, large):
    ends = stage(refusing, site(where), odd, large)
    word = "byte order" if odd == 3 else "functional"
    first, *later = ends[odd].result
    assert first.kind == "TypeError"
    assert word in first.text
    assert [error.kind for error in later] == ["MismatchError"] * 2, later
    ends.pop(odd)
    assert_all(ends, "MismatchError", (), f"rank {odd} could not take part", word, "The group is closed")
