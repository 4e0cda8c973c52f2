"""Reduces what a loop adds to a block, pass by pass, where only the block's sum is wanted; products, minima, maxima and
bitwise operations too.

    total = zeros((1024,))                        total = 0.0
    for … (total) {                               for … (total) {
        total += x                       ->           total += sum(x)
    }                                             }
    sum(total)                                    total

A carried block lives in memory: each pass reads and writes all of it.  There are as many operations as before, in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.dtypes import float32, float64, int32, int64
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.rewrite import Rebuilder, constant_of
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.elementwise import identity_of
from tilewright.targets.cpu.reduce import known_combination

_TYPES = (float32, float64, int32, int64)  # narrower floats would be rounded at other places
_IDEMPOTENT = ("minimum", "maximum", "and", "or")  # of the same number twice, the number
_LEAST_VECTORS = 16  # of a last axis that is reduced: a shorter row is added to faster than it is folded


@dataclass(frozen=True)
class _Sum:
    """A carried block of a loop: what adds to it, the value added, and what sums it up after the loop; for any
    operation in the place of the addition."""

    addition: Operation
    added: SSAValue
    reduction: Operation


def sum_in_loops(function: Function, lanes: int = 16) -> Function:
    """`function` with such loops rewritten for vectors of `lanes` numbers; the same object when there are none."""
    if not any(operation.opcode == "for" for operation in function.walk()):
        return function
    users: dict[SSAValue, list[Operation]] = {}
    for operation in function.walk():
        for value in operation.operands:
            users.setdefault(value, []).append(operation)
    loops = (operation for operation in function.walk() if operation.opcode == "for")
    found = {loop: sums for loop in loops if (sums := _sums(loop, users, lanes))}
    return _LoopSums(found).run(function) if found else function


def _sums(loop: Operation, users: Mapping[SSAValue, list[Operation]], lanes: int) -> dict[int, _Sum]:
    """The carried blocks of a loop of which only sums are wanted, by their place among all that it carries."""
    body = loop.regions[0]
    rows = zip(loop.operands[3:], body.arguments[1:], body.terminator.operands, loop.results, strict=True)
    found = {}
    for place, (start, carried, value, result) in enumerate(rows):
        addition, after = value.definition, users.get(result, [])
        if addition is None or addition not in body.operations or not _is_neutral(start, addition):
            continue
        others = [operand for operand in addition.operands if operand is not carried]
        alone = users.get(carried) == [addition] and users[value] == [body.terminator] and len(others) == 1
        if alone and len(after) == 1 and _reduces(after[0], addition) and _pays(after[0], result, lanes):
            found[place] = _Sum(addition, others[0], after[0])
    return found


def _is_neutral(start: SSAValue, addition: Operation) -> bool:
    """Whether a block that holds one number, which is reduced with the others, may as well hold it once."""
    number, opcode = constant_of(start), addition.opcode
    if opcode in _IDEMPOTENT:
        return number is not None
    return opcode in ("add", "multiply", "xor") and number == identity_of(opcode, start.type.dtype)


def _reduces(reduction: Operation, addition: Operation) -> bool:
    """Whether an operation reduces a block by what the loop does with its elements."""
    if reduction.opcode != "reduce" or known_combination(reduction.regions[0]) != addition.opcode:
        return False
    return reduction.regions[0].operations[0].attributes == addition.attributes


def _pays(reduction: Operation, block: SSAValue, lanes: int) -> bool:
    """Whether a block is as well reduced at once along the axis."""
    axis = integer(reduction, "axis")
    last = axis == block.type.rank - 1
    return block.type.dtype in _TYPES and (not last or block.type.shape[axis] >= _LEAST_VECTORS * lanes)


class _LoopSums(Rebuilder):
    def __init__(self, found: Mapping[Operation, Mapping[int, _Sum]]) -> None:
        super().__init__()
        self._found = found
        self._reductions = {entry.reduction for sums in found.values() for entry in sums.values()}

    def copy(self, operation: Operation) -> None:
        """Append a rewritten copy; sums of carried blocks are the loop's own results already."""
        if operation in self._found:
            self._loop(operation, self._found[operation])
        elif operation not in self._reductions:
            super().copy(operation)

    def _loop(self, loop: Operation, sums: Mapping[int, _Sum]) -> None:
        self.changed = True
        self.location = loop.location
        body, additions = loop.regions[0], {entry.addition: entry for entry in sums.values()}
        operands = [self.mapping.get(value, value) for value in loop.operands]
        for place, entry in sums.items():
            kind, number = entry.reduction.result.type, constant_of(loop.operands[3 + place])
            assert number is not None
            operands[3 + place] = self.constant(number, kind.dtype, kind.shape)
        region = self.region(
            [operands[0].type, *(value.type for value in operands[3:])], [value.name for value in body.arguments]
        )
        self.mapping.update(zip(body.arguments, region.arguments, strict=True))
        carried = {entry.addition: region.arguments[1 + place] for place, entry in sums.items()}
        with self.at(region):
            for operation in body.operations:
                if operation in additions:
                    self._add(additions[operation], carried[operation])
                else:
                    self.copy(operation)
        results = self.create("for", operands, loop.attributes, [region]).results
        self.mapping.update(zip(loop.results, results, strict=True))
        for place, entry in sums.items():
            self.mapping[entry.reduction.result] = results[place]

    def _add(self, entry: _Sum, carried: SSAValue) -> None:
        """The sum of what one pass adds, added to the sum of the passes before it."""
        added, reduction = self.mapping.get(entry.added, entry.added), entry.reduction
        self.location = entry.addition.location
        combine = self.copy_region(reduction.regions[0])
        partial = self.create("reduce", [added], reduction.attributes, [combine]).result
        self.mapping[entry.addition.result] = self.create(
            entry.addition.opcode, [carried, partial], entry.addition.attributes
        ).result
