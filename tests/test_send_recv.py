"""send, recv and sendrecv: what arrives, in which order, and what happens when it does not.

Over shared memory, over TCP on this host, and between hosts; every number says who sent it, and which it was.
"""

import os
import signal
import time

import numpy as np
import oracle
import pytest
from processes import Job, fault, stage
from rankside import assert_refused, check_usable, filled, outcome

import arx
from arx.testing import run_ranks

# In the memory that ranks share, over TCP on this host, both.
SITES = ["2", "4", "h0 h1", "h0 h1 h0 h1"]
LENGTHS = (0, 1, 7, 1000, 300_000)
RECORD = np.dtype([("a", "<u8"), ("b", "<f4"), ("c", "S3")])
OTHERS = [RECORD, np.dtype("U4"), np.dtype("S5"), np.dtype("M8[ns]")]


SHARED = [f"shared {p}" for p in (1, 2, 3, 5)]


def values(name, count, source, target, number=0):
    return oracle.values(name, count, source, seed=target * 7 + number)


# What arrives


def everybody_to_everybody(memory):
    """In turns: rank s sends to all, itself too, and then the next one does."""
    world = arx.world()
    for name in ("float64", "bool", "bfloat16", "complex64"):
        for count in LENGTHS:
            for source in range(world.size):
                if world.rank == source:
                    for target in range(world.size):
                        x = filled(memory, values(name, count, source, target), source)
                        assert arx.send(x, target, tag=count) is None
                out = filled(memory, values(name, count, 99, 99), world.rank)
                status = arx.recv(out, source, tag=count)
                want = values(name, count, source, world.rank)
                assert out.tobytes() == want.tobytes(), f"{count} {name} from {source}"
                assert (status.source, status.tag, status.nbytes) == (source, count, want.nbytes)
                assert status.count(want.dtype) == count
    check_usable()


@pytest.mark.parametrize("memory", ["private", "symmetric"])
@pytest.mark.parametrize("where", SHARED + SITES)
def test_every_length_and_pair(run, where, memory):
    run(where, everybody_to_everybody, memory)


def made_of(dtype, count, rank):
    raw = oracle.values("uint8", count * dtype.itemsize, rank)
    if dtype.kind == "U":
        raw = (raw % 26 + ord("A")).astype(np.uint8).view(np.uint8)
        return np.array(["".join(map(chr, raw[k : k + 4])) for k in range(count)], dtype)
    return raw.view(dtype)


def bytes_of_any_kind():
    me = arx.rank()
    for dtype in OTHERS:
        x = made_of(dtype, 50, me)
        out = made_of(dtype, 50, 9)
        arx.sendrecv(x, 1 - me, out)
        assert out.tobytes() == made_of(dtype, 50, 1 - me).tobytes(), dtype


@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_structured_strings_and_dates_move_byte_for_byte(run, where):
    run(where, bytes_of_any_kind)


def layouts():
    """Strides of sender and receiver differ; elements are matched by index."""
    me = arx.rank()
    whole = values("int32", 240, me, 0).reshape(12, 20)
    want = values("int32", 240, 1 - me, 0).reshape(12, 20)
    for give, take in [
        (np.asfortranarray(whole), np.zeros((12, 20), np.int32)),
        (whole, np.zeros((20, 12), np.int32).T),
        (whole.copy()[::-1][::-1], np.zeros((24, 20), np.int32)[::-2]),
    ]:
        arx.sendrecv(give, 1 - me, take, 1 - me)
        np.testing.assert_array_equal(take, want)
    x = whole.copy()
    x.flags.writeable = False
    out = np.zeros_like(whole)
    arx.sendrecv(x, 1 - me, out, 1 - me)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_any_layout_on_either_side(run, where):
    run(where, layouts)


def shorter():
    me = arx.rank()
    x = np.arange(5, dtype=np.int16) + 10 * me
    out = np.full((2, 4), -1, np.int16)[:, ::-1]
    status = arx.sendrecv(x, 1 - me, out, 1 - me)
    want = [10 * (1 - me) + k for k in range(5)]
    assert out.ravel().tolist() == [*want, -1, -1, -1]
    assert (status.nbytes, status.count("i2"), status.count(np.uint8)) == (10, 5, 10)
    assert repr(status) == f"Status(source={1 - me}, tag=0, nbytes=10)"
    return outcome(status.count, np.float64), outcome(status.count, "V0")


@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_a_message_may_be_shorter_than_its_place(run, where):
    for refusals in run(where, shorter):
        for refusal in refusals:
            assert_refused(refusal, "ValueError", "10 bytes")


def longer(count):
    me = arx.rank()
    refusals = []
    for early in (True, False):
        if me == 0:
            if not early:
                arx.recv(np.zeros(1), 1)
            arx.send(np.ones(count, np.uint8), 1, tag=4)
            arx.send(np.array([7.0]), 1, tag=4)
            if early:
                arx.send(np.zeros(1), 1, tag=9)
        else:
            if early:
                arx.recv(np.zeros(1), 0, tag=9)
            else:
                arx.send(np.zeros(1), 0)
            refusals.append(outcome(arx.recv, np.zeros(3, np.uint8), 0, tag=4))
            out = np.zeros(1)
            arx.recv(out, 0, tag=4)
            assert out[0] == 7.0, "the next message"
    check_usable()
    return refusals


@pytest.mark.parametrize("count", [4, 17, 3_000_000])
@pytest.mark.parametrize("where", ["shared 2", "2"])
def test_a_message_that_is_too_long_is_dropped_and_the_error_says_both_lengths(run, where, count):
    _, refusals = run(where, longer, count)
    assert len(refusals) == 2
    for refusal in refusals:
        assert_refused(refusal, "MismatchError", f"{count} bytes", "room for 3", "rank 0", "tag 4")


# In which order


def by_tag():
    me = arx.rank()
    if me == 0:
        for number in range(20):
            for tag in (5, 6):
                arx.send(np.array([number, tag]), 1, tag=tag)
        arx.send(np.array([99, 2**32 - 1]), 1, tag=2**32 - 1)
    elif me == 1:
        out = np.zeros(2, np.int64)
        assert arx.recv(out, 0, tag=2**32 - 1).tag == 2**32 - 1
        for tag in (6, 5):
            for number in range(10):
                arx.recv(out, 0, tag=tag)
                assert out.tolist() == [number, tag]
        for number in range(10, 20):
            for tag in (5, 6):
                assert arx.recv(out, arx.ANY).tag == tag, "of those that are left, in the order of sending"
                assert out.tolist() == [number, tag]
    check_usable()


@pytest.mark.parametrize("where", ["shared 2", *SITES])
def test_messages_of_one_tag_come_in_order_and_others_may_be_asked_for_first(run, where):
    run(where, by_tag)


def from_anybody(count):
    world = arx.world()
    if world.rank == 0:
        seen = np.zeros(world.size, np.int64)
        out = np.zeros(3000, np.int64)
        for _ in range(count * (world.size - 1)):
            status = arx.recv(out)
            assert out[0] == status.source
            assert out[1] == seen[status.source], "in the order of sending"
            assert status.tag == out[1] % 3
            seen[status.source] += 1
        assert seen.tolist() == [0] + [count] * (world.size - 1)
    else:
        for number in range(count):
            arx.send(np.array([world.rank, number] + [0] * (number * 13 % 2998)), 0, tag=number % 3)
    check_usable()


@pytest.mark.parametrize("where", ["shared 2", "shared 5", *SITES])
def test_from_anybody_with_any_tag(run, where):
    run(where, from_anybody, 200)


def crosswise(nbytes):
    """All send much to all before anybody receives."""
    world = arx.world()
    others = [rank for rank in range(world.size) if rank != world.rank]
    for other in others:
        arx.send(values("uint8", nbytes, world.rank, other), other)
    for other in others:
        out = np.zeros(nbytes, np.uint8)
        arx.recv(out, other)
        oracle.check(out, values("uint8", nbytes, other, world.rank), f"from {other}")
    check_usable()


@pytest.mark.parametrize("where", ["shared 2", "shared 3", *SITES])
def test_ranks_that_send_much_to_each_other_before_they_receive(run, where):
    run(where, crosswise, 5_000_001)


def around():
    world = arx.world()
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for count in LENGTHS:
        x = values("int64", count, world.rank, 0)
        for step in range(1, world.size + 1):
            arx.sendrecv(x, right, x, left, tag=step)
            oracle.check(x, values("int64", count, (world.rank - step) % world.size, 0), f"step {step}")
        shifted = values("int64", count + 5, world.rank, 1)
        arx.sendrecv(shifted[:count], right, shifted[5:], arx.ANY, tag=3, recv_tag=arx.ANY)
        oracle.check(shifted[5:], values("int64", count + 5, left, 1)[:count], "overlapping")
    check_usable()


@pytest.mark.parametrize("where", SHARED + SITES)
def test_sendrecv_passes_arrays_around_in_place(run, where):
    run(where, around)


def among_collectives():
    """Messages and collectives do not know of each other."""
    world = arx.world()
    if world.size > 1:
        if world.rank == 0:
            arx.send(np.arange(5), 1, tag=1)
        check_usable()
        if world.rank == 1:
            out = np.zeros(5, np.int64)
            arx.recv(out, 0)
            assert out.tolist() == [0, 1, 2, 3, 4]
    arx.barrier()


@pytest.mark.parametrize("where", ["shared 3", *SITES])
def test_messages_and_collectives_in_any_order(run, where):
    run(where, among_collectives)


def in_a_group():
    world = arx.world()
    group = arx.new_group([3, 1], name="odd")
    if group is None:
        return None
    x = np.array([float(world.rank)])
    arx.send(np.array([-1.0]), group.ranks[1 - group.rank])
    if group.rank == 0:
        group.send(x, 1, tag=2)
        arx.send(x + 1, 1, tag=2, group=group)
        refusal = outcome(group.send, x, 2)
    else:
        out = np.zeros(1)
        status = group.recv(out)
        assert (status.source, status.tag, out[0]) == (0, 2, 3.0), "ranks of the group, its own messages"
        arx.recv(out, 0, tag=2, group=group)
        assert out[0] == 4.0
        refusal = outcome(group.recv, out, 2)
    out = np.zeros(1)
    arx.recv(out, group.ranks[1 - group.rank])
    assert out[0] == -1.0, "of the world"
    group.barrier()
    return refusal


@pytest.mark.parametrize("where", ["shared 4", "4", "h0 h1 h0 h1"])
def test_messages_in_a_group(run, where):
    results = run(where, in_a_group)
    assert [results[0], results[2]] == [None, None]
    for refusal in (results[1], results[3]):
        assert_refused(refusal, "ValueError", "2 is not a rank", "0 to 1")


# What is refused


def refusals():
    x, out = np.zeros(3), np.zeros(3)
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    found = [
        outcome(arx.send, x, 2),
        outcome(arx.send, x, -1),
        outcome(arx.send, x, arx.ANY),
        outcome(arx.send, x, 0, tag=-1),
        outcome(arx.send, x, 0, tag=2**32),
        outcome(arx.send, x, 0, tag=arx.ANY),
        outcome(arx.send, np.array([object()]), 0),
        outcome(arx.send, 1.5, 0),
        outcome(arx.send, x, 0, group="world"),
        outcome(arx.recv, out, 2),
        outcome(arx.recv, out, 0.5),
        outcome(arx.recv, out, tag="a"),
        outcome(arx.recv, read_only),
        outcome(arx.recv, out, timeout=-1),
        outcome(arx.recv, out, arx.rank(), tag=77),
    ]
    check_usable()
    return found


def test_arguments_that_cannot_be_are_refused_here_and_nobody_else_hears_of_it(ranks):
    kinds = ["ValueError", "ValueError", "TypeError", "ValueError", "ValueError", "TypeError", "TypeError", "TypeError"]
    kinds += ["TypeError", "ValueError", "TypeError", "TypeError", "ValueError", "ValueError", "ValueError"]
    for found in ranks(2).run(refusals):
        for refusal, kind in zip(found, kinds, strict=True):
            assert_refused(refusal, kind)
        assert_refused(found[-1], "ValueError", "of its own")
    assert repr(arx.ANY) == "arx.ANY"


def before_init():
    return [outcome(arx.send, np.zeros(1), 0), outcome(arx.recv, np.zeros(1)), outcome(arx.sendrecv, np.zeros(1), 0, 0)]


def test_before_init():
    for refusal in run_ranks(before_init, 1)[0]:
        assert_refused(refusal, "InitError", "arx.init")


# What goes wrong

TCP = {"ARX_TRANSPORT": "tcp"}


def joined(say, env):
    os.environ |= env
    world = arx.init(timeout=100)
    say("joined")
    return world


def waiting(say, env, call):
    world = joined(say, env)
    world.barrier()
    if world.rank == 2:
        # Ranks 0 and 1 are past the barrier as well, whatever happens now.
        world.barrier()
        say("ready")
        time.sleep(600)
    world.barrier()
    say("ready")
    if call == "send":
        x = np.zeros(64 << 20, np.uint8)
        return fault(arx.send, x, 2)
    src = {"recv": 2, "any": arx.ANY}[call]
    if call == "any" and world.rank == 1:
        return None
    return fault(arx.recv, np.zeros(3), src)


def killed(env, call):
    with Job(3, waiting, env, call) as job:
        job.hear("ready")
        if call == "any":
            job.ends([1])
        time.sleep(0.1)
        job.signal(2, signal.SIGKILL)
        return job.ends([0, 1])


@pytest.mark.parametrize("call", ["send", "recv"])
@pytest.mark.parametrize("env", [{}, TCP])
def test_a_rank_that_dies_is_named(env, call):
    for end in stage(killed, env, call):
        assert (end.result.kind, end.result.ranks) == ("PeerLostError", (2,)), end
        assert "The group is closed" in end.result.text


@pytest.mark.parametrize("env", [{}, TCP])
def test_nobody_is_left_who_could_send(env):
    first, _ = stage(killed, env, "any")
    assert first.result.kind == "PeerLostError", first
    assert 2 in first.result.ranks or 1 in first.result.ranks


def waits_for_another(say, source):
    """Rank 0 for anybody or rank 1, which waits for rank 0; rank 2 does nothing."""
    world = joined(say, {})
    say("ready")
    if world.rank == 2:
        time.sleep(600)
    return fault(arx.recv, np.zeros(3), source if world.rank == 0 else 0)


def killed_beside(source):
    with Job(3, waits_for_another, source) as job:
        job.hear("ready")
        job.asleep([0, 1])
        job.signal(2, signal.SIGKILL)
        return job.ends([0, 1])


@pytest.mark.parametrize("source", [1, arx.ANY])
def test_a_rank_that_dies_ends_the_waits_of_those_who_wait_for_others(source):
    for end in stage(killed_beside, source):
        assert (end.result.kind, end.result.ranks) == ("PeerLostError", (2,)), end


def leaves(say, env, apart, gone):
    world = joined(say, env)
    # Rank 1 provides the memory of this group, and is the first to be done with it.
    group, source = (arx.new_group([1, 0]), 0) if apart else (world, 1)
    if world.rank == 1:
        group.send(np.array([4.0]), 1 - source)
        return None
    while not gone.exists():
        time.sleep(0.01)
    out = np.zeros(1)
    status = group.recv(out, source)
    assert (status.source, out[0]) == (source, 4.0), "what was sent before arrives"
    return fault(group.recv, out, source)


def left(env, apart, gone):
    with Job(2, leaves, env, apart, gone) as job:
        job.ends([1])
        gone.touch()
        return job.ends()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("env", [{}, TCP])
def test_what_a_rank_sent_before_it_left_arrives(env, apart, tmp_path):
    first, second = stage(left, env, apart, tmp_path / "gone")
    assert (first.code, second.code) == (0, 0), first
    assert (first.result.kind, first.result.ranks) == ("PeerLostError", (1,)), first


def too_late(say, env):
    world = joined(say, env)
    found = None
    if world.rank == 0:
        at = time.monotonic()
        found = [
            fault(arx.recv, np.zeros(1), 1, tag=8, timeout=0.3),
            fault(arx.recv, np.zeros(1), 1),
            time.monotonic() - at,
        ]
        say("over")
    else:
        time.sleep(2)
    return found


def timed_out(env):
    with Job(2, too_late, env) as job:
        return job.ends()[0]


@pytest.mark.parametrize("env", [{}, TCP])
def test_a_time_out_names_who_did_not_send_and_closes_the_group(env):
    first, second, waited = stage(timed_out, env).result
    assert (first.kind, first.ranks) == ("CollectiveTimeout", (1,))
    assert "recv(src=1, tag=8)" in first.text
    assert second.kind == "CollectiveTimeout", "it stays closed"
    assert waited >= 0.3


def interrupted(say, env):
    world = joined(say, env)
    world.barrier()
    if world.rank == 0:
        say("waits")
        try:
            arx.recv(np.zeros(1))
        except KeyboardInterrupt:
            return fault(arx.recv, np.zeros(1)), None
    return None, fault(world.barrier, timeout=50)


def ctrl_c(env):
    with Job(2, interrupted, env) as job:
        job.hear("waits", [0])
        job.asleep([0])
        job.signal(0, signal.SIGINT)
        return job.ends()


@pytest.mark.parametrize("env", [{}, TCP])
def test_ctrl_c_ends_a_recv(env):
    first, second = stage(ctrl_c, env)
    assert first.result[0].kind == "AbortedError", first
    assert "interrupted" in first.result[0].text
    assert second.result[1].kind in ("AbortedError", "PeerLostError"), second


def source_leaves(say, env):
    """What rank 0 sends is not received until it has said that it will never receive what it waits for."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    world = joined(say, env)
    if world.rank == 2:
        arx.send(np.zeros(1), 0, tag=3)
    if world.rank == 0:
        arx.recv(np.zeros(1), 2, tag=3)
    world.barrier()
    if world.rank > 0:
        signal.sigwait({signal.SIGUSR1})
        return None
    say("waits")
    found = fault(arx.sendrecv, np.zeros(3_000_000), 1, np.zeros(3), 2)
    say("raised")
    return found


def without_a_source(env):
    found = []
    for _ in range(4):
        with Job(3, source_leaves, env) as job:
            job.hear("waits", [0])
            job.asleep([0])
            job.signal(2, signal.SIGUSR1)
            job.hear("raised", [0])
            job.signal(1, signal.SIGUSR1)
            found.append(job.ends()[0].result)
    return found


@pytest.mark.parametrize("env", [{}, TCP, {"ARX_TUNE": "kernel=50000"}])
def test_a_sendrecv_whose_source_has_left_does_not_wait_to_send(env):
    for found in stage(without_a_source, env):
        assert (found.kind, found.ranks) == ("PeerLostError", (2,)), found
