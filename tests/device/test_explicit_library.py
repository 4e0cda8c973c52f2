"""The library's Hopper kernels on a GPU of compute capability 9.0, against float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.compile.test_nvidia_explicit_library import CONFIGS
from tests.device.test_explicit_cases import slot
from tests.host.hopper_support import attention_reference, normed, traced_attention, traced_matmul
from tilewright.ir.core import Function
from tilewright.library.attention.hopper.config import AttentionConfig, attention_schedule
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.launch import Start, launcher
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.targets.nvidia.compile import compile_function
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.target import NvidiaTarget

pytestmark = pytest.mark.hopper


def started(function: Function, gpu: Device) -> tuple[Start, tuple[str, ...]]:
    binary = compile_function(function, NvidiaTarget.named("sm_90a"), NvidiaOptions.of_launch({"strict": True}))
    return launcher(binary.program(function.name), gpu), binary.parameters


def run(start: Start, kinds: tuple[str, ...], grid: tuple[int, int, int], arguments: list[Any]) -> None:
    slots = [slot(argument, kind) for argument, kind in zip(arguments, kinds, strict=True)]
    start(*grid, LEGACY_DEFAULT, *slots)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == np.int8:
        return rng.integers(-128, 128, shape, np.int8)
    return rng.standard_normal(shape, np.float32).astype(dtype)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("processors", [132, 16])
def test_matmul(name: str, processors: int, gpu: Device, rng: np.random.Generator) -> None:
    """Ragged in every direction, on as many CTAs as there are and on few; twice the same, bit by bit."""
    config = CONFIGS[name]
    start, kinds = started(traced_matmul(config), gpu)
    rows = 5 if config.A_ROWS else int(rng.integers(1, 40)) * 8
    columns, depth, lead = (
        int(rng.integers(20, 120)) * 8,
        int(rng.integers(20, 80)) * 16,
        (3,) if config.BATCHED else (),
    )
    a = drawn(rng, (*lead, *((depth, rows) if config.A_TRANSPOSED else (rows, depth))), config.INPUT.element.numpy)
    b = drawn(
        rng, (*lead, *((depth, columns) if config.B_TRANSPOSED else (columns, depth))), config.INPUT.element.numpy
    )
    left, right = a.astype(np.float64), b.astype(np.float64)
    left = left.swapaxes(-1, -2) if config.A_TRANSPOSED else left
    left = left if config.NORM is None else normed(left)
    expected = left @ (right if config.B_TRANSPOSED else right.swapaxes(-1, -2))
    there = [DeviceArray.from_numpy(x) for x in (a, b)]
    results = []
    for _ in range(2):
        out = DeviceArray.from_numpy(np.zeros((*lead, rows, columns), config.OUTPUT.element.numpy))
        grid = config.grid(rows, columns, *(lead or (1,)), processors)
        run(start, kinds, grid, [*there, out, out, rows, columns, depth, *(lead or (1,))])
        results.append(out.numpy())
    # bf16 results are rounded to 8 bits; products of fp8 are summed in 14.
    assert relative(results[0], expected) < (
        2e-2 if config.INPUT.itemsize == 1 and config.INPUT.is_floating() else 4e-3
    )
    assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8))


ATTENTION = {
    "full": AttentionConfig(),
    "causal": AttentionConfig(CAUSAL=True),
    "ragged": AttentionConfig(CAUSAL=True, LENGTHS=True, LSE=True),
    "two consumers": AttentionConfig(BN=128, CONSUMERS=2, CAUSAL=True),
    "simple": AttentionConfig(BN=128, CONSUMERS=2, FLAT=False, LAZY=False, PING_PONG=False),
    "64 dimensions": AttentionConfig(D=64, BN=96),
    "four consumers": AttentionConfig(D=64, BN=64, CONSUMERS=4, STAGES=4, FLAT=False),
    "four consumers, causal": AttentionConfig(D=64, BN=64, CONSUMERS=4, STAGES=4, CAUSAL=True, PING_PONG=False),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("grow", [0.0, 20.0])
def test_attention(name: str, grow: float, gpu: Device, rng: np.random.Generator) -> None:
    """Grouped heads, other numbers of queries than of keys; with maxima that grow as blocks are walked; on any grid."""
    config = ATTENTION[name]
    start, kinds = started(traced_attention(config), gpu)
    batches, heads, group, rows, keys = 2, 4, 2, 700, 1300
    kind = np.dtype(ml_dtypes.bfloat16)
    q = drawn(rng, (batches, heads, rows, config.D), kind)
    k = drawn(rng, (batches, heads // group, keys, config.D), np.dtype(np.float32))
    k = (k * (1 + grow * np.linspace(1, 0, keys, dtype=np.float32)[:, None] / 20)).astype(kind)
    v = drawn(rng, (batches, heads // group, keys, config.D), kind)
    lengths = np.array([[rows, keys], [rows - 33, keys - 77]] if config.LENGTHS else [[rows, keys]] * 2, np.int32)
    expected, sums = attention_reference(q, k, v, lengths, config.CAUSAL, 0)
    there = [DeviceArray.from_numpy(x) for x in (q, k, v)]
    results = []
    for processors in (132, 5):
        table = attention_schedule(config, batches, heads, rows, keys, group, processors)
        out = DeviceArray.from_numpy(np.zeros(q.shape, kind))
        lse = DeviceArray.from_numpy(np.zeros((batches, heads, rows), np.float32))
        schedule, sizes = DeviceArray.from_numpy(table), DeviceArray.from_numpy(lengths)
        numbers = [table.shape[1], rows, keys, heads, group, 0, math.log2(math.e) / math.sqrt(config.D)]
        run(start, kinds, (len(table), 1, 1), [*there, out, lse, sizes, schedule, *numbers])
        results.append(out.numpy())
    for batch, (count, _) in enumerate(lengths):
        assert relative(results[0][batch, :, :count], expected[batch, :, :count]) < 5e-3
        if config.LSE:
            assert np.abs(lse.numpy()[batch, :, :count] - sums[batch, :, :count]).max() < 2e-3
    assert np.array_equal(results[0].view(np.uint16), results[1].view(np.uint16))
