"""Blocks whose last axis has an extent of 1: their buffers and loops are those of the axis before it."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered
from tests.host.test_cpu_lowering_blocks import draw, traced
from tilewright.targets.cpu.target import CPUTarget


@tilewright.jit
def log_sums(x, out, n, ROWS: tl.constexpr, LEADING: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None]
    place = i + tl.arange(0, LEADING)[:, None, None] * n if LEADING else i
    largest = tl.full(place.shape, float("-inf"), tl.float32)
    total = tl.zeros(place.shape, tl.float32)
    for first in range(0, n, ROWS):
        value = tl.load(x + place + first, mask=i + first < n, other=float("-inf"))
        grown = tl.maximum(largest, value)
        total = total * tl.exp(largest - grown) + tl.exp(value - grown)
        largest = grown
    most = tl.max(largest, axis=1 if LEADING else 0)
    total = total * tl.exp(largest - tl.expand_dims(most, 1 if LEADING else 0))
    result = tl.log(tl.sum(total, axis=1 if LEADING else 0)) + most
    to = tl.arange(0, LEADING)[:, None] if LEADING else tl.arange(0, 1)
    tl.store(out + to, result)


TYPES = {"x": "*f32", "out": "*f32", "n": "i32"}


@pytest.mark.parametrize("leading", [0, 4])
@pytest.mark.parametrize("n", [64, 100, 259])
def test_sums_down_a_column(n, leading):
    function = traced(log_sums, TYPES, {"ROWS": 64, "LEADING": leading}, ("x", "out"))
    check(function, [draw((max(leading, 1), n)), np.zeros(max(leading, 1), np.float32), n], tolerance=1e-5)


def test_columns_are_vectors():
    text = lowered(
        traced(log_sums, TYPES, {"ROWS": 64, "LEADING": 0}, ("x", "out")), CPUTarget.named("sapphirerapids")
    ).text
    assert "fcmp uno <16 x float>" in text and "fcmp uno float" not in text  # of `grown`
