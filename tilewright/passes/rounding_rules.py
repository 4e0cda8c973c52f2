"""Rules for floats that are rounded to whole numbers: what quantization leaves between two products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import float32
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by
from tilewright.passes.choice_rules import keeps_value

ROUNDING_RULES = RewriteTable("rounding")
on = ROUNDING_RULES.on

_WHOLE = ("round", "floor", "ceil")
_SMALL_WHOLE = 2.0**22  # sums of such numbers are exact in float32
_WHOLE_OF_WHOLE = ("add", "subtract", "multiply", "minimum", "maximum")  # floats too large for fractions are whole, too


def _is_whole(value: SSAValue, depth: int = 4) -> bool:
    """Whether every element of a float is known to have no fraction, or not to be a number."""
    number, operation = constant_of(value), value.definition
    if number is not None:
        return float(number).is_integer()
    if operation is None or depth == 0:
        return False
    if operation.opcode == "cast":
        return not operation.operands[0].type.dtype.is_float
    if operation.opcode in _WHOLE_OF_WHOLE:
        return all(_is_whole(operand, depth - 1) for operand in operation.operands)
    return operation.opcode in _WHOLE


@on("cast")
def cast_of_whole(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """cast(cast(x, A), B) of a float x without a fraction, of type B, and integers A: x within the bounds of A."""
    inner = defined_by(operation.operands[0], "cast")
    if inner is None or inner.operands[0].type != operation.result.type or not _is_whole(inner.operands[0]):
        return None
    x, middle = inner.operands[0], inner.result.type.dtype
    if not x.type.dtype.is_float or middle.is_float or middle.is_bool or not keeps_value(middle, x.type.dtype):
        return None
    least = -(2 ** (middle.bits - 1)) if middle.is_signed else 0
    if middle.is_signed:  # without a sign the bound below is what NaN becomes
        x = build.emit("select", build.emit("compare", x, x, predicate="eq"), x, build.like(x, 0.0))
    return _bounded(build, x, float(least), float(2**middle.bits - 1 + least))


def _bounded(build: RuleRewriter, x: SSAValue, least: float, most: float) -> SSAValue:
    """`x` within bounds, of which NaN becomes the lower one; of zeros the positive one, as integers have it."""
    raised = build.emit("maximum", x, build.like(x, least), propagate_nan=False)
    bounded = build.emit("minimum", raised, build.like(x, most), propagate_nan=False)
    return build.emit("add", bounded, build.like(x, 0.0))


@on("cast")
def cast_of_positive_part(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """cast(round(max(x, 0) c), B) = cast(round(x c), B) for unsigned B and c > 0: negative numbers and NaN are 0."""
    if operation.operands[0].type.is_pointer or not operation.operands[0].type.dtype.is_float:
        return None
    target = operation.result.type.dtype
    if target.is_float or target.is_bool or target.is_signed:
        return None
    found = _without_positive_part(operation.operands[0], build)
    return None if found is None else build.emit("cast", found, **operation.attributes)


def _without_positive_part(x: SSAValue, build: RuleRewriter, depth: int = 3) -> SSAValue | None:
    """A float with the same positive numbers, without a maximum with 0 inside; None if there is none to leave out."""
    node = x.definition
    if node is None or depth == 0:
        return None
    if node.opcode == "maximum":
        return node.operands[0] if constant_of(node.operands[1]) == 0 else None
    if node.opcode not in ("round", "multiply", "divide"):
        return None
    factors = [constant_of(operand) for operand in node.operands[1:]]
    if any(factor is None or not 0 < factor < float("inf") for factor in factors):
        return None
    inner = _without_positive_part(node.operands[0], build, depth - 1)
    return None if inner is None else build.emit(node.opcode, inner, *node.operands[1:], **node.attributes)


@on("subtract")
def bounded_less_zero_point(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """min(max(x + z, a), b) + 0 - z = min(max(x, a - z), b - z) + 0 for float32 without fractions, small constants."""
    shifted, point = operation.operands
    sum_with_zero = defined_by(shifted, "add")
    least = None if sum_with_zero is None else defined_by(sum_with_zero.operands[0], "minimum")
    greatest = None if least is None else defined_by(least.operands[0], "maximum")
    if sum_with_zero is None or least is None or greatest is None or constant_of(sum_with_zero.operands[1]) != 0:
        return None
    total = defined_by(greatest.operands[0], "add")
    numbers = [constant_of(value) for value in (greatest.operands[1], least.operands[1], point)]
    if total is None or any(number is None or abs(number) > _SMALL_WHOLE for number in numbers):
        return None
    low, high, zero = (float(number) for number in numbers if number is not None)
    whole = all(number.is_integer() for number in (low, high, zero)) and low <= high and _is_whole(total.operands[0])
    if not whole or point.type.dtype != float32 or constant_of(total.operands[1]) != zero:
        return None
    if least.attributes["propagate_nan"] or greatest.attributes["propagate_nan"]:
        return None
    return _bounded(build, total.operands[0], low - zero, high - zero)


_MOST_NUMBERS = 1 << 16  # that a rule tries
_SCALINGS: dict[str, Callable[[Any, Any], Any]] = {"multiply": np.multiply, "divide": np.divide}


@on("round")
def scaled_twice(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """round((w a) / b) = round(w c) for float32 w among few whole numbers, where that is so for each of them."""
    outer = operation.operands[0].definition
    inner = None if outer is None or outer.opcode not in _SCALINGS else defined_by(outer.operands[0], "multiply")
    if outer is None or inner is None or operation.result.type.dtype != float32:
        return None
    factors = [constant_of(each.operands[1]) for each in (inner, outer)]
    bounds = _whole_bounds(inner.operands[0])
    if bounds is None or None in factors or bounds[1] - bounds[0] > _MOST_NUMBERS:
        return None
    first, second = (np.float32(factor) for factor in factors if factor is not None)
    numbers = np.arange(bounds[0], bounds[1] + 1, dtype=np.float32)
    with np.errstate(all="ignore"):
        wanted = np.rint(_SCALINGS[outer.opcode](numbers * first, second))
        near = _SCALINGS[outer.opcode](first, second)
        if not np.isfinite(near):
            return None
        for factor in (near, *(np.nextafter(near, np.float32(end)) for end in (np.inf, -np.inf))):
            if np.array_equal(np.rint(numbers * factor), wanted):
                whole = inner.operands[0]
                return build.emit("round", build.emit("multiply", whole, build.like(whole, float(factor))))
    return None


def _whole_bounds(value: SSAValue, depth: int = 4) -> tuple[int, int] | None:
    """The least and the largest that a float without fractions may be, which is a number; None where they are unknown,
    or large."""
    node = value.definition
    if node is None or depth == 0:
        return None
    if node.opcode == "cast":
        source = node.operands[0].type.dtype
        if source.is_float or source.is_bool or source.bits > 16:
            return None
        least = -(2 ** (source.bits - 1)) if source.is_signed else 0
        return least, least + 2**source.bits - 1
    if node.opcode not in ("add", "subtract"):
        return None
    shift = constant_of(node.operands[1])
    if shift is None or not float(shift).is_integer() or abs(shift) > _SMALL_WHOLE:
        return None
    inner = _bounds_of_bounded(node.operands[0]) or _whole_bounds(node.operands[0], depth - 1)
    sign = 1 if node.opcode == "add" else -1
    return None if inner is None else (inner[0] + sign * int(shift), inner[1] + sign * int(shift))


def _bounds_of_bounded(value: SSAValue) -> tuple[int, int] | None:
    """The whole bounds of min(max(x, a), b), of which NaN becomes a, for x without fractions."""
    least = defined_by(value, "minimum")
    greatest = None if least is None else defined_by(least.operands[0], "maximum")
    if least is None or greatest is None or not _is_whole(greatest.operands[0]):
        return None
    if least.attributes["propagate_nan"] or greatest.attributes["propagate_nan"]:
        return None
    numbers = [constant_of(each.operands[1]) for each in (greatest, least)]
    if any(number is None or not float(number).is_integer() or abs(number) > _SMALL_WHOLE for number in numbers):
        return None
    low, high = (int(number) for number in numbers if number is not None)
    return (low, high) if low <= high else None
