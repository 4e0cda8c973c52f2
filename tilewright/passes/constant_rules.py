"""Rules that compute operations on constants, by the meaning that the op table gives them."""

from __future__ import annotations

import numpy as np

from tilewright.ir import interpreter, semantics
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, OPS
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by

CONSTANT_RULES = RewriteTable("constants")

# Not a hint: it has a number for each axis of its block, which mean nothing of single elements.
_FOLDED = [opcode for opcode in OPS if opcode in ELEMENTWISE - {"hint"} and OPS[opcode].evaluate is not None]


@CONSTANT_RULES.on(*_FOLDED)
def fold(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """f(constants) = constant: all elements are the same, so one is computed."""
    type_ = operation.result.type
    numbers = [constant_of(value) for value in operation.operands]
    if type_.is_pointer or any(number is None for number in numbers):
        return None
    scalars = [
        semantics.constant(value=number, dtype=value.type.dtype, shape=())
        for number, value in zip(numbers, operation.operands, strict=True)
        if number is not None
    ]
    (result,) = interpreter.evaluate(operation, scalars)
    number = result.astype(np.float64).item() if type_.dtype.is_float else result.item()
    if operation.opcode == "bitcast" and number != number:
        return None  # a constant has no NaN payload
    return build.constant(number, type_.dtype, type_.shape)


@CONSTANT_RULES.on(*(info.opcode for info in OPS.values() if info.commutative))
def constant_on_the_right(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """c + x = x + c, so that the other rules need to look at one side."""
    left, right = operation.operands
    if constant_of(left) is None or constant_of(right) is not None:
        return None
    return build.emit(operation.opcode, right, left, **operation.attributes)


@CONSTANT_RULES.on(*_FOLDED, "offset")
def splats(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """f(splat x, splat y) = splat f(x, y): one number is computed instead of a block."""
    if operation.result.type.is_scalar or all(constant_of(value) is not None for value in operation.operands):
        return None
    scalars = []
    for value in operation.operands:
        number, splat = constant_of(value), defined_by(value, "splat")
        if splat is not None:
            scalars.append(splat.operands[0])
        elif number is not None:
            scalars.append(build.constant(number, value.type.dtype))
        else:
            return None
    scalar = build.emit(operation.opcode, *scalars, **operation.attributes)
    return build.emit("splat", scalar, shape=operation.result.type.shape)
