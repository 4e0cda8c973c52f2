"""Indices that wrap around (`rows % M`) become plain ones, with a mask, where nobody uses what lies beyond the mask.

    rows = block * R + arange(0, R)
    x = load(a + (rows % M) * stride)             x = load(a + rows * stride, mask=rows < M)
    store(out + rows, x, mask=rows < M)     ->    store(out + rows, x, mask=rows < M)

Products written so read rows that exist in place of those beyond the end, and drop what they give.  Rows that wrap
around at a number known at run time are not regular: operands would be copied row by row, or gathered.

Program ids are divided by constants and by numbers of blocks (sizes divided by the size of a block, and what follows
from them); those count as positive.  An argument of a kernel may have any sign: ids divided by one stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.ir.rewrite import Rebuilder, constant_of
from tilewright.targets.cpu.access import FIXED, Axes, PrefixKey, operand_axes, prefix_key
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.demand import unneeded_outside
from tilewright.targets.cpu.distinct import plain
from tilewright.targets.cpu.program import ProgramOrder

_FOLLOWED = ELEMENTWISE | REARRANGING
_COUNTED = REARRANGING | {"cast", "hint", "add", "subtract", "multiply", "minimum", "maximum", "remainder", "divide"}


@dataclass(frozen=True)
class _Wrapped:
    """Remainders in the address of a load, each with the axis of the load that it runs along; and all on the way."""

    axes: Mapping[SSAValue, int]
    path: frozenset[SSAValue]


def unwrap_indices(function: Function) -> Function:
    """`function` with such loads rewritten; the same object when there are none."""
    operations = list(function.walk())
    remainders = {
        operation.result: ("lt", plain(operation.operands[0]), plain(operation.operands[1]))
        for operation in operations
        if operation.opcode == "remainder" and operation.result.type.rank
    }
    if not remainders:
        return function
    keys = {prefix_key(operation.result) for operation in operations if operation.opcode == "compare"}
    remainders = {value: key for value, key in remainders.items() if key in keys and _is_position(key[1])}
    if not remainders:
        return function
    program, analysis = ProgramOrder(function), AffineAnalysis(function)
    found = {}
    for load in operations:
        if load.opcode == "load" and load.result.type.rank:
            wrapped = _wrapped(load, remainders)
            if wrapped is not None and _is_unneeded(load, wrapped, remainders, program, analysis):
                found[load] = wrapped
    return _Unwrapping(found).run(function) if found else function


def _is_position(value: SSAValue) -> bool:
    """Whether integers are at least zero, given that numbers of blocks are positive."""
    operation = value.definition
    if operation is None or value.type.is_pointer or not value.type.dtype.is_integer:
        return False
    opcode, operands = operation.opcode, operation.operands
    if opcode in ("program_id", "num_programs"):
        return True
    if opcode in ("constant", "arange"):
        return int(operation.attributes["value" if opcode == "constant" else "start"]) >= 0  # type: ignore[arg-type]
    if opcode == "divide":
        return _is_position(operands[0]) and _is_block_count(operands[1])
    if opcode in (*REARRANGING, "cast", "hint", "remainder"):
        return _is_position(operands[0])
    return opcode in ("add", "multiply", "minimum") and all(map(_is_position, operands))


def _is_block_count(value: SSAValue) -> bool:
    """Whether a divisor is a number of blocks, or follows from such numbers, positive constants and program ids."""
    operation = value.definition
    if operation is None:
        return False
    opcode, operands = operation.opcode, operation.operands
    divisor = constant_of(operands[1]) if opcode == "divide" else None
    if opcode in ("program_id", "num_programs") or isinstance(divisor, int) and divisor > 1:
        return True
    if opcode == "constant":
        return int(operation.attributes["value"]) > 0  # type: ignore[arg-type]
    return opcode in _COUNTED and all(map(_is_block_count, operands))


def _wrapped(load: Operation, remainders: Mapping[SSAValue, PrefixKey]) -> _Wrapped | None:
    """The remainders in the address of a load; None if there are none, or one does not run along one of its axes."""
    pointer, axes = load.operands[0], dict[SSAValue, int]()
    users: dict[SSAValue, set[SSAValue]] = {}
    pending: list[tuple[SSAValue, Axes]] = [(pointer, tuple(range(pointer.type.rank)))]
    seen = set(pending)
    while pending:
        value, along = pending.pop()
        if value in remainders:
            axis = _single_axis(value, along, pointer.type.rank)
            if axis is None or axes.setdefault(value, axis) != axis:
                return None
            continue
        operation = value.definition
        if operation is None or operation.opcode not in _FOLLOWED:
            continue
        for operand, inner in operand_axes(operation, value, along):
            users.setdefault(operand, set()).add(value)
            if operand.type.rank and (operand, inner) not in seen:
                seen.add((operand, inner))
                pending.append((operand, inner))
    return _Wrapped(axes, _above(axes, users)) if axes else None


def _single_axis(value: SSAValue, along: Axes, rank: int) -> int | None:
    """The axis of a load that a block of its address runs along, if it is one vector of it or has its axes."""
    moving = [axis for axis in along if axis != FIXED]
    fits = value.type.rank == 1 or along == tuple(
        axis if extent > 1 else FIXED for axis, extent in enumerate(value.type.shape)
    )
    return moving[0] if fits and len(moving) == 1 and 0 <= moving[0] < rank and len(along) in (1, rank) else None


def _above(values: Mapping[SSAValue, int], users: Mapping[SSAValue, set[SSAValue]]) -> frozenset[SSAValue]:
    """The values that are computed from these."""
    found: set[SSAValue] = set()
    pending = list(values)
    while pending:
        for user in users.get(pending.pop(), ()):
            if user not in found:
                found.add(user)
                pending.append(user)
    return frozenset(found)


def _is_unneeded(
    load: Operation,
    wrapped: _Wrapped,
    remainders: Mapping[SSAValue, PrefixKey],
    program: ProgramOrder,
    analysis: AffineAnalysis,
) -> bool:
    """Whether nobody uses the loaded elements whose indices wrap around."""
    return all(
        unneeded_outside(program, analysis, load.result, axis, remainders[value])
        for value, axis in wrapped.axes.items()
    )


class _Unwrapping(Rebuilder):
    def __init__(self, found: Mapping[Operation, _Wrapped]) -> None:
        super().__init__()
        self._found = found

    def copy(self, operation: Operation) -> None:
        """Append a rewritten copy; loads get plain indices and a mask."""
        wrapped = self._found.get(operation)
        if wrapped is None:
            super().copy(operation)
            return
        self.changed = True
        self.location = operation.location
        pointer, *rest = operation.operands
        shape = operation.result.type.shape
        masks = [self._inside(value, axis, shape) for value, axis in wrapped.axes.items()]
        mask = self.mapping.get(rest[0], rest[0]) if rest else masks.pop()
        for other in masks:
            mask = self.emit("and", mask, other)
        outside = [self.mapping.get(value, value) for value in rest[1:]]
        operands = [self._plain(pointer, wrapped, {}), mask, *outside]
        self.mapping[operation.result] = self.create("load", operands, operation.attributes).result

    def _inside(self, remainder: SSAValue, axis: int, shape: tuple[int, ...]) -> SSAValue:
        """The mask, in the shape of a load, of indices that do not wrap around."""
        assert remainder.definition is not None
        index, limit = (self.mapping.get(value, value) for value in remainder.definition.operands)
        mask = self.emit("compare", index, limit, predicate="lt")
        for place in range(len(shape)) if mask.type.rank < len(shape) else ():
            if place != axis:
                mask = self.emit("expand_dims", mask, axis=place)
        return mask if mask.type.shape == shape else self.emit("broadcast", mask, shape=shape)

    def _plain(self, value: SSAValue, wrapped: _Wrapped, done: dict[SSAValue, SSAValue]) -> SSAValue:
        """A copy of a part of the address with plain indices; hints about the wrapped ones are dropped."""
        operation = value.definition
        if operation is not None and value in wrapped.axes:
            return self.mapping.get(operation.operands[0], operation.operands[0])
        if operation is None or value not in wrapped.path:
            return self.mapping.get(value, value)
        if value not in done:
            operands = [self._plain(operand, wrapped, done) for operand in operation.operands]
            hint = operation.opcode == "hint"
            done[value] = operands[0] if hint else self.create(operation.opcode, operands, operation.attributes).result
        return done[value]
