"""Compression among hosts of several ranks: only sums of hosts travel, and each of those is one contribution."""

import itertools

import numpy as np
import oracle
import pytest
import squeezed
from test_feedback import conserves

import arx
from arx.compression import Pipeline

F = np.float32
SITES = ["h0 h1", "h0 h1 h0", "h0 h0 h1 h1", "h0 h0 h1 h2 h2 h2", "h0 h1 h2 h1 h0 h2"]
# From 64 KiB on, hosts of two ranks and more send two parts.
COUNTS = (1, 7, 1000, 5000, 70_000)


def by_host(nodes, count, dtype=F):
    """What each rank brings, and the sum of each host in the order of its ranks."""
    ranks = [oracle.values("float32", count, rank, seed=count).astype(dtype) for rank in range(arx.size())]
    wide = [x.astype(F) for x in ranks]
    return ranks, [oracle.expected("sum", [wide[rank] for rank in node]) for node in nodes]


def dense(nodes, codec):
    size, me = arx.size(), arx.rank()
    for count in COUNTS:
        for dtype in (F, np.float16, np.float64):
            ranks, hosts = by_host(nodes, count, dtype)
            for op in ("sum", "avg"):
                x = ranks[me].copy()
                assert arx.all_reduce(x, op, compression=Pipeline(codec, error_feedback=False)) is x
                want = squeezed.summed(codec, hosts, op, size).astype(dtype)
                oracle.check(x, want, f"{codec} {op} of {count} {x.dtype}, hosts {nodes}")


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("where", SITES)
def test_each_host_is_one_contribution(crew, where, codec):
    crew(where).run(dense, crew.site(where).nodes, codec)


def parts_of(nodes, count, k):
    """Where each of the parts begins that hosts send, how many of its elements, and the end of all."""
    shards = min(min(map(len, nodes)), max(1, 4 * count // (32 << 10)))
    grains = -(-count // 16)
    edges = [min(count, grains * part // shards * 16) for part in range(shards + 1)]
    return [(a, b, k * b // count - k * a // count) for a, b in itertools.pairwise(edges)]


def top(nodes, how):
    size, me = arx.size(), arx.rank()
    for count in COUNTS:
        for k in (1, count // 50 or 1):
            codec = f"topk:{k}" + ("" if how == "fp32" else f"+{how}")
            ranks, hosts = by_host(nodes, count)
            pieces = [
                squeezed.scattered(
                    [host[a:b] for host in hosts],
                    [squeezed.top(host[a:b], share) for host in hosts],
                    size=size,
                    how=how,
                )
                for a, b, share in parts_of(nodes, count, k)
            ]
            x = ranks[me].copy()
            arx.all_reduce(x, compression=Pipeline(codec, error_feedback=False))
            oracle.check(x, np.concatenate(pieces), f"{codec} of {count}, hosts {nodes}")


@pytest.mark.parametrize("how", ["fp32", "int8"])
@pytest.mark.parametrize("where", SITES)
def test_each_host_sends_its_largest_sums(crew, where, how):
    crew(where).run(top, crew.site(where).nodes, how)


def agree(codec, count):
    """The bits of the result, and what the kept residuals belong to."""
    pipeline = Pipeline(codec, error_feedback=True)
    for step in range(3):
        x = oracle.values("float32", count, arx.rank(), seed=step).reshape(50, -1)
        arx.all_reduce(x, "avg", compression=pipeline, name="w")
    state = pipeline.state_dict()["w"]
    return oracle.digest(x), state["start"], state["start"] + len(state["residual"])


@pytest.mark.parametrize("codec", ["int4", "topk:0.01:shared", "randomk:0.05+fp16", "threshold:3.0", "powersgd:2"])
@pytest.mark.parametrize("where", SITES)
def test_all_ranks_have_the_same_bits(crew, where, codec):
    for count in (3000, 100_000):
        told = crew(where).run(agree, codec, count)
        assert len({digest for digest, _, _ in told}) == 1, told
        if codec.startswith("powersgd"):
            continue
        for node in crew.site(where).nodes:
            kept = sorted(told[rank][1:] for rank in node)
            parts = [part for part in kept if part[0] != part[1]]
            assert [parts[0][0], parts[-1][1]] == [0, count]
            assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))


@pytest.mark.parametrize("codec", ["fp16", "int4", "topk:0.05+int8", "topk:7:shared", "randomk:0.1", "powersgd:2"])
@pytest.mark.parametrize("where", ["h0 h0 h1 h1", "h0 h0 h1 h2 h2 h2"])
def test_nothing_is_lost(crew, where, codec):
    for seed, shape in enumerate([(40, 30), (200, 250), (1,)]):
        crew(where).run(conserves, codec, shape, seed, 0, 4)
