"""Which pointers of a loop lead to other elements in every iteration, or to the same ones.

A block of pointers that a loop makes is a different one in every iteration, and threads run apart: what one stores in
an iteration, another may access in the next.  They do not meet where

    between two iterations all pointers of the block move by the same number of elements, a multiple of S, and
    the elements of the block lie less than S apart

for the move is then either none, so that every thread meets its own elements again, or it leads past the whole block:

    base + k*256 + arange(0, 256)       S = 256, the elements lie at most 255 apart
    base + k*n*64 + arange(0, 64)       S = 64, whatever the argument n is
    p = base + arange(0, 256); p += 256

Integers are taken not to wrap around, as everywhere in address arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm

from tilewright.forks import cached_property
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.ir.rewrite import constant_of
from tilewright.passes.axis_info import AxisInfo, analyze_axes

_SUMS = ("add", "subtract", "offset")
_PASSES = REARRANGING | {"hint"}
_LEAST_BITS = 32  # of the narrowest numbers that are taken not to wrap around


class PointerSteps:
    """How far pointers of a kernel move between iterations of its loops."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._inside: dict[Operation, set[Operation]] = {}
        self._made: dict[Operation, set[SSAValue]] = {}
        self._steps: dict[tuple[SSAValue, Operation], int | None] = {}

    @cached_property
    def _facts(self) -> Mapping[SSAValue, AxisInfo]:
        return analyze_axes(self._function)

    @cached_property
    def _carried(self) -> dict[SSAValue, tuple[Operation, int]]:
        """The loop and the position of what `for` loops carry: arguments of their bodies and results."""
        found: dict[SSAValue, tuple[Operation, int]] = {}
        for loop in self._function.walk():
            if loop.opcode == "for":
                for values in (loop.regions[0].arguments[1:], loop.results):
                    found.update((value, (loop, position)) for position, value in enumerate(values))
        return found

    @cached_property
    def _indices(self) -> dict[SSAValue, Operation]:
        return {loop.regions[0].arguments[0]: loop for loop in self._function.walk() if loop.opcode == "for"}

    def inside(self, loop: Operation) -> set[Operation]:
        """The operations of a loop's body, and of all regions in it."""
        if loop not in self._inside:
            self._inside[loop] = set(loop.walk()) - {loop}
        return self._inside[loop]

    def made(self, loop: Operation) -> set[SSAValue]:
        """What every iteration of a loop makes anew."""
        if loop not in self._made:
            inside = self.inside(loop)
            made = {value for operation in inside for value in operation.results}
            made |= {value for entry in (loop, *inside) for region in entry.regions for value in region.arguments}
            self._made[loop] = made
        return self._made[loop]

    def apart(self, pointer: SSAValue, loop: Operation) -> bool:
        """Whether no thread meets another's elements through the same pointers of other iterations of a loop.

        All iterations of the loops inside it are meant, too.  One thread does all stores through a scalar.
        """
        if pointer.type.is_scalar:
            return True
        step = self._step(pointer, loop)
        if not step:
            return step == 0
        span = self._span(pointer)
        return span is not None and span < step

    # Moves -----------------------------------------------------------------------------------------

    def _step(self, value: SSAValue, loop: Operation) -> int | None:
        """What divides the move of all elements of a value between two iterations; 0 if there is no move.

        None where elements may move differently, or nothing is known.
        """
        if value not in self.made(loop):
            return 0
        if (value, loop) not in self._steps:
            step = self._find_step(value, loop)
            if value.type.is_scalar and not value.type.is_pointer and value.type.dtype.is_integer:
                step = self._divisor(value) if step is None else lcm(step, self._divisor(value))
            self._steps[value, loop] = step
        return self._steps[value, loop]

    def _find_step(self, value: SSAValue, loop: Operation) -> int | None:
        if value in self._indices:
            lower, _, step = self._indices[value].operands[:3]
            return _common(self._step(lower, loop), self._divisor(step))
        if value in self._carried:
            inner, position = self._carried[value]
            return _common(self._step(inner.operands[3 + position], loop), self._advance(inner, position))
        operation = value.definition
        if operation is None or operation.regions:
            return None
        if operation.opcode in ("arange", "constant"):
            return 0
        if operation.opcode not in ELEMENTWISE | REARRANGING:
            return None
        steps = [self._step(operand, loop) for operand in operation.operands]
        if not any(step is None or step for step in steps):
            return 0
        if operation.opcode in _PASSES or _widens(operation):
            return steps[0]
        if not _is_linear(operation):
            return None
        if operation.opcode in _SUMS:
            return _common(*steps)
        if operation.opcode == "multiply":
            for factor, (still, moving) in zip(operation.operands, (steps, steps[::-1]), strict=True):
                number = _scalar(factor)
                if still == 0 and moving is not None and number is not None:
                    return moving * self._divisor(number)
        return None

    def _advance(self, loop: Operation, position: int) -> int | None:
        """What divides the move of a carried value from one iteration of a loop to the next."""
        return self._distance(loop.regions[0].terminator.operands[position], loop.regions[0].arguments[1 + position])

    def _distance(self, value: SSAValue, start: SSAValue) -> int | None:
        """What divides the distance of a value from one that it is a sum of, with uniform numbers; else None."""
        if value is start:
            return 0
        if value in self._carried and value.definition is not None:
            loop, position = self._carried[value]
            return _common(self._distance(loop.operands[3 + position], start), self._advance(loop, position))
        operation = value.definition
        if operation is None or operation.opcode not in _SUMS or not _is_linear(operation):
            return None
        sides = [operation.operands, operation.operands[::-1]] if operation.opcode == "add" else [operation.operands]
        for one, other in sides:
            number = _scalar(other)
            before = None if number is None else self._distance(one, start)
            if number is not None and before is not None:
                return gcd(before, self._divisor(number))
        return None

    def _divisor(self, scalar: SSAValue) -> int:
        """What divides an integer: 0 for zero."""
        number = constant_of(scalar)
        return abs(int(number)) if number is not None else self._facts[scalar].divisibility[0]

    # Extents -----------------------------------------------------------------------------------------

    def _span(self, value: SSAValue) -> int | None:
        """How far apart the elements of a block of integers, or of pointers, may lie; None if it is not known."""
        if _scalar(value) is not None:
            return 0
        if value in self._carried:
            loop, position = self._carried[value]
            return None if self._advance(loop, position) is None else self._span(loop.operands[3 + position])
        operation = value.definition
        if operation is None or operation.regions:
            return None
        if operation.opcode == "constant":
            return 0
        if operation.opcode == "arange":
            start, end = (operation.attributes[name] for name in ("start", "end"))
            assert isinstance(start, int) and isinstance(end, int)
            return end - 1 - start
        if operation.opcode in _PASSES or _widens(operation):
            return self._span(operation.operands[0])
        if operation.opcode not in (*_SUMS, "multiply") or not _is_linear(operation):
            return None
        spans = [self._span(operand) for operand in operation.operands]
        one, other = spans
        if one is None or other is None:
            return None
        if operation.opcode in _SUMS:
            return one + other
        numbers = [constant_of(operand) for operand in operation.operands]
        products = [abs(int(n)) * span for n, span in zip(numbers, (other, one), strict=True) if n is not None]
        return products[0] if products else 0 if one == other == 0 else None


def _common(*steps: int | None) -> int | None:
    found = 0
    for step in steps:
        if step is None:
            return None
        found = gcd(found, step)
    return found


def _scalar(value: SSAValue) -> SSAValue | None:
    """The scalar that all elements of a value are: itself, or what a block repeats, or a constant block."""
    operation = value.definition
    while not value.type.is_scalar and operation is not None and operation.opcode in REARRANGING:
        value = operation.operands[0]
        operation = value.definition
    constant = operation is not None and operation.opcode == "constant"
    return value if value.type.is_scalar or constant else None


def _is_linear(operation: Operation) -> bool:
    """Whether the numbers that an operation is made of are wide enough not to wrap around."""
    return all(
        operand.type.is_pointer or operand.type.dtype.is_integer and operand.type.dtype.bits >= _LEAST_BITS
        for operand in operation.operands
    )


def _widens(operation: Operation) -> bool:
    """Whether a cast leaves integers what they are."""
    if operation.opcode != "cast" or operation.result.type.is_pointer or not operation.result.type.dtype.is_integer:
        return False
    before, after = operation.operands[0].type, operation.result.type.dtype
    return not before.is_pointer and _is_linear(operation) and (before.dtype == after or before.dtype.bits < after.bits)
