"""Between which numbers a traced expression of whole numbers lies, so that places need not be checked again."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from tilewright.library.generated.trace import Conditional, ElementwiseOperation, Expression, Literal, Position
from tilewright.symbolic import upper_bound

Interval = tuple[float, float]

_ANY: Interval = (float("-inf"), float("inf"))


def interval(root: Expression) -> Interval:
    """The least and the greatest value of an expression: what its operations give, or else the limits of its type."""
    known: dict[int, Interval] = {}
    pending = [root]
    while pending:
        item = pending[-1]
        operands = _operands(item)
        missing = [operand for operand in operands if id(operand) not in known]
        if missing:
            pending += missing
        else:
            known[id(item)] = _of(item, [known[id(operand)] for operand in operands])
            pending.pop()
    return known[id(root)]


def _operands(item: Expression) -> list[Expression]:
    if isinstance(item, Conditional):
        return [item.inside, item.outside]
    return item.operands if isinstance(item, ElementwiseOperation) and item.node.op in _RULES else []


def _of(item: Expression, operands: list[Interval]) -> Interval:
    found = _ANY
    if isinstance(item, Literal) and not item.dtype.is_float:
        found = (float(item.value), float(item.value))
    elif isinstance(item, Position) and item.scale == 1 and item.offset == 0 and item.index.is_non_negative():
        found = (0.0, float(upper_bound(item.index.last())))
    elif isinstance(item, Conditional):
        found = _either(*operands)
    elif isinstance(item, ElementwiseOperation) and item.node.op in _RULES:
        found = _RULES[item.node.op](item, operands)
    limits = _limits(item)
    return found if limits[0] <= found[0] and found[1] <= limits[1] else limits


def _limits(item: Expression) -> Interval:
    """The ends of an expression's type, from which numbers beyond them begin again at the other."""
    dtype = item.dtype
    if not dtype.is_integer:
        return _ANY
    return (-(2.0 ** (dtype.bits - 1)), 2.0 ** (dtype.bits - 1) - 1) if dtype.is_signed else (0.0, 2.0**dtype.bits - 1)


def _either(*found: Interval) -> Interval:
    return min(low for low, _ in found), max(high for _, high in found)


def _clip(item: ElementwiseOperation, operands: list[Interval]) -> Interval:
    (low, high), limits = operands[0], [item.node.attributes[name] for name in ("low", "high")]
    least, most = (end if limit is None else limit for limit, end in zip(limits, _ANY, strict=True))
    return min(max(low, least), most), max(min(high, most), least)


def _product(item: ElementwiseOperation, operands: list[Interval]) -> Interval:
    ends = [left * right for left in operands[0] for right in operands[1]]
    return (min(ends), max(ends)) if all(map(isfinite, ends)) else _ANY


def _remainder(item: ElementwiseOperation, operands: list[Interval]) -> Interval:
    low, high = operands[1]
    return (0.0, high - 1) if low == high and low > 0 else _ANY  # has the sign of the divisor


_RULES: dict[str, Callable[[ElementwiseOperation, list[Interval]], Interval]] = {
    "add": lambda item, found: (found[0][0] + found[1][0], found[0][1] + found[1][1]),
    "subtract": lambda item, found: (found[0][0] - found[1][1], found[0][1] - found[1][0]),
    "multiply": _product,
    "maximum": lambda item, found: (max(found[0][0], found[1][0]), max(found[0][1], found[1][1])),
    "minimum": lambda item, found: (min(found[0][0], found[1][0]), min(found[0][1], found[1][1])),
    "where": lambda item, found: _either(found[1], found[2]),
    "cast": lambda item, found: _ANY if item.operands[0].dtype.is_float else found[0],
    "clip": _clip,
    "remainder": _remainder,
}
