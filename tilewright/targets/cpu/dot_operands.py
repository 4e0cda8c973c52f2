"""The operands of `dot`: in the user's memory or in a buffer, and how much of them is needed.

An operand that is a plain load (through axis permutations and reshapes) with uniform strides is read
in place.  Masks that are conjunctions of prefixes become run-time limits of the product, when nobody
uses what lies outside.  Everything else is first written to a buffer.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.access import Prefix
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.demand import depth_prefixes, unneeded_outside
from tilewright.targets.cpu.distinct import plain
from tilewright.targets.cpu.dot import (
    Accumulator,
    LeftOperand,
    RightOperand,
    emit_dot,
    grouped_layout,
    kernel_text,
    scratch_bytes,
)
from tilewright.targets.cpu.dot_places import (
    Panels,
    address_facts,
    dot_shape,
    is_zero,
    lines_of,
    mask_parts,
    pairs_fit,
    panels_of,
    shape_source,
)
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ZERO, Indices, LaneIndex
from tilewright.targets.cpu.limits import count_of_prefix
from tilewright.targets.cpu.placement import Placement
from tilewright.targets.cpu.report import KernelReport
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue


class DotEmitter:
    """Emits products."""

    def __init__(
        self, builder: LLVMBuilder, target: CPUTarget, placement: Placement, evaluator: Evaluator,
        storage: dict[SSAValue, Storage], report: KernelReport,
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
                self._product(operation, LaneIndex(loop.index), scratch, zero)
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

    def _product(self, operation: Operation, batch: LaneIndex, scratch: Storage, zero: bool) -> None:
        right = operation.operands[1]
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
            self._left(operation, batch),
            self._right(operation, batch),
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
        for depth in depth_prefixes(self.placement.analysis, operation).values():
            index, extent, known = depth.prefix.index, operation.operands[0].type.shape[-1], limits[2]
            with self.evaluator.without(depth.blocks):  # their buffers may hold something else by now
                count = count_of_prefix(self.evaluator, index, depth.prefix.limit, depth.prefix.inclusive, extent)
            limits[2] = count if known is None else self.builder.minimum(known, count)
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

    def _element(self, value: SSAValue, batch: LaneIndex, row: int, column: int) -> LLVMValue:
        """The address of one element of an operand."""
        indices: Indices = (LaneIndex(self.builder.integer(row)), LaneIndex(self.builder.integer(column)))
        if value.type.rank == 3:
            indices = (batch, *indices)
        return self.address(value, indices)

    def address(self, value: SSAValue, indices: Indices) -> LLVMValue:
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

    def _stride(self, value: SSAValue, batch: LaneIndex, axis: int) -> LLVMValue | int:
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

    def _left(self, dot: Operation, batch: LaneIndex) -> LeftOperand:
        value, lines = dot.operands[0], lines_of(self.placement, dot)
        if lines is not None:
            places = lines.load.operands[0]
            start = self.evaluator.address(places, (ZERO, ZERO, ZERO))
            row = self.placement.analysis.along(places, 0).step
            if row is None:
                following = self.evaluator.address(places, (LaneIndex(self.builder.integer(1)), ZERO, ZERO))
                stride: LLVMValue | int = self._distance(start, following, value.type.dtype.itemsize)
            else:
                stride = row
            return LeftOperand(start, stride, 1, value.type.dtype, True, (lines.length, lines.apart))
        pointer = self._element(value, batch, 0, 0)
        strides = self._stride(value, batch, 0), self._stride(value, batch, 1)
        whole = shape_source(self.placement, value) in self.placement.stored
        return LeftOperand(pointer, *strides, value.type.dtype, whole)

    def _right(self, dot: Operation, batch: LaneIndex) -> RightOperand:
        value = dot.operands[1]
        panels = panels_of(self.placement, value)
        if panels is not None:
            return self._panel_operand(panels, value, _panel_layout(panels, self.target, dot))
        pointer = self._element(value, batch, 0, 0)
        down, across = self._stride(value, batch, 0), self._stride(value, batch, 1)
        if isinstance(across, int) and across == 1:
            return RightOperand(pointer, "rows", down, value.type.dtype)
        return RightOperand(pointer, "columns", across, value.type.dtype)

    def _panel_operand(self, panels: Panels, value: SSAValue, layout: str) -> RightOperand:
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
            following = self.evaluator.address(pointer, (LaneIndex(self.builder.integer(1)), *inner))
            stride = self._distance(start, following, value.type.dtype.itemsize)
        return RightOperand(start, layout, stride, value.type.dtype)


def _panel_layout(panels: Panels, target: CPUTarget, dot: Operation) -> str:
    left, right = (value.type.dtype for value in dot.operands[:2])
    return grouped_layout(target, left, right, panels.group, pairs_fit(dot))


def right_layout(placement: Placement, operation: Operation) -> str:
    """The layout that the right operand will have, as `RightOperand` names it."""
    value = operation.operands[1]
    panels = panels_of(placement, value)
    if panels is not None:
        return _panel_layout(panels, placement.target, operation)
    if shape_source(placement, value) in placement.stored:
        return "rows" if value in placement.stored else "columns"
    facts = address_facts(placement, value)
    assert facts is not None
    return "rows" if facts[-1].step == 1 or value.type.shape[-1] == 1 else "columns"


def dot_scratch(placement: Placement, target: CPUTarget, operation: Operation) -> int:
    """Bytes of scratch that the product's own copies need."""
    left, right, accumulator = (operand.type.dtype for operand in operation.operands)
    return scratch_bytes(target, dot_shape(operation), left, right, right_layout(placement, operation), accumulator)
