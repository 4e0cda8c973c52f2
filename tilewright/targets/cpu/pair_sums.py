"""Products of bfloat16 that are added to a float32 in pairs, in one instruction for four.

    fma(low(x), low(y), fma(high(x), high(y), sum))  ->  vdpbf16ps(sum, x, y)

x and y are words of two bfloat16; high(x) is the float32 `bitcast(x & 0xFFFF0000)`, low(x) is `bitcast(x << 16)`.  The
instruction rounds each sum as the two multiply-adds do, but takes subnormal numbers as zeros.
"""

from __future__ import annotations

from collections.abc import Container

from tilewright.dtypes import float32
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import constant_of
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

PAIR_LANES = 16  # of a register
_HIGH = 0xFFFF0000
_INSTRUCTION = "llvm.x86.avx512bf16.dpbf16ps.512"


def pair_sum(operation: Operation, stored: Container[SSAValue]) -> tuple[SSAValue, SSAValue, SSAValue] | None:
    """The sum and the two words of an `fma` of their low halves and of their high ones; None for others, and where a
    part of it has a buffer."""
    inner = operation.operands[2].definition if operation.opcode == "fma" else None
    if inner is None or inner.opcode != "fma" or inner.result in stored or inner.result.type.element != float32:
        return None
    low = [_half(value, "shift_left", 16, stored) for value in operation.operands[:2]]
    high = [_half(value, "and", _HIGH, stored) for value in inner.operands[:2]]
    if low[0] is None or low[1] is None or low != high:
        return None
    return inner.operands[2], low[0], low[1]


def _half(value: SSAValue, opcode: str, by: int, stored: Container[SSAValue]) -> SSAValue | None:
    """The words that a half is of, of which an operation with a constant leaves it at the top."""
    cast = value.definition
    if cast is None or cast.opcode != "bitcast" or value in stored:
        return None
    left = cast.operands[0].definition
    if left is None or left.opcode != opcode or left.result in stored or left.result.type.element.bits != 32:
        return None
    words, number = left.operands
    found = constant_of(number)
    return words if found is not None and int(found) & 0xFFFFFFFF == by else None


def added_pairs(builder: LLVMBuilder, total: LLVMValue, left: LLVMValue, right: LLVMValue) -> LLVMValue:
    """`total` plus the products of both halves of words, in whole registers."""
    pairs = vector_type("bfloat", 2 * PAIR_LANES)
    found: LLVMValue | None = None
    for first in range(0, total.lanes, PAIR_LANES):
        parts = [total, left, right]
        if total.lanes > PAIR_LANES:
            parts = [builder.shuffle(part, None, range(first, first + PAIR_LANES)) for part in parts]
        words = [builder.cast("bitcast", part, pairs) for part in parts[1:]]
        added = builder.call(_INSTRUCTION, parts[0].type, [parts[0], *words])
        if found is not None:
            added = builder.with_lanes(added, found.lanes)
            added = builder.shuffle(found, added, [*range(first), *range(found.lanes, found.lanes + PAIR_LANES)])
        found = added
    assert found is not None
    return found
