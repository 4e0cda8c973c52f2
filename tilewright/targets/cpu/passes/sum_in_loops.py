"""Sums up what a loop adds to a block, pass by pass, where only the block's sum is wanted.

    total = zeros((1024,))                        total = 0.0
    for … (total) {                               for … (total) {
        total += x                       ->           total += sum(x)
    }                                             }
    sum(total)                                    total

A carried block lives in memory: each pass reads and writes all of it.  There are as many additions as before, in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.dtypes import float32, float64, int32, int64
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.rewrite import Rebuilder, constant_of
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.reduce import known_combination

_TYPES = (float32, float64, int32, int64)  # narrower floats would be rounded at other places
_LEAST_ROW = 512  # elements of a last axis that is summed: a shorter vector is added to faster than it is folded


@dataclass(frozen=True)
class _Sum:
    """A carried block of a loop: what adds to it, the number added, and what sums it up after the loop."""

    addition: Operation
    added: SSAValue
    reduction: Operation


def sum_in_loops(function: Function) -> Function:
    """`function` with such loops rewritten; the same object when there are none."""
    if not any(operation.opcode == "for" for operation in function.walk()):
        return function
    users: dict[SSAValue, list[Operation]] = {}
    for operation in function.walk():
        for value in operation.operands:
            users.setdefault(value, []).append(operation)
    loops = (operation for operation in function.walk() if operation.opcode == "for")
    found = {loop: sums for loop in loops if (sums := _sums(loop, users))}
    return _LoopSums(found).run(function) if found else function


def _sums(loop: Operation, users: Mapping[SSAValue, list[Operation]]) -> dict[int, _Sum]:
    """The carried blocks of a loop of which only sums are wanted, by their place among all that it carries."""
    body = loop.regions[0]
    rows = zip(loop.operands[3:], body.arguments[1:], body.terminator.operands, loop.results, strict=True)
    found = {}
    for place, (start, carried, value, result) in enumerate(rows):
        addition, after = value.definition, users.get(result, [])
        if addition is None or addition.opcode != "add" or constant_of(start) != 0 or addition not in body.operations:
            continue
        others = [operand for operand in addition.operands if operand is not carried]
        alone = users.get(carried) == [addition] and users[value] == [body.terminator] and len(others) == 1
        if alone and len(after) == 1 and _pays(after[0], result):
            found[place] = _Sum(addition, others[0], after[0])
    return found


def _pays(reduction: Operation, block: SSAValue) -> bool:
    """Whether an operation sums up a block along an axis that is as well summed up at once."""
    if reduction.opcode != "reduce" or known_combination(reduction.regions[0]) != "add":
        return False
    axis = integer(reduction, "axis")
    last = axis == block.type.rank - 1
    return block.type.dtype in _TYPES and (not last or block.type.shape[axis] >= _LEAST_ROW)


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
            kind = entry.reduction.result.type
            operands[3 + place] = self.constant(0, kind.dtype, kind.shape)
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
        self.mapping[entry.addition.result] = self.create("add", [carried, partial]).result
