"""Two or three elements that lie far apart and are written side by side: vectors are interleaved in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Parameter
from tilewright.settings import settings


@tilewright.jit
def planes(x, out, N: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COUNT)[None, :]
    mask = (row < N) & (column < COUNT)
    value = tl.load(x + column * N + row, mask=mask)
    tl.store(out + row * COUNT + column, value, mask=mask)


@tilewright.jit
def whole(x, out, N: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COUNT)[None, :]
    tl.store(out + row * COUNT + column, tl.load(x + column * ROWS + row))


@tilewright.jit
def by_other_masks(x, out, N: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COUNT)[None, :]
    value = tl.load(x + column * N + row, mask=(row < N) & (row % 5 != column))
    tl.store(out + row * COUNT + column, value, mask=(row < N) & ((row + column) % 3 != 0))


@tilewright.jit
def of_several_images(x, out, N: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr):
    image = tl.arange(0, 2)[:, None, None]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[None, :, None]
    column = tl.arange(0, COUNT)[None, None, :]
    value = tl.load(x + (image * COUNT + column) * N + row, mask=row < N)
    tl.store(out + (image * N + row) * COUNT + column, value, mask=row < N)


CASES = [(planes, 301, 128, 3), (planes, 96, 96, 1), (planes, 7, 16, 1), (whole, 48, 48, 1), (whole, 37, 37, 1),
         (by_other_masks, 100, 64, 2), (of_several_images, 45, 20, 3)]  # fmt: skip


def compiled(kernel: Any, dtype: DType, n: int, count: int, rows: int) -> Any:
    """For arrays of which none is in the memory of another one: what may overlap is copied first."""
    types = {name: f"*{dtype.text}" for name in ("x", "out")}
    free = {name: Parameter(name, alias_free=True) for name in types}
    return kernel.compile(types, {"N": n, "COUNT": count, "ROWS": rows}, free)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_every_type(dtype: DType, count: int, rng: np.random.Generator) -> None:
    for kernel, n, rows, grid in CASES:
        x = rng.integers(0, 100, 8 * n).astype(np.float64).astype(dtype.numpy)
        found, expected = np.zeros(8 * n, dtype.numpy), np.zeros(8 * n, dtype.numpy)
        compiled(kernel, dtype, n, count, rows)[(grid,)](x, found)
        with settings.scope(interpret=True):
            kernel[(grid,)](x, expected, N=n, COUNT=count, ROWS=rows)
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8), err_msg=kernel.name)


@pytest.mark.parametrize("kernel", [planes, whole, by_other_masks, of_several_images])
def test_explain_says_so(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(kernel, dtypes.float32, 1000, 3, 512).explain()
    assert "3 vectors are interleaved in registers" in capsys.readouterr().out
