"""What `init` refuses before it looks for anyone."""

import pytest

import arx


@pytest.mark.parametrize("name", ["master", "secret", "transport", "job_id"])
@pytest.mark.parametrize("value", [29500, b"h0:1", ["h0:1"], True])
def test_texts_must_be_texts(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a string, not {type(value).__name__}"):
        arx.init(rank=0, world_size=2, **{name: value})


@pytest.mark.parametrize("master", ["h0", "h0:", ":29500", "h0:65536", "h0:-1", "fd00::7:1", "h0:1;h1:1", ""])
def test_a_master_has_a_host_and_a_port(master):
    with pytest.raises(arx.InitError, match=r"is not of the form HOST:PORT, such as node7:29500 or \[fd00::7\]:29500"):
        arx.init(rank=0, world_size=2, master=master, secret="s")


def test_other_hosts_need_a_secret():
    with pytest.raises(arx.InitError, match="which let nobody in without a secret: set ARX_SECRET"):
        arx.init(rank=0, world_size=2, master="h0:29500")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ARX_TRANSPORT", "rdma", "ARX_TRANSPORT='rdma' is not one of auto, shm, tcp"),
        ("ARX_PORT_RANGE", "29500", "ARX_PORT_RANGE='29500' is not of the form FIRST-LAST"),
        ("ARX_PORT_RANGE", "9-8", "ARX_PORT_RANGE='9-8' is not of the form FIRST-LAST"),
        ("ARX_MASTER", "h0", "ARX_MASTER='h0' is not of the form HOST:PORT"),
    ],
)
def test_settings_that_cannot_be(monkeypatch, variable, value, told):
    monkeypatch.setenv(variable, value)
    with pytest.raises(arx.InitError) as error:
        arx.init(rank=0, world_size=2, job_id="j")
    assert told in str(error.value)


def test_a_range_of_ports_that_is_too_small_says_how_many_are_needed(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "4", "TRANSPORT": "tcp", "JOB_ID": "j"}
    for name, value in place.items():
        monkeypatch.setenv(f"ARX_{name}", value)
    monkeypatch.setenv("ARX_PORT_RANGE", "41000-41005")
    with pytest.raises(arx.InitError, match="41000-41005 has 6 ports, and 4 ranks on this host need at least 7"):
        arx.init()


def test_a_transport_that_does_not_exist_or_does_not_reach():
    with pytest.raises(arx.InitError, match="transport='ib' is not one of auto, shm, tcp"):
        arx.init(transport="ib")
    with pytest.raises(arx.InitError, match="transport shm is memory that all ranks share, but the 2 ranks"):
        arx.init(rank=0, world_size=2, master="h0:1", secret="s", transport="shm")


@pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])
def test_a_world_of_one_needs_nothing(transport):
    with arx.init(transport=transport, master="h0:1") as world:
        assert (world.size, arx.num_nodes(), arx.local_size()) == (1, 1, 1)
