"""Kernels of the tile language launched on tensors of every library, on the caller's stream, and in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.launch.cuda import CudaKernel
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings


@tilewright.jit
def add(x, y, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(result + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)


@tilewright.jit
def scale(x, factor, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(x + index, tl.load(x + index, mask=mask) * factor, mask=mask)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (tilewright.cdiv(meta["count"], meta["BLOCK"]),)


@pytest.mark.parametrize("count", [1, 1000, 98304 + 7])
def test_torch(torch: Any, count: int, rng: np.random.Generator) -> None:
    x, y = (torch.from_numpy(rng.standard_normal(count, np.float32)).cuda() for _ in range(2))
    results = [torch.full_like(x, float("nan")) for _ in range(2)]
    for result in results:
        kernel = add[grid](x, y, result, count, BLOCK=1024)
        assert isinstance(kernel, CudaKernel) and kernel.info.spills == 0
    assert torch.equal(results[0], x + y) and torch.equal(results[0], results[1])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int8", "int64"])
def test_torch_types(torch: Any, name: str) -> None:
    kind = getattr(torch, name)
    x = torch.randint(-50, 50, (777,), device="cuda").to(kind)
    result = torch.empty_like(x)
    add[grid](x, x, result, 777, BLOCK=256)
    assert torch.equal(result, x + x)


def test_unaligned_views_get_code_of_their_own(torch: Any) -> None:
    x = torch.randn(1025, device="cuda")
    result = torch.empty(1024, device="cuda")
    wide = add[grid](x[:1024], x[:1024], result, 1024, BLOCK=1024)
    narrow = add[grid](x[1:], x[1:], result, 1024, BLOCK=1024)
    assert torch.equal(result, x[1:] + x[1:])
    assert (min(wide.info.access_bytes), min(narrow.info.access_bytes)) == (16, 4)
    with pytest.raises(LaunchError, match="multiples of 16"):
        wide[(1,)](x[1:], x[1:], result, 1024)
    wide[(1,)](x[:1024], x[:1024], result, 1024)
    assert torch.equal(result, x[:1024] + x[:1024])


def test_launches_join_the_current_stream(torch: Any) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    scale[grid](x, 1.0, x.numel(), BLOCK=1024)  # compiled before
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        scale[grid](x, 2.0, x.numel(), BLOCK=1024)
    side.synchronize()
    assert (x == 6).all()


@pytest.mark.parametrize("warm", [True, False])
def test_graphs_hold_launches(torch: Any, warm: bool) -> None:
    x = torch.ones(5000, device="cuda")
    if warm:
        scale[grid](x, 1.0, 5000, BLOCK=512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first launch of a signature may be inside: it only loads code besides
        scale[grid](x, 2.0, 5000, BLOCK=512)
        scale[grid](x, 1.5, 5000, BLOCK=512)
    assert (x == 1).all()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (x == 27).all()


def test_cupy(rng: np.random.Generator) -> None:
    cupy = pytest.importorskip("cupy")
    values = rng.standard_normal(3000, np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(values)
        result = cupy.full_like(x, np.nan)
        add[grid](x, x, result, 3000, BLOCK=512)
        stream.synchronize()
    assert np.array_equal(cupy.asnumpy(result), values + values)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_jax(name: str, rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    if all(found.platform != "gpu" for found in jax.devices()):
        pytest.skip("this JAX does not use the GPU")
    x = jax.numpy.asarray(rng.standard_normal(2000, np.float32)).astype(name) * 3
    result = DeviceArray.from_numpy(np.zeros(2000, np.asarray(x).dtype))
    add[grid](x, x, result, 2000, BLOCK=512)
    assert np.array_equal(result.numpy(), np.asarray(x + x))


def test_arrays_of_ours_without_any_library(rng: np.random.Generator) -> None:
    values = rng.standard_normal((40, 50), np.float32)
    x, result = DeviceArray.from_numpy(values), DeviceArray(values.shape, values.dtype)
    kernel = add[grid](x, x, result, values.size, BLOCK=512)
    assert np.array_equal(result.numpy(), values + values)
    kernel[(4,)](x, result, result, values.size)
    assert np.array_equal(result.numpy(), values + (values + values))


def test_dlpack_and_torch_together(torch: Any) -> None:
    class Exchanged:
        """An array that is known by DLPack only."""

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, stream: int | None = None) -> Any:
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    x = torch.randn(1000, device="cuda")
    result = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        add[grid](Exchanged(x), x, result, 1000, BLOCK=512)
        assert torch.equal(result, x + x)


def test_arguments_that_do_not_go_together(torch: Any, gpu: Device) -> None:
    x = torch.zeros(100, device="cuda")
    with pytest.raises(LaunchError, match="CPU's memory"):
        add[grid](x, x.cpu(), x, 100, BLOCK=128)
    with pytest.raises(LaunchError, match="CPU's memory"):
        add[grid](x, np.zeros(100, np.float32), x, 100, BLOCK=128)
    if torch.cuda.device_count() > 1:
        with pytest.raises(LaunchError, match=r"several GPUs, \[0, 1\]"):
            add[grid](x, x.to("cuda:1"), x, 100, BLOCK=128)
    with settings.scope(interpret=True), pytest.raises(LaunchError, match="interpreter"):
        add[grid](x, x, x, 100, BLOCK=128)


def test_options_and_texts(torch: Any) -> None:
    x = torch.ones(4096, device="cuda")
    few = scale[grid](x, 1.0, 4096, BLOCK=1024, num_warps=1, opt_level=1)
    many = scale[grid](x, 1.0, 4096, BLOCK=1024, num_warps=8, maxnreg=32, ptxas_options=("--warn-on-spills",))
    again = scale[grid](x, 1.0, 4096, BLOCK=1024, num_warps=8, maxnreg=32, ptxas_options=("--warn-on-spills",))
    assert (few.metadata.num_warps, many.metadata.num_warps) == (1, 8) and again is many
    assert ".maxnreg 32" in many.dump("ptx") and many.info.registers <= 32
    assert "STG" in many.dump("sass")
    assert (x == 1).all()


def test_faults_are_reported(torch: Any) -> None:
    """In a process of its own, for the fault ends the context."""
    import subprocess
    import sys

    script = (
        "import torch, tilewright\n"
        "from tests.device.test_launch import scale\n"
        "from tilewright.runtime.cuda.streams import synchronize\n"
        "x = torch.zeros(16, device='cuda')\n"
        "scale[(1 << 14,)](x, 2.0, 1 << 30, BLOCK=65536 // 16)\n"
        "try:\n"
        "    synchronize(0)\n"
        "except tilewright.errors.DeviceError as error:\n"
        "    print('told:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "told:" in done.stdout and "ILLEGAL_ADDRESS" in done.stdout, done.stdout + done.stderr
