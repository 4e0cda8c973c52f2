"""Math functions: the special function unit for exponentials and reciprocal roots, polynomials for the rest.

Greatest errors of float32, in units in the last place: exp2 2, rsqrt 2, exp 2 and as many more as |x| / 6 (the argument
is scaled in float32, as by every compiler that uses the unit); log, log2, sin, cos, tanh, erf 2 (`targets/llvm/math`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir.core import Operation
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.llvm.math import emit_math
from tilewright.targets.nvidia.lowering import KernelLowering, unsupported


def emit_function(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue]) -> LLVMValue:
    """A math function of float32 or float64 operands."""
    opcode, builder = operation.opcode, lowering.builder
    if operands[0].type == "double":
        raise unsupported(operation, f"'{opcode}' of float64 is not there yet")
    if opcode == "exp2":
        return exp2(lowering, operands[0])
    if opcode == "exp":
        return exp2(lowering, builder.binary("fmul", operands[0], builder.constant("float", math.log2(math.e))))
    if opcode == "rsqrt":
        return builder.call("llvm.nvvm.rsqrt.approx.f", "float", operands)
    if opcode == "remainder":
        return builder.binary("frem", operands[0], operands[1])
    return emit_math(builder, opcode, *operands)


def exp2(lowering: KernelLowering, operand: LLVMValue) -> LLVMValue:
    """2 to the power of a float32 by the special function unit."""
    return lowering.builder.call("llvm.nvvm.ex2.approx.f", "float", [operand])
