"""Tables of numbers that kernels read and that follow from sizes: computed on the host when a shape is first met."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

PAIRS = 1 << 15  # of batches and heads, that an entry of attention's schedule counts: numbers below this
TILES = 1 << 16  # of queries, likewise

_L2_WORKING_SET = 32 << 20  # bytes of keys and values that the L2 cache keeps while CTAs walk them


def attention_schedule(
    batches: int, heads: int, group: int, queries: int, keys: int, tile: int, block: int, row_bytes: int,
    causal: int, processors: int,
) -> np.ndarray:  # fmt: skip
    """Each CTA's tiles of attention, [CTAs, tiles + 1] i32: ``(batch * heads + head) << 16 | tile``, then -1.

    There are at most `PAIRS` of batches and heads, and `TILES` of queries; callers see to that.

    A tile is `tile` queries, which walk blocks of `block` keys; `group` heads share keys and values, whose rows have
    `row_bytes` bytes.  Full attention: tiles in order, dealt out evenly.  Causal: the longest tiles first, among heads
    whose keys and values fit the L2 cache together, each to the CTA that has least to do.
    """
    tiles = -(-queries // tile)
    pairs = batches * heads
    grid = min(tiles * pairs, processors)
    if not causal:
        return _round_robin(np.arange(pairs)[:, None] << 16 | np.arange(tiles)[None, :], grid)
    blocks = -(-keys // block)
    last = np.minimum((np.arange(tiles) + 1) * tile, queries) + keys - queries
    cost = np.clip(-(-last // block), 1, blocks).tolist()
    together = max(1, _L2_WORKING_SET // max(1, 2 * keys * row_bytes)) * group
    lists: list[list[int]] = [[] for _ in range(grid)]
    load = [(0, number) for number in range(grid)]
    longest_first = sorted(range(tiles), key=lambda number: -cost[number])
    for first in range(0, pairs, together):
        for number in longest_first:
            for pair in range(first, min(first + together, pairs)):
                busy, cta = load[0]
                lists[cta].append(pair << 16 | number)
                heapq.heapreplace(load, (busy + cost[number] + 1, cta))  # 1: what a tile takes besides its blocks
    table = np.full((grid, max(map(len, lists)) + 1), -1, np.int32)
    for row, entries in zip(table, lists, strict=True):
        row[: len(entries)] = entries
    return table


def _round_robin(entries: np.ndarray, rows: int) -> np.ndarray:
    """Entries in order, one to each row in turn, each row ended by -1."""
    columns = -(-entries.size // rows) + 1
    table = np.full((columns, rows), -1, np.int32)
    table.reshape(-1)[: entries.size] = entries.reshape(-1)
    return np.ascontiguousarray(table.T)


# What plans may name (`runtime.plan.TableReference`); all arguments are whole numbers.
RUN_TIME_TABLES: dict[str, Callable[..., np.ndarray]] = {"attention": attention_schedule}
