"""Sorting, selection and counting against NumPy, interpreted and compiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch


@tilewright.jit
def sorted_rows(x, out, places, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOWN: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    block = tl.load(x + at)
    tl.store(out + at, tl.sort(block, descending=DOWN))
    values, indices = block.sort(-1, DOWN, return_indices=True)
    tl.store(out + ROWS * COLUMNS + at, values)
    tl.store(places + at, indices)


DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_sorted_stably(dtype: str, descending: bool, rng: np.random.Generator) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    x = rng.integers(0, 100, (2, 16)).astype(kind)
    if dtype not in ("uint8", "uint32"):
        x -= np.asarray(50, kind)
    out, places = np.zeros((2, 2, 16), kind), np.zeros((2, 16), np.int32)
    launch(sorted_rows, (1,), x, out, places, ROWS=2, COLUMNS=16, DOWN=descending)
    wide = x.astype(np.float64)
    order = np.argsort(-wide if descending else wide, axis=1, kind="stable")
    np.testing.assert_array_equal(places, order)
    for result in out:
        np.testing.assert_array_equal(result, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("descending", [False, True])
def test_nans_count_as_largest_and_zeros_have_an_order(descending: bool) -> None:
    x = np.array([[1, np.nan, -0.0, np.inf, 0.0, -np.inf, -np.nan, -0.0]], np.float32)
    out, places = np.zeros((2, 1, 8), np.float32), np.zeros((1, 8), np.int32)
    launch(sorted_rows, (1,), x, out, places, ROWS=1, COLUMNS=8, DOWN=descending)
    expected = [-np.inf, -0.0, -0.0, 0.0, 1, np.inf, np.nan, np.nan]
    np.testing.assert_array_equal(out[0, 0], expected[::-1] if descending else expected)
    signs = np.signbit(out[0, 0][4:7] if descending else out[0, 0][1:4])
    assert signs.tolist() == ([False, True, True] if descending else [True, True, False])
    assert places[0].tolist() == ([1, 6, 3, 0, 4, 2, 7, 5] if descending else [5, 2, 7, 4, 0, 3, 1, 6])


@tilewright.jit
def selected(x, out, places, ROWS: tl.constexpr, COLUMNS: tl.constexpr, K: tl.constexpr, DOWN: tl.constexpr):
    i, k = tl.arange(0, ROWS)[:, None], tl.arange(0, K)[None, :]
    block = tl.load(x + i * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    tl.store(out + i * K + k, tl.topk(block, K, descending=DOWN))
    values, indices = tl.topk(block.T, K, dim=0, descending=DOWN, return_indices=True)
    tl.store(out + ROWS * K + i * K + k, values.T)
    tl.store(places + i * K + k, indices.T)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_the_first_k_are_selected(k: int, descending: bool, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (4, 16)).astype(np.float32)
    out, places = np.zeros((2, 4, k), np.float32), np.zeros((4, k), np.int32)
    launch(selected, (1,), x, out, places, ROWS=4, COLUMNS=16, K=k, DOWN=descending)
    order = np.argsort(-x if descending else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, order)
    for result in out:
        np.testing.assert_array_equal(result, np.take_along_axis(x, order, 1))


@tilewright.jit
def merged(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.bitonic_merge(tl.load(x + i)))
    tl.store(out + N + i, tl.bitonic_merge(tl.load(x + i), descending=True))
    tl.store(out + 2 * N + i, tl.argsort(tl.load(x + i)))
    tl.store(out + 3 * N + i, tl.sort(tl.load(x + i) > 3))


def test_bitonic_sequences_are_merged() -> None:
    x, out = np.array([1, 4, 6, 7, 5, 3, 2, 0], np.int32), np.zeros((4, 8), np.int32)
    launch(merged, (1,), x, out, N=8)
    assert out.tolist() == [[*range(8)], [*range(7, -1, -1)], np.argsort(x).tolist(), [0] * 4 + [1] * 4]


@tilewright.jit
def counted(x, out, n, N: tl.constexpr, BINS: tl.constexpr):
    i, b = tl.arange(0, N), tl.arange(0, BINS)
    values = tl.load(x + i)
    tl.store(out + b, tl.histogram(values, BINS))
    tl.store(out + BINS + b, values.histogram(BINS, mask=i < n))


@pytest.mark.parametrize(("count", "bins", "dtype"), [(64, 8, "int32"), (32, 5, "uint32"), (4096, 1024, "int32")])
def test_values_are_counted(count: int, bins: int, dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(0 if dtype == "uint32" else -3, bins + 3, count).astype(dtype)
    out = np.zeros((2, bins), np.int32)
    launch(counted, (1,), x, out, count // 3, N=count, BINS=bins)
    for result, part in zip(out, (x, x[: count // 3]), strict=True):
        inside = part[(part >= 0) & (part < bins)].astype(np.int64)
        np.testing.assert_array_equal(result, np.bincount(inside, minlength=bins))


@tilewright.jit
def odd_sort(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.sort(tl.load(x + i)))


@tilewright.jit
def odd_topk(x, N: tl.constexpr, K: tl.constexpr):
    tl.store(x + tl.arange(0, K), tl.topk(tl.load(x + tl.arange(0, N)), K))


@tilewright.jit
def float_histogram(x, N: tl.constexpr):
    tl.histogram(tl.load(x + tl.arange(0, N)), 8)


def test_what_cannot_be_sorted_is_named() -> None:
    types = {"x": "*f32"}
    assert "power of two of elements along its axis, got 12" in compile_error(odd_sort, types, N=12)
    assert "got k = 3" in compile_error(odd_topk, types, N=8, K=3)
    assert "got k = 16" in compile_error(odd_topk, types, N=8, K=16)
    assert "histogram counts integers" in compile_error(float_histogram, types, N=8)
