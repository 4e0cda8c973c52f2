"""How rows that are reduced are dealt out to CTAs, for operations on arrays and for engines: blocks and warps, as they
were fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.launch.sizes import cdiv, next_power_of_2

MOST_WARPS = 16  # of a CTA
ROW_CHUNK = 8192
_SUM_COLUMNS = 16384  # longest row that a reduction takes at once
_SUM_ELEMENTS = 20480  # that its CTAs have, unless one row is longer


@dataclass(frozen=True)
class RowConfig:
    """A CTA of `warps` takes `rows` rows in blocks of `block` columns."""

    rows: int
    block: int
    warps: int
    long: bool = False
    early: bool = False  # whether weights are loaded together with the rows
    ahead: int = 0  # how many CTAs further on is the row that each asks for, so that the L2 cache has it in time


def block_of(columns: int) -> int:
    """The block for so many columns: a multiple of an eighth of the next power of two, so that few kernels serve all
    lengths, and few threads have nothing to do."""
    if columns < 16:
        return next_power_of_2(columns)
    step = max(16, next_power_of_2(columns) // 8)
    return cdiv(columns, step) * step


def warps_for(elements: int, each: int, most: int = 16) -> int:
    """The number of warps, a power of two up to `most`, of which each has about `each` elements."""
    return 1 << max(0, min(most.bit_length() - 1, round(math.log2(max(1, elements) / each))))


def sum_config(rows: int, columns: int, processors: int) -> RowConfig:
    """The blocks of a reduction along rows: two vectors to a thread, whole rows up to 16384 columns, others in chunks.

    More on its way at once was slower on an H200, as if the memory's pages were closed too early.  Whole rows are put
    together, up to eight, until all threads that a CTA can have are busy; more of them only up to half as many.
    """
    block = block_of(columns if columns <= _SUM_COLUMNS else cdiv(columns, cdiv(columns, ROW_CHUNK)))
    together = 1
    while rows >= 2 * together * 4 * processors:
        if 2 * together * block > (_SUM_ELEMENTS if together < 8 and block >= columns else ROW_CHUNK):
            break
        together *= 2
    return RowConfig(together, block, warps_for(together * block, 512, most=32), long=columns > block)
