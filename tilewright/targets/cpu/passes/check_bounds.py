"""Checks before every access that it stays within the arrays that its pointer comes from.

    load(pointer, mask)          first and bytes of the array are parameters of the kernel
        ->
    if not <the block lies inside as a whole>:       a few scalar operations: bounds of its offsets, within the mask
        if any(outside and mask):
            assert(not (outside and mask), address, lanes outside, lanes)
    load(pointer, mask)

An array is the span of the argument, as in the interpreter (`ir.memory`).  A pointer belongs to the arguments that it
is computed from; one that may come from several must lie in one of them, and one that comes from memory is not checked.
The indices of a gather must lie within the block that is gathered from.

Bounds follow from the operations that compute the offsets.  Two things make them narrow enough for most blocks: where
the mask compares an index with a number (`columns < n`), only the indices on its side count; and an index that is
loaded, or computed in a way without a rule, has the extremes of its block, if that is much smaller than the block of
pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from tilewright import dtypes
from tilewright.dtypes import DType, int64
from tilewright.ir.core import Function, Operation, Parameter, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.rewrite import Rebuilder, constant_of
from tilewright.ir.types import PointerType, scalar
from tilewright.ir.undefined_lanes import MASK_OPERAND
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.failures import NUMBER, accesses

_SAME = REARRANGING | {"hint"}
_FACTOR = 1 << 29  # numbers below it are multiplied, and some such products added, without overflow of 64 bits
_FEWER = 4  # times fewer elements than the block of pointers has an index whose extremes are looked for
_FARTHEST = 1 << 40  # elements that a pointer of a block which lies inside may be moved at once


def check_bounds(function: Function, first: int) -> Function:
    """`function` with the checks, numbered from `first`, and two more parameters for each pointer: the address of its
    array's first byte, and the array's bytes."""
    return _Checker(function, first).run(function)


@dataclass
class _Bounds:
    """Between which numbers (scalars, i64) the elements of a block lie that a mask leaves, where `holds` (scalars, i1)
    are true; it leaves none where one of `empty` is true."""

    low: SSAValue
    high: SSAValue
    holds: list[SSAValue] = field(default_factory=list)
    empty: list[SSAValue] = field(default_factory=list)


_Axes = tuple[int, ...] | None  # which axes of the block of pointers a block's axes are; None when not known
_Place = tuple[SSAValue, _Axes]


@dataclass
class _Limit:
    """What a mask says of an index: that it is at most, or at least, a number (a scalar, i64)."""

    number: SSAValue
    above: bool


class _Checker(Rebuilder):
    def __init__(self, function: Function, first: int) -> None:
        super().__init__()
        self.numbers = {operation: first + place for place, operation in enumerate(accesses(function))}
        self.sources = pointer_sources(function)
        self.arrays: dict[
            SSAValue, tuple[SSAValue, SSAValue]
        ] = {}  # of a pointer parameter: the array's address and bytes
        prefix = "_array"
        while any(parameter.name.startswith(prefix) for parameter in function.parameters):
            prefix = f"_{prefix}"
        for place, value in enumerate(function.region.arguments):
            if value.type.is_pointer:
                start, size = (SSAValue(scalar(int64), f"{prefix}_{place}_{suffix}") for suffix in ("first", "bytes"))
                self.arrays[value] = (start, size)
        self.limits: dict[_Place, list[_Limit]] = {}  # what the mask of the present access says of indices
        self.elements = 0  # of its block of pointers
        self.casts = any(_changes_size(operation) for operation in function.walk())

    def run(self, function: Function) -> Function:
        region = self.copy_region(function.region)
        parameters = list(function.parameters)
        for pair in self.arrays.values():
            region.arguments += pair
            parameters += [Parameter(value.name) for value in pair]
        return Function(function.name, region, parameters, dict(function.attributes))

    def copy(self, operation: Operation) -> None:
        number = self.numbers.get(operation)
        if number is not None and operation.opcode == "gather":
            saved, self.location = self.location, operation.location
            self._check_gather(operation, number)
            self.location = saved
        elif number is not None:
            known = [self.arrays[value] for value in self.sources.get(operation.operands[0], ())]
            saved, self.location = self.location, operation.location
            if known:
                self._check(operation, number, known)
            self.location = saved
        super().copy(operation)

    def _check(self, operation: Operation, number: int, arrays: Sequence[tuple[SSAValue, SSAValue]]) -> None:
        place = MASK_OPERAND[operation.opcode]
        pointer = self.mapping[operation.operands[0]]
        mask = self.mapping[operation.operands[place]] if len(operation.operands) > place else None
        element = pointer.type.element
        assert isinstance(element, PointerType)
        size = element.element.itemsize
        limits = [(first, self._plus(self._plus(first, count), -size)) for first, count in arrays]  # of addresses
        self.limits, self.elements = {} if mask is None else self._limits(mask), pointer.type.size
        inside = self._inside(pointer, limits)

        def check_each() -> list[SSAValue]:
            self._check_each(pointer, mask, limits, size, number)
            return []

        if inside is None:
            check_each()
        else:
            self.if_branch(self.emit("not", inside), check_each, lambda: [])

    def _check_gather(self, operation: Operation, number: int) -> None:
        """The block that is gathered from may be scratch memory, next to which other memory lies."""
        index, axis = self.mapping[operation.operands[1]], integer(operation, "axis")
        extent, shape = operation.operands[0].type.shape[axis], index.type.shape
        place = self.emit("cast", index, dtype=int64) if index.type.dtype != int64 else index
        outside = self.emit(
            "or",
            self.emit("compare", place, self.constant(0, int64, shape), predicate="lt"),
            self.emit("compare", place, self.constant(extent, int64, shape), predicate="ge"),
        )

        def then() -> list[SSAValue]:
            lanes = self.constant(outside.type.size, int64)
            self._fail(self.emit("not", outside), [place, self._count(outside), lanes], number)
            return []

        self.if_branch(self._total(outside, "or"), then, lambda: [])

    # -- Element by element -----------------------------------------------------------------------

    def _check_each(
        self,
        pointer: SSAValue,
        mask: SSAValue | None,
        limits: Sequence[tuple[SSAValue, SSAValue]],
        size: int,
        number: int,
    ) -> None:
        address = self.emit("bitcast", pointer, element=int64)
        within = [self._within(address, first, last, size) for first, last in limits]
        inside = reduce(lambda left, right: self.emit("or", left, right), within)
        outside = self.emit("not", inside)
        if mask is not None:
            outside = self.emit("and", outside, mask)
        if not outside.type.rank:
            one = self.constant(1, int64)
            self._fail(self.emit("not", outside), [address, one, one], number)
            return

        def then() -> list[SSAValue]:
            lanes = self.constant(outside.type.size, int64) if mask is None else self._count(mask)
            self._fail(self.emit("not", outside), [address, self._count(outside), lanes], number)
            return []

        self.if_branch(self._total(outside, "or"), then, lambda: [])

    def _within(self, address: SSAValue, first: SSAValue, last: SSAValue, size: int) -> SSAValue:
        shape = address.type.shape
        low, high = (self._spread(value, shape) for value in (first, last))
        inside = self.emit(
            "and",
            self.emit("compare", address, low, predicate="ge"),
            self.emit("compare", address, high, predicate="le"),
        )
        if not self.casts or size == 1:
            return inside
        rest = self.emit("and", self.emit("subtract", address, low), self.constant(size - 1, int64, shape))
        aligned = self.emit("compare", rest, self.constant(0, int64, shape), predicate="eq")
        return self.emit("and", inside, aligned)

    def _spread(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        return self.emit("splat", value, shape=tuple(shape)) if shape else value

    def _count(self, block: SSAValue) -> SSAValue:
        return self._total(self.emit("cast", block, dtype=int64), "add")

    def _total(self, block: SSAValue, opcode: str) -> SSAValue:
        while block.type.rank:
            (block,) = self.reduce(
                [block], block.type.rank - 1, lambda left, right: [self.emit(opcode, left[0], right[0])]
            )
        return block

    def _fail(self, holds: SSAValue, facts: list[SSAValue], number: int) -> None:
        self.create("assert", [holds, *facts], {"message": "", NUMBER: number})

    # -- Whole blocks -----------------------------------------------------------------------------

    def _inside(self, pointer: SSAValue, limits: Sequence[tuple[SSAValue, SSAValue]]) -> SSAValue | None:
        """Whether all addresses of a block are inside, as one scalar; None where nothing is known of them."""
        if not pointer.type.rank or self.casts or len(limits) > 1:
            return None
        bounds = self._pointers(pointer, tuple(range(pointer.type.rank)))
        if bounds is None:
            return None
        ((first, last),) = limits
        ends = [
            self.emit("compare", bounds.low, first, predicate="ge"),
            self.emit("compare", bounds.high, last, predicate="le"),
        ]
        inside = reduce(lambda left, right: self.emit("or", left, right), [self.emit("and", *ends), *bounds.empty])
        return reduce(lambda left, right: self.emit("and", left, right), [inside, *bounds.holds])

    def _pointers(self, value: SSAValue, axes: _Axes) -> _Bounds | None:
        if not value.type.rank:
            address = self.emit("bitcast", value, element=int64)
            return _Bounds(address, address)
        operation = value.definition
        if operation is None:
            return None
        if operation.opcode in _SAME:
            return self._pointers(operation.operands[0], _axes_before(operation, axes))
        if operation.opcode != "offset":
            return None
        start, moved = self._pointers(operation.operands[0], axes), self._integers(operation.operands[1], axes)
        if start is None or moved is None:
            return None
        element = value.type.element
        assert isinstance(element, PointerType)
        near = [*self._limited(moved, -_FARTHEST, _FARTHEST)]
        low, high = (self._times(end, element.element.itemsize) for end in (moved.low, moved.high))
        return _Bounds(
            self.emit("add", start.low, low),
            self.emit("add", start.high, high),
            [*start.holds, *moved.holds, *near],
            [*start.empty, *moved.empty],
        )

    def _integers(self, value: SSAValue, axes: _Axes) -> _Bounds | None:
        """The bounds of an index, within what the mask leaves of it."""
        bounds = self._computed(value, axes)
        limits = self.limits.get((value, axes)) if axes is not None else None
        if bounds is None or limits is None:
            return bounds
        low, high = bounds.low, bounds.high
        for limit in limits:
            if limit.above:
                high = self.emit("minimum", high, limit.number)
            else:
                low = self.emit("maximum", low, limit.number)
        return _Bounds(low, high, bounds.holds, [*bounds.empty, self.emit("compare", high, low, predicate="lt")])

    def _computed(self, value: SSAValue, axes: _Axes) -> _Bounds | None:
        """The bounds of an index by the operation that computes it."""
        operation, constant = value.definition, constant_of(value)
        kind = value.type.dtype
        if constant is not None:
            number = self.constant(int(constant), int64)
            return _Bounds(number, number) if abs(int(constant)) < _FARTHEST else None
        if kind.is_float or kind.is_bool or kind == dtypes.uint64:
            return None
        if not value.type.rank:
            number = value if kind == int64 else self.emit("cast", value, dtype=int64)
            return _Bounds(number, number)
        if operation is None:
            return self._extremes(value)
        if operation.opcode == "arange":
            low, high = integer(operation, "start"), integer(operation, "end") - 1
            return _Bounds(self.constant(low, int64), self.constant(high, int64))
        if operation.opcode in _SAME:
            return self._integers(operation.operands[0], _axes_before(operation, axes))
        rule = _RULES.get(operation.opcode)
        if rule is None:
            return self._extremes(value)
        operands = [self._integers(operand, axes) for operand in operation.operands]
        known = [bounds for bounds in operands if bounds is not None]
        if len(known) < len(operands):
            return None
        found = rule(self, known)
        found.holds = [hold for bounds in known for hold in bounds.holds] + found.holds
        found.empty = [flag for bounds in known for flag in bounds.empty]
        if kind != int64:
            low = -(1 << (kind.bits - 1)) if kind.is_signed else 0
            found.holds += self._limited(found, low, low + (1 << kind.bits) - 1)
        return found

    def _extremes(self, value: SSAValue) -> _Bounds | None:
        """The least and the greatest element of a block; None for one that is not much smaller than the pointers'."""
        if value.type.size * _FEWER > self.elements:
            return None
        low, high = (self.emit("cast", self._total(value, way), dtype=int64) for way in ("minimum", "maximum"))
        return _Bounds(low, high)

    def _limits(self, mask: SSAValue) -> dict[_Place, list[_Limit]]:
        """What a mask says of the indices that it compares with numbers, where it is true."""
        found: dict[_Place, list[_Limit]] = {}
        pending: list[_Place] = [(mask, tuple(range(mask.type.rank)))]
        while pending:
            value, axes = pending.pop()
            operation = value.definition
            if operation is None:
                continue
            if operation.opcode == "and":
                pending += [(operand, axes) for operand in operation.operands]
            elif operation.opcode in _SAME:
                pending.append((operation.operands[0], _axes_before(operation, axes)))
            elif operation.opcode == "compare" and operation.operands[0].type.element in _COMPARED:
                predicate = str(operation.attributes["predicate"])
                left, right = (_origin(operand, axes) for operand in operation.operands)
                self._limit(found, left, right, predicate)
                self._limit(found, right, left, _MIRRORED.get(predicate, predicate))
        return found

    def _limit(self, found: dict[_Place, list[_Limit]], index: _Place, compared: _Place, predicate: str) -> None:
        """Note that an index stands in a relation to another value, if that is one number."""
        other, _ = compared
        constant = constant_of(other)
        if not index[0].type.rank or (other.type.rank and constant is None) or predicate == "ne":
            return
        number = self.emit("cast", other, dtype=int64) if constant is None else self.constant(int(constant), int64)
        strict = {"lt": -1, "gt": 1}.get(predicate, 0)
        for above in (True, False):
            if predicate in ("eq", *(("lt", "le") if above else ("gt", "ge"))):
                found.setdefault(index, []).append(_Limit(self._plus(number, strict), above))

    def _sum(self, operands: list[_Bounds]) -> _Bounds:
        left, right = operands
        return _Bounds(self.emit("add", left.low, right.low), self.emit("add", left.high, right.high))

    def _difference(self, operands: list[_Bounds]) -> _Bounds:
        left, right = operands
        return _Bounds(self.emit("subtract", left.low, right.high), self.emit("subtract", left.high, right.low))

    def _product(self, operands: list[_Bounds]) -> _Bounds:
        left, right = operands
        products = [self.emit("multiply", x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
        holds = [hold for bounds in operands for hold in self._limited(bounds, -_FACTOR, _FACTOR)]
        low, high = (
            reduce(lambda one, other: self.emit(opcode, one, other), products) for opcode in ("minimum", "maximum")
        )
        return _Bounds(low, high, holds)

    def _least(self, operands: list[_Bounds]) -> _Bounds:
        left, right = operands
        return _Bounds(self.emit("minimum", left.low, right.low), self.emit("minimum", left.high, right.high))

    def _greatest(self, operands: list[_Bounds]) -> _Bounds:
        left, right = operands
        return _Bounds(self.emit("maximum", left.low, right.low), self.emit("maximum", left.high, right.high))

    def _limited(self, bounds: _Bounds, low: int, high: int) -> list[SSAValue]:
        """That both ends lie between two numbers; nothing for ends that are known to."""
        holds = []
        for end, predicate, limit in ((bounds.low, "ge", low), (bounds.high, "le", high)):
            number = constant_of(end)
            if number is None or not low <= number <= high:
                holds.append(self.emit("compare", end, self.constant(limit, int64), predicate=predicate))
        return holds

    def _plus(self, value: SSAValue, other: SSAValue | int) -> SSAValue:
        return self.emit("add", value, self.constant(other, int64) if isinstance(other, int) else other)

    def _times(self, value: SSAValue, factor: int) -> SSAValue:
        return self.emit("multiply", value, self.constant(factor, int64))


_RULES = {
    "add": _Checker._sum,
    "subtract": _Checker._difference,
    "multiply": _Checker._product,
    "minimum": _Checker._least,
    "maximum": _Checker._greatest,
    "cast": lambda checker, operands: operands[0],
}


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_COMPARED = frozenset(dtype for dtype in dtypes.DTYPES if dtype.is_integer and dtype != dtypes.uint64)


def _origin(value: SSAValue, axes: _Axes) -> _Place:
    """What a block has its elements from, through operations that repeat, move or widen them."""
    while (operation := value.definition) is not None:
        widens = operation.opcode == "cast" and _widens(operation.operands[0].type.dtype, value.type.dtype)
        if not widens and operation.opcode not in _SAME:
            break
        value, axes = operation.operands[0], axes if widens else _axes_before(operation, axes)
    return value, axes


def _axes_before(operation: Operation, axes: _Axes) -> _Axes:
    """The axes of the operand of an operation that repeats or moves elements, from those of its result."""
    if axes is None or operation.opcode == "reshape":
        return None
    if operation.opcode == "splat":
        return ()
    if operation.opcode == "expand_dims":
        gone = integer(operation, "axis") % len(axes)
        return axes[:gone] + axes[gone + 1 :]
    if operation.opcode == "permute":
        order = operation.attributes["order"]
        assert isinstance(order, tuple)
        return tuple(axes[order.index(axis)] for axis in range(len(axes)))
    return axes


def _widens(before: DType, after: DType) -> bool:
    """Whether every number of one integer type is one of the other."""
    return {before, after} <= _COMPARED and before.bits < after.bits and (after.is_signed or not before.is_signed)


def _changes_size(operation: Operation) -> bool:
    """Whether a pointer to elements of another size is made, so that it may not be aligned."""
    if operation.opcode != "bitcast" or not operation.result.type.is_pointer:
        return False
    before, after = operation.operands[0].type.element, operation.result.type.element
    same = isinstance(before, PointerType) and isinstance(after, PointerType)
    return not (same and before.element.itemsize == after.element.itemsize)  # type: ignore[union-attr]


def pointer_sources(function: Function) -> dict[SSAValue, tuple[SSAValue, ...]]:
    """The pointer parameters that each value is computed from, in their order."""
    formal = [value for value in function.region.arguments if value.type.is_pointer]
    found: dict[SSAValue, set[SSAValue]] = {value: {value} for value in formal}
    edges = [edge for operation in function.walk() for edge in _flow(operation)]
    changed = True
    while changed:  # loops carry pointers, so that facts may have to travel round
        changed = False
        for source, target in edges:
            known, news = found.setdefault(target, set()), found.get(source, set())
            if not news <= known:
                known |= news
                changed = True
    return {value: tuple(entry for entry in formal if entry in known) for value, known in found.items() if known}


def _flow(operation: Operation) -> list[tuple[SSAValue, SSAValue]]:
    """Pairs (from, to) of values between which an operation passes addresses on."""
    opcode, operands, results = operation.opcode, operation.operands, operation.results
    groups: list[tuple[Sequence[SSAValue], Sequence[SSAValue]]] = []
    if opcode == "for":
        (body,) = operation.regions
        for sources in (operands[3:], body.terminator.operands):
            groups += [(sources, body.arguments[1:]), (sources, results)]
    elif opcode == "while":
        before, after = operation.regions
        forwarded = before.terminator.operands[1:]
        groups = [(operands, before.arguments), (after.terminator.operands, before.arguments)]
        groups += [(forwarded, after.arguments), (forwarded, results)]
    elif opcode == "if":
        groups = [(region.terminator.operands, results) for region in operation.regions]
    elif opcode in ("load", "atomic_rmw", "atomic_cas", "compare", "gather"):
        groups = [(operands[:1], results)] if opcode == "gather" else []
    else:
        passing = operands[:1] if opcode == "offset" else operands[1:] if opcode == "select" else operands
        groups = [([operand] * len(results), results) for operand in passing]
    return [pair for sources, targets in groups for pair in zip(sources, targets, strict=True)]
