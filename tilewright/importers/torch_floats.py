"""Sizes that follow from others through floats: ``int(n * 0.7)``, ``round(n / 2)``, ``int(math.sqrt(n))``.

Sizes are whole numbers. A formula of whole numbers that gives the same for every size of the range takes the place of
the floats, where there is one; otherwise the run computes the floats as Python does.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import numpy as np

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.importers.torch_size_conditions import evaluated
from tilewright.symbolic import Size, floor_divide, lift, maximum, minimum, modulo

ROUNDING_FUNCTIONS = ("RoundToInt", "FloorToInt", "CeilToInt", "TruncToInt")

_MOST_TRIED_SIZES = 1 << 20  # of a range that are tried
_DENOMINATORS = (16, 128, 1024, 1 << 14)
_ROUNDED_BY = {"RoundToInt": "round", "FloorToInt": "floor", "CeilToInt": "ceil"}
_FOLDED = {"Add": "add", "Mul": "multiply", "Max": "maximum", "Min": "minimum"}
_OF_WHOLE_NUMBERS = {
    "FloorDiv": "floor_divide", "PythonMod": "remainder", "Mod": "remainder", "Abs": "absolute",
    "PowByNatural": "power",
}  # fmt: skip
_OF_FLOATS = {
    "IntTrueDiv": "divide", "FloatTrueDiv": "divide", "FloatPow": "power", "OpaqueUnaryFn_sqrt": "sqrt",
    "ToFloat": None,
}  # fmt: skip


def in_whole_numbers(expression: Any, symbol: Any, size: Size, low: int, high: int) -> Size | None:
    """The formula for a rounded float of one size, `symbol`, from `low` to `high`; None where none is found."""
    tried = _at_all_sizes((expression, expression.args[0]), symbol, low, high)
    if tried is None:
        return None
    sizes, (wanted, exact) = np.arange(low, high + 1), tried
    slope = Fraction(float(exact[-1]) - float(exact[0])) / max(1, high - low)
    for most in _DENOMINATORS:
        top, bottom = slope.limit_denominator(most).as_integer_ratio()
        found = _floored(size, sizes, wanted, top, bottom)
        start = round(float(exact[0]) * bottom) - top * low
        found = _half_to_even(size, sizes, wanted, (top, start, bottom)) if found is None else found
        if found is not None:
            return found
    return None


def tried_ends(expression: Any, symbol: Any, low: int, high: int) -> tuple[int, int] | None:
    """The least and the largest that a rounded float of one size is from `low` to `high`; None where it isn't known."""
    tried = _at_all_sizes((expression,), symbol, low, high)
    return (int(tried[0].min()), int(tried[0].max())) if tried is not None else None


def _at_all_sizes(expressions: tuple[Any, ...], symbol: Any, low: int, high: int) -> list[np.ndarray] | None:
    """What expressions of one size are for each from `low` to `high`; None where it is not known, or they are many."""
    if high - low >= _MOST_TRIED_SIZES:
        return None
    sizes = np.arange(low, high + 1)
    with suppress(TypeError, ValueError, OverflowError):
        return [np.broadcast_to(evaluated(each, {symbol: sizes}), sizes.shape) for each in expressions]
    return None


def _floored(size: Size, sizes: np.ndarray, wanted: np.ndarray, top: int, bottom: int) -> Size | None:
    """``(top * size + start) // bottom``, where the numbers that are wanted leave a `start`."""
    starts = bottom * wanted - top * sizes
    if starts.max() >= starts.min() + bottom:
        return None
    return floor_divide(lift(size) * top + int(starts.max()), bottom)


def _half_to_even(size: Size, sizes: np.ndarray, wanted: np.ndarray, fraction: tuple[int, int, int]) -> Size | None:
    """``(top * size + start) / bottom`` rounded as Python does, where the numbers that are wanted are that."""
    top, start, bottom = fraction
    doubled = 2 * (top * sizes + start) + bottom
    whole = doubled // (2 * bottom)
    if (whole - (1 - np.minimum(doubled % (2 * bottom), 1)) * (whole % 2) != wanted).any():
        return None
    numerator = lift(lift(size) * (2 * top) + (2 * start + bottom))
    quotient = floor_divide(numerator, 2 * bottom)
    is_half = lift(1) - minimum(modulo(numerator, 2 * bottom), 1)
    return maximum(lift(quotient) - lift(is_half) * modulo(quotient, 2), int(wanted.min()))


def computed_in_floats(emit: Emitter, sizes: Any, expression: Any) -> Value:
    """A number that the run computes: float64, or int64 for whole ones; `sizes` gives the size, or the number, that an
    expression is.

    Raises `Unsupported` for operations that are not known.
    """
    kind = type(expression).__name__
    if expression.is_Float or (expression.is_Rational and not expression.is_Integer):
        return emit.builder.number(float(expression), float64)
    if kind not in (*ROUNDING_FUNCTIONS, *_FOLDED, *_OF_FLOATS):
        return _of_whole_numbers(emit, sizes, expression, kind)
    parts = [computed_in_floats(emit, sizes, part) for part in expression.args]
    if kind in _FOLDED:
        dtype = float64 if any(part.dtype == float64 for part in parts) else int64
        return reduce(partial(emit.op, _FOLDED[kind]), (emit.cast(part, dtype) for part in parts))
    parts = [emit.cast(part, float64) for part in parts]
    operation = _OF_FLOATS.get(kind) or _ROUNDED_BY.get(kind)
    found = emit.op(operation, *parts) if operation else parts[0]
    return emit.cast(found, int64) if kind in ROUNDING_FUNCTIONS else found  # a cast drops what follows the point


def _of_whole_numbers(emit: Emitter, sizes: Any, expression: Any, kind: str) -> Value:
    """A size or a number, or what an operation gives of those that are no sizes."""
    try:
        found = sizes(expression)
    except Unsupported:
        if kind not in _OF_WHOLE_NUMBERS:
            raise
        parts = [computed_in_floats(emit, sizes, part) for part in expression.args]
        return emit.op(_OF_WHOLE_NUMBERS[kind], *parts)
    return found if isinstance(found, Value) else emit.value(found, int64)
