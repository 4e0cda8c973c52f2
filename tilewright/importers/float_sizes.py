"""Exact arithmetic on symbolic sizes that pass through floating point: ``floor(float(height) * 0.5)``.

A number here is an int, a symbolic size, or a `Ratio` of two sizes.  Numbers whose rounding would matter (0.1 times a
height) are not decided: `Undecided`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Union

from tilewright.symbolic import (
    Expression,
    Size,
    at_most,
    ceil_divide,
    floor_divide,
    lift,
    lower_bound,
    maximum,
    minimum,
    modulo,
    simplify,
)

# Of an exact binary fraction: products with sizes of images and sequences are exact in float32.
LARGEST_BOTTOM = 1 << 12


class Undecided(Exception):
    """The result depends on the value of a symbol."""


@dataclass(frozen=True)
class Ratio:
    """`top / bottom`, with a bottom above 0 that does not divide the top."""

    top: Size
    bottom: Size

    def __str__(self) -> str:
        return f"({self.top}) / ({self.bottom})"


Number = Union[int, Expression, Ratio]


def number_of(item: Any) -> Number:
    """A Python or NumPy number, size or ratio as a `Number`; raises `Undecided` for fractions that floats round."""
    if isinstance(item, (int, Expression, Ratio)):
        return item
    value = item.item() if hasattr(item, "item") else item
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Undecided
        exact = Fraction(value)
        if exact.denominator > LARGEST_BOTTOM:
            raise Undecided
        return ratio(exact.numerator, exact.denominator)
    return int(value)


def parts(number: Number) -> tuple[Size, Size]:
    """Top and bottom."""
    return (number.top, number.bottom) if isinstance(number, Ratio) else (number, 1)


def ratio(top: Size, bottom: Size) -> Number:
    """A quotient of sizes; raises `Undecided` for a divisor that may be 0 or less."""
    if lower_bound(bottom) <= 0:
        raise Undecided
    if modulo(top, bottom) == 0:
        return floor_divide(top, bottom)
    return Ratio(simplify(top), simplify(bottom))


def add(left: Number, right: Number) -> Number:
    (a, b), (c, d) = parts(left), parts(right)
    if b == d:
        return ratio(simplify(lift(a) + c), b)
    return ratio(simplify(lift(a) * d + lift(c) * b), simplify(lift(b) * d))


def subtract(left: Number, right: Number) -> Number:
    top, bottom = parts(right)
    return add(left, ratio(simplify(-1 * lift(top)), bottom))


def multiply(left: Number, right: Number) -> Number:
    (a, b), (c, d) = parts(left), parts(right)
    return ratio(simplify(lift(a) * c), simplify(lift(b) * d))


def divide(left: Number, right: Number) -> Number:
    (a, b), (c, d) = parts(left), parts(right)
    return ratio(simplify(lift(a) * d), simplify(lift(b) * c))


def floor(number: Number) -> Size:
    """The whole number at or below."""
    return floor_divide(*parts(number))


def ceil(number: Number) -> Size:
    """The whole number at or above."""
    return ceil_divide(*parts(number))


def truncate(number: Number) -> Size:
    """The whole part of a number that is certainly not negative."""
    top, bottom = parts(number)
    if lower_bound(top) < 0 and not at_most(0, top):
        raise Undecided
    return floor_divide(top, bottom)


def compare(left: Number, right: Number) -> int:
    """-1, 0 or 1 when the order of two numbers is certain for every value of the symbols."""
    (a, b), (c, d) = parts(left), parts(right)
    first, second = simplify(lift(a) * d), simplify(lift(c) * b)
    if simplify(lift(first) - second) == 0:
        return 0
    if at_most(simplify(lift(first) + 1), second):
        return -1
    if at_most(simplify(lift(second) + 1), first):
        return 1
    raise Undecided


def _extreme(of_sizes: Callable[[Size, Size], Size], wanted: int) -> Callable[[Number, Number], Number]:
    def choose(left: Number, right: Number) -> Number:
        (a, b), (c, d) = parts(left), parts(right)
        if b == d:
            return ratio(of_sizes(a, c), b)
        return left if compare(left, right) in (0, wanted) else right

    return choose


largest = _extreme(maximum, 1)
smallest = _extreme(minimum, -1)
