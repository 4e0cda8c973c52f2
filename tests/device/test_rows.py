"""Rows of every width on a GPU, as the library does them: against float64, and the same bits in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import ops

pytestmark = pytest.mark.capability(8)

SHAPES = [(300, 32768), (270, 30000), (64, 16384), (33, 10000), (1000, 1024), (9000, 256), (4099, 640)]


@pytest.fixture
def seed(rng: np.random.Generator) -> int:
    """Of PyTorch's generators."""
    return int(rng.integers(1 << 30))


def normal(torch: Any, seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def check(torch: Any, compute: Any, expected: Any) -> None:
    """Within the rounding of the result's type, relative to the largest number of a row; equal in three runs."""
    results = [compute() for _ in range(3)]
    assert all(torch.equal(results[0], other) for other in results[1:])
    unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}[results[0].dtype]
    scale = expected.abs().amax(-1, keepdim=True)
    assert bool((((results[0].double() - expected) / scale).abs() <= 1.5 * unit).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rows_of_every_width(torch: Any, shape: tuple[int, int], dtype: str, seed: int) -> None:
    F, kind = torch.nn.functional, getattr(torch, dtype)
    x, residual = (normal(torch, seed + n, shape, kind) for n in range(2))
    weight, bias = (normal(torch, seed + n, shape[1:], kind) for n in (2, 3))
    wide = x.double(), weight.double(), bias.double()
    check(torch, lambda: ops.softmax(x), torch.softmax(wide[0], -1))
    check(torch, lambda: ops.softmax(x, log=True), torch.log_softmax(wide[0], -1))
    check(torch, lambda: ops.layer_norm(x, weight, bias), F.layer_norm(wide[0], shape[1:], *wide[1:], 1e-5))
    y = wide[0] + residual.double()
    check(torch, lambda: ops.rms_norm(x, weight, residual=residual), F.rms_norm(y, shape[1:], wide[1], 1e-6))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_along_both_axes(torch: Any, shape: tuple[int, int], seed: int) -> None:
    x = normal(torch, seed, shape, torch.bfloat16)
    for axis in (0, 1):
        results = [ops.reduce(x, axis=axis, out_dtype=torch.float32) for _ in range(3)]
        assert all(torch.equal(results[0], other) for other in results[1:])
        error = (results[0].double() - x.double().sum(axis)).abs()
        assert bool((error <= 1e-5 * x.double().abs().sum(axis)).all())


@tilewright.jit
def sums_of_a_block(x, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):  # type: ignore
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    value = tl.load(x + (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :])
    if AXIS == 0:
        place = b[:, None] * C + c[None, :]
    elif AXIS == 1:
        place = a[:, None] * C + c[None, :]
    else:
        place = a[:, None] * B + b[None, :]
    tl.store(out + place, 2 * tl.sum(value, AXIS) + 1)


@pytest.mark.parametrize(
    "shape", [(64, 4, 128), (2, 128, 32), (16, 12, 256), (32, 8, 8), (3, 64, 1), (64, 2, 40)], ids=str
)
@pytest.mark.parametrize("warps", [2, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_threads_store_sums_that_others_have_parts_of(
    torch: Any, shape: tuple[int, int, int], warps: int, dtype: str, rng: np.random.Generator
) -> None:
    """Along each axis, in blocks of which warps have parts: whole numbers, so that sums are exact."""
    numbers = rng.integers(-9, 10, shape)
    x = torch.tensor(numbers, dtype=getattr(torch, dtype), device="cuda")
    for axis in range(3):
        wanted = 2 * numbers.sum(axis) + 1
        out = torch.full(wanted.shape, 77, dtype=x.dtype, device="cuda")
        sums_of_a_block[(1,)](x, out, *shape, axis, num_warps=warps)
        assert np.array_equal(out.cpu().numpy(), wanted)
