"""Launch the Hopper product of groups of rows on tensors: the list of tiles, the tensor maps and the grid of a form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.grouped.hopper_kernel import grouped_matmul, list_tiles
from tilewright.library.matmul.hopper.config import MatmulForm

LISTED = 8  # tiles of rows that a CTA lists


def tiles_shape(form: MatmulForm, rows: int, groups: int) -> tuple[int, int]:
    """The shape of the list of tiles, i32: as many as there can be, and their count."""
    return rows // form.BM + groups + 2, 4


def prepare_grouped(
    form: MatmulForm, a: Any, b: Any, ends: Any, tiles: Any, out: Any, *, processors: int
) -> Callable[[], Any]:
    """A call of the grouped product on these dense tensors.

    `a` is [rows, K], `b` [groups, N, K] (or [groups, K, N], as the form says), `ends` [groups] i32 or i64, `out`
    [rows, N]; `tiles` is memory for the list of tiles (`tiles_shape`).  Rows of all are multiples of 16 bytes.
    """
    form.check()
    (rows, depth), groups, columns = a.shape, b.shape[0], out.shape[1]
    most = tiles.shape[0] - 1
    matrices = (groups * depth, columns) if form.B_TRANSPOSED else (groups * columns, depth)
    maps = [
        TensorDescriptor(tensor, shape, (shape[1], 1), block)
        for tensor, shape, block in (
            (a, (rows, depth), form.left_block), (b, matrices, form.right_block), (out, (rows, columns), form.out_block)
        )
    ]  # fmt: skip
    listing = {"BLOCK_M": form.BM, "GROUPS": 1 << groups.bit_length(), "TILES": LISTED, "num_warps": 1}
    grid = (min(most * -(-columns // form.BN), processors), 1, 1)

    def run() -> None:
        list_tiles[(-(-most // LISTED), 1, 1)](ends, tiles, rows, groups, **listing)
        grouped_matmul[grid](*maps, out, tiles, rows, columns, depth, groups, FORM=form)

    return run
