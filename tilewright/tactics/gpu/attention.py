"""Attention groups on GPUs: the plain kernel, for every stride, bias and element type."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.gpu_attention import attention
from tilewright.symbolic import Size, ceil_divide, upper_bound
from tilewright.tactics.attention import strided_candidate
from tilewright.tactics.core import Candidate, KernelCall, Operand
from tilewright.tactics.generate import next_power_of_2
from tilewright.targets.base import Target

SMALLEST = 16  # rows, columns and depth of an instruction


def gpu_attention(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of an attention group; raises as `strided_candidate`."""
    return [strided_candidate(group, target, _calls)]


def _calls(
    q: Value, operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any], keys: Size
) -> list[KernelCall]:
    """One launch: blocks of queries as large as there can be, up to 64 (32 in float32, whose products are slow)."""
    batch, heads, queries, _ = q.shape
    wide = q.dtype.itemsize > 2
    head, value_head = (max(SMALLEST, next_power_of_2(constants[name])) for name in ("HEAD", "VALUE_HEAD"))
    most = 32 if wide or max(head, value_head) > 128 else 64
    block = min(most, max(SMALLEST, next_power_of_2(int(min(upper_bound(queries), most)))))
    key_block = min(most, max(SMALLEST, next_power_of_2(keys))) if isinstance(keys, int) else most
    given = {**constants, "BLOCK_D": head, "BLOCK_V": value_head, "BLOCK_S": block, "BLOCK_T": key_block}
    grid = (ceil_divide(queries, block), heads, batch)
    options = {"num_warps": 4 if block > SMALLEST else 1 if not wide else 2}
    return [KernelCall(attention, dict(operands), dict(types), given, grid, options=options)]
