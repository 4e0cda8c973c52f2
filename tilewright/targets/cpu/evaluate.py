"""Lazy evaluation of blocks: code for the elements of a value at given indices.

`Evaluator.evaluate(value, indices)` takes one `LaneIndex` for each axis.  An index is a scalar position,
or `lanes` consecutive positions; at most one index of a tuple has several lanes.  The result is a
scalar when the elements do not depend on that axis, else a vector.

Code goes to the outermost loop in which its inputs are known: every loop of a nest opens a `LoopScope`
with a cache, and a result is cached where it was emitted.  So row quantities are computed once for a
row, and an expression used by several roots of a nest once for an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.affine import AffineAnalysis, reshape_groups
from tilewright.targets.cpu.attributes import integer, integers, number
from tilewright.targets.cpu.cut_runs import in_run, place_in_run
from tilewright.targets.cpu.elementwise import Elementwise, pointee_type
from tilewright.targets.cpu.indices import ZERO, Indices, LaneIndex
from tilewright.targets.cpu.nearest_bytes import rounded_to_bytes, saturated_bytes
from tilewright.targets.cpu.pair_sums import PAIR_LANES, added_pairs, pair_sum
from tilewright.targets.cpu.register_tables import fits_register, looked_up, low_bits
from tilewright.targets.cpu.repeats import load_mostly, load_together, may_lie_together, usual_steps
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.streams import fetch_ahead, is_streamed
from tilewright.targets.llvm.builder import Block, LLVMBuilder, LLVMValue, literal, vector_type
from tilewright.targets.llvm.conversions import memory_type, register_type


@dataclass
class LoopScope:
    """One loop level: where its hoisted code goes (None: the current block) and what it has computed."""

    block: Block | None = None
    cache: dict[object, LLVMValue] = field(default_factory=dict)


class Evaluator:
    """Evaluates lazy values of one function; `scalars` and `storage` say where the others are."""

    def __init__(
        self,
        builder: LLVMBuilder,
        elementwise: Elementwise,
        analysis: AffineAnalysis,
        scalars: dict[SSAValue, LLVMValue],
        storage: Mapping[SSAValue, Storage],
        scratch: LLVMValue,
    ) -> None:
        self.builder = builder
        self.elementwise = elementwise
        self.analysis = analysis
        self.scalars = scalars
        self.storage = storage
        self.scratch = scratch
        self.streams = False  # stores with the cache modifier .cs go around the caches
        self.table_lanes = 0  # numbers of 32 bits in a register from which gathers can pick
        self.rounds_to_bytes = False  # one instruction rounds a vector of float32 to integers, one saturates these
        self.sums_pairs = False  # one instruction adds two products of bfloat16 to a float32
        self.on_pairs: Callable[[Operation], None] = lambda operation: None  # told where it does
        self.through: SSAValue | None = None  # evaluated although it has a buffer: the one being written
        self.unwritten: frozenset[SSAValue] = frozenset()  # whose buffers the open loop of runs (`cut_runs.py`) writes
        self.on_access: Callable[[Operation, str, int | None, int, bool], None] = lambda *access: None
        # The distance of a load's elements from those that the next pass of a loop reads, where they are to be fetched.
        self.next_row: Callable[[Operation], LLVMValue | None] = lambda load: None
        self._scopes = [LoopScope()]
        self._levels: dict[str, int] = {}

    # -- Scopes -----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything computed: a new group of roots begins."""
        self._scopes = [LoopScope()]
        self._levels = {}

    @contextmanager
    def scope(self, outer: Block, *known: LLVMValue) -> Iterator[None]:
        """A loop body or conditional: code for outer levels goes to the end of block `outer`.

        `known` are the values (the loop's index) that exist from this level on.  Those of a conditional exist before,
        but what is computed from them is not wanted elsewhere.
        """
        self._scopes[-1].block = outer
        self._scopes.append(LoopScope())
        before = {value.text: self._levels[value.text] for value in known if value.text in self._levels}
        for value in known:
            self._levels[value.text] = len(self._scopes) - 1
        yield
        self._levels |= before
        self._scopes.pop()
        self._scopes[-1].block = None

    def know(self, value: LLVMValue) -> None:
        """`value` was computed in the innermost scope."""
        if value.text.startswith("%"):
            self._levels.setdefault(value.text, len(self._scopes) - 1)

    def level(self, values: Sequence[LLVMValue]) -> int:
        return max((self._levels.get(value.text, 0) for value in values), default=0)

    def is_innermost(self, value: LLVMValue) -> bool:
        """Whether a value is computed in every pass of the innermost loop."""
        return self.level([value]) == len(self._scopes) - 1

    def emit_at(self, values: Sequence[LLVMValue], emit: Callable[[], LLVMValue]) -> LLVMValue:
        """Run `emit` where all of `values` are first known, and note the level of its result."""
        level = min(self.level(values), len(self._scopes) - 1)
        block = self._scopes[level].block
        if block is None:
            result = emit()
        else:
            with self.builder.at(block):
                result = emit()
        self._levels.setdefault(result.text, level)
        return result

    def remember(self, value: SSAValue, indices: Indices, result: LLVMValue) -> None:
        """Cache a result in the innermost scope."""
        self._levels.setdefault(result.text, len(self._scopes) - 1)
        self._scopes[-1].cache[self._key(value, indices)] = result

    def shared(self, key: object) -> LLVMValue | None:
        """Something cached under a key of the caller's by `share`."""
        return self._cached(key)

    def share(self, key: object, value: LLVMValue) -> LLVMValue:
        """Cache `value` in the scope where it was emitted."""
        self._scopes[min(self.level([value]), len(self._scopes) - 1)].cache[key] = value
        return value

    def _key(self, value: SSAValue, indices: Indices) -> object:
        shape = value.type.shape
        return (value, tuple(index.key for index, extent in zip(indices, shape, strict=True) if extent > 1))

    def _cached(self, key: object) -> LLVMValue | None:
        for scope in reversed(self._scopes):
            if key in scope.cache:
                return scope.cache[key]
        return None

    # -- Evaluation -------------------------------------------------------------------------------

    def evaluate(self, value: SSAValue, indices: Indices) -> LLVMValue:
        """The elements of `value` at `indices`: a scalar, or a vector over the index with several lanes."""
        if value.type.is_scalar:
            return self.scalars[value]
        indices = tuple(
            ZERO if extent == 1 and index.lanes == 1 else index
            for index, extent in zip(indices, value.type.shape, strict=True)
        )
        key = self._key(value, indices)
        known = self._cached(key)
        if known is None:
            known = self._compute(value, indices)
            level = min(self.level([known]), len(self._scopes) - 1)
            self._scopes[level].cache[key] = known
        return known

    def compute_scalar(self, value: SSAValue) -> LLVMValue:
        """A scalar result of an operation, computed here and now."""
        return self._compute(value, ())

    @contextmanager
    def without(self, values: frozenset[SSAValue]) -> Iterator[None]:
        """Code for which these values have no buffers: they are computed again."""
        saved = self.storage
        if not values.isdisjoint(saved):
            self.storage = {value: storage for value, storage in saved.items() if value not in values}
        yield
        self.storage = saved

    def vector(self, value: SSAValue, indices: Indices, lanes: int) -> LLVMValue:
        """`evaluate`, splat to `lanes` lanes."""
        result = self.evaluate(value, indices)
        return result if result.is_vector or lanes == 1 else self.splat(result, lanes)

    def splat(self, value: LLVMValue, lanes: int) -> LLVMValue:
        key = ("splat", value.text, value.type, lanes)
        known = self._cached(key)
        if known is None:
            known = self.emit_at([value], lambda: self.builder.splat(value, lanes))
            self._scopes[min(self.level([known]), len(self._scopes) - 1)].cache[key] = known
        return known

    def _compute(self, value: SSAValue, indices: Indices) -> LLVMValue:
        if value.type.element == dtypes.int1 and (assumed := self._assumed(value, indices)) is not None:
            return assumed
        storage = self.storage.get(value)
        if storage is not None and value is not self.through:
            return self.read(storage, indices)
        operation = value.definition
        assert operation is not None, f"block argument {value} without a buffer"
        opcode = operation.opcode
        if opcode in ("divide", "remainder") and (place := place_in_run(self.analysis, value, indices)) is not None:
            return in_run(self, operation, indices, place)
        if opcode in ELEMENTWISE:
            return self._elementwise(operation, indices)
        if opcode in REARRANGING:
            return self._shape(operation, value, indices)
        return getattr(self, f"_{opcode}")(operation, value, indices)

    def _assumed(self, value: SSAValue, indices: Indices) -> LLVMValue | None:
        """A comparison, or another mask, that the loop's phase decides."""
        for axis, index in enumerate(indices):
            phase = index.phase
            if phase is None or phase.compares.get(value) != axis:
                continue
            if phase.kind == "inside":
                return LLVMValue("i1", "true")
            return LLVMValue("i1", "false") if phase.kind == "outside" else phase.mask
        return None

    def _elementwise(self, operation: Operation, indices: Indices) -> LLVMValue:
        if operation.opcode == "and" and operation.result.type.element == dtypes.int1:
            return self._conjunction(operation, indices)
        if operation.opcode == "select":
            condition = self.evaluate(operation.operands[0], indices)
            if condition.text in ("true", "false"):
                return self.evaluate(operation.operands[1 if condition.text == "true" else 2], indices)
        rounded = rounded_to_bytes(operation, self.storage) if self.rounds_to_bytes else None
        if rounded is not None and (value := self.evaluate(rounded[0], indices)).is_vector:
            return self.emit_at([value], lambda: saturated_bytes(self.builder, value, rounded[1]))
        paired = pair_sum(operation, self.storage) if self.sums_pairs else None
        if paired is not None and any(index.lanes % PAIR_LANES == 0 for index in indices):
            total, left, right = self.matched([self.evaluate(part, indices) for part in paired])
            self.on_pairs(operation)
            return self.emit_at([total, left, right], lambda: added_pairs(self.builder, total, left, right))
        operands = self.matched([self.evaluate(operand, indices) for operand in operation.operands])
        return self.emit_at(operands, lambda: self.elementwise.emit(operation, operands))

    def _conjunction(self, operation: Operation, indices: Indices) -> LLVMValue:
        """A conjunction of masks, with known parts left out."""
        left, right = (self.evaluate(operand, indices) for operand in operation.operands)
        for one, other in ((left, right), (right, left)):
            if one.text == "true":
                return other
            if one.text == "false":
                return one
        operands = self.matched([left, right])
        return self.emit_at(operands, lambda: self.builder.binary("and", operands[0], operands[1]))

    def matched(self, values: list[LLVMValue]) -> list[LLVMValue]:
        """The values with scalars splat to the lanes of the vectors among them."""
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) if lanes > 1 and not value.is_vector else value for value in values]

    # -- Sources ----------------------------------------------------------------------------------

    def _constant(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        return self.number(value.type.element, number(operation))

    def number(self, element: DType | PointerType, value: float | int | bool) -> LLVMValue:
        """A scalar constant in its register form."""
        text = register_type(element)
        if isinstance(element, DType) and element.is_float and text.startswith("i"):
            return LLVMValue(text, str(int(np.array(value).astype(element.numpy).view(f"u{element.itemsize}"))))
        return LLVMValue(text, literal(text, value))

    def _arange(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        (index,) = indices
        start = integer(operation, "start")

        def emit() -> LLVMValue:
            if index.base.constant is not None:
                first = LLVMValue("i32", str(index.base.constant + start))
            else:
                first = self.builder.add(self.builder.cast("trunc", index.base, "i32"), start)
            if index.lanes == 1:
                return first
            numbers = self.builder.lane_numbers(index.lanes, "i32")
            return self.builder.add(self.builder.splat(first, index.lanes), numbers)

        return self.emit_at([index.base], emit)

    # -- Shapes -----------------------------------------------------------------------------------

    def _shape(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        source = operation.operands[0]
        mapped = self.source_indices(operation, indices)
        if mapped is None:
            return self._by_lane(value, indices)
        return self.evaluate(source, mapped)

    def source_indices(self, operation: Operation, indices: Indices) -> Indices | None:
        """Indices of a shape operation's operand; None when consecutive lanes do not stay consecutive."""
        opcode = operation.opcode
        if opcode == "splat":
            return ()
        if opcode == "expand_dims":
            axis = integer(operation, "axis")
            return indices[:axis] + indices[axis + 1 :]
        if opcode == "broadcast":
            shape = operation.operands[0].type.shape
            return tuple(ZERO if extent == 1 else index for extent, index in zip(shape, indices, strict=True))
        if opcode == "permute":
            order = integers(operation, "order")
            mapped = [ZERO] * len(order)
            for position, axis in enumerate(order):
                mapped[axis] = indices[position]
            return tuple(mapped)
        return self._reshaped(operation, indices)

    def _reshaped(self, operation: Operation, indices: Indices) -> Indices | None:
        old, new = operation.operands[0].type.shape, operation.results[0].type.shape
        mapped: list[LaneIndex] = [ZERO] * len(old)
        for old_range, new_range in reshape_groups(old, new):
            solid_old = [axis for axis in old_range if old[axis] > 1]
            solid_new = [axis for axis in new_range if new[axis] > 1]
            if len(solid_old) == len(solid_new) == 1:
                mapped[solid_old[0]] = indices[solid_new[0]]
            elif solid_old:
                split = self._split_linear(
                    [old[axis] for axis in solid_old],
                    [new[axis] for axis in solid_new],
                    [indices[axis] for axis in solid_new],
                )
                if split is None:
                    return None
                for axis, index in zip(solid_old, split, strict=True):
                    mapped[axis] = index
        return tuple(mapped)

    def _split_linear(self, old: list[int], new: list[int], indices: list[LaneIndex]) -> list[LaneIndex] | None:
        """Row-major position from `indices` in `new`, taken apart over the extents `old`."""
        lanes = max(index.lanes for index in indices)
        if lanes > 1 and (indices[-1].lanes == 1 or old[-1] % lanes or new[-1] % lanes):
            return None
        bases = [index.base for index in indices]

        def emit_all() -> list[LLVMValue]:
            builder = self.builder
            linear, size = LLVMValue("i64", "0"), 1
            for base, extent in zip(reversed(bases), reversed(new), strict=True):
                linear = builder.add(builder.multiply(base, size), linear)
                size *= extent
            parts: list[LLVMValue] = []
            for position, extent in enumerate(reversed(old)):
                if position == len(old) - 1:
                    parts.append(linear)
                else:
                    parts.append(_divide(builder, linear, extent, "urem"))
                    linear = _divide(builder, linear, extent, "udiv")
            return parts[::-1]

        parts: list[LLVMValue] = []

        def emit() -> LLVMValue:
            parts.extend(emit_all())
            return parts[-1]

        self.emit_at(bases, emit)
        level = min(self.level(bases), len(self._scopes) - 1)
        for part in parts:
            if not part.text.isdigit():
                self._levels.setdefault(part.text, level)
        result = [LaneIndex(part) for part in parts]
        if lanes > 1:
            result[-1] = LaneIndex(parts[-1], lanes, None, indices[-1].valid)
        return result

    def _by_lane(self, value: SSAValue, indices: Indices) -> LLVMValue:
        """The universal fall-back: every lane on its own."""
        place = next(position for position, index in enumerate(indices) if index.lanes > 1)
        index = indices[place]
        if value.definition is not None:
            self.note_access(value.definition, "by lane", indices)
        elements: list[LLVMValue] = []
        for lane in range(index.lanes):
            base = self._lane_position(index, lane)
            elements.append(self.evaluate(value, (*indices[:place], LaneIndex(base), *indices[place + 1 :])))

        def emit() -> LLVMValue:
            vector = self.builder.poison(vector_type(elements[0].type, index.lanes))
            for lane, element in enumerate(elements):
                vector = self.builder.insert(vector, element, lane)
            return vector

        return self.emit_at(elements, emit)

    def _lane_position(self, index: LaneIndex, lane: int) -> LLVMValue:
        """The position of one lane; lanes that do not exist repeat the first."""
        base = self.emit_at([index.base], lambda: self.builder.add(index.base, lane))
        return base if index.valid is None else self._existing_lane(index, lane, base)

    def _existing_lane(self, index: LaneIndex, lane: int, base: LLVMValue) -> LLVMValue:
        assert index.valid is not None
        valid = index.valid

        def emit() -> LLVMValue:
            return self.builder.select(self.builder.extract(valid, lane), base, index.base)

        return self.emit_at([index.base, valid, base], emit)

    def _join(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        last = indices[-1]
        if last.lanes > 1:
            return self._by_lane(value, indices)
        if last.base.constant is not None:
            return self.evaluate(operation.operands[last.base.constant], indices[:-1])
        values = self.matched([self.evaluate(operand, indices[:-1]) for operand in operation.operands])

        def emit() -> LLVMValue:
            first = self.builder.compare("eq", last.base, 0)
            return self.builder.select(first, values[0], values[1])

        return self.emit_at([last.base, *values], emit)

    def _split(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        half = operation.results.index(value)
        return self.evaluate(operation.operands[0], (*indices, LaneIndex(LLVMValue("i64", str(half)))))

    def _cat(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        axis = integer(operation, "axis")
        index = indices[axis]
        extents = [operand.type.shape[axis] for operand in operation.operands]
        if index.lanes > 1 and any(extent % index.lanes for extent in extents):
            return self._by_lane(value, indices)
        result: LLVMValue | None = None
        start = 0
        for operand, extent in zip(operation.operands, extents, strict=True):
            inner = self._clamped(index, start, extent)
            part = self.evaluate(operand, (*indices[:axis], inner, *indices[axis + 1 :]))
            result = part if result is None else self._from(index, start, part, result)
            start += extent
        assert result is not None
        return result

    def _clamped(self, index: LaneIndex, start: int, extent: int) -> LaneIndex:
        """The index inside one part of a concatenation; any position of the part when it is in another."""

        def emit() -> LLVMValue:
            moved = self.builder.subtract(index.base, start)
            return self.builder.minimum(self.builder.maximum(moved, 0), extent - index.lanes)

        return LaneIndex(self.emit_at([index.base], emit), index.lanes, None, index.valid)

    def _from(self, index: LaneIndex, start: int, part: LLVMValue, before: LLVMValue) -> LLVMValue:
        values = self.matched([part, before])

        def emit() -> LLVMValue:
            return self.builder.select(self.builder.compare("sge", index.base, start), values[0], values[1])

        return self.emit_at([index.base, *values], emit)

    def _gather(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        source, chosen = operation.operands
        axis = integer(operation, "axis")
        storage = self.storage[source]
        lanes = max(index.lanes for index in indices)
        if lanes > 1 and fits_register(source.type, self.table_lanes):
            return self._looked_up(source, chosen, indices)
        where = self.evaluate(chosen, indices)

        def emit() -> LLVMValue:
            builder = self.builder
            offset = builder.cast(
                "sext" if chosen.type.dtype.is_signed else "zext", where, vector_type("i64", where.lanes)
            )
            offset = builder.multiply(offset, storage.strides[axis])
            scalar = LLVMValue("i64", "0")
            for position, index in enumerate(indices):
                if position == axis:
                    continue
                if index.lanes > 1:
                    numbers = builder.multiply(builder.lane_numbers(index.lanes), storage.strides[position])
                    offset = builder.add(builder.splat(offset, index.lanes), numbers)
                scalar = builder.add(scalar, builder.multiply(index.base, storage.strides[position]))
            offset = builder.add(offset, builder.splat(scalar, offset.lanes))
            memory = memory_type(storage.element)
            pointers = builder.gep(self.base_of(storage), offset, memory)
            if offset.lanes == 1:
                return self.from_memory(builder.load(memory, pointers), storage.element)
            valid = self.existing(indices, lanes) or builder.constant(vector_type("i1", lanes), True)
            loaded = builder.gather(vector_type(memory, lanes), pointers, valid, align=storage.element.itemsize)
            return self.from_memory(loaded, storage.element)

        valid = self.existing(indices, lanes)
        known = [where, *(index.base for index in indices), *([valid] if valid is not None else [])]
        return self.emit_at(known, emit)

    def _looked_up(self, source: SSAValue, chosen: SSAValue, indices: Indices) -> LLVMValue:
        """Elements of a table in a register."""
        places = chosen if chosen in self.storage else low_bits(chosen, self.table_lanes)
        where = self.evaluate(places, indices)

        def emit() -> LLVMValue:
            numbers = self.elementwise.converter.cast(where, places.type.dtype, dtypes.int32)
            storage = self.storage[source]
            return looked_up(self.builder, self.base_of(storage), storage, numbers, self.table_lanes)

        return self.emit_at([where], emit)

    # -- Memory -----------------------------------------------------------------------------------

    def existing(self, indices: Indices, lanes: int) -> LLVMValue | None:
        """The lanes that exist, when not all do."""
        for index in indices:
            if index.valid is not None and index.lanes == lanes:
                return index.valid
        return None

    def note_access(self, operation: Operation, how: str, indices: Indices, mask: LLVMValue | None = None) -> None:
        """Tell how memory is reached; the last, masked vector of a loop says nothing that the loop did not."""
        if any(index.phase is not None and index.phase.kind != "inside" for index in indices):
            return
        place = _vector_place(indices)
        self.on_access(operation, how, place, 1 if place is None else indices[place].lanes, mask is not None)

    def from_memory(self, value: LLVMValue, element: DType | PointerType) -> LLVMValue:
        return self.builder.compare("ne", value, 0) if element == dtypes.int1 else value

    def to_memory(self, value: LLVMValue, element: DType | PointerType) -> LLVMValue:
        return self.builder.cast("zext", value, vector_type("i8", value.lanes)) if element == dtypes.int1 else value

    def base_of(self, storage: Storage) -> LLVMValue:
        """The address of a buffer."""
        return self.builder.gep(self.scratch, storage.offset, "i8")

    def buffer_address(self, storage: Storage, indices: Indices) -> LLVMValue:
        builder = self.builder
        offset = builder.integer(0)
        for index, stride in zip(indices, storage.strides, strict=True):
            offset = builder.add(offset, builder.multiply(index.base, stride))
        return builder.gep(self.base_of(storage), offset, memory_type(storage.element))

    def read(self, storage: Storage, indices: Indices) -> LLVMValue:
        """Elements of a buffer."""
        bases = [index.base for index in indices]
        place = _vector_place(indices)

        def emit() -> LLVMValue:
            address = self.buffer_address(storage, indices)
            memory, align = memory_type(storage.element), storage.element.itemsize
            if place is None:
                return self.from_memory(self.builder.load(memory, address, align), storage.element)
            lanes, stride = indices[place].lanes, storage.strides[place]
            wide = vector_type(memory, lanes)
            valid = indices[place].valid
            if stride == 1 and valid is not None and indices[place].start is not None:
                return self.from_memory(self.builder.masked_load(wide, address, valid, align=align), storage.element)
            if stride == 1:
                return self.from_memory(self.builder.load(wide, address, align), storage.element)
            numbers = self.builder.multiply(self.builder.lane_numbers(lanes), stride)
            valid = valid or self.builder.constant(vector_type("i1", lanes), True)
            pointers = self.builder.gep(address, numbers, memory)
            return self.from_memory(self.builder.gather(wide, pointers, valid, align=align), storage.element)

        known = bases + [index.valid for index in indices if index.valid is not None]
        return self.emit_at(known, emit)

    def write(self, storage: Storage, indices: Indices, value: LLVMValue) -> None:
        """Write elements of a buffer at the current place."""
        place = _vector_place(indices)
        lanes = 1 if place is None else indices[place].lanes
        stored = self.to_memory(self.builder.splat(value, lanes), storage.element)
        address = self.buffer_address(storage, indices)
        align = storage.element.itemsize
        if place is None or storage.strides[place] == 1:
            index = ZERO if place is None else indices[place]
            if index.start is not None and index.valid is not None:  # there may be nothing after the last lane
                self.builder.masked_store(stored, address, index.valid, align)
            else:
                self.builder.store(stored, address, align)
            return
        numbers = self.builder.multiply(self.builder.lane_numbers(lanes), storage.strides[place])
        valid = indices[place].valid or self.builder.constant(vector_type("i1", lanes), True)
        self.builder.scatter(stored, self.builder.gep(address, numbers, memory_type(storage.element)), valid, align)

    def _load(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        pointer = operation.operands[0]
        element = value.type.element
        place = _vector_place(indices)
        mask = self._mask(operation, indices)
        other = self._other(operation, value, indices)
        if mask is not None and mask.text == "false":
            return other
        guards: list[LLVMValue] = []
        if mask is not None and mask.text == "true":
            # Only inside the loop: before it, nothing says that the mask holds.
            guards = [index.base for index in indices if index.phase is not None]
            mask = None
        lanes = 1 if place is None else indices[place].lanes
        step = 0 if place is None else self._step(pointer, place, lanes)
        if step in (1, -1):
            return self._contiguous(operation, indices, element, lanes, mask, other, guards, step == -1)
        if step == 0:
            return self._single(operation, indices, element, lanes, mask, other, guards)
        return self._gathered(operation, indices, element, lanes, mask, other, guards)

    def _mask(self, operation: Operation, indices: Indices) -> LLVMValue | None:
        return self.evaluate(operation.operands[1], indices) if len(operation.operands) > 1 else None

    def _other(self, operation: Operation, value: SSAValue, indices: Indices) -> LLVMValue:
        if len(operation.operands) > 2:
            return self.evaluate(operation.operands[2], indices)
        return self.builder.zero(register_type(value.type.element))

    def _step(self, pointer: SSAValue, place: int, lanes: int) -> int | None:
        fact = self.analysis.along(pointer, place)
        return fact.step if fact.covers(lanes) else None

    def _contiguous(
        self, operation: Operation, indices: Indices, element: DType | PointerType, lanes: int,
        mask: LLVMValue | None, other: LLVMValue, guards: list[LLVMValue], reverse: bool,
    ) -> LLVMValue:  # fmt: skip
        self.note_access(operation, "reversed" if reverse else "contiguous", indices, mask)
        address = self.address(operation.operands[0], tuple(index.first for index in indices))
        valid = self.existing(indices, lanes)
        masks = [part for part in (mask, valid) if part is not None]
        memory, align = vector_type(memory_type(element), lanes), element.itemsize
        ahead = is_streamed(operation) and not reverse

        def emit() -> LLVMValue:
            builder = self.builder
            distance = None if ahead or reverse else self.next_row(operation)
            if ahead or distance is not None:
                fetch_ahead(builder, address, lanes * element.itemsize, distance)
            at = builder.gep(address, 1 - lanes, memory_type(element)) if reverse else address
            turned = builder.reversed if reverse else _as_it_is
            if not masks:
                return self.from_memory(turned(builder.load(memory, at, align)), element)
            combined = turned(self.all_of(masks, lanes))
            passthrough = turned(self.to_memory(builder.splat(other, lanes), element))
            return self.from_memory(turned(builder.masked_load(memory, at, combined, passthrough, align)), element)

        return self.emit_at([address, *guards, *masks, *([other] if masks else [])], emit)

    def all_of(self, masks: list[LLVMValue], lanes: int) -> LLVMValue:
        combined = self.builder.splat(masks[0], lanes)
        for mask in masks[1:]:
            combined = self.builder.binary("and", combined, self.builder.splat(mask, lanes))
        return combined

    def _single(
        self, operation: Operation, indices: Indices, element: DType | PointerType, lanes: int,
        mask: LLVMValue | None, other: LLVMValue, guards: list[LLVMValue],
    ) -> LLVMValue:  # fmt: skip
        """One element for all lanes."""
        self.note_access(operation, "single", indices, mask)
        address = self.address(operation.operands[0], tuple(index.first for index in indices))
        memory, align = memory_type(element), element.itemsize
        volatile = bool(operation.attributes["volatile"])
        if mask is None:
            return self.emit_at(
                [address, *guards],
                lambda: self.from_memory(self.builder.load(memory, address, align, volatile=volatile), element),
            )

        def emit() -> LLVMValue:
            builder = self.builder
            assert mask is not None
            wanted = builder.intrinsic("vector.reduce.or", [mask], "i1") if mask.is_vector else mask
            one, single = f"<1 x {memory}>", builder.insert(builder.poison("<1 x i1>"), wanted, 0)
            spare = other if not other.is_vector else builder.zero(other.element)
            passthrough = builder.insert(builder.poison(one), self.to_memory(spare, element), 0)
            loaded = builder.extract(builder.masked_load(one, address, single, passthrough, align), 0)
            result = self.from_memory(loaded, element)
            if not mask.is_vector:
                return result
            return builder.select(mask, builder.splat(result, lanes), builder.splat(other, lanes))

        return self.emit_at([address, mask, other], emit)

    def _gathered(
        self, operation: Operation, indices: Indices, element: DType | PointerType, lanes: int,
        mask: LLVMValue | None, other: LLVMValue, guards: list[LLVMValue],
    ) -> LLVMValue:  # fmt: skip
        self.note_access(operation, "gather", indices, mask)
        usual = usual_steps(self, operation.operands[0], indices)
        if usual:
            return load_mostly(self, operation, indices, mask, other, usual)
        if may_lie_together(self, operation.operands[0], indices):
            return load_together(self, operation, indices, mask, other)
        pointers = self.vector(operation.operands[0], indices, lanes)
        valid = self.existing(indices, lanes)
        masks = [part for part in (mask, valid) if part is not None]
        memory = vector_type(memory_type(element), lanes)

        def emit() -> LLVMValue:
            builder = self.builder
            combined = self.all_of(masks, lanes) if masks else builder.constant(vector_type("i1", lanes), True)
            passthrough = self.to_memory(builder.splat(other, lanes), element)
            loaded = builder.gather(memory, pointers, combined, passthrough, element.itemsize)
            return self.from_memory(loaded, element)

        return self.emit_at([pointers, *guards, *masks, other], emit)

    # -- Addresses --------------------------------------------------------------------------------

    def at_lane(self, indices: Indices, lane: int) -> Indices:
        """Scalar indices of one lane."""

        def moved(index: LaneIndex) -> LaneIndex:
            return LaneIndex(self.emit_at([index.base], lambda: self.builder.add(index.base, lane)))

        return tuple(moved(index) if index.lanes > 1 and lane else index.first for index in indices)

    def address(self, pointer: SSAValue, indices: Indices) -> LLVMValue:
        """The pointer at scalar indices, its offsets computed in 64 bits."""
        operation = pointer.definition
        if pointer.type.is_scalar or operation is None or operation.opcode not in (*REARRANGING, "offset", "hint"):
            return self.evaluate(pointer, indices)
        if pointer in self.storage and pointer is not self.through:
            return self.evaluate(pointer, indices)
        key = ("address", self._key(pointer, indices))
        known = self._cached(key)
        if known is not None:
            return known
        if operation.opcode == "offset":
            base = self.address(operation.operands[0], indices)
            distance = self.wide(operation.operands[1], indices)
            element = pointer.type.element
            assert isinstance(element, PointerType)
            known = self.emit_at([base, distance], lambda: self.builder.gep(base, distance, pointee_type(element)))
        else:
            mapped = indices if operation.opcode == "hint" else self.source_indices(operation, indices)
            assert mapped is not None
            return self.address(operation.operands[0], mapped)
        self._scopes[min(self.level([known]), len(self._scopes) - 1)].cache[key] = known
        return known

    def wide(self, value: SSAValue, indices: Indices) -> LLVMValue:
        """An integer value at scalar indices as i64; signed sums and products are formed in 64 bits."""
        operation = value.definition
        if operation is None or value.type.is_scalar or value in self.storage or not value.type.dtype.is_signed:
            return self._extended(value, indices)
        opcode, operands = operation.opcode, operation.operands
        if opcode in ("add", "subtract", "multiply"):
            parts = [self.wide(operand, indices) for operand in operands]
            operator = {"add": "add", "subtract": "sub", "multiply": "mul"}[opcode]
            return self.emit_at(parts, lambda: self.builder.binary(operator, parts[0], parts[1]))
        if (
            opcode == "cast"
            and operands[0].type.dtype.is_signed
            and operands[0].type.dtype.bits <= value.type.dtype.bits
        ):
            return self.wide(operands[0], indices)
        if opcode in REARRANGING:
            mapped = self.source_indices(operation, indices)
            assert mapped is not None
            return self.wide(operands[0], mapped)
        if opcode == "hint":
            return self.wide(operands[0], indices)
        if opcode == "arange":
            start = integer(operation, "start")
            return self.emit_at([indices[0].base], lambda: self.builder.add(indices[0].base, start))
        if opcode == "constant":
            return self.builder.integer(integer(operation, "value"))
        return self._extended(value, indices)

    def _extended(self, value: SSAValue, indices: Indices) -> LLVMValue:
        if value.type.is_scalar:
            return self.wide_scalar(value)
        narrow = self.evaluate(value, indices)
        return self.emit_at([narrow], lambda: self.elementwise.converter.cast(narrow, value.type.dtype, dtypes.int64))

    def wide_scalar(self, value: SSAValue) -> LLVMValue:
        """A scalar integer as i64."""
        narrow = self.scalars[value]
        if narrow.type == "i64":
            return narrow
        key = ("wide", value)
        known = self._cached(key)
        if known is None:
            known = self.emit_at([], lambda: self.elementwise.converter.cast(narrow, value.type.dtype, dtypes.int64))
            self._scopes[0].cache[key] = known
        return known


def _as_it_is(value: LLVMValue) -> LLVMValue:
    return value


def _vector_place(indices: Indices) -> int | None:
    return next((position for position, index in enumerate(indices) if index.lanes > 1), None)


def _divide(builder: LLVMBuilder, value: LLVMValue, extent: int, operator: str) -> LLVMValue:
    if value.constant is not None:
        return builder.integer(value.constant % extent if operator == "urem" else value.constant // extent)
    if extent & (extent - 1) == 0:
        if operator == "urem":
            return builder.binary("and", value, builder.integer(extent - 1))
        return builder.binary("lshr", value, builder.integer(extent.bit_length() - 1))
    return builder.binary(operator, value, builder.integer(extent))
