"""How rows that are reduced are divided among CTAs, for operations on arrays and for engines: blocks and threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.launch.sizes import cdiv, next_power_of_2

LEAST_CTA_THREADS, MOST_CTA_THREADS = 32, 512  # of a CTA
ROW_CHUNK = 8192
_SUM_COLUMNS = 16384  # longest row that a reduction takes at once
_SUM_ELEMENTS = 20480  # that its CTAs have, unless one row is longer


@dataclass(frozen=True)
class RowConfig:
    """A CTA of `threads` takes `rows` rows in blocks of `block` columns."""

    rows: int
    block: int
    threads: int
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


def threads_for(elements: int, each: int, most: int = MOST_CTA_THREADS) -> int:
    """The number of threads, a power of two up to `most`, of which each has about `each` elements."""
    return max(LEAST_CTA_THREADS, min(most, 1 << max(0, round(math.log2(max(1, elements) / each)))))


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
    return RowConfig(together, block, threads_for(together * block, 16, most=1024), long=columns > block)
