"""Rules for floats that are rounded to whole numbers give the numbers that the interpreter has without them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget


@tilewright.jit
def read_and_quantized(x, out, n, FIRST: tl.constexpr, SECOND: tl.constexpr, ZERO: tl.constexpr, POINT: tl.constexpr,
                       RELU: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """uint8 as floats by one scale, and quantized by another one."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = (tl.load(x + i, mask=i < n).to(tl.float32) - ZERO) * FIRST
    if RELU:
        value = tl.maximum(value, 0.0)
    whole = tl.math.rint(value / SECOND)
    if POINT != 0:
        whole = whole + POINT
    tl.store(out + i, whole.to(tl.uint8), mask=i < n)


@tilewright.jit
def quantized_twice(x, out, n, FIRST: tl.constexpr, SECOND: tl.constexpr, ZERO: tl.constexpr, POINT: tl.constexpr,
                    RELU: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Floats as uint8, and these as uint8 of another scale."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    whole = (tl.math.rint(tl.load(x + i, mask=i < n) / FIRST) + ZERO).to(tl.uint8)
    value = (whole.to(tl.float32) - ZERO) * FIRST
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + i, (tl.math.rint(value / SECOND) + POINT).to(tl.uint8), mask=i < n)


def constants(seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    first = float(np.float32(rng.uniform(0.001, 0.1)))
    second = float(np.float32(first * rng.choice([0.5, 1, 2, rng.uniform(0.3, 3)])))
    return {"FIRST": first, "SECOND": second, "ZERO": float(rng.integers(0, 256)), "POINT": float(rng.integers(0, 256))}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kernel", [read_and_quantized, quantized_twice])
def test_as_the_interpreter(kernel: object, seed: int, relu: bool, rng: np.random.Generator) -> None:
    x = np.arange(256, dtype=np.uint8)
    if kernel is quantized_twice:
        edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e9, -1e9], np.float32)
        x = np.concatenate([edges, rng.normal(0, 5, 993).astype(np.float32)])
    found = []
    for interpret in (False, True):
        out = np.full(len(x), 77, np.uint8)
        with settings.scope(interpret=interpret):
            kernel[(1,)](x, out, len(x), **constants(seed), RELU=relu, BLOCK=1024)  # type: ignore[index]
        found.append(out)
    np.testing.assert_array_equal(*found)


def test_two_scales_are_one() -> None:
    """A division by a scale goes where one factor gives the same for all 256 numbers."""
    fixed = {"n": 1024, "FIRST": 0.0171, "SECOND": 0.0239, "ZERO": 128.0, "POINT": 0.0, "RELU": True, "BLOCK": 1024}
    target = CPUTarget.named("sapphirerapids")
    assembly = read_and_quantized.compile({"x": "*u8", "out": "*u8"}, fixed, target=target).dump("asm")
    assert "vmulps" in assembly and "vdiv" not in assembly and "vfnmadd" not in assembly and "vfmsub" not in assembly


@tilewright.jit
def bounded(x, out, n, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.minimum(tl.maximum(value, LOW), HIGH), mask=i < n)


@pytest.mark.parametrize("bounds", [(-3.5, 4.25), (0.0, 6.0), (-2.0, 0.0), (2.0, float("inf"))])
def test_bounds_by_constants(bounds: tuple[float, float], rng: np.random.Generator) -> None:
    """NaN becomes the bound, and infinities are what they are."""
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -3.5, 4.25, 2.0, -2.0], np.float32)
    x = np.concatenate([edges, rng.normal(0, 5, 991).astype(np.float32)])
    found = []
    for interpret in (False, True):
        out = np.zeros(len(x), np.float32)
        with settings.scope(interpret=interpret):
            bounded[(1,)](x, out, len(x), LOW=bounds[0], HIGH=bounds[1], BLOCK=1024)
        found.append(out)
    np.testing.assert_array_equal(*found)


def test_a_bound_other_than_zero_is_one_instruction() -> None:
    target = CPUTarget.named("sapphirerapids")
    constants = {"n": 1024, "LOW": -3.0, "HIGH": 5.0, "BLOCK": 1024}
    assembly = bounded.compile({"x": "*f32", "out": "*f32"}, constants, target=target).dump("asm")
    assert "vmaxps" in assembly and "vminps" in assembly and "vcmp" not in assembly
