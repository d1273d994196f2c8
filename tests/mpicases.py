"""What each rank of `test_mpi_oracle` runs: arx and MPI get the same random inputs, and must give the same bits.

    mpicases.py SEED ROUNDS

    for each pair of groups, the same ranks in the same order, one made by arx and one by MPI:
        for each round, for each case:
            by dice that fall alike on all ranks:    dtype, operation, root, lengths and who sends what to whom
            by dice of each rank's own:              memory, and whether the call waits
            what arx gives == what MPI gives

Integers use all their bits and wrap, floats are whole numbers where they are added or multiplied: results are the same
in whatever order ranks are combined. Blocks that only move may be of any dtype; MPI moves them as bytes. At its end
rank 0 prints how often each case was compared.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections import Counter

import numpy as np
import oracle
from mpi4py import MPI
from mpipair import LENGTHS, MOVED, Pair, as_bytes, edges

import arx

WATCHDOG = 100.0  # seconds; ends a rank that hangs, and so the job
CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


@case
def all_reduce(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    x = pair.numbers(op, name, (rows, *row))
    want = np.empty_like(x)
    pair.comm.Allreduce(x, want, theirs)
    out = pair.nothing(x)
    assert pair.call(pair.group.all_reduce, x, op, out=out) is out
    oracle.check(out, want, f"all_reduce {op} {x.shape} {name}, with out")
    assert pair.call(pair.group.all_reduce, x, op) is x
    oracle.check(x, want, f"all_reduce {op} {x.shape} {name}")


@case
def average(pair):
    name = pair.pick(["float32", "float64"])
    x = pair.numbers("avg", name, pair.rows()[0])
    want = np.empty_like(x)
    pair.comm.Allreduce(x, want, MPI.SUM)
    pair.call(pair.group.all_reduce, x, "avg")
    oracle.check(x, want / x.dtype.type(pair.size), f"average of {x.size} {name}")


@case
def reduce(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    root = int(pair.dice.integers(pair.size))
    x = pair.numbers(op, name, (rows, *row))
    kept, want = x.copy(), np.empty_like(x)
    pair.comm.Reduce(x, want, theirs, root)
    got = pair.call(pair.group.reduce, x, root, op)
    oracle.check(x, want if pair.rank == root else kept, f"reduce {op} {x.shape} {name} to {root}")
    assert got is (x if pair.rank == root else None)


@case
def broadcast(pair):
    rows, row = pair.rows()
    root = int(pair.dice.integers(pair.size))
    x = pair.stuff(pair.pick(MOVED), (rows, *row))
    want = x.copy()
    pair.comm.Bcast(as_bytes(want), root)
    assert pair.call(pair.group.broadcast, x, root) is x
    oracle.check(x, want, f"broadcast {x.shape} {x.dtype} from {root}")


@case
def all_gather(pair):
    rows, row = pair.rows()
    x = pair.stuff(pair.pick(MOVED), (rows, *row))
    want = np.empty((pair.size * rows, *row), x.dtype)
    pair.comm.Allgather(as_bytes(x), as_bytes(want))
    oracle.check(pair.call(pair.group.all_gather, x), want, f"all_gather {x.shape} {x.dtype}")
    out = pair.nothing(want)
    assert pair.call(pair.group.all_gather, x, out=out) is out
    oracle.check(out, want, f"all_gather {x.shape} {x.dtype}, with out")


@case
def all_gather_uneven(pair):
    rows, row = pair.rows()
    counts = pair.ragged(rows)
    x = pair.stuff(pair.pick(MOVED), (counts[pair.rank], *row))
    want = np.empty((sum(counts), *row), x.dtype)
    pair.comm.Allgatherv(as_bytes(x), as_bytes(want, counts))
    oracle.check(pair.call(pair.group.all_gather, x), want, f"all_gather {counts} of {row} {x.dtype}")


@case
def all_gather_along_another_axis(pair):
    counts = pair.ragged(300)
    x = pair.stuff(pair.pick(MOVED), (4, counts[pair.rank]))
    flat = np.empty(4 * sum(counts), x.dtype)
    pair.comm.Allgatherv(as_bytes(x), as_bytes(flat, [4 * count for count in counts]))
    blocks = [block.reshape(4, -1) for block in np.split(flat, edges(counts)[1:-1] * 4)]
    want = np.concatenate(blocks, axis=1)
    oracle.check(pair.call(pair.group.all_gather, x, axis=1), want, f"all_gather {counts} along axis 1")


@case
def gather(pair):
    rows, row = pair.rows()
    counts = pair.pick([[rows] * pair.size, pair.ragged(rows)])
    root = int(pair.dice.integers(pair.size))
    x = pair.stuff(pair.pick(MOVED), (counts[pair.rank], *row))
    want = np.empty((sum(counts), *row), x.dtype)
    pair.comm.Gatherv(as_bytes(x), as_bytes(want, counts) if pair.rank == root else None, root)
    got = pair.call(pair.group.gather, x, root)
    assert (got is None) == (pair.rank != root)
    if got is not None:
        oracle.check(got, want, f"gather {counts} of {row} {x.dtype} to {root}")


@case
def scatter(pair):
    rows, row = pair.rows()
    root = int(pair.dice.integers(pair.size))
    x = pair.stuff(pair.pick(MOVED), (pair.size * rows, *row))
    want = np.empty((rows, *row), x.dtype)
    pair.comm.Scatter(as_bytes(x) if pair.rank == root else None, as_bytes(want), root)
    mine = x if pair.rank == root else None
    oracle.check(pair.group.scatter(mine, root), want, f"scatter {x.shape} {x.dtype} from {root}")
    out = pair.nothing(want)
    assert pair.call(pair.group.scatter, mine, root, out=out) is out
    oracle.check(out, want, f"scatter {x.shape} {x.dtype} from {root}, with out")


@case
def reduce_scatter(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    x = pair.numbers(op, name, (pair.size * rows, *row))
    want = np.empty((rows, *row), x.dtype)
    pair.comm.Reduce_scatter_block(x, want, theirs)
    oracle.check(pair.call(pair.group.reduce_scatter, x, op), want, f"reduce_scatter {op} {x.shape} {name}")
    place = x[pair.rank * rows : (pair.rank + 1) * rows]
    pair.call(pair.group.reduce_scatter, x, op, out=place)
    oracle.check(place, want, f"reduce_scatter {op} {x.shape} {name}, in place")


@case
def reduce_scatter_by_counts(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    counts = pair.ragged(rows)
    x = pair.numbers(op, name, (sum(counts), *row))
    kept, want = x.copy(), np.empty((counts[pair.rank], *row), x.dtype)
    pair.comm.Reduce_scatter(x, want, [count * int(np.prod(row)) for count in counts], theirs)
    got = pair.call(pair.group.reduce_scatter, x, op, counts=counts)
    oracle.check(got, want, f"reduce_scatter {op} {counts} of {row} {name}")
    oracle.check(x, kept, "what was reduced")


@case
def all_to_all(pair):
    rows, row = pair.rows()
    x = pair.stuff(pair.pick(MOVED), (pair.size * rows, *row))
    want = np.empty_like(x)
    pair.comm.Alltoall(as_bytes(x), as_bytes(want))
    oracle.check(pair.call(pair.group.all_to_all, x), want, f"all_to_all {x.shape} {x.dtype}")


@case
def all_to_all_by_counts(pair):
    rows, row = pair.rows()
    table = [pair.ragged(rows) for _ in range(pair.size)]
    sent, received = table[pair.rank], [line[pair.rank] for line in table]
    x = pair.stuff(pair.pick(MOVED), (sum(sent), *row))
    want = np.empty((sum(received), *row), x.dtype)
    pair.comm.Alltoallv(as_bytes(x, sent), as_bytes(want, received))
    about = f"all_to_all {table} of {row} {x.dtype}"
    oracle.check(pair.call(pair.group.all_to_all, x, send_counts=sent), want, about)
    out = pair.nothing(want)
    pair.call(pair.group.all_to_all, x, out=out, send_counts=sent, recv_counts=received)
    oracle.check(out, want, f"{about}, with out")


@case
def scan(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    x = pair.numbers(op, name, (rows, *row))
    want = np.empty_like(x)
    pair.comm.Scan(x, want, theirs)
    pair.call(pair.group.scan, x, op)
    oracle.check(x, want, f"scan {op} {x.shape} {name}")


@case
def exscan(pair):
    op, theirs, name = pair.operation()
    rows, row = pair.rows()
    x = pair.numbers(op, name, (rows, *row))
    want, out = np.empty_like(x), pair.nothing(x)
    pair.comm.Exscan(x, want, theirs)
    pair.call(pair.group.exscan, x, op, out=out)
    if pair.rank:  # MPI leaves rank 0's open
        oracle.check(out, want, f"exscan {op} {x.shape} {name}")


@case
def sendrecv(pair):
    """Everybody to whoever stands so many ranks further on; there is room for more than comes."""
    shift, tag, room = (int(n) for n in pair.dice.integers([pair.size, 1000, 50]))
    counts = pair.ragged(int(pair.pick(LENGTHS)))
    target, source = (pair.rank + shift) % pair.size, (pair.rank - shift) % pair.size
    x = pair.stuff(np.dtype("<f4"), counts[pair.rank])
    want = np.full(counts[source] + room, 7, x.dtype)
    out, about = pair.placed(want), f"sendrecv {counts} to {shift} further on"
    theirs = MPI.Status()
    pair.comm.Sendrecv(as_bytes(x), target, tag + pair.rank, as_bytes(want), source, MPI.ANY_TAG, theirs)
    named = {"src": source} if pair.own.integers(2) else {}
    status = pair.group.sendrecv(x, target, out, tag=tag + pair.rank, recv_tag=arx.ANY, **named)
    oracle.check(out, want, about)
    assert heads(status) == heads(theirs), about
    pair.group.barrier()  # else the next message of a quick rank might come to one that still waits for any


def heads(status):
    """Source, tag and number of bytes, as either library says it."""
    if isinstance(status, MPI.Status):
        return status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE)
    return status.source, status.tag, status.nbytes


class Mail:
    """Messages of everybody to everybody, themselves too: the tag of the k-th from a source is source * EACH + k."""

    EACH = 3

    def __init__(self, pair):
        self.pair = pair
        self.lengths = pair.dice.choice(LENGTHS[:-1], (pair.size, pair.size, self.EACH))
        self.mine = [
            [pair.stuff(np.dtype("u1"), n, r, k) for k, n in enumerate(row)]
            for r, row in enumerate(self.lengths[pair.rank])
        ]
        self.posted = []

    def addressed(self):
        """Target, tag and content of what this rank sends."""
        for target, several in enumerate(self.mine):
            for k, x in enumerate(several):
                yield target, self.pair.rank * self.EACH + k, x

    def send(self):
        """By both; whoever sends does not wait for those who receive."""
        self.posted = [self.pair.comm.Isend([x, MPI.BYTE], target, tag) for target, tag, x in self.addressed()]
        for target, tag, x in self.addressed():
            self.pair.group.send(x, target, tag=tag)

    def receive(self, source=arx.ANY, tag=arx.ANY):
        """What arx receives by this address, and what MPI does."""
        ours, theirs = np.empty(max(LENGTHS), np.uint8), np.empty(max(LENGTHS), np.uint8)
        said = heads(self.pair.group.recv(ours, source, tag=tag))
        status = MPI.Status()
        where = [MPI.ANY_SOURCE if source is arx.ANY else source, MPI.ANY_TAG if tag is arx.ANY else tag]
        self.pair.comm.Recv([theirs, MPI.BYTE], *where, status)
        return (said, ours[: said[2]].tobytes()), (heads(status), theirs[: heads(status)[2]].tobytes())

    def end(self):
        """Nobody sends for something else before all have received this."""
        MPI.Request.Waitall(self.posted)
        self.pair.group.barrier()


@case
def mail_by_address(pair):
    """Received in an order of the receiver's: by source, by tag or by both, so that only one message fits."""
    mail = Mail(pair)
    mail.send()
    left = [(source, k) for source in range(pair.size) for k in range(mail.EACH)]
    while left:
        source, k = left[pair.own.integers(len(left))]
        tag = source * mail.EACH + k
        how = pair.own.integers(3)
        if how == 0:
            k = min(k for other, k in left if other == source)
            ours, theirs = mail.receive(source)
        else:
            ours, theirs = mail.receive(source if how == 1 else arx.ANY, tag)
        assert ours == theirs, f"{ours[0]}, not {theirs[0]}"
        assert ours[0] == (source, source * mail.EACH + k, mail.lengths[source][pair.rank][k])
        left.remove((source, k))
    mail.end()


@case
def mail_by_any(pair):
    """Received as it comes: in any order, but that of each source is kept."""
    mail = Mail(pair)
    mail.send()
    got = [mail.receive() for _ in range(pair.size * mail.EACH)]
    mail.end()
    for source in range(pair.size):
        ours, theirs = ([message for message in by if message[0][0] == source] for by in zip(*got, strict=True))
        assert ours == theirs, f"from {source}: {[m[0] for m in ours]}, not {[m[0] for m in theirs]}"
        assert len(ours) == mail.EACH


def pairs(seed):
    """The world, parts of it that are split off, and groups of some in any order."""
    world, dice = Pair(arx.world(), MPI.COMM_WORLD, [seed, 0]), np.random.default_rng([seed, 99])
    yield world
    for k in (1, 2):
        colors, keys = dice.integers(0, 3, world.size), dice.integers(0, 3, world.size)
        color, key = int(colors[world.rank]), int(keys[world.rank])
        outside = color == 2 and k == 1
        group = world.group.split(None if outside else color, key)
        comm = world.comm.Split(MPI.UNDEFINED if outside else color, key)
        assert (group is None) == (comm == MPI.COMM_NULL) == outside
        if group is not None:
            part = Pair(group, comm, [seed, k, color])
            yield part
            yield from chosen(part, np.random.default_rng([seed, 98, k, color]), [seed, 10 + k, color])
    yield from chosen(world, dice, [seed, 20])


def chosen(pair, dice, seed):
    """Some ranks of a group, in any order; only they make the new one."""
    ranks = [int(r) for r in dice.permutation(pair.size)[: dice.integers(1, pair.size + 1)]]
    if pair.rank in ranks:
        yield Pair(pair.group.new_group(ranks), pair.comm.Create_group(pair.comm.group.Incl(ranks)), seed)


def main(seed, rounds):
    tally = Counter()
    with arx.init(timeout=WATCHDOG) as world:
        assert (world.rank, world.size) == (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        for pair in pairs(seed):
            for _ in range(rounds):
                for name, compare in CASES.items():
                    compare(pair)
                    tally[name] += 1
            tally[f"groups of {pair.size}"] += 1
        everybody = MPI.COMM_WORLD.gather(tally)
        if world.rank == 0:
            print(json.dumps(sum(everybody, Counter())), flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except BaseException:
        print(f"rank {MPI.COMM_WORLD.Get_rank()}, process {os.getpid()}:\n{traceback.format_exc()}", flush=True)
        MPI.COMM_WORLD.Abort(1)  # the others may wait for this rank for ever
