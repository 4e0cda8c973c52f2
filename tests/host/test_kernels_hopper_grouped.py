"""Grouped products on Hopper in the interpreter, which checks their synchronisation, for groups of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.hopper_support import ORDERS, traced_grouped
from tilewright.ir.interpreter import run
from tilewright.library.grouped.hopper_kernel import list_tiles
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.passes.pipeline import simplify

CONFIG = MatmulConfig(BM=128, BN=64, STAGES=2)
ENDS = {
    "ragged": [30, 30, 190, 400],
    "whole tiles": [128, 256, 256, 384],
    "rows behind the last group": [64, 70, 200, 290],
    "one group has all": [0, 0, 400, 400],
    "none has any": [0, 0, 0, 0],
    "not in order": [100, 40, 900, 300],
}
ROWS = 400


@tilewright.jit
def swish(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@tilewright.jit
def with_bias(value, row, column, mask, extra):
    return value + tl.load(extra[0] + row, mask=mask, other=0.0)


def limits(ends: list[int], rows: int) -> list[tuple[int, int]]:
    """First row and end of every group, and of the rows behind the last."""
    found, start = [], 0
    for end in [*ends, rows]:
        end = min(max(end, start), rows)
        found.append((start, end))
        start = end
    return found


def tiles_of(ends: list[int], rows: int, block: int) -> np.ndarray:
    """The list of tiles, as the kernel makes it."""
    most = rows // block + len(ends) + 1
    tiles = np.full((most + 1, 4), -7, np.int32)
    types: dict[str, Any] = {"ends": "*i64", "tiles": "*i32", "rows": "i32", "groups": "i32"}
    constants = {"BLOCK_M": block, "GROUPS": 8, "TILES": 4}
    function = list_tiles.trace(types, constants)
    run(function, [np.array(ends, np.int64), tiles, rows, len(ends)], (-(-most // 4), 1, 1))
    return tiles


@pytest.mark.parametrize("name", ENDS)
def test_tiles_of_rows(name: str) -> None:
    tiles = tiles_of(ENDS[name], ROWS, 128)
    expected = [
        (group, first, end)
        for group, (start, end) in enumerate(limits(ENDS[name], ROWS))
        for first in range(start, end, 128)
    ]
    assert tiles[-1, 0] == len(expected)
    assert [tuple(row) for row in tiles[: len(expected), :3]] == expected


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_groups_of_rows(name: str, transposed: bool, rng: np.random.Generator) -> None:
    """Columns that end inside a tile, depth inside a stage where that is allowed."""
    groups, N, K = 4, 104, 128 if transposed else 136
    config = CONFIG._replace(B_TRANSPOSED=transposed, BN=64)
    a = rng.standard_normal((ROWS, K)).astype(config.INPUT.element.numpy)
    b = rng.standard_normal((groups, K, N)).astype(a.dtype)
    exact = np.zeros((ROWS, N))
    for group, (start, end) in enumerate(limits(ENDS[name], ROWS)[:-1]):
        exact[start:end] = a[start:end].astype(np.float64) @ b[group].astype(np.float64)
    stored = (b if transposed else b.swapaxes(1, 2)).reshape(-1, N if transposed else K).copy()
    c = np.full((ROWS, N), np.nan, a.dtype)
    tiles = tiles_of(ENDS[name], ROWS, config.BM)
    function = simplify(traced_grouped(config))
    run(function, [a, stored, c, c, tiles, ROWS, N, K, groups], (3, 1, 1), order=2)
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-8, atol=2e-4)


def test_a_gate_and_an_epilogue(rng: np.random.Generator) -> None:
    """Columns of two halves in turns; what follows is added to rows without a group, too."""
    groups, N, K = 3, 144, 64
    ends = [10, 150, 290]
    config = CONFIG._replace(GATE=swish, EPILOGUE=with_bias, BN=128, BM=64, CONSUMERS=1)
    a = rng.standard_normal((300, K)).astype(config.INPUT.element.numpy)
    b = rng.standard_normal((groups, N, K)).astype(a.dtype)
    bias = rng.standard_normal(300).astype(np.float32)
    product = np.zeros((300, N))
    for group, (start, end) in enumerate(limits(ends, 300)[:-1]):
        product[start:end] = a[start:end].astype(np.float64) @ b[group].astype(np.float64).T
    gate, up = (product.reshape(300, N // 16, 2, 8)[:, :, part].reshape(300, N // 2) for part in range(2))
    c = np.full((300, N // 2), np.nan, a.dtype)
    function = simplify(traced_grouped(config, ("*f32",)))
    tiles = tiles_of(ends, 300, config.BM)
    run(function, [a, b.reshape(-1, K), c, c, tiles, 300, N, K, groups, bias], (4, 1, 1), order=1)
    np.testing.assert_allclose(
        c.astype(np.float64), gate / (1 + np.exp(-gate)) * up + bias[:, None], rtol=2**-8, atol=2e-4
    )


@pytest.mark.parametrize("config", [CONFIG, CONFIG._replace(BM=64, CONSUMERS=1, BN=128, STAGES=3)])
def test_groups_are_clean_in_any_order(config: MatmulConfig, rng: np.random.Generator) -> None:
    a = rng.standard_normal((150, 136)).astype(config.INPUT.element.numpy)
    b = rng.standard_normal((2 * 72, 136)).astype(a.dtype)
    exact = np.concatenate([a[:70].astype(np.float64) @ b[:72].T, a[70:].astype(np.float64) @ b[72:].T])
    function = simplify(traced_grouped(config))
    tiles = tiles_of([70, 150], 150, config.BM)
    for order in range(ORDERS):
        c = np.full((150, 72), np.nan, a.dtype)
        run(function, [a, b, c, c, tiles, 150, 72, 136, 2], (2, 1, 1), order=order)
        np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-8, atol=2e-4)
