"""Loads whose memory is written before their values are used: compiled as interpreted, and as NumPy says."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered, run_compiled
from tilewright.ir import interpreter

TYPES = {"x": "*f32", "y": "*f32", "o": "*f32"}


@tilewright.jit
def swapped(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(x + i, b)
    tl.store(y + i, a)


@tilewright.jit
def cleared(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 0.0)
    tl.atomic_add(o, tl.sum(value))
    tl.store(o + 1, tl.max(value, 0))


@tilewright.jit
def exchanged(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value, other = tl.load(x + i), tl.load(y + i, mask=i < N - 3, other=7.0)
    tl.atomic_xchg(x + i, 5.0)
    tl.atomic_add(y + i, other)
    tl.store(o + i, value)
    tl.store(o + N + i, other)


@tilewright.jit
def summed(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 5.0)
    tl.store(o + i, tl.cumsum(value, 0))
    tl.store(o + N + i, value - tl.sum(value, 0))


@tilewright.jit
def multiplied(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    tl.store(x + i, tl.zeros((N, N), tl.float32))
    tl.store(o + i, tl.dot(value, tl.trans(value)))


@tilewright.jit
def branched(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 5.0)
    if tl.load(x) == 5.0:
        tl.store(y + i, value)
        value = value - 1
    tl.store(o + i, value)


@tilewright.jit
def repeated(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    first, last = tl.load(x + i), tl.load(y + i)
    for step in range(3):
        tl.store(o + step * N + i, first + last)
        last = tl.load(x + i)
        tl.store(x + i, first * 2 + step)
    tl.store(y + i, last)


@tilewright.jit
def transposed(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value, other = tl.load(x + i), tl.load(y + i)
    tl.store(x + i, tl.trans(value) + 1)
    tl.store(o + i, tl.trans(other))
    tl.store(y + i, tl.trans(tl.load(o + i)) * 2)


@tilewright.jit
def shuffled(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    halves = tl.reshape(tl.load(x + i), (2, N // 2))
    tl.store(x + i, tl.reshape(tl.trans(halves), (N,)))
    tl.store(y + i, tl.flip(tl.load(y + i)))


def expected_swapped(x, y, o, n):
    x[:n], y[:n] = y[:n].copy(), x[:n].copy()


def expected_cleared(x, y, o, n):
    o[:2] = o[0] + x[:n].sum(), x[:n].max()
    x[:n] = 0


def expected_exchanged(x, y, o, n):
    o[:n] = x[:n]
    o[n : 2 * n] = np.where(np.arange(n) < n - 3, y[:n], 7)
    y[:n] += o[n : 2 * n]
    x[:n] = 5


def expected_summed(x, y, o, n):
    o[:n], o[n : 2 * n] = np.cumsum(x[:n]), x[:n] - x[:n].sum()
    x[:n] = 5


def expected_multiplied(x, y, o, n):
    block = x[: n * n].reshape(n, n)
    o[: n * n] = (block @ block.T).ravel()
    x[: n * n] = 0


def expected_branched(x, y, o, n):
    y[:n], o[:n] = x[:n], x[:n] - 1
    x[:n] = 5


def expected_repeated(x, y, o, n):
    first, last = x[:n].copy(), y[:n].copy()
    for step in range(3):
        o[step * n : (step + 1) * n] = first + last
        last = x[:n].copy()
        x[:n] = first * 2 + step
    y[:n] = last


def expected_transposed(x, y, o, n):
    block, other = (array[: n * n].reshape(n, n).copy() for array in (x, y))
    x[: n * n], o[: n * n], y[: n * n] = block.T.ravel() + 1, other.T.ravel(), other.ravel() * 2


def expected_shuffled(x, y, o, n):
    x[:n], y[:n] = x[:n].reshape(2, n // 2).T.ravel(), y[:n][::-1].copy()


CASES = [(globals()[name.removeprefix("expected_")], value) for name, value in list(globals().items())
         if name.startswith("expected_")]  # fmt: skip


@pytest.mark.parametrize("n", [8, 32, 128])
@pytest.mark.parametrize("kernel,reference", CASES, ids=lambda item: item.__name__.removeprefix("expected_"))
def test_what_was_loaded_stays(kernel, reference, n, rng):
    arguments = [rng.integers(-8, 8, n * n).astype(np.float32) for _ in range(3)]
    expected = [array.copy() for array in arguments]
    reference(*expected, n)
    found = check(kernel.trace(TYPES, {"N": n}), arguments)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize("kernel", [swapped, cleared, exchanged, summed, branched, repeated, transposed])
def test_what_was_loaded_stays_when_two_parameters_are_one_array(kernel, rng):
    n = 32
    function = kernel.trace(TYPES, {"N": n})
    array, out = (rng.integers(-8, 8, n * n).astype(np.float32) for _ in range(2))
    results = []
    for run in (interpreter.run, run_compiled):
        both, other = array.copy(), out.copy()
        run(function, [both, both, other], (1,))
        results.append((both, other))
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@tilewright.jit
def updated(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    weights = value - tl.max(value, 1)[:, None]
    tl.store(x + i, weights * tl.load(y + i))


def test_an_update_in_place_needs_no_copy():
    kernel = lowered(updated.trace(TYPES, {"N": 32}))
    assert not [remark for remark in kernel.remarks if "copied first" in remark.message]
