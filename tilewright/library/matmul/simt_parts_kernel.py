"""Sums the parts of a product with split depth, always in the same order."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masks import edge_mask


@tilewright.jit
def sum_parts(parts, out, rows, columns, *extra, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
              MASK_M: tl.constexpr, MASK_N: tl.constexpr, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out [rows, columns] = EPILOGUE(sum of parts [PARTS, rows, columns]).  Grid: (row blocks, column blocks)."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = edge_mask(row, column, rows, columns, MASK_M, MASK_N)
    output_row = row.to(tl.int64)
    total = tl.load(parts + (output_row * columns + column), mask=mask)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + ((output_row + part * rows) * columns + column), mask=mask)
    result = EPILOGUE(total, output_row, column, mask, extra)
    tl.store(out + (output_row * columns + column), result, mask=mask)
