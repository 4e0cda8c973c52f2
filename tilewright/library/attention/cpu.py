"""Attention groups on CPUs: the blocked kernel for many queries, the streaming kernel for few."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.attention.kernel import attention, attention_decode
from tilewright.library.attention.strided import strided_candidate, with_strided_operands
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.cost import expected
from tilewright.settings import settings
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, upper_bound
from tilewright.targets.base import Target

MOST_STREAMED_QUERIES = 4  # up to this many, each query streams the keys by itself
QUERY_BLOCKS = (256, 128, 64)  # of queries, the largest that leaves every thread enough programs
KEY_BLOCK = 128
SHORT_BLOCKS = (16, 32)  # of queries, and of keys where they are as many: a sentence takes one program a head
_PROGRAMS_OF_THREAD = 4  # for each thread, so that all have about the same work
VECTOR = 16


def attention_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of an attention group; raises as `strided_candidate`."""
    group, copies = with_strided_operands(group, graph, target)
    return [copies.around(strided_candidate(group, target, _calls))]


def _calls(
    q: Value, operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any], keys: Size
) -> list[KernelCall]:
    """The streaming kernel where queries can be few, the blocked one where they can be many."""
    batch, heads, queries, _ = q.shape
    key_block = min(KEY_BLOCK, keys) if isinstance(keys, int) else KEY_BLOCK
    calls: list[KernelCall] = []
    if lower_bound(queries) <= MOST_STREAMED_QUERIES:
        condition = (queries, MOST_STREAMED_QUERIES) if upper_bound(queries) > MOST_STREAMED_QUERIES else None
        calls.append(_call(attention_decode, operands, types, {**constants, "BLOCK_T": key_block},
                           (queries, heads, batch), condition))  # fmt: skip
    for most in _short(queries):
        masks = {"MASK_S": True, "MASK_T": True, "BLOCK_S": most, "BLOCK_T": most if queries == keys else key_block}
        grid = (1, heads, batch)
        calls.append(_call(attention, operands, types, {**constants, **masks}, grid, (queries, most)))
    if upper_bound(queries) > MOST_STREAMED_QUERIES:
        block = query_block(queries, expected(lift(batch) * heads), settings.threads)
        masks = {
            "MASK_S": _is_ragged(queries, block),
            "MASK_T": _is_ragged(keys, key_block) or "lengths_0" in operands,
        }
        calls.append(_call(attention, operands, types, {**constants, **masks, "BLOCK_T": key_block, "BLOCK_S": block},
                           (ceil_divide(queries, block), heads, batch), None))  # fmt: skip
    return calls


def _short(queries: Size) -> list[int]:
    """The blocks of queries for short sequences of a length that only the run knows."""
    if isinstance(queries, int):
        return []
    return [most for most in SHORT_BLOCKS if lower_bound(queries) <= most < upper_bound(queries)]


def query_block(queries: Size, heads: int, threads: int) -> int:
    """Equal blocks of queries, in whole vectors; `heads` counts those of all batches.

    Large blocks read the keys and values less often; an unknown number of queries may be small.
    """
    if not isinstance(queries, int):
        return QUERY_BLOCKS[-1]
    for most in QUERY_BLOCKS:
        blocks = ceil(queries / most)
        if blocks * heads >= _PROGRAMS_OF_THREAD * threads:
            break
    return ceil(ceil(queries / blocks) / VECTOR) * VECTOR


def _is_ragged(extent: Size, block: int) -> bool:
    """Whether the last block may be cut short."""
    return not isinstance(extent, int) or extent % block != 0


def _call(
    kernel: JITFunction, operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any],
    grid: tuple[Size, Size, Size], condition: tuple[Size, int] | None,
) -> KernelCall:  # fmt: skip
    return KernelCall(kernel, dict(operands), dict(types), constants, grid, condition)
