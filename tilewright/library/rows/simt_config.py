"""How rows are dealt out to CTAs, for operations on arrays and for engines: blocks and warps, as they were fastest."""

from __future__ import annotations

from tilewright.launch.sizes import cdiv
from tilewright.library.reduce.simt_config import ROW_CHUNK, RowConfig, block_of, warps_for

REGISTER_COLUMNS = 32768  # longer rows are walked in chunks
_EARLY = 16384  # columns up to which a row leaves registers for weights


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


def _even_warps(elements: int, each: int) -> int:
    """The same; fewer where all threads have whole vectors of 8 elements then, and not many more of them."""
    warps = warps_for(elements, each)
    while warps > 1 and elements % (256 * warps) and elements <= 2.5 * each * (warps // 2):
        warps //= 2
    return warps
