"""float32 rounded to uint8 by one conversion: as the interpreter has it, at edges, ties, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget


@tilewright.jit
def quantized(x, out, n, FACTOR: tl.constexpr, POINT: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if RELU:
        value = tl.maximum(value, 0.0)
    whole = tl.math.rint(value * FACTOR)
    if POINT != 0:
        whole = whole + POINT
    tl.store(out + i, whole.to(tl.uint8), mask=i < n)


def numbers(rng: np.random.Generator) -> np.ndarray:
    """Ties, both sides of the limits, and what fits no integer."""
    edges = np.array([0.0, -0.0, 254.4, 254.5, 255.0, 255.5, 256.0, -0.5, -0.6, 1e10, -1e10, 2.0**31, -(2.0**31),
                      2.0**24, np.inf, -np.inf, np.nan, -np.nan, 1e-40, 127.5, -127.5, -128.5], np.float32)  # fmt: skip
    ties = np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)
    return np.concatenate(
        [edges, np.nextafter(ties, np.float32(-1e9)), ties, rng.normal(0, 200, 500).astype(np.float32)]
    )


@pytest.mark.parametrize("point", [0, 128, 255, -3, 0.5])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("block", [4, 16, 100, 256])
def test_as_the_interpreter_rounds(point: float, relu: bool, block: int, rng: np.random.Generator) -> None:
    x = numbers(rng)
    found = []
    for interpret in (False, True):
        out = np.full(len(x), 77, np.uint8)
        with settings.scope(interpret=interpret):
            quantized[(-(-len(x) // block),)](x, out, len(x), FACTOR=1.0, POINT=point, RELU=relu, BLOCK=block)
        found.append(out)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("block", "narrowing"), [(1024, "vpackuswb"), (16, "vpmovusdb")])
def test_one_conversion_and_one_saturation(block: int, narrowing: str) -> None:
    """No bounds of bytes in floats, no rounding before the conversion, no maximum that saturation makes needless."""
    target = CPUTarget.named("sapphirerapids")
    constants = {"n": 1024, "FACTOR": 4.0, "POINT": 0, "RELU": True, "BLOCK": block}
    assembly = quantized.compile({"x": "*f32", "out": "*u8"}, constants, target=target).dump("asm")
    assert "vcvtps2dq" in assembly and narrowing in assembly
    assert "vrndscale" not in assembly and "vcvttps2dq" not in assembly
