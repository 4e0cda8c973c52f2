"""Between which numbers an integer of a kernel lies, in terms of what a launch knows: its arguments and its grid.

    place = program_id(0) * 64 + arange(0, 64)      from 0 to (grid.x - 1) * 64 + 63
    … where place < n holds                         from 0 to min((grid.x - 1) * 64 + 63, n - 1)

The bounds are terms that the entry point of the kernel computes (`entry.py`).  Arithmetic that overflows is not
followed: an address that comes from it is the kernel's mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Union

from tilewright.ir.core import Function, Operation, Value
from tilewright.targets.cpu.access import conjuncts
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
    """Answers `of(value)` for integers, and blocks of them, of one function; `mask` is one that holds."""

    def __init__(self, function: Function, analysis: AffineAnalysis, mask: Value | None = None) -> None:
        self._function = function
        self._analysis = analysis
        self._loops = {
            argument: operation
            for operation in function.walk()
            if operation.opcode == "for"
            for argument in operation.regions[0].arguments
        }
        self._known: dict[Value, Interval | None] = {}
        self._below: dict[Value, list[tuple[Value, int]]] = {}  # values that stay below a limit, less a number
        self._above: dict[Value, list[tuple[Value, int]]] = {}
        for part, _ in conjuncts(mask) if mask is not None else ():
            self._note(part)

    def _note(self, part: Value) -> None:
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
            self._below.setdefault(plain(left), []).append((right, -distance))
            self._above.setdefault(plain(right), []).append((left, distance))

    def of(self, value: Value) -> Interval | None:
        """The bounds of all elements of an integer value; None where a launch does not know them."""
        if value not in self._known:
            self._known[value] = None  # also what a value that depends on itself finds
            found = self._compute(value)
            self._known[value] = None if found is None else self._clamped(value, found)
        return self._known[value]

    def _clamped(self, value: Value, found: Interval) -> Interval:
        low, high = found.low, found.high
        for limit, distance in self._below.get(plain(value), ()):
            bound = self.of(limit)
            high = high if bound is None else least(high, plus(bound.high, distance))
        for limit, distance in self._above.get(plain(value), ()):
            bound = self.of(limit)
            low = low if bound is None else most(low, plus(bound.low, distance))
        return found if low is found.low and high is found.high else Interval(low, high)

    def _compute(self, value: Value) -> Interval | None:
        if value.type.is_pointer or not value.type.dtype.is_integer or value.type.dtype.is_bool:
            return None
        operation = value.definition
        if operation is None:
            return self._argument(value)
        if operation.opcode == "for":
            return self._carried(operation, operation.results.index(value))
        if operation.opcode == "if":
            place = operation.results.index(value)
            return self._union(region.terminator.operands[place] for region in operation.regions)
        if operation.opcode in _PASSING:
            return self._passed(operation)
        if operation.opcode in ("cat", "join"):
            return self._union(operation.operands)
        if operation.opcode == "select":
            return self._union(operation.operands[1:])
        rule: Callable[[Operation], Interval | None] | None = getattr(self, f"_rule_{operation.opcode}", None)
        found = None if rule is None else rule(operation)
        wraps = value.type.dtype.kind == "uint" and operation.opcode in ("subtract", "negate")
        return None if wraps else found

    def _union(self, values: Iterable[Value]) -> Interval | None:
        found = [self.of(value) for value in values]
        known = [interval for interval in found if interval is not None]
        return reduce(Interval.union, known) if len(known) == len(found) else None

    def _passed(self, operation: Operation) -> Interval | None:
        source, result = operation.operands[0], operation.results[0]
        if operation.opcode == "cast":
            kind = result.type.dtype
            if kind.bits < 32 and kind.bits < source.type.dtype.bits:
                return None
            if kind.kind == "uint" and not self._analysis.is_nonnegative(source):
                return None
        return self.of(source)

    # -- Loops ------------------------------------------------------------------------------------

    def _argument(self, value: Value) -> Interval | None:
        if value in self._function.region.arguments:
            return Interval.exactly(Term("argument", (value,)))
        loop = self._loops.get(value)
        if loop is None:
            return None
        place = loop.regions[0].arguments.index(value)
        if place:
            return self._carried(loop, place - 1)
        lower, upper = self.of(loop.operands[0]), self.of(loop.operands[1])
        if lower is None or upper is None:
            return None
        if (constant_of(loop.operands[2]) or 0) > 0:
            return Interval(lower.low, plus(upper.high, -1))
        return lower.union(upper)

    def _carried(self, loop: Operation, place: int) -> Interval | None:
        """A number that every pass of a loop adds the same to."""
        region = loop.regions[0]
        start = self.of(loop.operands[3 + place])
        bounds = [self.of(operand) for operand in loop.operands[:2]]
        step = constant_of(loop.operands[2])
        value, increment = region.terminator.operands[place], Interval.exactly(0)
        while value is not region.arguments[1 + place]:
            operation = value.definition
            added = None if operation is None or operation.opcode != "add" else self.of(operation.operands[1])
            if operation is None or added is None:
                return None
            increment, value = increment + added, operation.operands[0]
        if start is None or bounds[0] is None or bounds[1] is None or step is None or step <= 0:
            return None
        passes = Term("divide", (plus(plus(bounds[1].high, times(-1, bounds[0].low)), step - 1), step))
        return start + Interval(0, most(0, passes)) * increment

    # -- Operations -------------------------------------------------------------------------------

    def _rule_constant(self, operation: Operation) -> Interval:
        return Interval.exactly(integer(operation, "value"))

    def _rule_arange(self, operation: Operation) -> Interval:
        return Interval(integer(operation, "start"), integer(operation, "end") - 1)

    def _rule_program_id(self, operation: Operation) -> Interval:
        return Interval(0, plus(Term("count", (integer(operation, "axis"),)), -1))

    def _rule_num_programs(self, operation: Operation) -> Interval:
        return Interval.exactly(Term("count", (integer(operation, "axis"),)))

    def _rule_add(self, operation: Operation) -> Interval | None:
        left, right = self._operands(operation)
        return None if left is None or right is None else left + right

    def _rule_subtract(self, operation: Operation) -> Interval | None:
        left, right = self._operands(operation)
        return None if left is None or right is None else left + -right

    def _rule_multiply(self, operation: Operation) -> Interval | None:
        left, right = self._operands(operation)
        return None if left is None or right is None else left * right

    def _rule_negate(self, operation: Operation) -> Interval | None:
        inner = self.of(operation.operands[0])
        return None if inner is None else -inner

    def _rule_minimum(self, operation: Operation) -> Interval | None:
        left, right = self._operands(operation)
        if left is None or right is None:
            return None
        return Interval(least(left.low, right.low), least(left.high, right.high))

    def _rule_maximum(self, operation: Operation) -> Interval | None:
        left, right = self._operands(operation)
        if left is None or right is None:
            return None
        return Interval(most(left.low, right.low), most(left.high, right.high))

    def _rule_divide(self, operation: Operation) -> Interval | None:
        """Toward zero; no quotient is greater than its dividend."""
        left, divisor = self.of(operation.operands[0]), constant_of(operation.operands[1])
        if left is None:
            return None
        if divisor is not None and divisor > 0:
            return Interval(Term("divide", (left.low, divisor)), Term("divide", (left.high, divisor)))
        return self._within(operation, most(left.high, times(-1, left.low)))

    def _rule_remainder(self, operation: Operation) -> Interval | None:
        """Of the dividend's sign, and nearer to zero than the divisor."""
        right = self.of(operation.operands[1])
        if right is None:
            return None
        return self._within(operation, plus(most(right.high, times(-1, right.low)), -1))

    def _within(self, operation: Operation, most_magnitude: Number) -> Interval:
        nonnegative = self._analysis.is_nonnegative(operation.operands[0])
        if operation.opcode == "divide":
            nonnegative = nonnegative and self._analysis.is_nonnegative(operation.operands[1])
        return Interval(0 if nonnegative else times(-1, most_magnitude), most_magnitude)

    def _rule_and(self, operation: Operation) -> Interval | None:
        for operand in operation.operands:
            bound = self.of(operand)
            if bound is not None and self._analysis.is_nonnegative(operand):
                return Interval(0, bound.high)
        return None

    def _rule_shift_left(self, operation: Operation) -> Interval | None:
        inner, count = self.of(operation.operands[0]), constant_of(operation.operands[1])
        if inner is None or count is None or not 0 <= count < 32:
            return None
        return inner * Interval.exactly(1 << count)

    def _operands(self, operation: Operation) -> tuple[Interval | None, Interval | None]:
        return self.of(operation.operands[0]), self.of(operation.operands[1])


_PASSING = frozenset({"cast", "hint", "splat", "broadcast", "expand_dims", "permute", "reshape", "split"})
