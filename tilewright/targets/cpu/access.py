"""The reads of one root: a walk from the values it evaluates back to memory, buffers and masks.

A *root* (a store, a reduction, a block written to scratch) is computed over a domain of axes.  The walk
follows lazy operations and keeps, for every value on the way, which domain axis each of its axes is:

    domain axis number   the value's axis runs with that axis of the domain
    FIXED (-1)           the value has extent 1 there
    SCATTERED (-2)       anything else (reshaped, gathered …): elements of other iterations may be read
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.affine import AffineAnalysis, reshape_groups
from tilewright.targets.cpu.attributes import integer, integers
from tilewright.targets.cpu.distinct import plain

FIXED, SCATTERED = -1, -2
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Reshaped:
    """An innermost extent that a reshape takes apart, and the domain axes that elements of it follow."""

    extent: int
    axes: frozenset[int]


@dataclass
class Reads:
    """Everything a walk met, each with the domain axes of its own axes."""

    buffers: list[tuple[SSAValue, Axes]] = field(default_factory=list)
    loads: list[tuple[Operation, Axes]] = field(default_factory=list)
    compares: list[tuple[SSAValue, Axes]] = field(default_factory=list)
    quotients: list[tuple[SSAValue, Axes]] = field(default_factory=list)
    scalars: set[SSAValue] = field(default_factory=set)
    reshapes: list[Reshaped] = field(default_factory=list)

    def reshaped_along(self, axis: int) -> list[int]:
        """The innermost extents that reshapes take apart along an axis of the domain."""
        return [each.extent for each in self.reshapes if not each.axes.isdisjoint((axis, SCATTERED))]


class ValueWalker:
    """Walks lazy values; `is_stored(value)` says where a walk ends because the value lies in a buffer."""

    def __init__(self, is_stored: Callable[[SSAValue], bool]) -> None:
        self.is_stored = is_stored

    def reads(self, roots: Sequence[tuple[SSAValue, Axes]], through_stored: SSAValue | None = None) -> Reads:
        """What evaluating `roots` reads; `through_stored` is evaluated even though it has a buffer."""
        found = Reads()
        seen: set[tuple[SSAValue, Axes]] = set()
        pending = list(roots)
        while pending:
            value, axes = pending.pop()
            if (value, axes) in seen:
                continue
            seen.add((value, axes))
            if value.type.is_scalar:
                found.scalars.add(value)
            elif value.definition is None or (self.is_stored(value) and value is not through_stored):
                found.buffers.append((value, axes))
            else:
                operation = value.definition
                if operation.opcode == "load":
                    found.loads.append((operation, axes))
                elif operation.opcode == "compare":
                    found.compares.append((value, axes))
                elif operation.opcode in ("divide", "remainder"):
                    found.quotients.append((value, axes))
                elif operation.opcode == "reshape":
                    found.reshapes += _split_extents(operation, axes)
                pending += operand_axes(operation, value, axes)
        return found


def operand_axes(operation: Operation, result: SSAValue, axes: Axes) -> list[tuple[SSAValue, Axes]]:
    """The operands of a lazy operation with the domain axes of theirs, given the result's."""
    opcode, operands = operation.opcode, operation.operands
    if opcode == "expand_dims":
        axis = integer(operation, "axis")
        return [(operands[0], axes[:axis] + axes[axis + 1 :])]
    if opcode == "broadcast":
        shape = operands[0].type.shape
        return [(operands[0], tuple(FIXED if extent == 1 else axis for extent, axis in zip(shape, axes, strict=True)))]
    if opcode == "permute":
        source: list[int] = [0] * len(axes)
        for position, axis in enumerate(integers(operation, "order")):
            source[axis] = axes[position]
        return [(operands[0], tuple(source))]
    if opcode == "reshape":
        return [(operands[0], _reshaped_axes(operands[0].type.shape, result.type.shape, axes))]
    if opcode == "splat":
        return [(operands[0], ())]
    if opcode == "join":
        return [(operand, axes[:-1]) for operand in operands]
    if opcode == "split":
        return [(operands[0], (*axes, FIXED))]
    if opcode == "cat":
        axis = integer(operation, "axis")
        return [(operand, (*axes[:axis], SCATTERED, *axes[axis + 1 :])) for operand in operands]
    if opcode == "gather":
        axis = integer(operation, "axis")
        return [(operands[0], (*axes[:axis], SCATTERED, *axes[axis + 1 :])), (operands[1], axes)]
    return [(operand, axes if operand.type.rank else ()) for operand in operands]


def _split_extents(operation: Operation, axes: Axes) -> list[Reshaped]:
    """What a reshape takes apart, given the domain axes of its result."""
    old, new = operation.operands[0].type.shape, operation.results[0].type.shape
    found = []
    for old_range, new_range in reshape_groups(old, new):
        solid_old = [old[axis] for axis in old_range if old[axis] > 1]
        solid_new = [new[axis] for axis in new_range if new[axis] > 1]
        if len(solid_old) != 1 or len(solid_new) != 1:
            along = frozenset(axes[axis] for axis in new_range)
            found += [Reshaped(extent, along) for extent in (*solid_old[-1:], *solid_new[-1:])]
    return found


def _reshaped_axes(old: tuple[int, ...], new: tuple[int, ...], axes: Axes) -> Axes:
    result = [SCATTERED] * len(old)
    for old_range, new_range in reshape_groups(old, new):
        solid_old = [axis for axis in old_range if old[axis] > 1]
        solid_new = [axis for axis in new_range if new[axis] > 1]
        for axis in old_range:
            if old[axis] == 1:
                result[axis] = FIXED
            elif len(solid_old) == len(solid_new) == 1:
                result[axis] = axes[solid_new[0]]
    return tuple(result)


# Masks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefix:
    """A comparison that holds exactly for the first elements of one of its axes: `index < limit`."""

    index: SSAValue
    limit: SSAValue
    inclusive: bool
    axis: int


def prefix_of(compare: SSAValue, analysis: AffineAnalysis) -> Prefix | None:
    """The prefix form of a comparison block, if it is one: step 1 along one axis, unchanging along all others."""
    operation = compare.definition
    if operation is None or operation.opcode != "compare" or compare.type.is_scalar:
        return None
    left, right = operation.operands
    if left.type.is_pointer or not left.type.dtype.is_integer or left.type.dtype.is_bool:
        return None
    predicate = operation.attributes["predicate"]
    if predicate in ("gt", "ge"):
        left, right, predicate = right, left, {"gt": "lt", "ge": "le"}[str(predicate)]
    if predicate not in ("lt", "le"):
        return None
    moving = [axis for axis, extent in enumerate(compare.type.shape) if extent > 1 and not _still(left, axis, analysis)]
    if len(moving) != 1:
        return None
    fact = analysis.along(left, moving[0])
    still = all(_still(right, axis, analysis) for axis, extent in enumerate(compare.type.shape) if extent > 1)
    if fact.step != 1 or fact.run != 0 or not still:
        return None
    return Prefix(left, right, predicate == "le", moving[0])


def _still(value: SSAValue, axis: int, analysis: AffineAnalysis) -> bool:
    fact = analysis.along(value, axis)
    return fact.step == 0 and fact.run == 0


def conjuncts(mask: SSAValue, axes: Axes | None = None) -> list[tuple[SSAValue, Axes]]:
    """The parts of a mask that is a conjunction, with where their axes lie in the mask."""
    own = tuple(range(mask.type.rank)) if axes is None else axes
    operation = mask.definition
    if operation is None or mask.type.is_scalar:
        return [(mask, own)]
    if operation.opcode == "and" or operation.opcode in ("broadcast", "expand_dims", "permute"):
        return [part for operand, inner in operand_axes(operation, mask, own) for part in conjuncts(operand, inner)]
    return [(mask, own)]


PrefixKey = tuple[str, SSAValue, SSAValue]
_STILL = "still"


def prefix_key(compare: SSAValue) -> PrefixKey | None:
    """What a comparison compares, without broadcasts: two with equal keys along one axis hold together."""
    operation = compare.definition
    if operation is None or operation.opcode != "compare":
        return None
    left, right = operation.operands
    predicate = str(operation.attributes["predicate"])
    if predicate in ("gt", "ge"):
        left, right, predicate = right, left, {"gt": "lt", "ge": "le"}[predicate]
    return (predicate, plain(left), plain(right))


def still_key(mask: SSAValue) -> PrefixKey:
    """In the place of a prefix's key: of a mask that is one number for all elements."""
    return (_STILL, plain(mask), plain(mask))


def still_compare(value: SSAValue, analysis: AffineAnalysis) -> bool:
    """Whether a block is a comparison of integers that do not change along any axis."""
    operation = value.definition
    if operation is None or operation.opcode != "compare":
        return False
    kind = operation.operands[0].type
    if kind.is_pointer or not kind.dtype.is_integer:
        return False
    axes = [axis for axis, extent in enumerate(value.type.shape) if extent > 1]
    return all(_still(operand, axis, analysis) for operand in operation.operands for axis in axes)


def masks_out(mask: SSAValue, axis: int, key: PrefixKey, analysis: AffineAnalysis) -> bool:
    """Whether `mask` is a conjunction that is false wherever the prefix `key` along its `axis` is false."""
    for part, axes in conjuncts(mask):
        if key[0] == _STILL and plain(part) is key[1]:
            return True
        if prefix_key(part) != key:
            continue
        prefix = prefix_of(part, analysis)
        if prefix is not None and axes[prefix.axis] == axis:
            return True
    return False
