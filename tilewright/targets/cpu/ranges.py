"""Bounds of a kernel's integers in terms of a launch's arguments and grid.

    place = program_id(0) * 64 + arange(0, 64)      from 0 to (grid.x - 1) * 64 + 63
    … where place < n holds                         from 0 to min((grid.x - 1) * 64 + 63, n - 1)

The bounds are terms that the entry point of the kernel computes (`entry.py`).  Arithmetic that overflows is not
followed: an address that comes from it is the kernel's mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Union

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.access import SCATTERED, Axes, conjuncts, operand_axes
from tilewright.targets.cpu.affine import AffineAnalysis, constant_of
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.distinct import plain


@dataclass(frozen=True, eq=False)
class Term:
    """A number that a launch computes.

    `operator` is "argument" (a parameter of the kernel), "count" (the grid's extent along an axis), "divide" (by a
    positive number, toward zero), "add", "multiply", "minimum" or "maximum" (of two numbers).
    """

    operator: str
    operands: tuple[Any, ...]


Number = Union[int, Term]


@dataclass(frozen=True)
class Interval:
    """Two numbers that a value lies between; it may be either."""

    low: Number
    high: Number

    @classmethod
    def exactly(cls, number: Number) -> Interval:
        """The interval of one known number."""
        return cls(number, number)

    @property
    def is_exact(self) -> bool:
        """Whether it holds one number only."""
        return self.low is self.high or (isinstance(self.low, int) and self.low == self.high)

    def __add__(self, other: Interval) -> Interval:
        if self.is_exact and other.is_exact:
            return Interval.exactly(plus(self.low, other.low))
        return Interval(plus(self.low, other.low), plus(self.high, other.high))

    def __neg__(self) -> Interval:
        return self * Interval.exactly(-1)

    def __mul__(self, other: Interval) -> Interval:
        if self.is_exact and other.is_exact:
            return Interval.exactly(times(self.low, other.low))
        if all(isinstance(number, int) and number >= 0 for number in (self.low, other.low)):
            return Interval(times(self.low, other.low), times(self.high, other.high))
        ends = (self.low,) if self.is_exact else (self.low, self.high)
        others = (other.low,) if other.is_exact else (other.low, other.high)
        products = [times(end, factor) for end in ends for factor in others]
        return Interval(reduce(least, products), reduce(most, products))

    def union(self, other: Interval) -> Interval:
        """What holds both."""
        return Interval(least(self.low, other.low), most(self.high, other.high))


def plus(left: Number, right: Number) -> Number:
    """The sum."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0 or right == 0:
        return right if left == 0 else left
    return Term("add", (left, right))


def times(left: Number, right: Number) -> Number:
    """The product."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if left == 0 or right == 0:
        return 0
    if left == 1 or right == 1:
        return right if left == 1 else left
    return Term("multiply", (left, right))


def least(left: Number, right: Number) -> Number:
    """The smaller one."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return left if left is right else Term("minimum", (left, right))


def most(left: Number, right: Number) -> Number:
    """The greater one."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return left if left is right else Term("maximum", (left, right))


class Ranges:
    """Answers `of(value)` for integers, and blocks of them, of one function."""

    def __init__(self, function: Function, analysis: AffineAnalysis, everywhere: Ranges | None = None) -> None:
        """`everywhere` is for `within`."""
        self._function = function
        self._analysis = analysis
        self._everywhere = everywhere or self  # where no mask holds
        self._loops: dict[SSAValue, Operation] = everywhere._loops if everywhere is not None else _loops(function)
        self._known: dict[Place, Interval | None] = {}
        self._below: dict[Place, list[tuple[Place, int]]] = {}  # what stays below a limit, and how far
        self._above: dict[Place, list[tuple[Place, int]]] = {}

    def within(self, mask: SSAValue) -> Ranges:
        """The same for the lanes where a mask holds: of blocks whose axes are the mask's, and what they come from."""
        found = Ranges(self._function, self._analysis, self._everywhere)
        for part, axes in conjuncts(mask):
            found._note(part, axes)
        return found

    def _note(self, part: SSAValue, axes: Axes) -> None:
        operation = part.definition
        if operation is None or operation.opcode != "compare":
            return
        left, right = operation.operands
        if left.type.is_pointer or not left.type.dtype.is_integer or left.type.dtype.is_bool:
            return
        predicate = str(operation.attributes["predicate"])
        if predicate in ("gt", "ge"):
            left, right, predicate = right, left, {"gt": "lt", "ge": "le"}[predicate]
        if predicate in ("lt", "le"):
            distance = 1 if predicate == "lt" else 0
            lower, upper = _source(left, axes), _source(right, axes)
            self._below.setdefault(lower, []).append((upper, -distance))
            self._above.setdefault(upper, []).append((lower, distance))

    def of(self, value: SSAValue) -> Interval | None:
        """The bounds of all elements of an integer value; None where a launch does not know them."""
        return self._at(value, tuple(range(value.type.rank)))

    def distance(self, pointer: SSAValue) -> Interval | None:
        """The bounds of the bytes from a parameter to the elements of a block of pointers derived from it."""
        total, place = Interval.exactly(0), (pointer, tuple(range(pointer.type.rank)))
        while place[0] not in self._function.region.arguments:
            if place[0].definition is None:  # a loop moves it on
                return None
            sources = operand_axes(place[0].definition, *place)
            if place[0].definition.opcode == "offset":
                index = self._at(*sources[1])
                if index is None:
                    return None
                total += index * Interval.exactly(element_bytes(place[0]))
            place = sources[0]
        return total

    def _at(self, value: SSAValue, axes: Axes) -> Interval | None:
        """`of`, for the lanes whose axes are a value's `axes` (as in `access`)."""
        place = (value, axes)
        if place not in self._known:
            self._known[place] = None  # also what a value that depends on itself finds
            found = self._compute(value, axes)
            self._known[place] = None if found is None else self._clamped(_source(value, axes), found)
        return self._known[place]

    def _clamped(self, place: Place, found: Interval) -> Interval:
        if SCATTERED in place[1]:  # elements of other lanes
            return found
        low, high = found.low, found.high
        for limit, distance in self._below.get(place, ()):
            bound = self._everywhere._at(*limit)
            high = high if bound is None else least(high, plus(bound.high, distance))
        for limit, distance in self._above.get(place, ()):
            bound = self._everywhere._at(*limit)
            low = low if bound is None else most(low, plus(bound.low, distance))
        return found if low is found.low and high is found.high else Interval(low, high)

    def _compute(self, value: SSAValue, axes: Axes) -> Interval | None:
        if value.type.is_pointer or not value.type.dtype.is_integer or value.type.dtype.is_bool:
            return None
        operation = value.definition
        if operation is None:
            return self._argument(value, axes)
        if operation.opcode == "for":
            return self._carried(operation, operation.results.index(value), axes)
        if operation.opcode == "if":
            number = operation.results.index(value)
            return _union([self._at(region.terminator.operands[number], axes) for region in operation.regions])
        rule: Callable[[Operation, Operands], Interval | None] | None = _RULES.get(operation.opcode)
        rule = rule or getattr(self, f"_rule_{operation.opcode}", None)
        if rule is None or (value.type.dtype.kind == "uint" and operation.opcode in ("subtract", "negate")):
            return None
        return rule(operation, [self._at(*place) for place in operand_axes(operation, value, axes)])

    # -- Loops ------------------------------------------------------------------------------------

    def _argument(self, value: SSAValue, axes: Axes) -> Interval | None:
        if value in self._function.region.arguments:
            return Interval.exactly(Term("argument", (value,)))
        loop = self._loops.get(value)
        if loop is None:
            return None
        number = loop.regions[0].arguments.index(value)
        if number:
            return self._carried(loop, number - 1, axes)
        lower, upper = self.of(loop.operands[0]), self.of(loop.operands[1])
        if lower is None or upper is None:
            return None
        if self._analysis.is_nonnegative(loop.operands[2]):
            return Interval(lower.low, plus(upper.high, -1))
        return lower.union(upper)

    def _carried(self, loop: Operation, number: int, axes: Axes) -> Interval | None:
        """A number that every pass of a loop adds the same to."""
        region = loop.regions[0]
        start = self._at(loop.operands[3 + number], axes)
        bounds = [self.of(operand) for operand in loop.operands[:2]]
        value, increment = region.terminator.operands[number], Interval.exactly(0)
        while value is not region.arguments[1 + number]:
            operation = value.definition
            added = None if operation is None or operation.opcode != "add" else self._at(operation.operands[1], axes)
            if operation is None or added is None:
                return None
            increment, value = increment + added, operation.operands[0]
        if (
            start is None
            or bounds[0] is None
            or bounds[1] is None
            or not self._analysis.is_nonnegative(loop.operands[2])
        ):
            return None
        step = constant_of(loop.operands[2]) or 1
        passes = Term("divide", (plus(plus(bounds[1].high, times(-1, bounds[0].low)), step - 1), step))
        return start + Interval(0, most(0, passes)) * increment

    # -- Operations, from what is known of their operands -----------------------------------------

    def _rule_cast(self, operation: Operation, operands: Operands) -> Interval | None:
        source, kind = operation.operands[0], operation.result.type.dtype
        narrower = kind.bits < 32 and kind.bits < source.type.dtype.bits
        wraps = kind.kind == "uint" and not self._analysis.is_nonnegative(source)
        return None if narrower or wraps else operands[0]

    def _rule_divide(self, operation: Operation, operands: Operands) -> Interval | None:
        """Toward zero; no quotient is greater than its dividend."""
        left, divisor = operands[0], constant_of(operation.operands[1])
        if left is None:
            return None
        if divisor is not None and divisor > 0:
            return Interval(Term("divide", (left.low, divisor)), Term("divide", (left.high, divisor)))
        magnitude, right = most(left.high, times(-1, left.low)), operands[1]
        nonnegative = self._analysis.is_nonnegative(operation.operands[0])
        if right is None:
            return _within(magnitude, nonnegative=False)
        # Between the quotients by the divisor's bounds where those are positive; a launch knows.
        positive = least(1, most(0, right.low))
        other = plus(1, times(-1, positive))
        low = plus(Term("divide", (most(0, left.low), most(1, right.high))), least(0, left.low))
        high = Term("divide", (most(0, left.high), most(1, right.low)))
        below = times(least(0, right.low), magnitude) if nonnegative else times(-1, magnitude)
        return Interval(
            plus(times(positive, low), times(other, below)), plus(times(positive, high), times(other, magnitude))
        )

    def _rule_remainder(self, operation: Operation, operands: Operands) -> Interval | None:
        """Of the dividend's sign, and nearer to zero than the divisor."""
        right = operands[1]
        if right is None:
            return None
        greatest = plus(most(right.high, times(-1, right.low)), -1)
        return _within(greatest, self._analysis.is_nonnegative(operation.operands[0]))

    def _rule_and(self, operation: Operation, operands: Operands) -> Interval | None:
        for operand, bound in zip(operation.operands, operands, strict=True):
            if bound is not None and self._analysis.is_nonnegative(operand):
                return Interval(0, bound.high)
        return None


def element_bytes(pointer: SSAValue) -> int:
    """The size of what pointers point to."""
    element = pointer.type.element
    assert isinstance(element, PointerType)
    return element.element.itemsize


Place = tuple[SSAValue, Axes]  # a value, and which axes of the lanes its own are
Operands = list[Interval | None]


def _loops(function: Function) -> dict[SSAValue, Operation]:
    """The loop that an argument belongs to."""
    loops = [operation for operation in function.walk() if operation.opcode == "for"]
    return {argument: loop for loop in loops for argument in loop.regions[0].arguments}


def _source(value: SSAValue, axes: Axes) -> Place:
    """A value without what only repeats or widens it."""
    end = plain(value)
    while value is not end:
        assert value.definition is not None
        ((value, axes),) = operand_axes(value.definition, value, axes)
    return value, axes


def _union(found: Operands) -> Interval | None:
    known = [interval for interval in found if interval is not None]
    return reduce(Interval.union, known) if known and len(known) == len(found) else None


def _within(magnitude: Number, nonnegative: bool) -> Interval:
    return Interval(0 if nonnegative else times(-1, magnitude), magnitude)


def _program_id(operation: Operation, operands: Operands) -> Interval:
    return Interval(0, plus(Term("count", (integer(operation, "axis"),)), -1))


def _shift_left(operation: Operation, operands: Operands) -> Interval | None:
    count = constant_of(operation.operands[1])
    if operands[0] is None or count is None or not 0 <= count < 32:
        return None
    return operands[0] * Interval.exactly(1 << count)


def _binary_rule(rule: Callable[[Interval, Interval], Interval]) -> Callable[[Operation, Operands], Interval | None]:
    def bounds(operation: Operation, operands: Operands) -> Interval | None:
        left, right = operands
        return None if left is None or right is None else rule(left, right)

    return bounds


_RULES: dict[str, Callable[[Operation, Operands], Interval | None]] = {
    "constant": lambda operation, _: Interval.exactly(integer(operation, "value")),
    "arange": lambda operation, _: Interval(integer(operation, "start"), integer(operation, "end") - 1),
    "program_id": _program_id,
    "num_programs": lambda operation, _: Interval.exactly(Term("count", (integer(operation, "axis"),))),
    "add": _binary_rule(lambda left, right: left + right),
    "subtract": _binary_rule(lambda left, right: left + -right),
    "multiply": _binary_rule(lambda left, right: left * right),
    "minimum": _binary_rule(lambda left, right: Interval(least(left.low, right.low), least(left.high, right.high))),
    "maximum": _binary_rule(lambda left, right: Interval(most(left.low, right.low), most(left.high, right.high))),
    "negate": lambda _, operands: None if operands[0] is None else -operands[0],
    "shift_left": _shift_left,
    "select": lambda _, operands: _union(operands[1:]),
    "cat": lambda _, operands: _union(operands),
    "join": lambda _, operands: _union(operands),
    **dict.fromkeys((*REARRANGING, "hint", "split"), lambda _, operands: operands[0]),
}
