"""Proves that the lanes of a block of pointers access different elements of memory.

An update in place (`store(p, f(load(p)))`) may go lane by lane only where no lane reads what another one wrote:

    x + i                       different: step 1
    x + i % 8                   not: lanes 0 and 8 share an element
    x + r * 64 + c              different, if c spans at most 64
    x + r * columns + c         different where the mask says 0 <= c < columns
    x + r * stride + c          not proved: the stride is known at run time only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import BROADCASTING
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.affine import AffineAnalysis, constant_of
from tilewright.targets.cpu.attributes import integer, integers

Limits = Mapping[int, frozenset[SSAValue]]  # axis -> scalars that the lanes' indices along it, from 0 on, stay below
_SPAN = 1 << 31  # of offsets that cannot meet again by wrapping around


@dataclass(frozen=True)
class Stride:
    """The distance from lane to lane along an axis, in elements: `factor` times run-time scalars."""

    factor: int
    scale: tuple[SSAValue, ...] = ()


class Lanes:
    """Answers `distinct(pointer, limits, trusting)`, `passes`, `meet(pointer)` and `stride(pointer, axis)`."""

    def __init__(self, analysis: AffineAnalysis) -> None:
        self._analysis = analysis

    def distinct(self, pointer: SSAValue, limits: Limits, trusting: bool) -> bool:
        """Whether no two lanes within `limits` meet; `trusting`: strides known at run time only hold lanes apart."""
        groups: dict[tuple[SSAValue, ...], list[tuple[int, int]]] = {}
        places: dict[tuple[SSAValue, ...], list[int]] = {}
        for axis, extent in enumerate(pointer.type.shape):
            if extent == 1:
                continue
            stride = self.stride(pointer, axis)
            if stride is None:
                return False
            known = [constant_of(limit) for limit in limits.get(axis, ())]
            reached = min([extent, *(limit for limit in known if limit is not None)])
            groups.setdefault(stride.scale, []).append((abs(stride.factor), reached))
            places.setdefault(stride.scale, []).append(axis)
        if not all(_spread(group) and _reach(group) < _SPAN for group in groups.values()):
            return False
        scaled = [scale for scale in groups if scale]
        if trusting or not scaled:
            return True
        # Rows of run-time length, whose elements are consecutive and lie within it.
        row = places.get((), [])
        return (
            len(scaled) == 1
            and len(scaled[0]) == 1
            and len(row) == 1
            and groups[()][0][0] == 1
            and scaled[0][0] in limits.get(row[0], ())
        )

    def passes(self, pointer: SSAValue, distance: int) -> bool:
        """Whether no lane meets any of the block that lies `distance` elements further on."""
        group = [(abs(distance), 2)]
        for axis, extent in enumerate(pointer.type.shape):
            stride = self.stride(pointer, axis) if extent > 1 else Stride(0)
            if stride is None or stride.scale:
                return False
            if extent > 1:
                group.append((abs(stride.factor), extent))
        return _spread(group) and _reach(group) < _SPAN

    def meet(self, pointer: SSAValue) -> bool:
        """Whether lanes share elements for sure: then the last of them, in row-major order, must store last."""
        strides = [self.stride(pointer, axis) for axis, extent in enumerate(pointer.type.shape) if extent > 1]
        extents = [extent for extent in pointer.type.shape if extent > 1]
        known = [(abs(stride.factor), extent) for stride, extent in zip(strides, extents, strict=True)
                 if stride is not None and not stride.scale]  # fmt: skip
        return len(known) == len(strides) and not _spread(known)

    def stride(self, value: SSAValue, axis: int) -> Stride | None:
        """The one distance between neighbours along an axis, wherever they lie; None when there is none."""
        fact, extent = self._analysis.along(value, axis), value.type.shape[axis]
        if fact.step is not None and fact.covers(extent):
            return Stride(fact.step)
        operation = value.definition
        if operation is None or not fact.uniform or not fact.covers(extent):
            return None
        opcode, operands = operation.opcode, operation.operands
        if opcode in ("add", "subtract", "offset"):
            return _combined(self.stride(operands[0], axis), self.stride(operands[1], axis), opcode == "subtract")
        if opcode == "multiply":
            return self._multiplied(operands[0], operands[1], axis) or self._multiplied(operands[1], operands[0], axis)
        if opcode in ("cast", "hint", "broadcast") or (opcode == "bitcast" and _same_size(operation)):
            return self.stride(operands[0], axis)
        if opcode == "expand_dims":
            return self.stride(operands[0], axis - (axis > integer(operation, "axis")))
        if opcode == "permute":
            return self.stride(operands[0], integers(operation, "order")[axis])
        return None

    def _multiplied(self, index: SSAValue, factor: SSAValue, axis: int) -> Stride | None:
        scalar = plain(factor)
        if not scalar.type.is_scalar:
            return None
        stride = self.stride(index, axis)
        return Stride(stride.factor, (*stride.scale, scalar)) if stride is not None else None


def plain(value: SSAValue) -> SSAValue:
    """A value without what only repeats or widens it."""
    while value.definition is not None:
        operation = value.definition
        source = operation.operands[0] if operation.operands else value
        widening = operation.opcode == "cast" and (
            source.type.dtype.is_signed
            and value.type.dtype.is_signed
            and value.type.dtype.bits >= source.type.dtype.bits
        )
        if operation.opcode in (*BROADCASTING, "hint") or widening:
            value = source
        else:
            break
    return value


def _combined(left: Stride | None, right: Stride | None, negative: bool) -> Stride | None:
    if left is None or right is None:
        return None
    sign = -1 if negative else 1
    if left.factor == 0 or right.factor == 0:
        return left if right.factor == 0 else Stride(sign * right.factor, right.scale)
    return Stride(left.factor + sign * right.factor, left.scale) if left.scale == right.scale else None


def _same_size(operation: Operation) -> bool:
    old, new = operation.operands[0].type.element, operation.result.type.element
    if isinstance(old, PointerType) and isinstance(new, PointerType):
        return old.element.itemsize == new.element.itemsize
    return False


def _spread(group: list[tuple[int, int]]) -> bool:
    """Whether indices below the extents of (stride, extent) give different sums: each stride passes all smaller."""
    ordered = sorted(group)
    return all(stride > _reach(ordered[:number]) for number, (stride, _) in enumerate(ordered))


def _reach(group: list[tuple[int, int]]) -> int:
    return sum(stride * (extent - 1) for stride, extent in group)
