"""Where ranks on several hosts find each other: master and secret, said, computed, or missing."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from variables import (
    ARX,
    OPEN_MPI,
    PMI,
    POD,
    SECRET,
    SLURM,
    TORCHRUN,
    TWO_ARX,
    TWO_OPEN_MPI,
    TWO_OPEN_MPI_4,
    TWO_PMI,
    TWO_SLURM,
    TWO_TORCHRUN,
    without,
)

from arx.errors import InitError
from arx.launch import families
from arx.launch.detect import detect, explain
from arx.launch.master import candidates
from arx.launch.place import Place


@pytest.mark.parametrize(
    ("env", "where", "master"),
    [
        (TWO_ARX, (3, 4, 1, 2, 1, 2), "h0:29500"),
        (without(TWO_ARX, "ARX_LOCAL_RANK", "ARX_LOCAL_SIZE"), (3, 4, None, None, 1, 2), "h0:29500"),
        (without(TWO_ARX, "ARX_NODE_RANK", "ARX_NNODES"), (3, 4, 1, 2, None, None), "h0:29500"),
        (POD, (3, 4, None, None, None, None), "train-0.train:29500"),
        (POD | {"ARX_MASTER": "[fd00::7]:1,h0:65535"}, (3, 4, None, None, None, None), "[fd00::7]:1,h0:65535"),
        (TWO_TORCHRUN | {"ARX_MASTER": "h9:7"}, (1, 3, 0, 1, 1, 3), "h9:7"),
        (TWO_PMI | SECRET | {"ARX_JOB_ID": "j", "ARX_MASTER": "h9:7"}, (1, 3, 1, 2, None, None), "h9:7"),
        (TWO_OPEN_MPI | {"ARX_MASTER": "h9:7"}, (1, 3, 1, 2, None, None), "h9:7"),
        (TWO_SLURM | {"ARX_MASTER": "h9:7"}, (1, 3, 1, 2, 0, 2), "h9:7"),
        # no secret needed where nobody can come from outside
        (without(TWO_ARX, "ARX_SECRET") | {"ARX_MASTER": "127.0.0.2:5"}, (3, 4, 1, 2, 1, 2), "127.0.0.2:5"),
        (without(TWO_ARX, "ARX_SECRET") | {"ARX_MASTER": "[::1]:5"}, (3, 4, 1, 2, 1, 2), "[::1]:5"),
    ],
)
def test_places_on_several_hosts(env: dict[str, str], where: tuple[object, ...], master: str) -> None:
    place = detect(env)
    assert astuple(place)[:6] == where
    assert (place.master, place.secret) == (master, env.get("ARX_SECRET"))
    assert not place.one_host


def hosts_and_ports(master: str | None) -> tuple[set[str], list[int]]:
    assert master is not None
    pairs = [part.rsplit(":", 1) for part in master.split(",")]
    return {host for host, _ in pairs}, [int(port) for _, port in pairs]


@pytest.mark.parametrize(
    ("env", "host", "other"),
    [
        (TWO_TORCHRUN, "h0", {"TORCHELASTIC_RUN_ID": "x"}),
        (without(TWO_TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"), "h0", {}),
        (TWO_OPEN_MPI, "node-a", {"PMIX_NAMESPACE": "prterun-node-a-4712@1"}),
        (TWO_OPEN_MPI_4, "192.0.2.7", {"OMPI_MCA_orte_hnp_uri": "2.0;tcp://192.0.2.7:41235"}),
        (TWO_SLURM, "n07", {"SLURM_STEP_ID": "4"}),
    ],
)
def test_where_only_the_host_of_rank_0_is_known_all_ranks_try_the_same_ports(
    env: dict[str, str], host: str, other: dict[str, str]
) -> None:
    hosts, ports = hosts_and_ports(detect(env).master)
    assert hosts == {host}
    assert len(set(ports)) == 8
    assert all(20000 <= port < 32000 for port in ports)
    assert detect(env).secret == "5ec2e7"
    if other:
        assert hosts_and_ports(detect(env | other).master)[1] != ports


def test_the_port_of_torchruns_store_is_never_among_the_candidates() -> None:
    _, ports = hosts_and_ports(candidates("h0", "any"))
    hosts, others = hosts_and_ports(candidates("h0", "any", without=ports[0]))
    assert hosts == {"h0"}
    assert others[:7] == ports[1:]
    assert ports[0] not in others
    for store in range(20000, 20100):
        env = TWO_TORCHRUN | {"MASTER_PORT": str(store)}
        assert store not in hosts_and_ports(detect(env).master)[1]


def test_the_ports_that_the_user_allows_are_kept_to() -> None:
    def ports(env: dict[str, str]) -> list[int]:
        return hosts_and_ports(detect(env | {"ARX_PORT_RANGE": "29500-29502"}).master)[1]

    for env in (TWO_TORCHRUN | {"MASTER_PORT": "29400"}, TWO_OPEN_MPI, TWO_OPEN_MPI_4, TWO_SLURM):
        assert sorted(ports(env)) == [29500, 29501, 29502]
    assert sorted(ports(ARX | {"ARX_TRANSPORT": "tcp"})) == [29500, 29501, 29502]
    assert sorted(ports(TWO_TORCHRUN | {"MASTER_PORT": "29501"})) == [29500, 29502]
    with pytest.raises(InitError, match="no other port than 7"):
        candidates("h0", "any", range(7, 8), without=7)
    for wrong in ("29500", "0-5", "9-8", "1-65536", "a-b", "-"):
        with pytest.raises(InitError, match="is not of the form FIRST-LAST"):
            detect(TWO_SLURM | {"ARX_PORT_RANGE": wrong})


def test_rank_0_under_open_mpi_knows_whether_it_is_on_mpiruns_host(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = {"OMPI_COMM_WORLD_RANK": "0"}
    assert detect(TWO_OPEN_MPI | zero | {"PMIX_HOSTNAME": "node-a"}).master == detect(TWO_OPEN_MPI).master
    monkeypatch.setattr(families, "_is_mine", lambda address: address == "192.0.2.7")
    assert detect(TWO_OPEN_MPI_4 | zero).master == detect(TWO_OPEN_MPI_4).master


def test_the_master_as_an_argument() -> None:
    place = detect({}, rank=1, world_size=2, master="h0:7", secret="s3")
    assert place == Place(1, 2, None, None, None, None, "master h0:7", "arguments of init()", "h0:7", "s3")
    assert detect({"ARX_SECRET": "from the shell", "ARX_MASTER": "h1:8"}, rank=1, world_size=2).master == "h1:8"
    assert detect(TWO_SLURM, master="h0:7", secret="s3").secret == "s3"
    for wrong in ("h0", "h0:", ":7", "h0:x", "", "a b:7"):
        with pytest.raises(InitError, match=r"master=.* is not of the form HOST:PORT"):
            detect({}, rank=1, world_size=2, master=wrong)


@pytest.mark.parametrize("env", [ARX, TORCHRUN, OPEN_MPI, SLURM, PMI | {"ARX_JOB_ID": "j"}])
def test_one_host_needs_a_master_for_tcp_only_and_it_is_a_loopback_one(env: dict[str, str]) -> None:
    assert detect(env).master is None
    assert detect(env | {"ARX_MASTER": "h0:7"}).master is None or env is ARX
    place = detect(env, transport="tcp")
    hosts, ports = hosts_and_ports(place.master)
    assert hosts == {"127.0.0.1"}
    assert place == detect(env | {"ARX_TRANSPORT": "tcp"})
    assert hosts_and_ports(detect(env, transport="tcp", job_id="other").master)[1] != ports
    assert detect(env, transport="shm").master is None
    assert detect({}, transport="tcp").master is None  # a world of one


def test_the_secret_is_not_shown() -> None:
    assert "5ec2e7" not in repr(detect(TWO_ARX))
    assert "5ec2e7" not in explain(TWO_ARX)
    assert "master h0:29500, with a secret\n" in explain(TWO_ARX)
