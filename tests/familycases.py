"""What every rank does to try one collective of the family, with exact values; for one host and for several."""

import itertools

import numpy as np
import oracle
from rankside import filled

import arx

# Around what an arrival carries, a slice of a round, and several rounds; of 4-byte elements, for a block.
COUNTS = (0, 1, 2, 7, 255, 257, 5000, 70_001)
BLOCKS = ("even", "uneven", "one empty", "all but one empty")


def lengths(kind, count, size):
    """Rows of each rank's block."""
    return {
        "even": [count] * size,
        "uneven": [count + 3 * rank % 5 for rank in range(size)],
        "one empty": [0 if rank == size // 2 else count + rank for rank in range(size)],
        "all but one empty": [count + 1 if rank == size - 1 else 0 for rank in range(size)],
    }[kind]


def edges(counts):
    return [0, *itertools.accumulate(counts)]


def block(name, counts, rank):
    return oracle.exact("sum", name, counts[rank], rank)


def whole(name, counts):
    return np.concatenate([block(name, counts, rank) for rank in range(len(counts))])


def gathers(name, memory, counts_of):
    world = arx.world()
    for count in COUNTS:
        for kind in BLOCKS if counts_of == "all" else (counts_of,):
            counts = lengths(kind, count, world.size)
            case = f"{counts} {name}"
            mine = filled(memory, block(name, counts, world.rank), world.rank)
            want = whole(name, counts)
            oracle.check(arx.all_gather(mine), want, f"all_gather {case}")
            out = filled(memory, np.zeros_like(want), world.rank)
            assert arx.all_gather(mine, out=out) is out
            oracle.check(out, want, f"all_gather into out, {case}")
            at = edges(counts)[world.rank]
            out[...] = 0
            out[at : at + len(mine)] = mine
            arx.all_gather(out[at : at + len(mine)], out=out)
            oracle.check(out, want, f"all_gather from its own place, {case}")
            for root in range(world.size):
                got = arx.gather(mine, root)
                assert (got is None) == (world.rank != root)
                if got is not None:
                    oracle.check(got, want, f"gather to {root}, {case}")
            oracle.check(mine, block(name, counts, world.rank), "what was sent")


def scatters(name, memory):
    world = arx.world()
    for count in COUNTS:
        counts = lengths("even", count, world.size)
        for root in range(world.size):
            x = filled(memory, whole(name, counts), world.rank) if world.rank == root else None
            want = block(name, counts, world.rank)
            out = filled(memory, np.zeros_like(want), world.rank)
            assert arx.scatter(x, root, out=out) is out
            oracle.check(out, want, f"scatter {count} {name} from {root}")
            oracle.check(arx.scatter(x, root), want, f"scatter {count} {name} from {root}, without out")


def alltoalls(name, memory):
    world = arx.world()
    p, me = world.size, world.rank
    for count in COUNTS:
        table = {
            "even": [[count] * p for _ in range(p)],
            "uneven": [[(count + 2 * a + b) % (count + 2) for b in range(p)] for a in range(p)],
            "only to the next": [[count if b == (a + 1) % p else 0 for b in range(p)] for a in range(p)],
        }
        for kind, sent in table.items():
            parts = [oracle.exact("sum", name, sum(sent[rank]), rank) for rank in range(p)]
            want = np.concatenate([parts[a][edges(sent[a])[me] :][: sent[a][me]] for a in range(p)])
            x = filled(memory, parts[me], me)
            case = f"all_to_all {kind} {count} {name}"
            if kind == "even":
                oracle.check(arx.all_to_all(x), want, case)
                out = filled(memory, np.zeros_like(want), me)
                assert arx.all_to_all(x, out=out) is out
                oracle.check(out, want, f"{case} into out")
            oracle.check(arx.all_to_all(x, send_counts=sent[me]), want, f"{case}, counts")
            out = filled(memory, np.zeros_like(want), me)
            received = [sent[a][me] for a in range(p)]
            arx.all_to_all(x, out=out, send_counts=sent[me], recv_counts=received)
            oracle.check(out, want, f"{case}, both counts")


def reductions(name, op, memory):
    world = arx.world()
    p, me = world.size, world.rank
    for count in COUNTS:
        mine = oracle.exact(op, name, count, me)
        want = oracle.exactly(op, name, count, p)
        for root in range(p):
            x = filled(memory, mine, me)
            got = arx.reduce(x, root, op)
            assert got is (x if me == root else None)
            oracle.check(x, want if me == root else mine, f"reduce {op} {count} {name} to {root}")
            out = filled(memory, np.zeros_like(mine), me)
            x = filled(memory, mine, me)
            arx.reduce(x, root, op, out=out)
            oracle.check(x, mine, "what was reduced")
            if me == root:
                oracle.check(out, want, f"reduce {op} {count} {name} to {root}, into out")


def scatterings(name, op, memory):
    world = arx.world()
    p, me = world.size, world.rank
    for count in COUNTS:
        for kind in BLOCKS:
            counts = lengths(kind, count, p)
            total, at = sum(counts), edges(counts)
            mine = oracle.exact(op, name, total, me)
            want = oracle.exactly(op, name, total, p)[at[me] : at[me + 1]]
            x = filled(memory, mine, me)
            given = None if kind == "even" else counts
            case = f"reduce_scatter {op} {counts} {name}"
            oracle.check(arx.reduce_scatter(x, op, counts=given), want, case)
            oracle.check(x, mine, "what was reduced")
            place = x[at[me] : at[me + 1]]
            assert arx.reduce_scatter(x, op, counts=given, out=place) is place
            oracle.check(place, want, f"{case} into its own place")


def scans(name, op, memory):
    world = arx.world()
    p, me = world.size, world.rank
    for count in COUNTS:
        parts = [oracle.exact(op, name, count, rank) for rank in range(p)]
        x = filled(memory, parts[me], me)
        assert arx.scan(x, op) is x
        oracle.check(x, oracle.expected(op, parts[: me + 1]), f"scan {op} {count} {name}")
        x, out = filled(memory, parts[me], me), filled(memory, np.zeros_like(parts[me]), me)
        arx.exscan(x, op, out=out)
        if me:
            oracle.check(out, oracle.expected(op, parts[:me]), f"exscan {op} {count} {name}")
        else:
            with_it = oracle.expected(op, [out, parts[0]])
            oracle.check(with_it, oracle.expected(op, [parts[0]]), f"identity of {op} {name}")
        oracle.check(x, parts[me], "what was scanned")
