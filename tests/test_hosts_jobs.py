"""Jobs over several hosts: places, many jobs at once, IPv6, very large arrays, and what goes over the wire."""

import socket

import numpy as np
import oracle
from hostranks import HostJob, at_home, on_hosts
from processes import stage
from rankside import check_usable

import arx

MIB = 1 << 20


def place():
    return arx.rank(), arx.size(), arx.local_rank(), arx.local_size(), arx.node_rank(), arx.num_nodes()


def test_everybody_knows_its_place(crew):
    assert crew("h2 h0 h1 h0 h2 h0").run(place) == [
        (0, 6, 0, 2, 0, 3),
        (1, 6, 0, 3, 1, 3),
        (2, 6, 0, 1, 2, 3),
        (3, 6, 1, 3, 1, 3),
        (4, 6, 1, 2, 0, 3),
        (5, 6, 2, 3, 1, 3),
    ]


def joins(say, times):
    for _ in range(times):
        with arx.init(timeout=60) as world:
            check_usable()
            arx.barrier()
    return world.rank, world.size


def side_by_side(sites, times):
    jobs = [HostJob(site, joins, times, port=29600 + k) for k, site in enumerate(sites)]
    try:
        return [[tuple(end) for end in job.ends()] for job in jobs]
    finally:
        for job in jobs:
            job.close()


def all_joined(p):
    return [((rank, p), 0) for rank in range(p)]


def test_jobs_over_tcp_of_one_host_do_not_meet():
    assert stage(side_by_side, [at_home(3), at_home(2), at_home(3)], 1) == [all_joined(3), all_joined(2), all_joined(3)]


def test_two_jobs_on_the_same_hosts_each_formed_several_times(lab):
    sites = [on_hosts(lab, "h0 h1 h0"), on_hosts(lab, "h0 h1 h2")]
    assert stage(side_by_side, sites, 3) == [all_joined(3), all_joined(3)]


def by_ipv6(say):
    with arx.init(timeout=60):
        check_usable()
    return "right"


def at_an_ipv6_master():
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]
    with HostJob(at_home(3), by_ipv6, env={"ARX_MASTER": f"[::1]:{port}"}) as job:
        return [tuple(end) for end in job.ends()]


def test_an_ipv6_master():
    assert stage(at_an_ipv6_master) == [("right", 0)] * 3


def large(count):
    x = np.full(count, arx.rank() + 1, np.uint8)
    x[count - 1] = 7 * (arx.rank() + 1)
    arx.all_reduce(x, algo="exchange")
    return int(x[0]), int(x[count // 2]), int(x[count - 1]), int(x.max())


def test_more_than_two_gibibytes_in_one_call(crew):
    ranks = crew("2")
    assert ranks.run(large, 2 * 1024 * MIB + 5) == [(3, 3, 21, 21)] * 2


def reduces(count, times):
    for _ in range(times):
        x = oracle.exact("sum", "float32", count, arx.rank())
        arx.all_reduce(x)
        oracle.check(x, oracle.exactly("sum", "float32", count, arx.size()), f"{count} float32")


def test_two_hosts_of_two_ranks_put_only_n_bytes_in_each_direction_on_the_wire(crew):
    count = 4 * MIB
    ranks = crew("h0 h1 h0 h1")
    ranks.run(reduces, count, 1)
    before = [crew.lab.received(host) for host in ("h0", "h1")]
    ranks.run(reduces, count, 3)
    for host, start in zip(("h0", "h1"), before, strict=True):
        came, n = crew.lab.received(host) - start, 3 * 4 * count
        assert n <= came <= 1.05 * n + 65536, f"{came / n:.3f} n bytes came to {host}"
