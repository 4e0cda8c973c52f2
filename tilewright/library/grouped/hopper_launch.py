"""Launch the Hopper product of groups of rows on tensors: list of tiles, tensor maps and grid of a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.grouped.hopper_kernel import grouped_matmul, list_tiles
from tilewright.library.matmul.hopper.config import MatmulConfig

LISTED = 8  # tiles of rows that a CTA lists


def tiles_shape(config: MatmulConfig, rows: int, groups: int) -> tuple[int, int]:
    """The shape of the list of tiles, i32: as many as there can be, and their count."""
    return rows // config.BM + groups + 2, 4


def prepare_grouped(
    config: MatmulConfig, a: Any, b: Any, ends: Any, tiles: Any, out: Any, *, processors: int
) -> Callable[[], Any]:
    """A call of the grouped product on these dense tensors.

    `a` is [rows, K], `b` [groups, N, K] (or [groups, K, N], as the config says), `ends` [groups] i32 or i64, `out`
    [rows, N]; `tiles` is memory for the list of tiles (`tiles_shape`).  Rows of all are multiples of 16 bytes.
    """
    config.check()
    (rows, depth), groups, columns = a.shape, b.shape[0], out.shape[1]
    most = tiles.shape[0] - 1
    matrices = (groups * depth, columns) if config.B_TRANSPOSED else (groups * columns, depth)
    maps = [
        TensorDescriptor(tensor, shape, (shape[1], 1), block)
        for tensor, shape, block in (
            (a, (rows, depth), config.left_block), (b, matrices, config.right_block),
            (out, (rows, columns), config.out_block),
        )
    ]  # fmt: skip
    listing = {"BLOCK_M": config.BM, "GROUPS": 1 << groups.bit_length(), "TILES": LISTED, "num_warps": 1}
    grid = (min(most * -(-columns // config.BN), processors), 1, 1)

    def run() -> None:
        list_tiles[(-(-most // LISTED), 1, 1)](ends, tiles, rows, groups, **listing)
        grouped_matmul[grid](*maps, out, tiles, rows, columns, depth, groups, CONFIG=config)

    return run
