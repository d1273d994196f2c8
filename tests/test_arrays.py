"""What counts as an array: subclasses, buffers, mapped files, DLPack objects, torch tensors; and what does not."""

import array
import ctypes
import importlib.util
import mmap
import sys

import ml_dtypes
import numpy as np
import oracle
import pytest
from rankside import assert_refused, check_usable, outcome

import arx
from arx.testing import run_ranks

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Tagged(np.ndarray):
    """A subclass with something of its own."""


def subclass():
    x = np.full((2, 3), arx.rank() + 1.0).view(Tagged)
    x.tag = "kept"
    assert arx.all_reduce(x) is x
    assert (type(x), x.tag) == (Tagged, "kept")
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert arx.all_reduce(matrix) is matrix
    record = np.zeros(3, [("a", "<u8"), ("b", "<f4")]).view(np.recarray)
    record.a = arx.rank()
    arx.broadcast(record, 1)
    return np.asarray(x).tolist(), np.asarray(matrix).tolist(), record.a.tolist()


def test_subclasses_are_reduced_in_place_and_the_same_object_returned(ranks):
    assert ranks(2).run(subclass) == [([[3.0] * 3] * 2, [[2.0, 4.0], [6.0, 8.0]], [1, 1, 1])] * 2


BUFFERS = {
    "bytearray": lambda: bytearray([1, 2, 3]),
    "memoryview": lambda: memoryview(array.array("d", [1, 2, 3])),
    "memoryview of a slice": lambda: memoryview(array.array("i", [1, 0, 2, 0, 3]))[::2],
    "memoryview reversed": lambda: memoryview(array.array("h", [3, 2, 1]))[::-1],
    "memoryview of two axes": lambda: memoryview(bytearray([1, 2, 3, 4, 5, 6])).cast("B", (2, 3)),
    "array.array": lambda: array.array("f", [1, 2, 3]),
    "array of longs": lambda: array.array("l", [1, 2, 3]),
    "ctypes array": lambda: (ctypes.c_double * 3)(1, 2, 3),
    "ctypes array of arrays": lambda: ((ctypes.c_int32 * 2) * 2)((1, 2), (3, 4)),
    "mmap": lambda: anonymous_map([1, 2, 3]),
}


def anonymous_map(values):
    area = mmap.mmap(-1, len(values))
    area[:] = bytes(values)
    return area


def buffer(kind):
    x = BUFFERS[kind]()
    before = np.asarray(memoryview(x)).copy()
    assert arx.all_reduce(x) is x
    assert np.array_equal(np.asarray(memoryview(x)), before * 2), kind
    x = BUFFERS[kind]()
    np.asarray(memoryview(x))[...] = arx.rank() + 1
    assert arx.broadcast(x, 1) is x
    assert (np.asarray(memoryview(x)) == 2).all(), kind
    out = np.empty_like(before)
    np.asarray(memoryview(x))[...] = before
    assert arx.all_reduce(x, out=out) is out
    assert np.array_equal(out, before * 2), kind


@pytest.mark.parametrize("kind", BUFFERS)
def test_writable_buffers(ranks, kind):
    ranks(2).run(buffer, kind)


def released():
    """After the call nothing holds the buffer any more: it may be resized."""
    x = bytearray(range(16))
    arx.all_reduce(x)
    x.extend(b"more")
    y = np.arange(4.0)
    arx.all_reduce(y)
    y.resize(100, refcheck=True)
    z = array.array("d", [1.0])
    outcome(arx.all_reduce, z, "bxor")
    z.append(2.0)
    return len(x), len(y), len(z)


def test_buffers_are_released_after_the_call(ranks):
    assert ranks(2).run(released) == [(20, 100, 2)] * 2


def mapped(folder, mode):
    """all_reduce on a memory-mapped file; returns the outcome, the array, and what the file holds then."""
    path = folder / f"{mode} {arx.rank()}"
    np.full(1000, arx.rank() + 1.0).tofile(path)
    x = np.memmap(path, dtype=np.float64, mode=mode)
    result = outcome(arx.all_reduce, x)
    if mode == "r":
        check_usable()
        arx.all_reduce(x, out=np.empty(1000))
    else:
        assert result is x
        x.flush()
        result = None
    return result, set(x.tolist()), set(np.fromfile(path).tolist())


def test_a_file_mapped_for_writing(ranks, tmp_path):
    assert ranks(2).run(mapped, tmp_path, "r+") == [(None, {3.0}, {3.0})] * 2


def test_a_file_mapped_copy_on_write(ranks, tmp_path):
    assert ranks(2).run(mapped, tmp_path, "c") == [(None, {3.0}, {1.0}), (None, {3.0}, {2.0})]


def test_a_file_mapped_for_reading(ranks, tmp_path):
    for rank, (refusal, in_memory, in_file) in enumerate(ranks(2).run(mapped, tmp_path, "r")):
        assert_refused(refusal, "ValueError", "read-only")
        assert in_memory == in_file == {rank + 1.0}


class Exchanged:
    """Has CPU memory, and DLPack as the only way to it."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OldExchanged(Exchanged):
    """As libraries did before DLPack 1.0: no options, and no word on whether the memory may be written."""

    def __dlpack__(self, stream=None):
        return self.x.__dlpack__()


def exchanged(kind):
    wrap = {"new": Exchanged, "old": OldExchanged}[kind]
    world = arx.world()
    for name in ("float32", "int8", "uint64", "complex64", "float16", "bool"):
        base = oracle.values(name, 5000, world.rank)
        wrapped = wrap(base)
        owners = sys.getrefcount(base)
        assert arx.all_reduce(wrapped) is wrapped
        oracle.check(base, oracle.reduced("sum", name, 5000, world.size), f"{name} by DLPack")
        assert sys.getrefcount(base) == owners, "the capsule is given back"
    base = np.arange(24.0).reshape(4, 6)
    arx.all_reduce(wrap(base[::2, 1::2]))
    want = np.arange(24.0).reshape(4, 6)
    want[::2, 1::2] *= world.size
    assert np.array_equal(base, want)
    base = np.full(4, world.rank)
    arx.broadcast(wrap(base), 1)
    assert base.tolist() == [1] * 4
    out = np.zeros(3)
    wrapped = wrap(out)
    assert arx.all_reduce(np.ones(3), out=wrapped) is wrapped
    assert out.tolist() == [float(world.size)] * 3


@pytest.mark.parametrize("kind", ["new", "old"])
def test_dlpack_objects(ranks, kind):
    ranks(2).run(exchanged, kind)


def read_only_exchanged():
    base = np.zeros(4)
    base.flags.writeable = False
    refusal = outcome(arx.all_reduce, Exchanged(base))
    check_usable()
    return refusal


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy before 2.1 exports no read-only DLPack"
)
def test_a_read_only_dlpack_object_is_refused(ranks):
    for refusal in ranks(2).run(read_only_exchanged):
        assert_refused(refusal, "ValueError", "read-only")


class OnDevice:
    """A DLPack object whose memory is elsewhere: asking for the capsule is already a fault."""

    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        raise AssertionError("the device is known: nothing is to be exported")


class CudaInterface:
    """As numba's and older libraries' device arrays show themselves; the pointer must never be followed."""

    def __init__(self):
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (0xDEAD0000, False), "version": 3}


DEVICES = {
    "cuda": lambda: OnDevice(2),
    "rocm": lambda: OnDevice(10),
    "metal": lambda: OnDevice(8),
    "device": lambda: OnDevice(77),
    "CUDA": CudaInterface,
}


def on_device(name, everywhere):
    bad = everywhere or arx.rank() == 1
    refusals = [outcome(arx.all_reduce, DEVICES[name]() if bad else np.zeros(4, "f4"))]
    refusals.append(outcome(arx.broadcast, DEVICES[name]() if bad else np.zeros(4, "f4")))
    check_usable()
    return refusals


@pytest.mark.parametrize("name", DEVICES)
def test_device_arrays_are_refused_with_the_name_of_the_device(ranks, name):
    for refusals in ranks(2).run(on_device, name, True):
        for refusal in refusals:
            assert_refused(refusal, "TypeError", name, "CPU")
    other, odd, third = ranks(3).run(on_device, name, False)
    for refusal in odd:
        assert_refused(refusal, "TypeError", name, "CPU")
    for refusal in other + third:
        assert_refused(refusal, "MismatchError", "rank 1", name)


def bfloat16():
    """ml_dtypes arrays in every position."""
    world = arx.world()
    for count in (1, 33, 5000, 100_000):
        x = oracle.values("bfloat16", count, world.rank)
        assert x.dtype == ml_dtypes.bfloat16
        out = np.empty_like(x)
        arx.all_reduce(x, out=out)
        oracle.check(out, oracle.reduced("sum", "bfloat16", count, world.size), "out=")
        oracle.check(arx.functional.all_reduce(x, "avg"), oracle.reduced("avg", "bfloat16", count, world.size), "avg")
        symmetric = arx.empty(count, ml_dtypes.bfloat16)
        symmetric[...] = x
        arx.all_reduce(symmetric, "max")
        oracle.check(symmetric, oracle.reduced("max", "bfloat16", count, world.size), "symmetric")


@pytest.mark.parametrize("p", [1, 2, 3])
def test_bfloat16_of_ml_dtypes(ranks, p):
    ranks(p).run(bfloat16)


def other_small_types():
    found = [outcome(arx.all_reduce, np.zeros(4, dtype)) for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4)]
    check_usable()
    return found


def test_other_types_of_ml_dtypes_are_refused_by_name(ranks):
    for float8, int4 in ranks(2).run(other_small_types):
        assert_refused(float8, "TypeError", "float8_e4m3fn")
        assert_refused(int4, "TypeError", "int4")


def torch_tensors():
    """CPU tensors are reduced where they are."""
    import torch

    with arx.init() as world:
        for name in (
            "float32",
            "float64",
            "float16",
            "bfloat16",
            "int8",
            "int32",
            "int64",
            "uint8",
            "bool",
            "complex64",
        ):
            for count in (1, 1000, 100_000):
                numbers = oracle.values(name, count, world.rank)
                wide = numbers.astype(np.float32) if name == "bfloat16" else numbers
                x = torch.from_numpy(wide.copy()).to(getattr(torch, name))
                place = x.data_ptr()
                assert arx.all_reduce(x) is x
                assert x.data_ptr() == place
                got = x.to(torch.float32).numpy().astype(numbers.dtype) if name == "bfloat16" else x.numpy()
                oracle.check(got, oracle.reduced("sum", name, count, world.size), f"torch {name}")
        x = torch.arange(12.0).reshape(3, 4) * (world.rank + 1)
        arx.all_reduce(x.T)
        assert torch.equal(x, torch.arange(12.0).reshape(3, 4) * 3)
        out = torch.zeros(3)
        assert arx.all_reduce(torch.ones(3), out=out) is out
        assert arx.all_reduce(np.ones(3, "f4"), out=out) is out
        assert out.tolist() == [2.0] * 3
        b = torch.full((4,), world.rank)
        arx.broadcast(b, 1)
        new = arx.functional.all_reduce(b, "prod")
        assert (type(new), new.tolist(), b.tolist()) == (torch.Tensor, [1] * 4, [1] * 4)
        scalar = torch.tensor(world.rank + 1.0)
        arx.all_reduce(scalar)
        return b.tolist(), scalar.item()


@needs_torch
def test_torch_cpu_tensors():
    assert run_ranks(torch_tensors, 2, timeout=120) == [([1] * 4, 3.0)] * 2


def half_tensors():
    import torch

    with arx.init() as world:
        x = torch.tensor([(256.0, 1.0, 1.0, 1.0)[world.rank]], dtype=torch.bfloat16)
        y = torch.tensor([(2048.0, 1.0, 1.0, 1.0)[world.rank]], dtype=torch.float16)
        arx.all_reduce(x)
        arx.all_reduce(y)
        return x.item(), y.item()


@needs_torch
def test_torch_halves_are_summed_in_float32():
    assert run_ranks(half_tensors, 4, timeout=120) == [(260.0, 2052.0)] * 4


def odd_tensors():
    import torch

    with arx.init() as world:
        results = {}
        for name, make in {
            "meta": lambda: torch.empty(4, device="meta"),
            "sparse": lambda: torch.eye(2).to_sparse(),
            "conjugate": lambda: torch.tensor([1j]).conj(),
        }.items():
            results[name] = outcome(arx.all_reduce, make() if world.rank == 1 else torch.zeros(4))
            check_usable()
        return results


@needs_torch
def test_torch_tensors_without_plain_memory_are_refused():
    good, odd = run_ranks(odd_tensors, 2, timeout=120)
    for name in ("meta", "sparse", "conjugate"):
        assert_refused(odd[name], "TypeError", "conj" if name == "conjugate" else name)
        assert_refused(good[name], "MismatchError", "rank 1")


def gradients():
    """Parameters and their gradients, as a training step has them."""
    import torch

    with arx.init() as world:
        weight = torch.full((3,), 2.0, requires_grad=True)
        (weight * (world.rank + 1)).sum().backward()
        assert arx.all_reduce(weight.grad, "avg") is weight.grad
        assert arx.broadcast(weight, 0) is weight
        assert weight.requires_grad
        assert weight.is_leaf
        return weight.grad.tolist(), weight.tolist()


@needs_torch
def test_torch_parameters_and_gradients_are_used_in_place():
    assert run_ranks(gradients, 2, timeout=120) == [([1.5] * 3, [2.0] * 3)] * 2
