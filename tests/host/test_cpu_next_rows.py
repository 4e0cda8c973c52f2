"""Loops over rows that are far from each other fetch the next row, on CPUs."""

# mypy: ignore-errors

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as tl


@tilewright.jit
def softmax_rows(x, out, stride, rows, columns, C: tl.constexpr):
    c = tl.arange(0, C)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * stride + c, mask=c < columns, other=float("-inf"))
        weights = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * stride + c, weights / tl.sum(weights, 0), mask=c < columns)


@tilewright.jit
def mean_of_row(x, out, stride, columns, C: tl.constexpr):
    """A loop that goes on where it was."""
    total = tl.zeros((C,), tl.float32)
    for start in range(0, columns, C):
        c = start + tl.arange(0, C)
        total += tl.load(x + tl.program_id(0) * stride + c, mask=c < columns, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(total) / columns)


@tilewright.jit
def products_of_rows(x, y, out, stride, rows, C: tl.constexpr):
    """Nested loops, rows counted from the end, and rows whose place is read from memory."""
    c = tl.arange(0, C)
    for row in range(tl.program_id(0), rows, 2):
        left = tl.load(x + (rows - 1 - row) * stride + c)
        place = tl.load(y + row)
        for other in range(0, 3):
            left = left * tl.load(x + (place + other) * stride + c)
        tl.store(out + row * stride + c, left)


def fetched(kernel, types, constants):
    """Whether each prefetch of a kernel's text is for a load (0) or a store (1)."""
    text = kernel.compile(types, constants).dump("llvm")
    return {int(found) for found in re.findall(r"call void @llvm\.prefetch\.p0\(.*i32 (\d), i32 3, i32 1\)", text)}


def test_rows_that_are_far_from_each_other_are_fetched() -> None:
    types = {"x": "*f32", "out": "*f32", "stride": "i32", "rows": "i32", "columns": "i32"}
    assert fetched(softmax_rows, types, {"C": 1024}) == {0, 1}
    assert fetched(softmax_rows, types, {"C": 64}) == set()  # short rows


def test_what_follows_is_left_to_the_hardware() -> None:
    types = {"x": "*f32", "out": "*f32", "stride": "i32", "columns": "i32"}
    assert fetched(mean_of_row, types, {"C": 1024}) == set()


@pytest.mark.parametrize("programs", [1, 3])
def test_results_of_rows(programs, rng):
    x, out = rng.standard_normal((10, 500)).astype(np.float32), np.zeros((10, 500), np.float32)
    softmax_rows[(programs,)](x, out, 500, 10, 500, C=512)
    weights = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_results_of_nested_rows(rng):
    x, out = rng.standard_normal((9, 256)).astype(np.float32), np.zeros((9, 256), np.float32)
    y = rng.integers(0, 7, 9).astype(np.int32)
    products_of_rows[(2,)](x, y, out, 256, 9, C=256)
    expected = x[::-1] * x[y] * x[y + 1] * x[y + 2]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
