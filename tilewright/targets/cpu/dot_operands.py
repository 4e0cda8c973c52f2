"""Where the operands of `dot` lie: the user's memory or a buffer, and how much of them is needed.

An operand that is a plain load (through axis permutations and reshapes) with uniform strides is read
in place.  Masks that are conjunctions of prefixes become run-time limits of the product, when nobody
uses what lies outside.  Everything else is first written to a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Operation, Value
from tilewright.targets.cpu.access import SHAPE_OPS, Axes, Prefix, conjuncts, operand_axes, prefix_key, prefix_of
from tilewright.targets.cpu.affine import AffineAnalysis, Along
from tilewright.targets.cpu.attributes import integer, integers
from tilewright.targets.cpu.demand import unneeded_outside, value_outside
from tilewright.targets.cpu.distinct import plain
from tilewright.targets.cpu.dot import (
    Accumulator,
    DotShape,
    LeftOperand,
    RightOperand,
    emit_dot,
    kernel_text,
    scratch_bytes,
    takes_groups,
)
from tilewright.targets.cpu.evaluate import ZERO, Evaluator, Index, Indices
from tilewright.targets.cpu.nests import count_of_prefix
from tilewright.targets.cpu.placement import Placement
from tilewright.targets.cpu.report import Report
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue


@dataclass(frozen=True)
class Panels:
    """A right operand in panels: the load of [count, depth / group, width, group], reshaped to [depth, columns].

    Without the last axis, `group` is 1.
    """

    load: Operation
    width: int
    group: int


@dataclass(frozen=True)
class MaskPart:
    """A prefix mask of an operand: `axis` of the operand, in units of `scale` elements."""

    compare: Value
    prefix: Prefix
    axis: int
    extent: int
    scale: int = 1


def shape_source(placement: Placement, value: Value) -> Value:
    """The value that `value` is a rearrangement of."""
    while value not in placement.stored and value.definition is not None and value.definition.opcode in SHAPE_OPS:
        source = value.definition.operands[0]
        if source.type.is_scalar:
            break
        value = source
    return value


def panels_of(placement: Placement, value: Value) -> Panels | None:
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


def address_facts(placement: Placement, value: Value) -> tuple[Along, ...] | None:
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


def addressable(placement: Placement, dot: Operation, operand: Value, side: str) -> bool:
    """Whether an operand is used where it lies: in a buffer, or in memory that a lazy load reads."""
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


def _panels_fit(placement: Placement, dot: Operation, operand: Value) -> bool:
    """Whether panels are as wide as the register tile, in groups only where it takes them so."""
    panels = panels_of(placement, operand)
    assert panels is not None
    target, (left, right, accumulator) = placement.target, (value.type.dtype for value in dot.operands)
    if panels.group != 1 and not takes_groups(target, dot_shape(dot), left, right, panels.group):
        return False
    width = target.microtile(accumulator)[1]
    return panels.width == width and mask_parts(placement, dot, operand, "right") is not None


def _buffer_fits(placement: Placement, operand: Value, source: Value, side: str) -> bool:
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


def mask_parts(placement: Placement, dot: Operation, operand: Value, side: str) -> list[MaskPart] | None:
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


def _axis_in_operand(operand: Value, source: Value, axis: int) -> int | None:
    """Which axis of `operand` is axis `axis` of the loaded block it is a rearrangement of."""
    axes: Axes = tuple(range(operand.type.rank))
    value = operand
    while value is not source:
        assert value.definition is not None
        ((value, axes),) = operand_axes(value.definition, value, axes)
    return axes[axis] if axes[axis] >= 0 else None


class DotEmitter:
    """Emits products."""

    def __init__(
        self, builder: LLVMBuilder, target: CPUTarget, placement: Placement, evaluator: Evaluator,
        storage: dict[Value, Storage], report: Report,
    ) -> None:  # fmt: skip
        self.report = report
        self.builder = builder
        self.target = target
        self.placement = placement
        self.evaluator = evaluator
        self.storage = storage

    def emit(self, operation: Operation, scratch: Storage) -> None:
        """One `dot`, batched or not; its accumulator's buffer becomes the result's."""
        self.evaluator.reset()
        self._report(operation)
        zero = is_zero(operation.operands[2])
        batches = operation.result.type.shape[0] if operation.result.type.rank == 3 else 1
        if batches == 1:
            self._product(operation, ZERO, scratch, zero)
            return
        with self.builder.loop(self.builder.integer(0), self.builder.integer(batches), 1) as loop:
            with self.evaluator.scope(loop.guard, loop.index):
                self._product(operation, Index(loop.index), scratch, zero)
            loop.next([])

    def _report(self, operation: Operation) -> None:
        left, right, accumulator = operation.operands
        shape = dot_shape(operation)
        kernel = kernel_text(
            self.target, shape, left.type.dtype, right.type.dtype, right_layout(self.placement, operation),
            accumulator.type.dtype,
        )  # fmt: skip
        extents = f"[{shape.rows} x {shape.depth}] @ [{shape.depth} x {shape.columns}]"
        self.report.note(operation, f"product {extents}: {kernel}")
        for side, operand in (("left", left), ("right", right)):
            source = shape_source(self.placement, operand)
            stored = source in self.placement.stored
            self.report.operand(operation, side, None if stored else source.definition)

    def _product(self, operation: Operation, batch: Index, scratch: Storage, zero: bool) -> None:
        left, right, _ = operation.operands
        result = self.storage[operation.result]
        shape = dot_shape(operation)
        narrow = self._ends_narrow(operation)
        limits = self._limits(operation, narrow)
        if zero and limits[1] is not None and panels_of(self.placement, right) is not None:
            self._clear(result)
            zero = False
        emit_dot(
            self.builder,
            self.target,
            shape,
            self._left(left, batch),
            self._right(right, batch),
            Accumulator(self._element(operation.result, batch, 0, 0), result.strides[-2], operation.result.type.dtype),
            self.evaluator.base_of(scratch),
            rows=limits[0],
            columns=limits[1],
            depth=limits[2],
            accumulate=not zero,
            narrow=narrow,
        )

    def _clear(self, storage: Storage) -> None:
        address = self.evaluator.base_of(storage)
        zero, size = LLVMValue("i8", "0"), self.builder.integer(storage.bytes)
        false = LLVMValue("i1", "false")
        self.builder.call("llvm.memset.p0.i64", "void", [LLVMValue("ptr align 64", address.text), zero, size, false],
                          declared=["ptr", "i8", "i64", "i1 immarg"])  # fmt: skip

    def _limits(self, operation: Operation, narrow: bool) -> list[LLVMValue | None]:
        """Run-time rows, columns and depth; `narrow`: columns may end within a panel."""
        limits: list[LLVMValue | None] = [None, None, None]
        for side, operand in (("left", operation.operands[0]), ("right", operation.operands[1])):
            if shape_source(self.placement, operand) in self.placement.stored:
                continue
            rank = operand.type.rank
            for part in mask_parts(self.placement, operation, operand, side) or []:
                prefix = part.prefix
                count = count_of_prefix(self.evaluator, prefix.index, prefix.limit, prefix.inclusive, part.extent)
                count = self.builder.multiply(count, part.scale)
                first = part.axis == rank - 2
                place = (0 if first else 2) if side == "left" else (2 if first else 1)
                known = limits[place]
                limits[place] = count if known is None else self.builder.minimum(known, count)
        for place in (0, 1):
            known = limits[place]
            demanded = self._demanded(operation, place) if known is None or place == 1 and narrow else None
            if demanded is not None:
                index, extent = demanded.index, operation.result.type.shape[operation.result.type.rank - 2 + place]
                count = count_of_prefix(self.evaluator, index, demanded.limit, demanded.inclusive, extent)
                limits[place] = count if known is None else self.builder.minimum(known, count)
        return limits

    def _ends_narrow(self, operation: Operation) -> bool:
        """Whether the columns that anyone uses end in a panel of which they take one vector at most."""
        prefix, dtype = self._demanded(operation, 1), operation.result.type.dtype
        limit = None if prefix is None else plain(prefix.limit).definition
        if prefix is None or limit is None or limit.opcode != "constant":
            return False
        width, first = self.target.microtile(dtype)[1], self.placement.analysis.along(prefix.index, prefix.axis)
        end = integer(limit, "value") + prefix.inclusive
        return first.run == 0 and first.multiple % width == 0 and 0 < end % width <= self.target.lanes(dtype) < width

    def _demanded(self, operation: Operation, place: int) -> Prefix | None:
        """The later mask, if any, that says how many leading rows (0) or columns (1) of the result anyone uses."""
        result = operation.result
        axis = result.type.rank - 2 + place
        extent = result.type.shape[axis]
        for key, prefix in self.placement.prefixes:
            if prefix.index.type.shape[prefix.axis] != extent or not self._is_known(prefix):
                continue
            if unneeded_outside(self.placement.program, self.placement.analysis, result, axis, key):
                return prefix
        return None

    def _is_known(self, prefix: Prefix) -> bool:
        """Whether a comparison's operands can be computed at this point of the program."""
        roots = [(value, tuple(range(value.type.rank))) for value in (prefix.index, prefix.limit)]
        reads = self.placement.walker.reads(roots)
        return not reads.buffers and not reads.loads and all(value in self.evaluator.scalars for value in reads.scalars)

    # -- Operands ---------------------------------------------------------------------------------

    def _element(self, value: Value, batch: Index, row: int, column: int) -> LLVMValue:
        """The address of one element of an operand."""
        indices: Indices = (Index(self.builder.integer(row)), Index(self.builder.integer(column)))
        if value.type.rank == 3:
            indices = (batch, *indices)
        return self.address(value, indices)

    def address(self, value: Value, indices: Indices) -> LLVMValue:
        """The address of an element of a value that lies in memory."""
        if value in self.placement.stored:
            return self.evaluator.buffer_address(self.storage[value], indices)
        operation = value.definition
        assert operation is not None
        if operation.opcode == "load":
            return self.evaluator.address(operation.operands[0], indices)
        mapped = self.evaluator.source_indices(operation, indices)
        assert mapped is not None
        return self.address(operation.operands[0], mapped)

    def _stride(self, value: Value, batch: Index, axis: int) -> LLVMValue | int:
        """Elements from one element to the next along one of the last two axes (0: rows, 1: columns)."""
        place = value.type.rank - 2 + axis
        if value.type.shape[place] == 1:
            return 1
        source = shape_source(self.placement, value)
        if source in self.placement.stored:
            strides = self.storage[source].strides
            return strides[place] if value is source else strides[value.type.rank - 1 - axis]
        facts = address_facts(self.placement, value)
        assert facts is not None
        step = facts[place].step
        if step is not None:
            return step
        return self._distance(
            self._element(value, batch, 0, 0), self._element(value, batch, 1 - axis, axis), source.type.dtype.itemsize
        )

    def _distance(self, start: LLVMValue, end: LLVMValue, itemsize: int) -> LLVMValue:
        builder = self.builder
        first, second = (builder.cast("ptrtoint", pointer, "i64") for pointer in (start, end))
        return builder.binary("sdiv", builder.subtract(second, first), builder.integer(itemsize), "exact")

    def _left(self, value: Value, batch: Index) -> LeftOperand:
        pointer = self._element(value, batch, 0, 0)
        strides = self._stride(value, batch, 0), self._stride(value, batch, 1)
        whole = shape_source(self.placement, value) in self.placement.stored
        return LeftOperand(pointer, *strides, value.type.dtype, whole)

    def _right(self, value: Value, batch: Index) -> RightOperand:
        panels = panels_of(self.placement, value)
        if panels is not None:
            return self._panel_operand(panels, value)
        pointer = self._element(value, batch, 0, 0)
        down, across = self._stride(value, batch, 0), self._stride(value, batch, 1)
        if isinstance(across, int) and across == 1:
            return RightOperand(pointer, "rows", down, value.type.dtype)
        return RightOperand(pointer, "columns", across, value.type.dtype)

    def _panel_operand(self, panels: Panels, value: Value) -> RightOperand:
        pointer = panels.load.operands[0]
        inner = (ZERO,) * (pointer.type.rank - 1)
        start = self.evaluator.address(pointer, (ZERO, *inner))
        fact = self.placement.analysis.along(pointer, 0)
        stride: LLVMValue | int
        if pointer.type.shape[0] == 1:
            stride = 0
        elif fact.step is not None:
            stride = fact.step
        else:
            following = self.evaluator.address(pointer, (Index(self.builder.integer(1)), *inner))
            stride = self._distance(start, following, value.type.dtype.itemsize)
        return RightOperand(start, _panel_layout(panels), stride, value.type.dtype)


def is_zero(value: Value) -> bool:
    """Whether a block is the constant zero."""
    operation = value.definition
    if operation is None:
        return False
    if operation.opcode in SHAPE_OPS:
        return is_zero(operation.operands[0])
    return operation.opcode == "constant" and operation.attributes["value"] == 0


def dot_shape(operation: Operation) -> DotShape:
    """Extents of one product of a `dot`."""
    rows, columns = operation.result.type.shape[-2:]
    return DotShape(rows, columns, operation.operands[0].type.shape[-1])


def _panel_layout(panels: Panels) -> str:
    return "panels" if panels.group == 1 else "groups"


def right_layout(placement: Placement, operation: Operation) -> str:
    """The layout that the right operand will have, as `RightOperand` names it."""
    value = operation.operands[1]
    panels = panels_of(placement, value)
    if panels is not None:
        return _panel_layout(panels)
    if shape_source(placement, value) in placement.stored:
        return "rows" if value in placement.stored else "columns"
    facts = address_facts(placement, value)
    assert facts is not None
    return "rows" if facts[-1].step == 1 or value.type.shape[-1] == 1 else "columns"


def dot_scratch(placement: Placement, target: CPUTarget, operation: Operation) -> int:
    """Bytes of scratch that the product's own copies need."""
    left, right, accumulator = (operand.type.dtype for operand in operation.operands)
    return scratch_bytes(target, dot_shape(operation), left, right, right_layout(placement, operation), accumulator)
