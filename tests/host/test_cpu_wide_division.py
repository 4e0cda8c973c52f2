"""Quotients and remainders of blocks of 64-bit integers by numbers known at run time, on CPUs."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl


@tilewright.jit
def divided(x, y, quotients, remainders, by_one, n, divisor, B: tl.constexpr):
    i = tl.arange(0, B)
    mask = i < n
    left, right = tl.load(x + i, mask=mask), tl.load(y + i, mask=mask, other=1)
    tl.store(quotients + i, left // right, mask=mask)
    tl.store(remainders + i, left % right, mask=mask)
    tl.store(by_one + i, left // divisor.to(left.dtype), mask=mask)


def truncated(left, right):
    """Toward zero, in Python's integers."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


EDGE = [0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**50, 2**51 - 1, 2**51, 2**51 + 1, 2**52, 2**53 + 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("bits", [8, 31, 51, 52, 63])
def test_quotients_of_64_bits(dtype, bits, rng):
    low = -(2**bits) + 1 if dtype == np.int64 else 0
    left = rng.integers(low, 2**bits - 1, 61, dtype=dtype)
    right = rng.integers(low, 2**bits - 1, 61, dtype=dtype) >> rng.integers(0, bits, 61).astype(dtype)
    edge = np.array([number for number in EDGE if number < 2**bits], dtype)
    left[: len(edge)], right[-len(edge) :] = edge, edge[::-1]
    left[20:40] = left[20:40] // right[20:40] * right[20:40] - dtype(1) if right[20:40].all() else left[20:40]
    right[right == 0] = 3
    divisor = int(right[0]) if right[0] else 5
    results = [np.zeros(61, dtype) for _ in range(3)]
    divided[(1,)](left, right, *results, 61, divisor, B=64)
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    expected = np.array([truncated(a, b) for a, b in pairs], dtype)
    np.testing.assert_array_equal(results[0], expected)
    np.testing.assert_array_equal(results[1], left - expected * right)
    np.testing.assert_array_equal(results[2], np.array([truncated(a, divisor) for a in left.tolist()], dtype))
