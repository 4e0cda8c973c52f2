"""Kernels launched on arrays of a GPU that is not there: compiled for it, and handed to a launcher that takes notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.errors import LaunchError
from tilewright.ir.types import TensorMapType
from tilewright.launch import cuda, hooks
from tilewright.launch.arguments import classify
from tilewright.runtime.cuda import memory, streams
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.gpu_program import Program
from tilewright.settings import settings

GPUS = [Device(number, "a GPU", (9, 0), 132, 50 << 20, 1 << 30, 227 << 10, True) for number in range(2)]


class Array:
    """An array on a GPU as another library would have it."""

    def __init__(self, address: int, ordinal: int = 0, stream: int | None = 7, dtype: str = "<f4") -> None:
        self.dtype = np.dtype(dtype)
        self.address = address + (ordinal << 40)
        self.__cuda_array_interface__ = {
            "data": (self.address, False),
            "shape": (64, 64),
            "strides": None,
            "typestr": dtype,
            "version": 3,
            "stream": stream,
        }


class Launches(list[tuple[Any, ...]]):
    """What a launcher was told."""

    def launcher(self, program: Program, gpu: Device) -> Any:
        return lambda *values: self.append((program.name, gpu.ordinal, *values))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launches]:
    found = Launches()
    monkeypatch.setattr(cuda, "launcher", found.launcher)
    monkeypatch.setattr(cuda, "device", lambda ordinal: GPUS[ordinal])
    monkeypatch.setattr(memory, "_ordinal", lambda address: address >> 40)
    with settings.scope(cache_directory=tmp_path):
        yield found


def make_scale() -> Any:
    @tilewright.jit
    def scale(x, result, factor, count, BLOCK: tl.constexpr):
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = index < count
        tl.store(result + index, tl.load(x + index, mask=mask) * factor, mask=mask)

    return scale


def test_launches_go_to_the_gpu_and_the_stream_of_the_arrays(launches: Launches) -> None:
    scale = make_scale()
    x, result = Array(4096), Array(8192)
    kernel = scale[(3, 2)](x, result, 2.5, 100, BLOCK=64)
    assert launches == [("scale", 0, 3, 2, 1, 7, 4096, 8192, 2.5, 100)]
    assert isinstance(kernel, cuda.CudaKernel) and kernel.target.architecture == "sm_90a"
    assert scale[(1,)](x, result, 0.5, 100, BLOCK=64) is kernel
    there = scale[lambda meta: (meta["BLOCK"],)](Array(4096, 1, 9), Array(8192, 1, 9), 2.5, 100, BLOCK=64)
    assert launches[-1][:6] == ("scale", 1, 64, 1, 1, 9)
    assert there is not kernel and there.hash == kernel.hash


def test_options_make_code_of_their_own(launches: Launches) -> None:
    scale, x = make_scale(), Array(4096)
    few = scale[(1,)](x, x, 2.5, 100, BLOCK=64, num_warps=1)
    many = scale[(1,)](x, x, 2.5, 100, BLOCK=64, num_warps=4)
    assert (few.metadata.num_warps, many.metadata.num_warps) == (1, 4)
    assert scale[(1,)](x, x, 2.5, 100, BLOCK=64, num_warps=1, waves_per_eu=2) is few  # means nothing here


def test_alignment_decides_the_code(launches: Launches) -> None:
    scale, result = make_scale(), Array(8192)
    aligned = scale[(1,)](Array(4096), result, 2.5, 100, BLOCK=64)
    assert scale[(1,)](Array(4100), result, 2.5, 100, BLOCK=64) is not aligned
    with pytest.raises(LaunchError, match="argument 'x'.*multiples of 16"):
        aligned[(1,)](Array(4100), result, 2.5, 100)
    aligned[(5,)](Array(4112), result, 2.5, 100)
    assert launches[-1] == ("scale", 0, 5, 1, 1, 7, 4112, 8192, 2.5, 100)


def test_streams_of_several_libraries_wait_for_each_other(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    class CupyArray(Array):
        pass

    CupyArray.__module__ = "cupy"
    orders: list[tuple[int, ...]] = []
    monkeypatch.setattr(streams, "order", lambda *values: orders.append(values))
    monkeypatch.setattr(streams, "current_stream", lambda library: lambda ordinal: 5)
    make_scale()[(1,)](Array(4096), CupyArray(8192), 2.5, 100, BLOCK=64)
    assert launches[-1][5] == 5 and orders == [(0, 7, 5), (0, 5, 7)]
    make_scale()[(1,)](CupyArray(4096), CupyArray(8192), 2.5, 100, BLOCK=64)
    assert launches[-1][5] == 5 and len(orders) == 2


def test_arrays_that_do_not_go_together(launches: Launches) -> None:
    scale, x = make_scale(), Array(4096)
    with pytest.raises(LaunchError, match="CPU's memory.*GPU 0"):
        scale[(1,)](x, np.zeros(64, np.float32), 2.5, 100, BLOCK=64)
    with pytest.raises(LaunchError, match=r"several GPUs, \[0, 1\]"):
        scale[(1,)](x, Array(4096, 1), 2.5, 100, BLOCK=64)
    with settings.scope(interpret=True), pytest.raises(LaunchError, match="interpreter"):
        scale[(1,)](x, x, 2.5, 100, BLOCK=64)
    kernel = scale[(1,)](x, x, 2.5, 100, BLOCK=64)
    with pytest.raises(LaunchError, match="no array on one|CPU's memory"):
        kernel[(1,)](np.zeros(64, np.float32), np.zeros(64, np.float32), 2.5, 100)


def test_tiles_in_the_memory_of_the_cpu_are_reported(launches: Launches) -> None:
    @tilewright.jit
    def move(x: tx.tensor_map, y: tx.tensor_map):  # type: ignore[no-untyped-def]
        pass

    tiles = [
        tilewright.TensorDescriptor(base, [64, 64], [64, 1], [32, 64])
        for base in (Array(4096), np.zeros((64, 64), np.float32))
    ]
    with pytest.raises(LaunchError, match="CPU's memory.*GPU 0"):
        move[(1,)](*tiles)


def test_streams_of_arrays_in_descriptors_and_tuples(launches: Launches) -> None:
    @tilewright.jit
    def by_hardware(x: tx.tensor_map, y):  # type: ignore[no-untyped-def]
        pass

    @tilewright.jit
    def tiled(x, y):  # type: ignore[no-untyped-def]
        y.store([0, 0], x.load([0, 0]))

    @tilewright.jit
    def first_of(x, y):  # type: ignore[no-untyped-def]
        tl.store(y, tl.load(x[1]))

    x, y = (tilewright.TensorDescriptor(Array(address), [64, 64], [64, 1], [32, 64]) for address in (4096, 1 << 20))
    by_hardware[(1,)](x, Array(8192))
    tiled[(1,)](x, y)
    first_of[(1,)]((2.5, Array(4096)), Array(8192))
    first_of[(1,)]((2.5, Array(4096, stream=None)), Array(8192))
    assert [launch[5] for launch in launches] == [7, 7, 7, streams.LEGACY_DEFAULT]


def test_launch_hooks_see_gpu_launches(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load", lambda program, gpu: 99)
    monkeypatch.setattr(cuda, "current_device", lambda: GPUS[0])
    seen: list[Any] = []
    hook = lambda facts: seen.append(facts.get())  # noqa: E731
    hooks.launch_enter.add(hook)
    try:
        make_scale()[(1,)](Array(4096), Array(8192), 2.5, 100, BLOCK=64)
    finally:
        hooks.launch_enter.remove(hook)
    assert seen == [{"name": "scale", "function": 99, "stream": 7}] and len(launches) == 1


def test_descriptors_become_tensor_maps_where_the_kernel_says_so(launches: Launches) -> None:
    @tilewright.jit
    def kernel(tiles: tx.tensor_map, plain, count):
        pass

    descriptor = tilewright.TensorDescriptor(Array(4096, dtype="<f2"), [64, 64], [64, 1], [32, 64])
    kind, slot = classify(descriptor)
    found = kernel.rules[0](kind, descriptor)
    assert found.type.element == TensorMapType((32, 64), kind.entries[0].type.element.element)
    assert found.place == streams.DevicePlace(0, streams.INTERFACE)
    assert cuda.tensor_slot(slot, descriptor) == (4096, (64, 64), (64, 1), False)
    with pytest.raises(LaunchError, match="made of a TensorDescriptor"):
        kernel.rules[0](*classify(Array(4096))[:1], Array(4096))
