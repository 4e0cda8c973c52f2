"""Accesses in reverse order: vectors that are turned around, alike with the interpreter for every type and mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.test_cpu_explain import notes, of
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.settings import settings


@tilewright.jit
def loads(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + n - 1 - i, mask=i < n)
    tl.store(out + i, value, mask=i < n)


@tilewright.jit
def stores(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + (n - 1 - i), value, mask=i < n)


@tilewright.jit
def whole(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + (BLOCK - 1 - i), tl.load(x + (2 * BLOCK - 1 - i)))


@tilewright.jit
def lanes_by_their_masks(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + n - 1 - i, mask=(i % 3 != 0) & (i < n))
    tl.store(out + n - 1 - i, value, mask=(i % 2 == 0) & (i < n))


@tilewright.jit
def in_place(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    reversed_x = tl.load(x + n - 1 - i, mask=i < n)
    tl.store(x + i, reversed_x, mask=i < n)
    tl.store(out + n - 1 - i, tl.load(x + i, mask=i < n), mask=i < n)


@tilewright.jit
def both_axes(x, out, n, BLOCK: tl.constexpr):
    row, column = tl.arange(0, 8)[:, None], tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + (7 - row) * n + (n - 1 - column), mask=column < n)
    tl.store(out + row * n + column, value, mask=column < n)


@tilewright.jit
def unsigned_offsets(x, out, n, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.uint32)
    value = tl.load(x + (n.to(tl.uint32) - 1 - i), mask=i < n.to(tl.uint32))
    tl.store(out + i, value, mask=i < n.to(tl.uint32))


CASES = [
    (loads, 301, 128, 3), (loads, 17, 17, 1), (stores, 301, 128, 3), (stores, 96, 96, 1), (whole, 40, 40, 1),
    (whole, 64, 64, 1), (lanes_by_their_masks, 301, 128, 3), (in_place, 100, 128, 1), (both_axes, 100, 128, 1),
    (unsigned_offsets, 301, 128, 3),
]  # fmt: skip


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_every_type(dtype: DType, rng: np.random.Generator) -> None:
    for kernel, n, block, grid in CASES:
        x = rng.integers(0, 100, 8 * n).astype(np.float64).astype(dtype.numpy)
        results: list[list[np.ndarray]] = []
        for interpret in (False, True):
            arrays = [x.copy(), np.zeros(8 * n, dtype.numpy)]
            with settings.scope(interpret=interpret):
                kernel[(grid,)](*arrays, n, BLOCK=block)
            results.append([array.view(np.uint8) for array in arrays])
        assert all(map(np.array_equal, *results)), kernel.name


@pytest.mark.parametrize(("kernel", "start"), [(loads, "value ="), (stores, "tl.store")])
def test_explain_says_so(kernel: Any, start: str) -> None:
    found = of(notes(kernel, {"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 1024}), start)
    assert "vectors of consecutive elements, reversed in registers" in found
    assert "gather" not in found and "scatter" not in found
