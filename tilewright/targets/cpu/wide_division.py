"""Quotients of vectors of 64-bit integers, which no instruction computes, by way of float64.

Where all lanes of both numbers fit 51 bits, as indices do, they are converted exactly, and the correctly rounded
quotient of such numbers never reaches the next integer, so that it is truncated to theirs.  Otherwise lanes are divided
one by one.
"""

from __future__ import annotations

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

EXACT_BITS = 51
_SHIFT_BITS, _SHIFT = 0x4338000000000000, 1.5 * 2**52  # of a float64 whose lowest bits are an integer, from -2^51 on


def divide_wide(builder: LLVMBuilder, left: LLVMValue, right: LLVMValue, signed: bool) -> LLVMValue:
    """`left / right`, toward zero, of vectors of i64; no divisor is zero, and no quotient overflows.

    The code has branches, so it is a function: code that moves out of a loop goes to the end of a closed block.
    """
    name = f"quotients.{'signed' if signed else 'unsigned'}.{left.lanes}"
    if name not in builder.module.defined:
        parameters = [(left.type, "left", ""), (left.type, "right", "")]
        attributes = builder.attributes + " alwaysinline"
        function = LLVMBuilder(builder.module, name, left.type, parameters, linkage="internal", attributes=attributes)
        _emit_function(function, signed)
        function.finish()
    return builder.call(name, left.type, [left, right])


def _emit_function(builder: LLVMBuilder, signed: bool) -> None:
    left, right = builder.arguments
    kind = left.type
    least = builder.constant(kind, 2**EXACT_BITS if signed else 0)
    size, other = (builder.binary("add", value, least) if signed else value for value in (left, right))
    high = builder.binary("lshr", builder.binary("or", size, other), builder.constant(kind, EXACT_BITS + int(signed)))
    wide = builder.compare("ne", high, builder.constant(kind, 0))
    quick, slow = builder.new_block("quick"), builder.new_block("slow")
    builder.branch_if(builder.intrinsic("vector.reduce.or", [wide], "i1"), slow, quick, weights=(1, 1000))
    builder.start(quick)
    ratio = builder.binary("fdiv", _to_double(builder, left), _to_double(builder, right))
    ratio = builder.intrinsic("trunc", [ratio])
    shifted = builder.binary("fadd", ratio, builder.constant(ratio.type, _SHIFT))
    builder.ret(builder.binary("sub", builder.cast("bitcast", shifted, kind), builder.constant(kind, _SHIFT_BITS)))
    builder.start(slow)
    builder.ret(builder.binary("sdiv" if signed else "udiv", left, right))


def _to_double(builder: LLVMBuilder, value: LLVMValue) -> LLVMValue:
    """Integers from -2^51 up to 2^51."""
    kind = vector_type("double", value.lanes)
    moved = builder.cast("bitcast", builder.binary("add", value, builder.constant(value.type, _SHIFT_BITS)), kind)
    return builder.binary("fsub", moved, builder.constant(kind, _SHIFT))
