"""Masked-off elements: which need not be computed, and which are known constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.targets.cpu.access import (
    FIXED,
    SCATTERED,
    Axes,
    Prefix,
    PrefixKey,
    conjuncts,
    masks_out,
    operand_axes,
    prefix_key,
    prefix_of,
)
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.attributes import integer, integers, number
from tilewright.targets.cpu.program import ProgramOrder


def unneeded_outside(
    program: ProgramOrder,
    analysis: AffineAnalysis,
    value: SSAValue,
    axis: int,
    key: PrefixKey,
    limited: frozenset[Operation] = frozenset(),
) -> bool:
    """Whether nobody uses the elements of `value` along `axis` for which the prefix `key` is false.

    Uses are followed through elementwise and shape operations, loops, and products, down to stores
    with such a mask and to selections that drop those elements; from one iteration of a loop to the
    next, if the key is the same there.  `limited` are reductions along the
    axis that do not go beyond the prefix either.
    """
    return _Demand(program, analysis, key, limited).unneeded(value, axis)


class _Demand:
    def __init__(
        self, program: ProgramOrder, analysis: AffineAnalysis, key: PrefixKey, limited: frozenset[Operation]
    ) -> None:
        self.limited = limited
        self.program = program
        self.analysis = analysis
        self.key = key
        self.visiting: set[tuple[SSAValue, int]] = set()

    def unneeded(self, value: SSAValue, axis: int) -> bool:
        if (value, axis) in self.visiting:
            return True  # a cycle through a loop is decided by its other uses
        self.visiting.add((value, axis))
        for user in self.program.uses.get(value, ()):  # a plain loop: chains of uses can be long
            if not self._use(value, axis, user):
                return False
        return True

    def _masked(self, mask: SSAValue, axis: int) -> bool:
        return masks_out(mask, axis, self.key, self.analysis)

    def _use(self, value: SSAValue, axis: int, user: Operation) -> bool:
        opcode = user.opcode
        if opcode == "store":  # the mask itself is read everywhere
            return len(user.operands) > 2 and user.operands[2] is not value and self._masked(user.operands[2], axis)
        if opcode == "load":
            return self._load(value, axis, user)
        if opcode == "select" and self._dropped(value, axis, user):
            return True
        if opcode == "dot":
            return self._dot(value, axis, user)
        if opcode == "for":
            return all(self._carried(user, index - 3, axis) for index in _places(user, value))
        if opcode == "yield":
            return self._yielded(value, axis, user)
        if opcode == "reduce":
            removed = integer(user, "axis")
            if removed == axis:
                return user in self.limited
            return all(self.unneeded(result, axis - (removed < axis)) for result in user.results)
        if opcode in ELEMENTWISE or opcode in ("expand_dims", "broadcast", "permute"):
            return self._forwarded(value, axis, user)
        return False

    def _dropped(self, value: SSAValue, axis: int, user: Operation) -> bool:
        condition, then, otherwise = user.operands
        return value is then and value is not otherwise and value is not condition and self._masked(condition, axis)

    def _load(self, value: SSAValue, axis: int, user: Operation) -> bool:
        """Whether a mask drops pointers; what is given in place of masked-off elements is used as far as the result."""
        pointer, *rest = user.operands
        if value is pointer:
            return bool(rest) and self._masked(rest[0], axis)
        return len(rest) > 1 and value is not rest[0] and self.unneeded(user.result, axis)

    def _dot(self, value: SSAValue, axis: int, user: Operation) -> bool:
        left, right, accumulator = user.operands
        rows, columns = accumulator.type.rank - 2, accumulator.type.rank - 1
        for operand, own, summed in ((left, rows, columns), (right, columns, rows)):
            ends = axis == summed and self.key in depth_prefixes(self.analysis, user)
            if value is operand and axis != own and not ends:
                return False
        passed_on = value is accumulator or value is left and axis == rows or value is right and axis == columns
        return not passed_on or self.unneeded(user.result, axis)

    def _carried(self, loop: Operation, index: int, axis: int) -> bool:
        if index < 0:
            return False
        return self.unneeded(loop.regions[0].arguments[index + 1], axis) and self.unneeded(loop.results[index], axis)

    def _yielded(self, value: SSAValue, axis: int, user: Operation) -> bool:
        parent = self.program.parent[user]
        if parent is None or parent.opcode not in ("for", "if"):
            return False
        for index in _places(user, value):
            if parent.opcode == "for" and not self._carried_on(parent, index, axis):
                return False
            if not self.unneeded(parent.results[index], axis):
                return False
        return True

    def _carried_on(self, loop: Operation, index: int, axis: int) -> bool:
        """Whether the next iteration, where a key defined in the loop is another one, does not use the elements."""
        argument = loop.regions[0].arguments[index + 1]
        if any(self._is_inside(part, loop) for part in self.key[1:]):
            return not self.program.uses.get(argument)
        return self.unneeded(argument, axis)

    def _is_inside(self, value: SSAValue, loop: Operation) -> bool:
        parent = self.program.definition_parent(value)
        while parent is not None and parent is not loop:
            parent = self.program.parent[parent]
        return parent is loop

    def _forwarded(self, value: SSAValue, axis: int, user: Operation) -> bool:
        result = user.result
        own: Axes = tuple(range(result.type.rank))
        for operand, axes in operand_axes(user, result, own):
            if operand is not value:
                continue
            if axes[axis] in (FIXED, SCATTERED) or not self.unneeded(result, axes[axis]):
                return False
        return True


@dataclass(frozen=True)
class DepthPrefix:
    """A prefix of a product's depth, and the blocks that it is computed from."""

    prefix: Prefix
    blocks: frozenset[SSAValue]


def depth_prefixes(analysis: AffineAnalysis, dot: Operation) -> dict[PrefixKey, DepthPrefix]:
    """The prefixes of the depth beyond which both operands of a product are zero, by their keys: products end there.

    They can be computed again where the product is: from numbers alone.
    """
    left, right = dot.operands[:2]
    rank = left.type.rank
    found = _zero_outside(analysis, left, rank - 1)
    if found:
        others = _zero_outside(analysis, right, rank - 2)
        found = {key: prefix for key, prefix in found.items() if key in others}
    return {
        key: DepthPrefix(prefix, blocks)
        for key, prefix in found.items()
        if (blocks := _computed_blocks(prefix.index, prefix.limit)) is not None
    }


def _zero_outside(analysis: AffineAnalysis, value: SSAValue, axis: int) -> dict[PrefixKey, Prefix]:
    """The prefixes along an axis of a loaded block outside of which it is zero."""
    operation = value.definition
    while operation is not None and operation.opcode in ("cast", "permute"):
        axis = axis if operation.opcode == "cast" else integers(operation, "order")[axis]
        operation = operation.operands[0].definition
    if operation is None or operation.opcode != "load" or len(operation.operands) < 2:
        return {}
    found = {}
    for part, axes in conjuncts(operation.operands[1]):
        prefix, key = prefix_of(part, analysis), prefix_key(part)
        if prefix is None or key is None or axes[prefix.axis] != axis:
            continue
        if value_outside(operation.result, frozenset([part])) == 0:
            found[key] = prefix
    return found


def _computed_blocks(*values: SSAValue) -> frozenset[SSAValue] | None:
    """The blocks that values are computed from; None if one of them is anything else than arithmetic with numbers."""
    found: set[SSAValue] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value.type.is_scalar or value in found:
            continue
        operation = value.definition
        if operation is None or operation.opcode not in _ARITHMETIC:
            return None
        found.add(value)
        pending += operation.operands
    return frozenset(found)


_ARITHMETIC = ELEMENTWISE | REARRANGING | {"arange", "constant", "hint"}


def _places(user: Operation, value: SSAValue) -> list[int]:
    return [index for index, operand in enumerate(user.operands) if operand is value]


# Constants outside ---------------------------------------------------------------------------------


def value_outside(value: SSAValue, compares: frozenset[SSAValue]) -> float | int | bool | None:
    """The number that every element of `value` has where `compares` are false; None when unknown.

    Minus infinity less any number counts as minus infinity, as a softmax over masked scores needs.
    """
    if value in compares:
        return False
    operation = value.definition
    if operation is None:
        return None
    opcode, operands = operation.opcode, operation.operands
    if opcode == "constant":
        return number(operation)
    if opcode in REARRANGING or opcode == "hint":
        return value_outside(operands[0], compares)
    if opcode == "load":
        if len(operands) < 2 or value_outside(operands[1], compares) is not False:
            return None
        return value_outside(operands[2], compares) if len(operands) > 2 else 0
    if opcode == "select":
        condition = value_outside(operands[0], compares)
        return None if condition is None else value_outside(operands[1 if condition else 2], compares)
    numbers = [value_outside(operand, compares) for operand in operands]
    if opcode == "and" and value.type.dtype.is_bool:
        return False if any(number is False for number in numbers) else None
    return _arithmetic(opcode, numbers, value)


def _arithmetic(opcode: str, numbers: list[float | int | bool | None], value: SSAValue) -> float | int | None:
    if opcode in ("add", "subtract") and numbers[0] == -math.inf:
        return -math.inf
    if any(number is None for number in numbers) or value.type.is_pointer:
        return None
    known = [float(number) for number in numbers if number is not None]
    if opcode == "cast" and value.type.dtype.is_float:
        return known[0]
    if opcode == "add":
        return known[0] + known[1]
    if opcode == "subtract":
        return known[0] - known[1]
    if opcode == "multiply" and all(map(math.isfinite, known)):
        return known[0] * known[1]
    if opcode == "negate":
        return -known[0]
    if opcode in ("exp", "exp2") and known[0] == -math.inf:
        return 0.0
    if opcode in ("absolute", "sqrt") and known[0] == 0.0:
        return 0.0
    if opcode == "maximum":
        return max(known)
    if opcode == "minimum":
        return min(known)
    return None
