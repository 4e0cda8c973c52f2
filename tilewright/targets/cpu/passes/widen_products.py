"""Products of 8-bit floats become products of float16, which holds all their numbers exactly, and sums in float16
are carried in float32 within each product."""

from __future__ import annotations

from tilewright.dtypes import float16, float32
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, rewrite

_RULES = RewriteTable("wider products")


@_RULES.on("dot")
def product_of_float8(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """dot(a, b, c) = dot(cast(a, float16), cast(b, float16), c)"""
    left, right, accumulator = operation.operands
    if left.type.dtype.bits != 8 or not left.type.dtype.is_float:
        return None
    wide = [build.emit("cast", value, dtype=float16, rounding="rtne") for value in (left, right)]
    return build.emit("dot", *wide, accumulator, **operation.attributes)


@_RULES.on("dot")
def sum_in_float16(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """dot(a, b, c) = cast(dot(a, b, cast(c, float32)), float16), rounded once."""
    left, right, accumulator = operation.operands
    if accumulator.type.dtype != float16:
        return None
    wide = build.emit("cast", accumulator, dtype=float32, rounding="rtne")
    product = build.emit("dot", left, right, wide, **operation.attributes)
    return build.emit("cast", product, dtype=float16, rounding="rtne")


def widen_products(function: Function) -> Function:
    """`function` with such products rewritten; the same object when there are none."""
    return rewrite(function, _RULES)
