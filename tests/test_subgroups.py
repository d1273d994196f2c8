"""Groups within the world: who is in them, what they cost, and what of others they notice.

Every number that travels is distinct per rank and element, and small enough to be exact.
"""

import gc
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import oracle
import pytest
from hostranks import Crew, at_home
from processes import Job, fault, stage
from rankside import assert_refused, check_usable, filled, outcome

import arx
from arx.testing import run_ranks

LENGTHS = (0, 1, 5, 129, 40_000)


def check_group(group, memory="private", lengths=LENGTHS):
    """The group has the right members, and its calls combine what these bring."""
    assert group.ranks[group.rank] == arx.rank()
    for count in lengths:
        x = filled(memory, oracle.values("int64", count, arx.rank()), arx.rank())
        group.all_reduce(x)
        want = sum((oracle.values("int64", count, rank) for rank in group.ranks), np.zeros(count, np.int64))
        oracle.check(x, want, f"{count} in {group}")
        for root in range(group.size):
            x = filled(memory, oracle.values("int32", count, arx.rank()), arx.rank())
            group.broadcast(x, root)
            oracle.check(x, oracle.values("int32", count, group.ranks[root]), f"{count} from {root} in {group}")
    group.barrier()


# Who is in a group


def all_subsets(memory):
    """Every list of ranks, at most three of them, in every order."""
    world = arx.world()
    for size in range(1, min(world.size, 3) + 1):
        for ranks in itertools.permutations(range(world.size), size):
            group = arx.new_group(ranks)
            if world.rank not in ranks:
                assert group is None
                continue
            assert (group.ranks, group.size, group.rank) == (ranks, size, ranks.index(world.rank))
            check_group(group, memory, (3, 2000))


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_every_small_list_of_ranks_keeps_its_order(ranks, p, memory):
    ranks(p).run(all_subsets, memory)


def everybody():
    group = arx.new_group(range(arx.size()))
    check_group(group)
    check_group(group.new_group(reversed(range(group.size))))
    check_usable()


@pytest.mark.parametrize("p", range(1, 10))
def test_all_ranks_and_all_in_reverse(ranks, p):
    ranks(p).run(everybody)


@pytest.mark.parametrize("where", ["2", "4", "h0 h1 h0 h1", "h0 h0 h0 h1 h2 h2"])
def test_all_ranks_over_hosts(crew, where):
    crew(where).run(everybody)


def in_threes():
    """Of five ranks on any hosts: lists that share ranks, and hosts, in every way."""
    for ranks in [(0, 1), (4, 3, 2), (1, 3), (3, 1), (2, 0, 4), (0, 1, 2, 3, 4)]:
        group = arx.new_group(ranks)
        assert (group is None) == (arx.rank() not in ranks)
        if group:
            assert group.ranks == ranks
            check_group(group)
    check_usable()


@pytest.mark.parametrize("where", ["5", "h0 h1 h0 h1 h0", "h0 h0 h1 h1 h2"])
def test_lists_of_ranks_over_hosts(crew, where):
    crew(where).run(in_threes)


def uneven():
    """Rank 0 has made a group of its own; then two groups are made at the same time, by their members only."""
    world = arx.world()
    if world.rank == 0:
        for _ in range(3):
            assert arx.new_group([0]).size == 1
    group = arx.new_group([0, 1] if world.rank < 2 else [2, 3])
    check_group(group)
    refusals = [outcome(group.broadcast, np.zeros(2), 2)]
    check_group(group)
    if world.rank >= 2:
        x = np.full(3, float(world.rank))
        group.broadcast(x, 0)
        assert x.tolist() == [2.0] * 3, "roots are group ranks"
    return refusals


@pytest.mark.parametrize("p", [4])
def test_members_alone_make_a_group_whatever_each_has_done_before(ranks, p):
    for refusals in ranks(p).run(uneven):
        assert_refused(refusals[0], "ValueError", "root 2", "0 to 1")


def in_order():
    group = arx.new_group([3, 1])
    if group is None:
        return None
    x = np.array([float(arx.rank())])
    group.broadcast(x, 0)
    return group.rank, group.ranks, x[0], repr(group), group.name


def test_ranks_keep_the_order_given(ranks):
    expected = "<arx.Group '(3, 1)': rank {} of 2>"
    results = ranks(4).run(in_order)
    assert results == [
        None,
        (1, (3, 1), 3.0, expected.format(1), "(3, 1)"),
        None,
        (0, (3, 1), 3.0, expected.format(0), "(3, 1)"),
    ]


def nested():
    """Ranks that a group's method takes are ranks of that group."""
    odd = arx.new_group([5, 3, 1], name="odd")
    if odd is None:
        return None
    inner = odd.new_group([2, 0])
    refusal = outcome(odd.new_group, [3])
    if inner:
        check_group(inner)
        return inner.ranks, refusal
    return None, refusal


def test_groups_of_groups(ranks):
    results = ranks(6).run(nested)
    assert [r and r[0] for r in results] == [None, (1, 5), None, None, None, (1, 5)]
    assert_refused(results[1][1], "ValueError", "3", "0 to 2")


def refusals():
    world = arx.world()
    bad = [[], [0, 0], [world.size], [-1], [0.5], "01", 3, [10**30]]
    found = [outcome(arx.new_group, ranks) for ranks in bad]
    found.append(outcome(arx.new_group, [0], name=3))
    check_usable()
    return found


def test_what_is_no_list_of_ranks_is_refused(ranks):
    kinds = [
        "ValueError",
        "ValueError",
        "ValueError",
        "ValueError",
        "TypeError",
        "TypeError",
        "TypeError",
        "ValueError",
    ]
    for found in ranks(2).run(refusals):
        for refusal, kind in zip(found, [*kinds, "TypeError"], strict=True):
            assert_refused(refusal, kind)
        assert_refused(found[1], "ValueError", "twice")


def test_a_group_made_before_init_raises():
    refusal = outcome(arx.new_group, [0])
    assert_refused(refusal, "InitError", "arx.init")


# split, local, cross, mesh


def splitting():
    world = arx.world()
    none = world.rank == 2
    group = world.split(None if none else world.rank % 2, key=-world.rank)
    assert (group is None) == none
    if group:
        want = sorted((r for r in range(world.size) if r != 2 and r % 2 == world.rank % 2), reverse=True)
        assert group.ranks == tuple(want)
        assert group.name == f"split[{world.rank % 2}]"
        check_group(group)
    same = world.split(-(2**63), key=7)
    assert same.ranks == tuple(range(world.size)), "ties are in the order of ranks"
    check_group(same)
    return group and group.ranks


@pytest.mark.parametrize("p", range(1, 10))
def test_split_by_colour_with_a_rank_in_none(ranks, p):
    ranks(p).run(splitting)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0 h1"])
def test_split_over_hosts(crew, where):
    crew(where).run(splitting)


def splitting_badly():
    refusal = outcome(arx.world().split, 1.5 if arx.rank() == 0 else 1)
    check_usable()
    return refusal


def test_split_refuses_what_is_no_colour_on_all_ranks(ranks):
    first, other = ranks(2).run(splitting_badly)
    assert_refused(first, "TypeError", "color")
    assert_refused(other, "MismatchError", "rank 0", "color")


def near_and_far():
    world = arx.world()
    local, cross = world.local, world.cross
    assert local is world.local
    assert cross is world.cross
    check_group(local)
    check_group(cross)
    assert (local.rank, local.size) == (world.local_rank, world.local_size)
    return local.ranks, cross.ranks, cross.name


def test_local_and_cross_on_one_host(ranks):
    assert ranks(3).run(near_and_far) == [((0, 1, 2), (r,), f"cross[{r}]") for r in range(3)]


@pytest.mark.parametrize(
    ("where", "local", "cross"),
    [
        ("2", [(0,), (1,)], [(0, 1), (0, 1)]),
        ("h0 h1 h0 h1", [(0, 2), (1, 3), (0, 2), (1, 3)], [(0, 1), (0, 1), (2, 3), (2, 3)]),
        (
            "h0 h0 h0 h1 h2 h2",
            [(0, 1, 2), (0, 1, 2), (0, 1, 2), (3,), (4, 5), (4, 5)],
            [(0, 3, 4), (1, 5), (2,), (0, 3, 4), (0, 3, 4), (1, 5)],
        ),
    ],
)
def test_local_and_cross_over_hosts(crew, where, local, cross):
    results = crew(where).run(near_and_far)
    assert [r[0] for r in results] == local
    assert [r[1] for r in results] == cross


def gridded(shape):
    with arx.mesh(shape) as grid:
        row, col = grid.coords
        assert grid.row.ranks == tuple(row * shape[1] + k for k in range(shape[1]))
        assert grid.col.ranks == tuple(k * shape[1] + col for k in range(shape[0]))
        assert (grid.row.rank, grid.col.rank) == (col, row)
        assert (grid.row.name, grid.col.name) == (f"rows[{row}]", f"cols[{col}]")
        x = oracle.values("int64", 1000, arx.rank())
        grid.row.all_reduce(x)
        grid.col.all_reduce(x)
        oracle.check(x, oracle.reduced("sum", "int64", 1000, arx.size()), "rows, then columns")
    assert_refused(outcome(grid.row.barrier), "InitError", "shut down")
    grid.shutdown()
    check_usable()
    return repr(grid)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (3, 2), (3, 3)])
def test_a_mesh_has_rows_and_columns(ranks, shape):
    results = ranks(shape[0] * shape[1]).run(gridded, shape)
    assert results[0] == f"<arx.Mesh {shape[0]} x {shape[1]} of 'world': at (0, 0)>"


@pytest.mark.parametrize("where", ["4", "h0 h1 h0 h1", "h0 h0 h1 h1"])
def test_a_mesh_over_hosts(crew, where):
    crew(where).run(gridded, (2, 2))


def odd_meshes():
    return [outcome(arx.mesh, shape) for shape in [(2, 2), (3,), (1, 3, 1), (0, 3), (-1, -3)]]


def test_a_mesh_that_does_not_fit_is_refused(ranks):
    for refusals in ranks(3).run(odd_meshes):
        for refusal in refusals:
            assert_refused(refusal, "ValueError", "3 places")


# Independent of each other


def in_threads():
    """Each thread has a group of its own, of all or of some ranks, and its own pace."""
    world = arx.world()
    lists = [range(world.size), [0, world.size - 1], range(world.size - 1, -1, -1), [world.size - 1, 0]]
    groups = [*map(arx.new_group, lists), world]
    failures = []

    def work(group, k):
        try:
            for n in range(60):
                check_group(group, "private", [(n * (k + 3)) % 40 + n * 17])
        except BaseException as error:
            failures.append((group, error))

    threads = [threading.Thread(target=work, args=(group, k)) for k, group in enumerate(groups) if group]
    if world.rank % 2:
        threads.reverse()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    check_usable()


@pytest.mark.parametrize("p", [2, 3, 4])
def test_groups_in_threads_of_their_own_run_at_once(ranks, p):
    ranks(p).run(in_threads)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0 h1"])
def test_groups_in_threads_over_hosts(crew, where):
    crew(where).run(in_threads)


def made_during_a_call(folder):
    """A group is made while another thread of this rank waits in the world."""
    with arx.init() as world:
        waiting = threading.Thread(target=world.barrier)
        if world.rank == 0:
            waiting.start()
            time.sleep(0.1)
        check_group(arx.new_group([1, 0]))
        if world.rank == 0:
            (folder / "made").touch()
            waiting.join()
        else:
            while not (folder / "made").exists():
                time.sleep(0.01)
            world.barrier()


def test_a_group_is_made_while_the_world_is_in_a_call(tmp_path):
    run_ranks(made_during_a_call, 2, tmp_path)


def disagreement():
    group = arx.new_group([2, 0], name="pair")
    if group is None:
        return None
    refusal = outcome(group.all_reduce, np.zeros(3 + group.rank))
    check_group(group)
    return refusal


def test_a_mismatch_names_group_and_world_ranks_and_leaves_the_group_open(ranks):
    results = ranks(3).run(disagreement)
    assert results[1] is None
    for refusal in (results[0], results[2]):
        assert_refused(
            refusal, "MismatchError", "call #1 of group 'pair'", "rank 2 called", "rank 0 called", "(3,)", "(4,)"
        )


# Leaving


def left_early():
    world = arx.world()
    group = arx.new_group([1, 0], name="pair")
    if world.rank == 1:
        group.barrier()
        group.shutdown()
        group.shutdown()
        refusal = outcome(group.barrier)
    else:
        group.barrier()
        refusal = outcome(group.all_reduce, np.zeros(5), timeout=60)
    check_usable()
    return refusal


@pytest.mark.parametrize("where", ["2", "h0 h1", "shared memory"])
def test_who_waits_for_a_member_that_has_left_is_told(crew, ranks, where):
    results = (ranks(2) if where == "shared memory" else crew(where)).run(left_early)
    assert_refused(results[1], "InitError", "shut down")
    assert_refused(results[0], "PeerLostError", "rank 1 finished", "group 'pair'")


def raised():
    group = arx.new_group([1, 0])
    try:
        with group:
            group.barrier()
            if arx.rank() == 1:
                raise KeyError("a mistake")
            refusal = outcome(group.barrier)
    except KeyError:
        return outcome(group.barrier)
    return refusal


def test_an_exception_in_a_with_block_is_told(ranks):
    crew = ranks(3)
    results = crew.run(raised_in_pair)
    assert results[2] is None
    assert_refused(results[0], "PeerLostError", "rank 1", "exception")
    assert_refused(results[1], "InitError", "shut down")


def raised_in_pair():
    result = raised() if arx.rank() < 2 else None
    check_usable()
    return result


def after_shutdown():
    world = arx.init()
    group = arx.new_group(range(world.size))
    group.barrier()
    arx.shutdown()
    found = [outcome(group.barrier), outcome(arx.new_group, [0]), outcome(group.new_group, [0])]
    group.shutdown()
    return found


@pytest.mark.parametrize("env", [{}, {"ARX_TRANSPORT": "tcp"}])
def test_no_group_outlives_the_world(env):
    for found in run_ranks(after_shutdown, 2, env=env):
        for refusal in found:
            assert_refused(refusal, "InitError")


# Faults


def joined(say, env=None):
    os.environ |= env or {}
    world = arx.init(timeout=100)
    say("joined")
    return world


def in_pairs(say, env):
    """Ranks 0 and 2 call in one group, 1 and 3 in the other, until something happens."""
    world = joined(say, env)
    group = arx.new_group([0, 2] if world.rank % 2 == 0 else [3, 1], name="even" if world.rank % 2 == 0 else "odd")
    for _ in range(3):
        group.barrier()
    say("calling")
    if world.rank % 2 == 0:
        while True:
            failed = fault(group.all_reduce, np.ones(10))
            if not isinstance(failed, np.ndarray):
                return failed, fault(world.barrier, timeout=20)
    lost = fault(world.barrier)
    for k in range(20):
        x = np.full(100, float(world.rank + k))
        group.all_reduce(x)
        assert x[0] == 4.0 + 2 * k
    return lost, None


def killed_beside(env):
    with Job(4, in_pairs, env) as job:
        job.hear("calling")
        job.signal(2, signal.SIGKILL)
        return job.ends([0, 1, 3])


@pytest.mark.parametrize("env", [{}, {"ARX_TRANSPORT": "tcp"}])
def test_a_death_concerns_the_groups_of_which_the_dead_was_a_member(env):
    first, *others = stage(killed_beside, env)
    group, world = first.result
    assert (group.kind, group.ranks) == ("PeerLostError", (2,)), group
    assert (world.kind, world.ranks) == ("PeerLostError", (2,)), world
    for end in others:
        assert end.code == 0, f"its group goes on: {end}"
        assert (end.result[0].kind, end.result[0].ranks) == ("PeerLostError", (2,)), end


def times_out(say, env):
    world = joined(say, env)
    group = arx.new_group([2, 1], name="slow") if world.rank else None
    late = None
    if world.rank == 1:
        late = fault(group.barrier, timeout=0.3)
    world.barrier()
    # On one host rank 2 finds that rank 1 had arrived at the first of them.
    after = [fault(group.barrier, timeout=20) for _ in range(2)][-1] if group else None
    check_usable()
    return late, after


def timed_out(env):
    with Job(3, times_out, env) as job:
        return job.ends()


@pytest.mark.parametrize("env", [{}, {"ARX_TRANSPORT": "tcp"}])
def test_a_time_out_names_world_ranks_and_closes_that_group_only(env):
    ends = stage(timed_out, env)
    late, after = ends[1].result
    assert (late.kind, late.ranks) == ("CollectiveTimeout", (2,)), late
    assert "of group 'slow'" in late.text
    assert "rank 1 waited" in late.text
    assert after.kind == "CollectiveTimeout"
    assert (ends[2].result[1].kind, ends[2].result[1].ranks) == ("CollectiveTimeout", (2,)), ends[2]
    assert [end.code for end in ends] == [0, 0, 0]


def never_made(say):
    world = arx.init(timeout=0.5)
    say("joined")
    failed = fault(arx.new_group, [1, 0]) if world.rank == 0 else None
    world.barrier(timeout=20)
    group = arx.new_group([1, 0])
    group.barrier()
    return failed


def alone_in_making():
    with Job(2, never_made) as job:
        return job.ends()


def test_a_member_that_does_not_make_the_group_is_named_and_may_do_so_later():
    first, second = stage(alone_in_making)
    assert (first.result.kind, first.result.ranks) == ("CollectiveTimeout", (1,)), first
    assert "ranks 1 and 0" in first.result.text
    assert second.result is None


# What they cost


def costs():
    """Descriptors, threads, resident KiB."""
    status = Path("/proc/self/status").read_text()
    words = dict(line.split(":", 1) for line in status.splitlines())
    return len(os.listdir("/proc/self/fd")), int(words["Threads"]), int(words["VmRSS"].split()[0])


def made_and_dropped(rounds, ends):
    world = arx.world()
    x = np.ones(3000)
    seen = []
    for k in range(rounds):
        # Two sizes and both orders, so that blocks of memory differ.
        ranks = [range(world.size), range(world.size - 1, -1, -1), [0, 1]][k % 3]
        group = arx.new_group(ranks)
        if group:
            group.all_reduce(x)
            if ends:
                group.shutdown()
        del group
        if k % 50 == 49:
            world.barrier()
            gc.collect()
            seen.append(costs())
            # Between hosts who goes on early opens links.
            world.barrier()
    check_usable()
    return seen


def assert_flat(seen):
    """Nothing grows after the first rounds; a resident page or two more is what any program takes."""
    descriptors, threads, memory = zip(*seen, strict=True)
    assert len(set(descriptors[1:])) == 1, descriptors
    assert len(set(threads)) == 1, threads
    assert memory[-1] - memory[1] < 1024, memory


@pytest.mark.parametrize("ends", [True, False])
def test_500_groups_leave_nothing_behind(ranks, ends):
    for seen in ranks(3).run(made_and_dropped, 500, ends):
        assert_flat(seen)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0"])
def test_500_groups_over_hosts_leave_nothing_behind(crew, where):
    for seen in crew(where).run(made_and_dropped, 500, True, timeout=170):
        assert_flat(seen)


def test_groups_need_no_more_than_the_world(ranks):
    before, after = zip(*ranks(2).run(before_and_after), strict=True)
    assert before == after


def before_and_after():
    before = costs()[:2]
    groups = [arx.new_group([1, 0]) for _ in range(40)]
    for group in groups:
        group.barrier()
    return before, costs()[:2]


def test_a_world_over_tcp_has_groups_in_which_two_ranks_share_nothing():
    with Crew(at_home(3)) as crew:
        crew.run(in_threes_of_three)


def in_threes_of_three():
    for ranks in [(0, 1), (2, 0), (1, 2, 0)]:
        group = arx.new_group(ranks)
        if group:
            assert group.num_nodes == len(ranks)
            check_group(group)


def forked_member():
    """A child that drops the parent's groups leaves none of them."""
    group = arx.new_group(range(arx.size()))
    check_group(group, "private", (3, 2000))
    group.send(np.ones(3), group.rank)
    pid = os.fork()
    if pid == 0:
        refusal = outcome(group.barrier)
        del group
        gc.collect()
        os._exit(0 if "ArxError" in refusal.kinds else 1)
    assert os.waitpid(pid, 0)[1] == 0
    check_group(group, "private", (3, 2000))
    out = np.zeros(3)
    group.recv(out, group.rank)
    assert out.tolist() == [1.0] * 3
    check_usable()


@pytest.mark.parametrize("where", ["shared memory", "2"])
def test_a_forked_child_does_not_leave_its_parents_groups(ranks, crew, where):
    (ranks(2) if where == "shared memory" else crew(where)).run(forked_member)
