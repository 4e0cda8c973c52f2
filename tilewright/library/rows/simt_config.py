"""How rows are dealt out to CTAs, for operations on arrays and for engines: blocks and warps, as they were fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.launch.sizes import cdiv, next_power_of_2

MOST_WARPS = 16  # of a CTA
REGISTER_COLUMNS = 32768  # longer rows are walked in chunks
ROW_CHUNK = 8192
_SUM_COLUMNS = 16384  # longest row that a reduction takes at once
_SUM_ELEMENTS = 20480  # that its CTAs have, unless one row is longer
_EARLY = 16384  # columns up to which a row leaves registers for weights


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


def row_config(rows: int, columns: int, processors: int, inputs: int = 1, weights: bool = False) -> RowConfig:
    """The blocks for so many rows, as they were fastest on an H200 (bfloat16, 1024 to 16384 columns).

    Two inputs want all the threads that there are: one or two vectors of each for a thread, and the weights beside.
    Of one input a thread takes two to four vectors, and reads weights when it needs them.  Short rows are put together
    until there are 1024 elements with weights, 2048 without; fewer when processors would stay idle.
    """
    if columns > REGISTER_COLUMNS:
        return RowConfig(1, ROW_CHUNK, 16, long=True)
    block = block_of(columns)
    together = 1
    least = 1024 if weights and inputs == 1 else 2048
    while together * block < least and cdiv(rows, 2 * together) >= 4 * processors:
        together *= 2
    elements = together * block
    if inputs > 1:
        warps = _even_warps(elements, 256)
    elif weights:
        warps = max(min(8, _even_warps(elements, 512)), _even_warps(elements, 1024))
    else:
        warps = max(min(4, _even_warps(elements, 512)), _even_warps(elements, 1024 if block <= ROW_CHUNK else 2048))
    ahead = 0
    if (
        weights and inputs == 1 and ROW_CHUNK < block <= _EARLY and not block & (block - 1)
    ):  # a line of the cache a thread
        warps, ahead = 8, 2 * processors
    return RowConfig(together, block, warps, early=weights and inputs > 1 and block <= _EARLY, ahead=ahead)


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


def warps_for(elements: int, each: int, most: int = 16) -> int:
    """The number of warps, a power of two up to `most`, of which each has about `each` elements."""
    return 1 << max(0, min(most.bit_length() - 1, round(math.log2(max(1, elements) / each))))


def _even_warps(elements: int, each: int) -> int:
    """The same; fewer where all threads have whole vectors of 8 elements then, and not many more of them."""
    warps = warps_for(elements, each)
    while warps > 1 and elements % (256 * warps) and elements <= 2.5 * each * (warps // 2):
        warps //= 2
    return warps
