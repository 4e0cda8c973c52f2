"""Carries an offset around loops instead of a block of pointers.

    for … (pointers = start) {                       for … (distance = 0) {
        … load pointers                                  pointers = start + splat(distance)
        yield pointers + splat(step)           ->        … load pointers
    }                                                    yield distance + step
                                                     }

The pointers are then as regular as `start` again, and are computed where they are used, while a
carried block would live in memory.  Blocks of integers are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import int64
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.rewrite import Rebuilder, Replacement
from tilewright.ir.types import TensorType, scalar

_STEPS = {"offset", "add"}


def carry_uniform_increments(function: Function) -> Function:
    """`function` with such loops rewritten; the same object when there are none."""
    return _Pass().run(function) if any(entry.opcode == "for" for entry in function.walk()) else function


class _Pass(Rebuilder):
    def visit(self, operation: Operation) -> Replacement:
        if operation.opcode != "for":
            return None
        arguments = operation.regions[0].arguments[1:]
        yielded = operation.regions[0].terminator.operands
        steps = {
            place: found
            for place, (argument, value) in enumerate(zip(arguments, yielded, strict=True))
            if (found := _increments(argument, value)) is not None
        }
        return self._rewritten(operation, steps) if steps else None

    def _rewritten(self, operation: Operation, steps: dict[int, list[SSAValue]]) -> list[SSAValue]:
        body = operation.regions[0]
        bounds, initial = operation.operands[:3], operation.operands[3:]
        types = {place: _distance_type(initial[place].type) for place in steps}
        carried = [
            self.constant(0, types[place].dtype) if place in steps else value for place, value in enumerate(initial)
        ]
        region = self.region([bounds[0].type, *(value.type for value in carried)])
        replaced = dict(zip(body.arguments, region.arguments, strict=True))
        with self.at(region):
            for place in steps:
                replaced[body.arguments[1 + place]] = self._moved(initial[place], region.arguments[1 + place])
            region.operations += body.operations[:-1]
            _substitute(region, replaced)
            following = [replaced.get(value, value) for value in body.terminator.operands]
            for place, increments in steps.items():
                following[place] = self._advanced(region.arguments[1 + place], increments, replaced)
            self.create("yield", following)
        results = self.emit_loop(operation, [*bounds, *carried], region)
        return [self._moved(initial[place], value) if place in steps else value for place, value in enumerate(results)]

    def emit_loop(self, operation: Operation, operands: Sequence[SSAValue], region: Region) -> list[SSAValue]:
        """The loop with new carried values, appended as it is."""
        return self.create("for", operands, operation.attributes, [region]).results

    def _moved(self, start: SSAValue, distance: SSAValue) -> SSAValue:
        block = self.emit("splat", distance, shape=start.type.shape)
        return self.emit("offset" if start.type.is_pointer else "add", start, block)

    def _advanced(self, distance: SSAValue, increments: list[SSAValue], replaced: dict[SSAValue, SSAValue]) -> SSAValue:
        for increment in increments:
            number = replaced.get(increment, increment)
            if number.type.rank:
                number = self._scalar_constant(number)
            if number.type != distance.type:
                number = self.emit("cast", number, dtype=distance.type.dtype)
            distance = self.emit("add", distance, number)
        return distance

    def _scalar_constant(self, block: SSAValue) -> SSAValue:
        assert block.definition is not None
        return self.constant(block.definition.attributes["value"], block.type.dtype)  # type: ignore[arg-type]


def _distance_type(block: TensorType) -> TensorType:
    return scalar(int64) if block.is_pointer else scalar(block.element)


def _increments(argument: SSAValue, value: SSAValue) -> list[SSAValue] | None:
    """The uniform numbers (scalars or constant blocks) added to `argument` to give `value`; None if it is not so."""
    if not argument.type.rank or not (argument.type.is_pointer or argument.type.dtype.is_integer):
        return None
    found: list[SSAValue] = []
    while value is not argument:
        operation = value.definition
        if operation is None or operation.opcode not in _STEPS:
            return None
        increment = _uniform(operation.operands[1])
        if increment is None:
            return None
        found.append(increment)
        value = operation.operands[0]
    return found or None


def _uniform(block: SSAValue) -> SSAValue | None:
    """The scalar (or constant block) that all elements of `block` equal."""
    while block.type.rank:
        operation = block.definition
        if operation is None:
            return None
        if operation.opcode == "constant":
            return block
        if operation.opcode not in REARRANGING:
            return None
        block = operation.operands[0]
    return block


def _substitute(region: Region, replaced: dict[SSAValue, SSAValue]) -> None:
    """Replace operands in a region that is a copy of ours."""
    for operation in region.operations:
        operation.operands = [replaced.get(value, value) for value in operation.operands]
        for inner in operation.regions:
            _substitute(inner, replaced)
