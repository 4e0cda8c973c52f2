"""Elements that masks leave out are computed on CPUs wherever somebody uses them."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check


@tilewright.jit
def running_sum(x, limits, out, n, R: tl.constexpr):
    """Elements that one iteration's mask drops are part of the next one's sum."""
    lane = tl.arange(0, R)
    total = tl.zeros((R,), tl.float32)
    for k in range(n):
        limit = tl.load(limits + k)
        total = total * 2 + tl.load(x + k * R + lane)
        tl.store(out + k * R + lane, total, mask=lane < limit)


@tilewright.jit
def growing(x, limits, out, n, R: tl.constexpr):
    """The mask depends on the iteration alone."""
    lane = tl.arange(0, R)
    total = tl.zeros((R,), tl.float32)
    for k in range(n):
        total = total * 2 + tl.load(x + k * R + lane)
        tl.store(out + k * R + lane, total, mask=lane < k * 5)


@tilewright.jit
def running_product(x, limits, out, n, R: tl.constexpr):
    """The same for the rows of a product."""
    row, column = tl.arange(0, R), tl.arange(0, 16)
    total = tl.zeros((R, 16), tl.float32)
    for k in range(n):
        limit = tl.load(limits + k)
        left = tl.load(x + k * R + row[:, None] * 16 + column[None, :])
        total = tl.dot(left, tl.load(x + column[:, None] * 16 + column[None, :]), total)
        place = out + k * R * 16 + row[:, None] * 16 + column[None, :]
        tl.store(place, total, mask=row[:, None] < limit)


@tilewright.jit
def one_ahead(x, limits, out, n, R: tl.constexpr):
    """Rows that wrap around in one iteration are stored in the next."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    ahead = tl.zeros((R,), tl.float32)
    for k in range(n):
        limit = tl.load(limits + k)
        tl.store(out + k * R + row, ahead, mask=row < limit)
        ahead = tl.load(x + row % limit)


@tilewright.jit
def in_place_of(x, limits, out, n, R: tl.constexpr):
    """Where a load's mask drops elements, it gives those of another block."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    other = tl.load(x + row % n)
    tl.store(out + row, tl.load(x + 100 + row, mask=row < n, other=other))


@pytest.mark.parametrize(
    "kernel",
    [running_sum, growing, running_product, one_ahead, in_place_of],
    ids=lambda kernel: kernel.__name__,
)
def test_elements_that_a_mask_drops_are_used_elsewhere(kernel, rng):
    types = {"x": "*f32", "limits": "*i32", "out": "*f32", "n": "i32"}
    x = rng.integers(-8, 9, 2048).astype(np.float32)
    limits = np.array([5, 40, 3, 64, 20, 1, 64], np.int32)
    check(kernel.trace(types, {"R": 64}), [x, limits, np.full(8192, -1, np.float32), 7], tolerance=0)


@tilewright.jit
def added_to_its_operand(x, out, n, R: tl.constexpr, SIDE: tl.constexpr):
    """A product ends where both operands are zero; what it is added to does not."""
    i = tl.arange(0, R)
    left = tl.load(x + i[:, None] * R + i[None, :], mask=(i < n)[None, :], other=0.0)
    right = tl.load(x + i[:, None] * R + i[None, :], mask=(i < n)[:, None], other=0.0)
    for _ in range(2):
        product = tl.dot(left, right, right if SIDE else left, input_precision="ieee")
        tl.store(out + i[:, None] * R + i[None, :], product)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("n", [5, 16])
def test_operands_that_products_are_added_to(n, side):
    function = added_to_its_operand.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"R": 32, "SIDE": side})
    x = np.random.default_rng(1).normal(size=(32, 32)).astype(np.float32)
    check(function, [x, np.zeros((32, 32), np.float32), n], tolerance=1e-5)


@tilewright.jit
def powers(x, out, n, R: tl.constexpr, HOW: tl.constexpr):
    place = tl.arange(0, R)[:, None] * R + tl.arange(0, R)[None, :]
    x = tl.load(x + place)
    power = x * 0.5
    for _ in range(n):
        if HOW == "right":
            power = tl.dot(x, power, power, input_precision="ieee")
        elif HOW == "transposed":
            power = tl.dot(x, tl.trans(power), power, input_precision="ieee")
        else:
            power = tl.dot(power, x, power, input_precision="ieee")
    tl.store(out + place, power)


@pytest.mark.parametrize("how", ["left", "right", "transposed"])
def test_factors_are_not_overwritten_by_sums(how):
    """What a product is added to has a buffer of its own where it is one of the factors, too."""
    function = powers.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"R": 64, "HOW": how})
    x = np.random.default_rng(2).normal(size=(64, 64)).astype(np.float32) / 8
    check(function, [x, np.zeros((64, 64), np.float32), 2], tolerance=1e-5)
