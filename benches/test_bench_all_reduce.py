"""How long an all-reduce takes, to compare two states of the code with. Rank 0 is this process; compare the minima."""

import follow
import pytest
from workloads.method import Plan

SIZES = {"8B": 8, "1KiB": 1 << 10, "64KiB": 1 << 16, "1MiB": 1 << 20, "16MiB": 1 << 24}
ROUNDS, WARM_UP = 40, 4


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks}ranks")
def world(request):
    with follow.world_of(request.param) as world:
        yield world


def calls_in_a_round(nbytes):
    """Enough that a round outlasts the clock's grain, and few enough that a sum in place stays finite."""
    return max(1, min(100, (4 << 20) // nbytes))


def turns(benchmark, calls):
    """How often `benchmark.pedantic` calls its function, from one teardown to the next."""
    if benchmark.disabled:
        return [1]
    return [calls] * (WARM_UP + ROUNDS) + [1] * (calls > 1)


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("nbytes", SIZES.values(), ids=SIZES)
def test_all_reduce(benchmark, world, nbytes, memory):
    ranks, dtype, op, algo = world.backend.size, "float32", "sum", "auto"
    form = "symmetric" if memory == "symmetric" else "in place"
    calls = calls_in_a_round(nbytes)
    case = world.prepare(Plan("all_reduce", [nbytes], 0, dtype, op, [form], 0), turns(benchmark, calls))

    benchmark.group = f"all_reduce, {ranks} ranks"
    benchmark.extra_info |= {"ranks": ranks, "bytes": nbytes, "dtype": dtype, "op": op, "memory": memory, "algo": algo}
    benchmark.pedantic(case.call, rounds=ROUNDS, warmup_rounds=WARM_UP, iterations=calls, teardown=case.refill)
    if benchmark.stats:
        # Bytes that pass each rank's link in the best algorithm, by time: comparable between numbers of ranks.
        benchmark.extra_info["busbw_gb_s"] = 2 * (ranks - 1) / ranks * nbytes / benchmark.stats["min"] / 1e9
