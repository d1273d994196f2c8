"""barrier: nobody leaves before everybody has come."""

import time

import oracle
import pytest
from rankside import assert_refused, outcome

import arx
from arx.testing import run_ranks


def rounds(folder, count):
    """Before each barrier every rank leaves a mark, after it all marks must be there."""
    world = arx.world()
    for k in range(count):
        late = int(oracle.bits(1, k, world.rank)[0] % 7)
        time.sleep(0.001 * late if late > 4 else 0)
        (folder / f"{k} {world.rank}").touch()
        assert arx.barrier() is None
        marks = [rank for rank in range(world.size) if (folder / f"{k} {rank}").exists()]
        assert marks == list(range(world.size)), f"round {k}: only {marks} had come"


@pytest.mark.parametrize("p", range(1, 10))
def test_nobody_leaves_before_everybody_has_come(ranks, tmp_path, p):
    ranks(p).run(rounds, tmp_path, 100)


def forms():
    world = arx.world()
    return [world.barrier(), arx.barrier(timeout=30), arx.barrier(group=world), world.barrier(timeout=30)]


def test_forms_of_the_call(ranks):
    assert ranks(3).run(forms) == [[None] * 4] * 3


def absent():
    with arx.init() as world:
        if world.rank == 1:
            return outcome(arx.barrier, timeout=0.3)
        time.sleep(1)
        # Rank 1 had come, so the first one may succeed; the second one cannot.
        outcome(arx.barrier, timeout=30)
        return outcome(arx.barrier, timeout=30)


def test_a_barrier_without_one_rank_times_out_there_and_fails_on_the_late_rank():
    late, waiting = run_ranks(absent, 2)
    assert_refused(waiting, "CollectiveTimeout", "rank 0", "barrier")
    assert_refused(late, "ArxError", "rank 1")
