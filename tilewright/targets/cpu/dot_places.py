"""Which operands of `dot` can be used in place, in the user's memory or in a buffer, and their layout there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import PAIRS_FIT, REARRANGING
from tilewright.targets.cpu.access import Axes, Prefix, conjuncts, operand_axes, prefix_key, prefix_of
from tilewright.targets.cpu.affine import AffineAnalysis, Along
from tilewright.targets.cpu.attributes import integer, integers
from tilewright.targets.cpu.demand import unneeded_outside, value_outside
from tilewright.targets.cpu.dot import DotShape, takes_groups
from tilewright.targets.cpu.dot_tiles import takes_lines
from tilewright.targets.cpu.program import ProgramOrder
from tilewright.targets.cpu.target import CPUTarget


class Placed(Protocol):
    """What is known and decided of a kernel's blocks (`placement.Placement`): `stored` ones have a buffer."""

    stored: set[SSAValue]
    analysis: AffineAnalysis
    program: ProgramOrder
    target: CPUTarget


@dataclass(frozen=True)
class Panels:
    """A right operand in panels: the load of [count, depth / group, width, group], reshaped to [depth, columns].

    Without the last axis, `group` is 1.
    """

    load: Operation
    width: int
    group: int


@dataclass(frozen=True)
class Lines:
    """A left operand whose rows are lines: the load of [rows, lines, length], reshaped to [rows, depth]; from one line
    to the next there are `apart` elements."""

    load: Operation
    length: int
    apart: int


@dataclass(frozen=True)
class MaskPart:
    """A prefix mask of an operand: `axis` of the operand, in units of `scale` elements."""

    compare: SSAValue
    prefix: Prefix
    axis: int
    extent: int
    scale: int = 1


def shape_source(placement: Placed, value: SSAValue) -> SSAValue:
    """The value that `value` is a rearrangement of."""
    while value not in placement.stored and value.definition is not None and value.definition.opcode in REARRANGING:
        source = value.definition.operands[0]
        if source.type.is_scalar:
            break
        value = source
    return value


def panels_of(placement: Placed, value: SSAValue) -> Panels | None:
    """The panel form of a right operand, if it has it."""
    reshape = value.definition
    if value in placement.stored or reshape is None or reshape.opcode != "reshape" or value.type.rank != 2:
        return None
    permuted = reshape.operands[0]
    permute = permuted.definition
    if permuted in placement.stored or permute is None or permute.opcode != "permute":
        return None
    order, block = permute.attributes["order"], permute.operands[0]
    if order not in ((1, 0, 2), (1, 3, 0, 2)):
        return None
    load = block.definition
    if block in placement.stored or load is None or load.opcode != "load":
        return None
    count, groups, width, group = (*block.type.shape, 1)[:4]
    if (groups * group, count * width) != value.type.shape:
        return None
    panel, depth, lane, *within = placement.analysis.all_axes(load.operands[0])
    steps = [(depth, width * group), (lane, group), *((axis, 1) for axis in within)]
    whole = all(axis.step == step and axis.run == 0 for axis, step in steps)
    return Panels(load, width, group) if whole and (count == 1 or (panel.uniform and panel.run == 0)) else None


def lines_of(placement: Placed, dot: Operation) -> Lines | None:
    """The left operand of a product as rows of lines, if it is that, and its kernel reads them where they lie."""
    value, right, _ = dot.operands
    reshape, panels = value.definition, panels_of(placement, right)
    if value in placement.stored or reshape is None or reshape.opcode != "reshape" or panels is None:
        return None
    block = reshape.operands[0]
    load = block.definition
    if block in placement.stored or load is None or load.opcode != "load" or len(load.operands) > 1:
        return None
    if block.type.rank != 3 or value.type.shape != (block.type.shape[0], block.type.shape[1] * block.type.shape[2]):
        return None
    row, line, along = placement.analysis.all_axes(load.operands[0])
    regular = row.uniform and row.run == line.run == along.run == 0 and along.step == 1
    length, types = block.type.shape[2], (value.type.dtype, right.type.dtype)
    if (
        not regular
        or line.step is None
        or not takes_lines(placement.target, dot_shape(dot), *types, panels.group, length)
    ):
        return None
    return Lines(load, length, line.step)


def address_facts(placement: Placed, value: SSAValue) -> tuple[Along, ...] | None:
    """How the address of `value`'s elements changes along its axes; None when it is not in memory."""
    analysis: AffineAnalysis = placement.analysis
    operation = value.definition
    if value in placement.stored or operation is None:
        return None
    if operation.opcode == "load":
        return analysis.all_axes(operation.operands[0])
    if operation.opcode == "permute":
        inner = address_facts(placement, operation.operands[0])
        order = integers(operation, "order")
        return None if inner is None else tuple(inner[axis] for axis in order)
    if operation.opcode == "expand_dims":
        inner = address_facts(placement, operation.operands[0])
        axis = integer(operation, "axis")
        return None if inner is None else (*inner[:axis], Along(0), *inner[axis:])
    if operation.opcode == "broadcast":
        inner = address_facts(placement, operation.operands[0])
        if inner is None:
            return None
        pairs = zip(inner, operation.operands[0].type.shape, value.type.shape, strict=True)
        return tuple(Along(0) if old != new else fact for fact, old, new in pairs)
    return None


def addressable(placement: Placed, dot: Operation, operand: SSAValue, side: str) -> bool:
    """Whether an operand is used where it lies: in a buffer, or in memory that a lazy load reads."""
    if side == "left" and lines_of(placement, dot) is not None:
        return True
    source = shape_source(placement, operand)
    if source in placement.stored:
        return _buffer_fits(placement, operand, source, side)
    if source.definition is None or source.definition.opcode != "load" or source.type.dtype.bits < 8:
        return False
    if side == "right" and panels_of(placement, operand) is not None:
        return _panels_fit(placement, dot, operand)
    facts = address_facts(placement, operand)
    if facts is None:
        return False
    rank = operand.type.rank
    inner = [(facts[axis], operand.type.shape[axis]) for axis in (rank - 2, rank - 1)]
    if not all(extent == 1 or (fact.uniform and fact.run == 0) for fact, extent in inner):
        return False
    if side == "right" and not any(fact.step == 1 or extent == 1 for fact, extent in inner):
        return False
    return mask_parts(placement, dot, operand, side) is not None


def _panels_fit(placement: Placed, dot: Operation, operand: SSAValue) -> bool:
    """Whether panels are as wide as the register tile, in groups only where it takes them so."""
    panels = panels_of(placement, operand)
    assert panels is not None
    target, (left, right, accumulator) = placement.target, (value.type.dtype for value in dot.operands)
    if panels.group != 1 and not takes_groups(target, dot_shape(dot), left, right, panels.group, pairs_fit(dot)):
        return False
    width = target.microtile(accumulator)[1]
    return panels.width == width and mask_parts(placement, dot, operand, "right") is not None


def _buffer_fits(placement: Placed, operand: SSAValue, source: SSAValue, side: str) -> bool:
    """A buffer is used as it is, or with its last two axes exchanged."""
    if operand is source:
        return True
    operation = operand.definition
    rank = operand.type.rank
    exchange = (*range(rank - 2), rank - 1, rank - 2)
    return (
        operation is not None
        and operation.opcode == "permute"
        and operation.operands[0] is source
        and operation.attributes["order"] == exchange
    )


def mask_parts(placement: Placed, dot: Operation, operand: SSAValue, side: str) -> list[MaskPart] | None:
    """The prefix masks of a lazily loaded operand; None when its mask cannot become limits of the product."""
    source = shape_source(placement, operand)
    load = source.definition
    assert load is not None
    if len(load.operands) < 2:
        return []
    compares = [part for part, _ in conjuncts(load.operands[1])]
    if value_outside(source, frozenset(compares[:1])) != 0:
        return None
    parts: list[MaskPart] = []
    panels = panels_of(placement, operand) if side == "right" else None
    for compare, axes in conjuncts(load.operands[1]):
        prefix = prefix_of(compare, placement.analysis)
        if prefix is None:
            return None
        loaded_axis = axes[prefix.axis]
        extent = compare.type.shape[prefix.axis]
        if panels is not None:
            if loaded_axis > (0 if panels.group > 1 else 1):
                return None
            parts.append(MaskPart(compare, prefix, 1 - loaded_axis, extent, 1 if loaded_axis else panels.width))
            continue
        axis = _axis_in_operand(operand, source, loaded_axis)
        if axis is None or axis < operand.type.rank - 2:
            return None
        parts.append(MaskPart(compare, prefix, axis, extent))
    outer = operand.type.rank - (2 if side == "left" else 1)
    for part in parts:
        if part.axis == outer and panels is None:
            key = prefix_key(part.compare)
            assert key is not None
            if not unneeded_outside(placement.program, placement.analysis, dot.result, part.axis, key):
                return None
    return parts


def _axis_in_operand(operand: SSAValue, source: SSAValue, axis: int) -> int | None:
    """Which axis of `operand` is axis `axis` of the loaded block it is a rearrangement of."""
    axes: Axes = tuple(range(operand.type.rank))
    value = operand
    while value is not source:
        assert value.definition is not None
        ((value, axes),) = operand_axes(value.definition, value, axes)
    return axes[axis] if axes[axis] >= 0 else None


def pairs_fit(dot: Operation) -> bool:
    """Whether sums of two neighbouring products of 8-bit integers are promised to fit 16 bits."""
    return dot.attributes["input_precision"] == PAIRS_FIT


def is_zero(value: SSAValue) -> bool:
    """Whether a block is the constant zero."""
    operation = value.definition
    if operation is None:
        return False
    if operation.opcode in REARRANGING:
        return is_zero(operation.operands[0])
    return operation.opcode == "constant" and operation.attributes["value"] == 0


def dot_shape(operation: Operation) -> DotShape:
    """Extents of one product of a `dot`."""
    rows, columns = operation.result.type.shape[-2:]
    return DotShape(rows, columns, operation.operands[0].type.shape[-1])
