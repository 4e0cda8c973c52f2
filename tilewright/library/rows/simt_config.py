"""How rows are divided among CTAs, for operations on arrays and for engines: blocks and threads."""

from __future__ import annotations

from tilewright.launch.sizes import cdiv
from tilewright.library.reduce.simt_config import (
    LEAST_CTA_THREADS,
    MOST_CTA_THREADS,
    ROW_CHUNK,
    RowConfig,
    block_of,
    threads_for,
)

REGISTER_COLUMNS = 32768  # longer rows are walked in chunks
_EARLY_COLUMNS = 16384  # columns up to which a row leaves registers for weights


def row_config(rows: int, columns: int, processors: int, inputs: int = 1, weights: bool = False) -> RowConfig:
    """The blocks for so many rows, as they were fastest on an H200 (bfloat16, 1024 to 16384 columns).

    Two inputs want all the threads that there are: one or two vectors of each for a thread, and the weights beside.
    Of one input a thread takes two to four vectors, and reads weights when it needs them.  Short rows are put together
    until there are 1024 elements with weights, 2048 without; fewer when processors would stay idle.
    """
    if columns > REGISTER_COLUMNS:
        return RowConfig(1, ROW_CHUNK, MOST_CTA_THREADS, long=True)
    block = block_of(columns)
    together = 1
    least = 1024 if weights and inputs == 1 else 2048
    while together * block < least and cdiv(rows, 2 * together) >= 4 * processors:
        together *= 2
    elements = together * block
    if inputs > 1:
        threads = _even_threads(elements, 8)
    elif weights:
        threads = max(min(256, _even_threads(elements, 16)), _even_threads(elements, 32))
    else:
        each = 32 if block <= ROW_CHUNK else 64
        threads = max(min(128, _even_threads(elements, 16)), _even_threads(elements, each))
    ahead = 0
    if (
        weights and inputs == 1 and ROW_CHUNK < block <= _EARLY_COLUMNS and not block & (block - 1)
    ):  # a line of the cache a thread
        threads, ahead = 256, 2 * processors
    return RowConfig(together, block, threads, early=weights and inputs > 1 and block <= _EARLY_COLUMNS, ahead=ahead)


def _even_threads(elements: int, each: int) -> int:
    """The same; fewer where all threads have whole vectors of 8 elements then, and not many more of them."""
    threads = threads_for(elements, each)
    while threads > LEAST_CTA_THREADS and elements % (8 * threads) and elements <= 2.5 * each * (threads // 2):
        threads //= 2
    return threads
