"""Which memory operations may access the same element: by parameters, address patterns, and checks at launch.

A loop that loads through one parameter and stores through another at the same offsets goes lane by lane. That is
right where the two point to different memory, and where they point to the very same elements (an update in place),
but not where they overlap with a shift, or in elements of different sizes. Which it is only a launch knows: every
such pair is a `Hazard`, which the kernel's entry point looks for before any instance runs (`entry.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import BROADCASTING, REARRANGING
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.access import conjuncts, prefix_of
from tilewright.targets.cpu.affine import AffineAnalysis, constant_of
from tilewright.targets.cpu.distinct import Lanes, Limits, Stride, plain
from tilewright.targets.cpu.ranges import Interval, Number, Ranges, element_bytes, least, most, plus, times

_MASKS = {"load": 1, "store": 2, "atomic_rmw": 2, "atomic_cas": 3}  # the operand that is the mask, if there is one


@dataclass(frozen=True)
class Hazard:
    """A load through one parameter and a write through another that run lane by lane, which must not overlap.

    `read_bytes` and `written_bytes` are what they reach, from somewhere on that is the same in both (their end is
    after the last byte).  `lanes` are the distance in bytes and the number of those along each axis, where a launch
    knows them.  Equal addresses are right if the lanes are `apart`: True says that it is proved, None that their
    distances tell, False that equal addresses are wrong all the same.
    """

    read: SSAValue
    written: SSAValue
    itemsize: int
    read_bytes: Interval
    written_bytes: Interval
    lanes: tuple[tuple[Number, Number], ...] = ()
    apart: bool | None = False


class Aliasing:
    """Answers for one function; `hazards` is what the answers count on that a launch must check.

    With `careful` they count on nothing: different parameters overlap as they like.
    """

    def __init__(self, function: Function, analysis: AffineAnalysis, careful: bool = False) -> None:
        self._function = function
        self._analysis = analysis
        self._careful = careful
        self._lanes = Lanes(analysis)
        self._alias_free = {
            argument
            for argument, parameter in zip(function.region.arguments, function.parameters, strict=True)
            if parameter.alias_free
        }
        self._parameters = set(function.region.arguments)
        self._carried = _carried_pointers(function)
        self._ranges: dict[SSAValue | None, Ranges] = {}  # by the mask that holds; made when asked for
        self._found: dict[tuple[Operation, Operation], Hazard | None] = {}
        self._trusted: dict[tuple[Operation, Operation], Hazard] = {}  # of `trust_apart`

    @property
    def hazards(self) -> list[Hazard]:
        """Without repetitions, in the order in which they were met."""
        return list(
            dict.fromkeys(hazard for hazard in (*self._found.values(), *self._trusted.values()) if hazard is not None)
        )

    def overlap(self, pointer: SSAValue, written: SSAValue) -> bool:
        """Whether an access through `pointer` may touch any element that is written through `written`."""
        base, other = self.base(pointer), self.base(written)
        if base is not None and other is not None and base is not other:
            return base not in self._alias_free and other not in self._alias_free
        return True

    def conflict(self, access: Operation, writer: Operation) -> bool:
        """Whether `access`, a memory operation, may touch what *another* lane writes by `writer`.

        Equal address patterns (the same offsets, lane by lane) touch at most the same lane's element if the lanes'
        elements differ.  That is harmless only where each lane's own accesses happen in program order, and where the
        lanes run in step.  Of different parameters it holds where a launch finds no hazard.
        """
        pointer, written = access.operands[0], writer.operands[0]
        if not self.overlap(pointer, written):
            return False
        if pointer.type.shape != written.type.shape or self._pattern(pointer) != self._pattern(written):
            return True
        limits = self._limits(access, writer)
        if self.base(pointer) is self.base(written):
            return not self._lanes.distinct(written, limits, trusting=False)
        if self._careful or not self._lanes.distinct(written, limits, trusting=True):
            return True
        if (access, writer) not in self._found:
            self._found[access, writer] = self._hazard(access, writer, limits)
        return self._found[access, writer] is None

    def trust_apart(self, access: Operation, writers: Sequence[Operation]) -> bool:
        """Whether a launch can find that `access` touches nothing that any instance writes by `writers`.

        If so, it is counted on.
        """
        if self._careful:
            return False
        found = {(access, writer): self._apart(access, writer) for writer in writers}
        trusted = {pair: hazard for pair, hazard in found.items() if hazard is not None}
        if len(trusted) == len(found):
            self._trusted |= trusted
        return len(trusted) == len(found)

    def never_meet(self, access: Operation, writer: Operation) -> bool:
        """Whether no lane of `access` touches what any lane writes by `writer`, in one pass of the loops around both.

        It is counted on already that they are apart, or one is a constant distance from the other, from the same
        pointer on, that no two lanes have: the halves of rows of known length.
        """
        if (access, writer) in self._trusted:
            return True
        pointer, written = access.operands[0], writer.operands[0]
        if self.base(pointer) is not self.base(written):  # patterns leave out parameters
            return False
        if pointer.type.shape != written.type.shape or _itemsize(access) != _itemsize(writer):
            return False
        distance = _distance_between(self._pattern(pointer), self._pattern(written))
        return bool(distance) and self._lanes.passes(written, distance)

    def ordered(self, store: Operation) -> bool:
        """Whether the elements of a store must be written in row-major order, since some share an address."""
        return self._lanes.meet(store.operands[0])

    def _limits(self, access: Operation, writer: Operation) -> Limits:
        """What bounds the lanes of both operations."""
        first, second = (_bounds(operation, self._analysis) for operation in (access, writer))
        return {axis: limits & second[axis] for axis, limits in first.items() if axis in second}

    def base(self, pointer: SSAValue) -> SSAValue | None:
        """The parameter that a pointer block is derived from; None when there is no single one."""
        value = pointer
        while value.definition is not None or value in self._carried:
            operation = value.definition
            if operation is None:
                value = self._carried[value].start
            elif operation.opcode in REARRANGING or operation.opcode in ("offset", "hint", "bitcast"):
                value = operation.operands[0]
                if not isinstance(value.type.element, PointerType):
                    return None
            else:
                return None
        return value if value in self._parameters else None

    def _pattern(self, pointer: SSAValue) -> tuple[object, ...]:
        """The offsets added to a parameter, in order: equal patterns move equally lane by lane.

        Of other pointers they begin with the pointer, so that equal patterns are equal addresses.
        """
        operation = pointer.definition
        if operation is None and pointer in self._carried:
            carried = self._carried[pointer]
            return (*self._pattern(carried.start), (carried.loop, carried.increments))
        if operation is None:
            return () if pointer in self._parameters else (pointer,)
        if operation.opcode == "offset":
            return (*self._pattern(operation.operands[0]), operation.operands[1])
        if operation.opcode in BROADCASTING:
            return (*self._pattern(operation.operands[0]), operation.opcode, pointer.type.shape)
        return (pointer,)

    # -- Hazards ----------------------------------------------------------------------------------

    def _hazard(self, access: Operation, writer: Operation, limits: Limits) -> Hazard | None:
        """What a launch must check of two accesses of one pattern through different parameters; None: it cannot."""
        read, written = self.base(access.operands[0]), self.base(writer.operands[0])
        assert read is not None and written is not None
        size, same = _itemsize(writer), _itemsize(access) == _itemsize(writer)
        reached = [(self._block if same else self._launch)(operation) for operation in (access, writer)]
        if reached[0] is None or reached[1] is None:
            return None
        if not same:
            return Hazard(read, written, size, reached[0], reached[1])
        lanes = self._lanes_of(access, writer)
        proved = self._lanes.distinct(writer.operands[0], limits, trusting=False)
        apart = True if proved else (None if lanes else False)
        return Hazard(read, written, size, reached[0], reached[1], lanes, apart)

    def _apart(self, access: Operation, writer: Operation) -> Hazard | None:
        """What a launch must check, for no instance to read what is written through another parameter; else None."""
        if writer.opcode not in _MASKS or access.opcode not in _MASKS:
            return None
        read, written = self.base(access.operands[0]), self.base(writer.operands[0])
        if read is None or written is None or read is written:
            return None
        reached = [self._launch(operation) for operation in (access, writer)]
        if reached[0] is None or reached[1] is None:
            return None
        return Hazard(read, written, _itemsize(writer), reached[0], reached[1])

    def _block(self, operation: Operation) -> Interval | None:
        """The bytes that the lanes of one access reach, from its first lane on."""
        total = Interval.exactly(0)
        for stride, count in self._axes(operation.operands[0], _bounds(operation, self._analysis)):
            distance = self._distance(stride)
            if distance is None:
                return None
            total += distance * Interval(0, plus(most(1, count), -1))
        return _in_bytes(total, operation)

    def _launch(self, operation: Operation) -> Interval | None:
        """The bytes that an access reaches in all instances of a launch, from its parameter on."""
        place = _MASKS[operation.opcode]
        ranges = self._ranges_within(operation.operands[place] if len(operation.operands) > place else None)
        found = ranges.distance(operation.operands[0])
        return None if found is None else Interval(found.low, plus(found.high, _itemsize(operation)))

    def _ranges_within(self, mask: SSAValue | None) -> Ranges:
        if None not in self._ranges:
            self._ranges[None] = Ranges(self._function, self._analysis)
        if mask is not None and mask not in self._ranges:
            self._ranges[mask] = self._ranges[None].within(mask)
        return self._ranges[mask]

    def _axes(self, pointer: SSAValue, limits: Limits) -> list[tuple[Stride, Number]]:
        """Along each axis: the distance between neighbours, and how many of them there are within the limits."""
        found: list[tuple[Stride, Number]] = []
        for axis, extent in enumerate(pointer.type.shape):
            if extent > 1:
                stride = self._lanes.stride(pointer, axis)
                assert stride is not None  # the lanes are distinct
                bounds = [self._ranges_within(None).of(limit) for limit in limits.get(axis, ())]
                count: Number = extent
                for bound in bounds:
                    count = count if bound is None else least(count, bound.high)
                found.append((stride, count))
        return found

    def _distance(self, stride: Stride) -> Interval | None:
        product = Interval.exactly(stride.factor)
        for scalar in stride.scale:
            factor = self._ranges_within(None).of(scalar)
            if factor is None:
                return None
            product *= factor
        return product

    def _lanes_of(self, access: Operation, writer: Operation) -> tuple[tuple[Number, Number], ...]:
        """`Hazard.lanes` of two accesses of one pattern: of each axis, as many lanes as one of them has."""
        axes = [self._axes(entry.operands[0], _bounds(entry, self._analysis)) for entry in (access, writer)]
        found = []
        for (stride, count), (_, other) in zip(*axes, strict=True):
            distance = self._distance(stride)
            if distance is None or not distance.is_exact or len(axes[0]) > _MOST_ALIASED_AXES:
                return ()
            found.append((times(distance.low, _itemsize(writer)), most(count, other)))
        return tuple(found)


def _distance_between(first: tuple[object, ...], second: tuple[object, ...]) -> int:
    """How many elements one of two patterns is further on than the other; 0 if it is not known."""
    shorter, longer = sorted((first, second), key=len)
    if longer[:-1] == shorter:
        return _constant(longer[-1])
    if len(shorter) != len(longer) or not longer or longer[:-1] != shorter[:-1]:
        return 0
    pair = shorter[-1], longer[-1]
    for near, far in (pair, pair[::-1]):
        if isinstance(far, SSAValue) and far.definition is not None and far.definition.opcode == "add":
            left, right = far.definition.operands
            for start, distance in ((left, right), (right, left)):
                if start is near:
                    return _constant(distance)
    return 0


def _constant(value: object) -> int:
    return (constant_of(value) or 0) if isinstance(value, SSAValue) else 0


@dataclass(frozen=True)
class _Carried:
    """A pointer that each pass of a loop moves on: two with equal `increments` keep their distance."""

    start: SSAValue
    loop: Operation
    increments: tuple[SSAValue, ...]


def _carried_pointers(function: Function) -> dict[SSAValue, _Carried]:
    found: dict[SSAValue, _Carried] = {}
    for loop in function.walk():
        if loop.opcode != "for":
            continue
        region = loop.regions[0]
        for start, argument, value in zip(
            loop.operands[3:], region.arguments[1:], region.terminator.operands, strict=True
        ):
            increments: list[SSAValue] = []
            while value.definition is not None and value.definition.opcode == "offset":
                increments.append(value.definition.operands[1])
                value = value.definition.operands[0]
            if argument.type.is_pointer and value is argument:
                found[argument] = _Carried(start, loop, tuple(increments))
    return found


_MOST_ALIASED_AXES = 3  # whose lanes a launch tells apart


def _itemsize(operation: Operation) -> int:
    return element_bytes(operation.operands[0])


def _in_bytes(elements: Interval, operation: Operation) -> Interval:
    size = _itemsize(operation)
    found = elements * Interval.exactly(size)
    return Interval(found.low, plus(found.high, size))


def _bounds(operation: Operation, analysis: AffineAnalysis) -> dict[int, frozenset[SSAValue]]:
    """The scalars that a memory operation's mask keeps the indices of its lanes below, by axis; from 0 on."""
    place = _MASKS[operation.opcode]
    found: dict[int, frozenset[SSAValue]] = {}
    if len(operation.operands) <= place:
        return found
    for part, axes in conjuncts(operation.operands[place]):
        prefix = prefix_of(part, analysis)
        if prefix is not None and not prefix.inclusive and analysis.is_nonnegative(prefix.index):
            axis = axes[prefix.axis]
            found[axis] = found.get(axis, frozenset()) | {plain(prefix.limit)}
    return found
