"""Algebraic identities.  Those for floats hold for every number, signed zeros, infinities and NaNs included."""

from __future__ import annotations

import math

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by

ARITHMETIC_RULES = RewriteTable("arithmetic")
on = ARITHMETIC_RULES.on


def _is_float(value: SSAValue) -> bool:
    return value.type.dtype.is_float


def _all_ones(value: SSAValue) -> int | bool:
    """The integer whose bits are all set."""
    dtype = value.type.dtype
    return True if dtype.is_bool else -1 if dtype.is_signed else 2**dtype.bits - 1


@on("add")
def add_zero(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x + 0 = x; for floats the zero must be -0.0, because -0.0 + 0.0 = 0.0."""
    left, right = operation.operands
    number = constant_of(right)
    if number != 0 or (_is_float(left) and math.copysign(1.0, number) > 0):
        return None
    return left


@on("subtract")
def subtract_zero(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x - 0 = x; for floats the zero must be 0.0."""
    left, right = operation.operands
    number = constant_of(right)
    if number != 0 or (_is_float(left) and math.copysign(1.0, number) < 0):
        return None
    return left


@on("subtract")
def subtract_constant(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x - c = x + (-c) for signed integers, so that sums have one form."""
    left, right = operation.operands
    if constant_of(right) is None or not left.type.dtype.is_signed:
        return None
    return build.emit("add", left, build.emit("negate", right))


@on("subtract", "xor")
def cancel(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x - x = x ^ x = 0 for integers (infinity - infinity is NaN)."""
    left, right = operation.operands
    return build.like(left, 0) if left is right and not _is_float(left) else None


@on("multiply", "divide")
def times_one(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x * 1 = x / 1 = x."""
    left, right = operation.operands
    return left if constant_of(right) == 1 else None


@on("multiply", "and")
def times_zero(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x * 0 = x & 0 = 0 for integers."""
    left, right = operation.operands
    return right if constant_of(right) == 0 and not _is_float(left) else None


@on("remainder")
def remainder_of_one(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x % 1 = 0 for integers."""
    left, right = operation.operands
    return build.like(left, 0) if constant_of(right) == 1 and not _is_float(left) else None


@on("divide")
def divide_by_power_of_two(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x / 2^k = x * 2^-k for floats: both are the exact quotient rounded, while 2^-k is a normal number."""
    left, right = operation.operands
    number = constant_of(right)
    if not _is_float(left) or left.type.dtype.bits < 16 or not number or not math.isfinite(number):
        return None
    mantissa, exponent = math.frexp(number)
    greatest = 13 if left.type.dtype.name == "float16" else 125
    if abs(mantissa) != 0.5 or abs(exponent) > greatest:
        return None
    return build.emit("multiply", left, build.like(right, 1.0 / number))


@on("add", "multiply", "and", "or", "xor")
def gather_constants(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """(x + c) + d = x + (c + d) for integers, which wrap; likewise * & | ^."""
    left, right = operation.operands
    inner = left.definition
    if constant_of(right) is None or _is_float(left) or inner is None or inner.opcode != operation.opcode:
        return None
    source, constant = inner.operands
    if constant_of(constant) is None:
        return None
    return build.emit(operation.opcode, source, build.emit(operation.opcode, constant, right))


@on("or", "xor", "shift_left", "shift_right")
def no_bits(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x | 0 = x ^ 0 = x << 0 = x >> 0 = x."""
    left, right = operation.operands
    return left if constant_of(right) == 0 else None


@on("and", "or")
def all_bits(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x & ~0 = x and x | ~0 = ~0."""
    left, right = operation.operands
    if constant_of(right) != _all_ones(left):
        return None
    return left if operation.opcode == "and" else right


@on("and", "or", "minimum", "maximum")
def idempotent(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x & x = x | x = min(x, x) = max(x, x) = x."""
    left, right = operation.operands
    return left if left is right else None


@on("not", "negate")
def involution(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """~~x = x and -(-x) = x."""
    inner = defined_by(operation.operands[0], operation.opcode)
    return None if inner is None else inner.operands[0]


@on("absolute")
def absolute_of_sign(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """|-x| = ||x|| = |x|."""
    inner = operation.operands[0].definition
    if inner is None or inner.opcode not in ("negate", "absolute"):
        return None
    return build.emit("absolute", inner.operands[0])


@on("power")
def small_power(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x ** 2 = x * x and x ** 1 = x."""
    left, right = operation.operands
    number = constant_of(right)
    if number == 1:
        return left
    return build.emit("multiply", left, left) if number == 2 else None


@on("offset")
def offset_by_zero(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """pointer + 0 = pointer."""
    pointer, count = operation.operands
    return pointer if constant_of(count) == 0 else None
