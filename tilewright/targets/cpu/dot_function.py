"""The function of one kind of matrix product: blocking, packing, and the loops around the micro-kernel.

for each run of the depth:
    copy the rows of `left` to scratch, unless they can be read in place
    for each panel of `right`, one register tile wide (few rows: several panels):
        copy the panel to scratch, unless it can be read in place
        for each group of rows, as equal in size as can be:
            run the micro-kernel (`dot_kernel.py`): left streams by, the panel stays in level 1,
            and the next panel is on its way to level 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.dot_groups import GroupSums
from tilewright.targets.cpu.dot_inner import InnerKernel, emit_inner_kernel
from tilewright.targets.cpu.dot_kernel import MicroKernel, emit_micro_kernel, lines_of
from tilewright.targets.cpu.dot_pack import BlockCopy
from tilewright.targets.cpu.dot_plan import DotPlan, DotShape, round_up
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

_LLVM_TYPES = {"f32": "float", "f64": "double", "bf16": "bfloat", "f16": "half", "i8": "i8", "u8": "i8", "i32": "i32"}
_IN_PLACE_ROWS = 4  # up to so many rows of `left` are read in place through one pointer each
_SHORT_RUN = 8  # depth of a run when few rows meet a wide row-major matrix: so many streams from memory
_CACHE_LINE = 64
CACHE_SETS = 64  # of a level 1 cache whose ways are 4 KiB, as most are
PAGE = 4096
CROWDED = 4  # lines of one set that the rows of a tile may take


class Blocking:
    """Block sizes of a product, and where its packed copies lie in scratch."""

    def __init__(
        self, target: CPUTarget, shape: DotShape, accumulator: DType, layout: str, sums: GroupSums | None = None
    ) -> None:
        """With `sums`, the depth of `shape` and of copies is in groups."""
        itemsize = accumulator.itemsize
        self.max_rows, self.width = target.microtile(accumulator)
        if sums is not None:
            self.max_rows = sums.most_rows(self.max_rows)
        self.lanes, self.quick = target.lanes(accumulator), target.quick
        self.registers, self.shape, self.layout = target.vector_registers, shape, layout
        self.panels = self.panels_at_once(shape.rows)
        # a panel of `right` fills the level 1 cache; what `left` displaces comes back from level 2 in time
        longest = max(64, target.l1_bytes // (self.width * itemsize) // 64 * 64)
        if layout == "columns" and shape.rows == 1:
            longest = shape.depth
        if layout == "rows" and shape.rows <= self.max_rows and shape.columns > self.panels * self.width:
            longest = _SHORT_RUN
        runs = -(-shape.depth // longest)
        self.depth = min(shape.depth, round_up(-(-shape.depth // runs), 4))
        # rows of the copy are an odd number of lines apart, so that they fall into different cache sets
        per_line = _CACHE_LINE // itemsize
        self.left_stride = (round_up(self.depth, max(per_line, self.lanes)) // per_line | 1) * per_line
        left_rows = round_up(shape.rows, 2) + 1  # a vector may be written beyond the last row
        self.transposed_stride = round_up(shape.rows + 1, self.lanes) + per_line
        left = itemsize * max(left_rows * self.left_stride, (self.depth + 1) * self.transposed_stride)
        self.right_offset = round_up(left, _CACHE_LINE)
        # a line before the panel's first, and a block of transposed lines that may end beyond its last
        spare = 1 if sums is None else 1 + self.lanes
        self.scratch_bytes = self.right_offset + round_up((self.depth + spare) * self.width * itemsize, _CACHE_LINE)

    def panels_at_once(self, rows: int) -> int:
        """Panels that one micro-kernel takes: as many as the registers hold besides so few rows."""
        vectors = self.width // self.lanes
        for panels in () if self.quick else (4, 2):
            fits = (rows + 1) * vectors * panels < self.registers
            if self.layout != "columns" and fits and self.shape.columns >= panels * self.width:
                return panels
        return 1


def emit_function(module: Module, target: CPUTarget, plan: DotPlan) -> None:
    """Add the function `plan.name` to the module.

    `void (ptr left, i64 left_row_stride, i64 left_depth_stride, ptr right, i64 right_stride, ptr accumulator,
    ptr scratch, i64 rows, i64 columns, i64 depth, i1 accumulate)`; strides in elements.
    """
    DotFunction(module, target, plan).emit()


@dataclass(frozen=True)
class _Panel:
    """`count` panels of the right operand, `width` columns each, as the micro-kernel reads them."""

    right: LLVMValue
    stride: LLVMValue  # from one k to the next
    panel_stride: LLVMValue
    element: str
    column: LLVMValue
    width: int
    count: int
    ahead: LLVMValue | None  # what will be read next
    ahead_stride: LLVMValue  # bytes from one k to the next


@dataclass(frozen=True)
class _DepthRun:
    """One run of the depth."""

    start: LLVMValue
    length: LLVMValue
    left: LLVMValue
    accumulate: LLVMValue
    rows: range  # run-time numbers of rows


class DotFunction:
    """Writes the function of one kind of product."""

    def __init__(
        self, module: Module, target: CPUTarget, plan: DotPlan, name: str = "", sums: GroupSums | None = None
    ) -> None:
        self.module, self.target, self.plan, self.sums = module, target, plan, sums
        attributes = f"noinline {function_attributes(target)}"
        self.builder = builder = LLVMBuilder(
            module, name or plan.name, "void", DotPlan.parameters, linkage="internal", attributes=attributes
        )
        values = builder.arguments
        self.blocking = Blocking(target, plan.shape, plan.accumulator, plan.layout, sums)
        self.left, self.left_row_stride, self.left_depth_stride, self.right, self.right_stride = values[:5]
        self.accumulator, self.scratch = values[5:7]
        self.accumulate = values[10] if plan.accumulate is None else builder.constant("i1", plan.accumulate)
        self.rows, self.columns, self.depth = plan.extents(builder)
        if plan.left_row_stride is not None:
            self.left_row_stride = builder.integer(plan.left_row_stride)
        if plan.left_depth_stride is not None:
            self.left_depth_stride = builder.integer(plan.left_depth_stride)
        if plan.right_stride is not None:
            self.right_stride = builder.integer(plan.right_stride)
        self.element = _LLVM_TYPES[plan.accumulator.text]
        self.left_type, self.right_type = _LLVM_TYPES[plan.left.text], _LLVM_TYPES[plan.right.text]
        self.right_itemsize = plan.right.itemsize
        self.right_copy = builder.gep(self.scratch, self.blocking.right_offset, "i8")
        self.left_in_place = self._can_read_left()
        self.right_in_place = self._can_read_right()
        few = plan.shape.rows <= _IN_PLACE_ROWS
        self.inner = few and plan.layout == "columns" and plan.left_depth_stride == 1

    def _can_read_left(self) -> bool:
        """Whether rows of `left` are read where they are; see `LeftOperand`."""
        plan = self.plan
        if self.left_type != self.element:
            return False
        if self._left_is_transposed():  # a whole block whose lines follow one another closely
            apart = plan.left_depth_stride
            return apart is not None and apart * plan.left.itemsize < PAGE and not any(plan.limits)
        if plan.left_depth_stride != 1:
            return False
        if plan.shape.rows <= _IN_PLACE_ROWS:
            return True
        if plan.left_row_stride is None or plan.limits[0] and not self._left_can_overrun():
            return False
        # the lines that the rows of a tile are at must not crowd into a few sets of the level 1 cache
        lines = lines_of(plan.left_row_stride * plan.left.itemsize)
        distinct = CACHE_SETS // math.gcd(CACHE_SETS, lines)
        return plan.left_row_stride * plan.left.itemsize < PAGE and self.blocking.max_rows <= CROWDED * distinct

    def _left_can_overrun(self) -> bool:
        """Whether one row beyond the run-time limit may be read in place."""
        return self.plan.left_whole and self.plan.shape.rows % 2 == 0

    def _can_read_right(self) -> bool:
        """Whether panels of `right` are read where they are: when read once, or when they fit level 1 as they lie."""
        plan = self.plan
        if plan.layout == "columns":
            return False
        if plan.shape.rows <= self.blocking.max_rows:
            return True
        if self.right_type != self.element:
            return False
        return plan.layout == "panels" or self._rows_fit_level_1()

    def _rows_fit_level_1(self) -> bool:
        """Whether a panel of a row-major matrix stays in the level 1 cache: rows far apart share few cache sets."""
        plan = self.plan
        if plan.right_stride is None:
            return False
        itemsize = plan.right.itemsize
        ways = max(1, self.target.l1_bytes // (_CACHE_LINE * CACHE_SETS))
        row_lines = lines_of(self.blocking.width * itemsize)
        starts = CACHE_SETS // math.gcd(CACHE_SETS, lines_of(plan.right_stride * itemsize))
        near = plan.right_stride * itemsize <= 4096
        return near and self.blocking.depth * row_lines <= min(CACHE_SETS, starts * row_lines) * ways

    # -- The walk ---------------------------------------------------------------------------------

    def emit(self) -> None:
        builder = self.builder
        self._plan_row_groups()
        least = 1
        for most in self._few_rows():
            with builder.when(builder.compare("sle", self.rows, most), hint="few"):
                self._product(range(least, most + 1))
                builder.ret()
            least = most + 1
        self._product(range(least, self.plan.shape.rows + 1))
        builder.finish()

    def _few_rows(self) -> list[int]:
        """Run-time numbers of rows for which more panels fit the registers than for all rows of the block."""
        plan, blocking = self.plan, self.blocking
        if not plan.limits[0] or not self.right_in_place and plan.shape.rows > blocking.max_rows:
            return []
        counts = {rows: blocking.panels_at_once(rows) for rows in range(2, min(plan.shape.rows, blocking.max_rows), 2)}
        most = {panels: max(rows for rows in counts if counts[rows] == panels) for panels in set(counts.values())}
        return sorted(rows for panels, rows in most.items() if panels > blocking.panels)

    def _product(self, rows: range) -> None:
        """The whole walk; the run-time number of rows is one of `rows`, or zero."""
        builder = self.builder
        if self.plan.shape.depth <= self.blocking.depth:
            self._depth_run(builder.integer(0), self.depth, self.accumulate, rows)
            return
        with builder.loop(builder.integer(0), self.depth, self.blocking.depth, hint="runs") as loop:
            length = builder.integer(self.blocking.depth)
            if self.depth.constant is None or self.depth.constant % self.blocking.depth:
                length = builder.minimum(builder.subtract(self.depth, loop.index), self.blocking.depth)
            accumulate = self.accumulate
            if not self.plan.accumulate:
                accumulate = builder.binary("or", builder.compare("sgt", loop.index, 0), accumulate)
            self._depth_run(loop.index, length, accumulate, rows)

    def _depth_run(self, start: LLVMValue, length: LLVMValue, accumulate: LLVMValue, rows: range) -> None:
        """One run of the depth: all panels of `right` and all rows."""
        if self.inner:
            self._inner_products(start, length, accumulate)
            return
        builder, blocking, columns = self.builder, self.blocking, self.plan.shape.columns
        run = _DepthRun(start, length, self._prepare_left(start, length), accumulate, rows)
        panels = blocking.panels_at_once(rows[-1])
        done = 0
        limit = builder.minimum(self.columns, columns // blocking.width * blocking.width)
        first = builder.integer(0)
        for count in (panels, 1) if panels > 1 else (1,):
            step = count * blocking.width
            last = columns // step * step
            if last <= done and not self.plan.limits[1]:
                continue
            # a wide step must be whole at run time too; single panels also take what is cut short
            end = builder.minimum(limit, last)
            if count > 1 and self.plan.limits[1]:
                end = builder.multiply(builder.binary("sdiv", end, builder.integer(step)), step)
            elif self.plan.narrow:  # those of which there is more than one vector
                end = builder.subtract(end, blocking.lanes)
            with builder.loop(first, end, step, hint="panels") as loop:
                self._columns(run, loop.index, blocking.width, count)
            first, done = end, last
        if self.plan.narrow:
            self._narrow_panel(run)
        rest = columns % blocking.width
        if rest:
            narrow = blocking.lanes if rest <= blocking.lanes else blocking.width
            with builder.when(builder.compare("sgt", self.columns, columns - rest), hint="narrow"):
                self._columns(run, builder.integer(columns - rest), narrow, 1)

    def _narrow_panel(self, run: _DepthRun) -> None:
        """The last panel, where the columns end in one vector of it."""
        builder, width = self.builder, self.blocking.width
        over = builder.binary("urem", self.columns, builder.integer(width))
        few = builder.binary("and", builder.compare("sgt", over, 0), builder.compare("sle", over, self.blocking.lanes))
        with builder.when(few, hint="narrow"):
            self._columns(run, builder.subtract(self.columns, over), self.blocking.lanes, 1)

    def _inner_products(self, start: LLVMValue, length: LLVMValue, accumulate: LLVMValue) -> None:
        """One run of the depth without panels: each row times one vector of columns after the other."""
        builder, plan = self.builder, self.plan
        signs = [operand.kind != "uint" for operand in (plan.left, plan.right)]
        kernel = InnerKernel(self.left_type, self.right_type, self.element, self.blocking.lanes, *signs)
        if kernel.name not in self.module.defined:
            emit_inner_kernel(self.module, self.target, kernel)
        with builder.loop(builder.integer(0), self.columns, kernel.lanes, hint="columns") as across:
            right = self._right_place(across.index, start)
            available = builder.subtract(self.columns, across.index)
            with builder.loop(builder.integer(0), self.rows, 1, hint="rows") as down:
                offset = builder.add(builder.multiply(down.index, self.left_row_stride), start)
                left = builder.gep(self.left, offset, self.left_type)
                place = builder.add(builder.multiply(down.index, plan.accumulator_stride), across.index)
                tile = builder.gep(self.accumulator, place, self.element)
                arguments = [left, right, self.right_stride, tile, length, available, accumulate]
                builder.call(kernel.name, "void", arguments)

    def _columns(self, run: _DepthRun, column: LLVMValue, width: int, count: int) -> None:
        """All rows of `count` panels of `right` from `column`, each `width` wide."""
        builder = self.builder
        source = self._right_place(column, run.start)
        available = builder.subtract(self.columns, column)
        copied = (self.right_copy, builder.integer(self.blocking.width))
        if self.right_in_place and (count > 1 or self._is_whole(width)):
            self._row_groups(run, self._panel(run, source, None, self.right_type, column, width, count))
        elif not self.right_in_place or self.right_type != self.element:
            self._copy_right(source, available, run.length, width)
            self._row_groups(run, self._panel(run, *copied, self.element, column, width, count))
        else:  # only a panel that is cut short must be copied: reading it whole would leave the matrix
            whole = builder.compare("sge", available, width)
            cut, ready = builder.new_block("cut_panel"), builder.new_block("panel")
            origin = builder.block
            builder.branch_if(whole, ready, cut)
            builder.start(cut)
            self._copy_right(source, available, run.length, width)
            after_copy = builder.block
            builder.branch(ready)
            builder.start(ready)
            right = builder.phi(ready, "ptr", [(source, origin), (copied[0], after_copy)])
            stride = builder.phi(ready, "i64", [(self.right_stride, origin), (copied[1], after_copy)])
            self._row_groups(run, self._panel(run, right, stride, self.right_type, column, width, 1))

    def _is_whole(self, width: int) -> bool:
        """Whether a panel can always be read in full."""
        if self.plan.layout == "panels":
            return True
        return not self.plan.limits[1] and self.plan.shape.columns % width == 0

    # -- Operands ---------------------------------------------------------------------------------

    def _prepare_left(self, start: LLVMValue, length: LLVMValue) -> LLVMValue:
        """Where the micro-kernel finds the rows of `left` for this run of the depth."""
        builder = self.builder
        source = builder.gep(self.left, builder.multiply(start, self.left_depth_stride), self.left_type)
        if self.left_in_place:
            return source
        signed = self.plan.left.kind != "uint"
        copy = BlockCopy(builder, self.left_type, signed, self.element, self.blocking.lanes)
        stride, target = self.blocking.left_stride, self.scratch
        if self._left_is_transposed():
            wide = self.blocking.transposed_stride
            copy.copy_rows(source, self.left_depth_stride, target, wide, length, self.rows)
        elif self.plan.left_depth_stride == 1:
            copy.copy_rows(source, self.left_row_stride, target, stride, self.rows, length)
        else:
            strides = (self.left_row_stride, self.left_depth_stride)
            copy.copy_elements(source, strides, target, stride, self.rows, length)
        self._fill_spare_row(copy, source, target, length)
        return target

    def _fill_spare_row(self, copy: BlockCopy, source: LLVMValue, target: LLVMValue, length: LLVMValue) -> None:
        """Repeat the last row where an odd number of rows is computed in pairs.

        Its products are not used, but what memory happens to hold may be denormal numbers, and those take
        a hundred times as long to multiply.
        """
        if not self.plan.limits[0]:
            return
        builder = self.builder
        spare = builder.emit(f"and i64 {self.rows.text}, 1", "i64")
        last = builder.gep(
            source, builder.multiply(self.left_row_stride, builder.subtract(self.rows, 1)), self.left_type
        )
        if self._left_is_transposed():
            wide = self.blocking.transposed_stride
            place = builder.gep(target, self.rows, self.element)
            copy.copy_rows(last, self.left_depth_stride, place, wide, length, spare)
            return
        stride = self.blocking.left_stride
        place = builder.gep(target, builder.multiply(self.rows, stride), self.element)
        if self.plan.left_depth_stride == 1:
            copy.copy_rows(last, self.left_row_stride, place, stride, spare, length)
        else:
            copy.copy_elements(last, (self.left_row_stride, self.left_depth_stride), place, stride, spare, length)

    def _left_is_transposed(self) -> bool:
        return self.plan.left_row_stride == 1 and self.plan.left_depth_stride != 1

    def _left_strides(self) -> tuple[int | None, int]:
        """Row and depth stride of what `_prepare_left` gives."""
        if self.left_in_place:
            return self.plan.left_row_stride, self.plan.left_depth_stride or 1
        return (1, self.blocking.transposed_stride) if self._left_is_transposed() else (self.blocking.left_stride, 1)

    def _right_place(self, column: LLVMValue, start: LLVMValue) -> LLVMValue:
        """The address of right[start, column]; `column` begins a panel."""
        builder, layout, width = self.builder, self.plan.layout, self.blocking.width
        if layout == "panels":
            panel = builder.binary("udiv", column, builder.integer(width))
            offset = builder.add(builder.multiply(panel, self.right_stride), builder.multiply(start, width))
        elif layout == "rows":
            offset = builder.add(builder.multiply(start, self.right_stride), column)
        else:
            offset = builder.add(start, builder.multiply(column, self.right_stride))
        return builder.gep(self.right, offset, self.right_type)

    def _copy_right(self, source: LLVMValue, available: LLVMValue, length: LLVMValue, width: int) -> None:
        """Copy one panel to scratch, in the type that is computed in."""
        builder, stride = self.builder, self.blocking.width
        copy = BlockCopy(builder, self.right_type, self.plan.right.kind != "uint", self.element, self.blocking.lanes)
        if self.plan.layout == "columns":
            copy.copy_transposed(source, self.right_stride, self.right_copy, stride, available, length, width)
            return
        if self.plan.layout == "panels":
            columns, source_stride = builder.integer(width), builder.integer(stride)
        else:
            columns = builder.integer(width) if self._is_whole(width) else builder.minimum(available, width)
            source_stride = self.right_stride
        copy.copy_rows(source, source_stride, self.right_copy, stride, length, columns)

    def _panel(
        self,
        run: _DepthRun,
        right: LLVMValue,
        stride: LLVMValue | None,
        element: str,
        column: LLVMValue,
        width: int,
        count: int,
    ) -> _Panel:
        """The panel at `right`, with what should be prefetched meanwhile: the panel after it."""
        builder, layout, full = self.builder, self.plan.layout, self.blocking.width
        memory_stride = builder.integer(full) if layout == "panels" else self.right_stride
        panel_stride = self.right_stride if layout == "panels" else builder.integer(full)
        ahead = None
        if layout == "panels":
            # after the last panel: the first one, where the next run of the depth begins
            following = builder.add(column, count * full)
            more = builder.compare("slt", following, self.columns)
            next_column = builder.select(more, following, builder.integer(0))
            next_start = builder.select(more, run.start, builder.add(run.start, run.length))
            ahead = self._right_place(next_column, next_start)
        elif layout == "rows" and not self.right_in_place:
            ahead = builder.gep(self._right_place(column, run.start), full, self.right_type)
        ahead_stride = builder.multiply(memory_stride, self.right_itemsize)
        stride = memory_stride if stride is None else stride
        return _Panel(right, stride, panel_stride, element, column, width, count, ahead, ahead_stride)

    # -- Rows -------------------------------------------------------------------------------------

    def _row_groups(self, run: _DepthRun, panel: _Panel) -> None:
        """Run the micro-kernel on all rows, in groups as equal as can be."""
        if self.plan.limits[0]:
            if self.target.quick:
                self._quick_row_groups(run, panel)
            else:
                self._limited_row_groups(run, panel)
            return
        builder, rows = self.builder, self.plan.shape.rows
        groups = -(-rows // self.blocking.max_rows)
        small, extra = divmod(rows, groups)
        number = 0  # of the first group of a size
        for first, count, size in ((0, extra, small + 1), (extra * (small + 1), groups - extra, small)):
            if count:
                with builder.loop(builder.integer(0), builder.integer(count), 1, hint="rows") as loop:
                    row = builder.add(builder.multiply(loop.index, size), first)
                    self._run_tile(run, panel, row, size, builder.add(loop.index, number), groups)
                number += count

    def _plan_row_groups(self) -> None:
        """For a run-time number of rows: how many groups, and their sizes in units.

        Rows that lie in a packed copy are grouped in even sizes, which halves the number of
        micro-kernels; the odd row too many is computed from the copy's spare row.
        """
        if not self.plan.limits[0]:
            return
        builder, most = self.builder, self.blocking.max_rows
        self.unit = 1 if self.left_in_place and not self._left_can_overrun() else 2
        units = self.rows
        if self.unit == 2:
            units = builder.binary("lshr", builder.add(self.rows, 1), builder.integer(1))
        self.group_count, self.small, self.extra = builder.integer(1), units, builder.integer(0)
        if self.plan.shape.rows > most:
            self.group_count = builder.binary("udiv", builder.add(self.rows, most - 1), builder.integer(most))
            self.small = builder.binary("udiv", units, builder.maximum(self.group_count, 1))
            self.extra = builder.subtract(units, builder.multiply(self.small, self.group_count))

    def _group_sizes(self, rows: range) -> list[int]:
        """All sizes of groups, in units, that `_plan_row_groups` gives for these numbers of rows."""
        sizes = set()
        for count in rows:
            small, extra = divmod(-(-count // self.unit), -(-count // self.blocking.max_rows))
            sizes |= {small, small + 1} if extra else {small}
        return sorted(sizes)

    def _limited_row_groups(self, run: _DepthRun, panel: _Panel) -> None:
        """Groups of the sizes that `_plan_row_groups` found: one micro-kernel for each size."""
        builder = self.builder
        # Two groups must be enough: what they do not fetch, each panel waits for. More repeat what was fetched.
        fewest_groups = min(2, max(1, run.rows[-1] // self.blocking.max_rows))
        with builder.loop(builder.integer(0), self.group_count, 1, [builder.integer(0)], hint="groups") as loop:
            first = loop.values[0]
            larger = builder.cast("zext", builder.compare("slt", loop.index, self.extra), "i64")
            size = builder.add(self.small, larger)
            blocks = {number: builder.new_block("size") for number in self._group_sizes(run.rows)}
            done = builder.new_block("sized")
            builder.switch(size, done, list(blocks.items()))
            for number, block in blocks.items():
                builder.start(block)
                self._run_tile(run, panel, first, number * self.unit, loop.index, fewest_groups)
                builder.branch(done)
            builder.start(done)
            loop.next([builder.add(first, builder.multiply(size, self.unit))])

    def _quick_row_groups(self, run: _DepthRun, panel: _Panel) -> None:
        """Groups of the greatest size, a power of two, then units: two micro-kernels for all numbers of rows."""
        builder, size = self.builder, self.blocking.max_rows
        whole = builder.integer(0)
        if self.plan.shape.rows >= size:
            whole = builder.emit(f"and i64 {self.rows.text}, {-size}", "i64")
            with builder.loop(builder.integer(0), whole, size, hint="groups") as loop:
                self._run_tile(run, panel, loop.index, size, builder.integer(0), 1)
        with builder.loop(whole, self.rows, self.unit, hint="units") as loop:
            self._run_tile(run, panel, loop.index, self.unit, builder.integer(0), 1)

    def _run_tile(
        self, run: _DepthRun, panel: _Panel, first: LLVMValue, rows: int, group: LLVMValue, groups: int
    ) -> None:
        """Call the micro-kernel for `rows` rows from row `first`, which are group number `group` of `groups`."""
        builder, plan = self.builder, self.plan
        row_stride, depth_stride = self._left_strides()
        vectors = panel.width // self.blocking.lanes
        kernel = MicroKernel(
            element=self.element,
            right=panel.element,
            rows=rows,
            panels=panel.count,
            vectors=vectors,
            lanes=self.blocking.lanes,
            left_row_stride=row_stride,
            left_depth_stride=depth_stride,
            tile_stride=plan.accumulator_stride,
            signed=plan.right.kind != "uint",
            ahead_lines=self._lines_ahead(panel, groups),
            right_stride=panel.stride.constant,
            panel_stride=panel.panel_stride.constant if panel.count > 1 else 0,
            ahead_stride=panel.ahead_stride.constant if self._lines_ahead(panel, groups) else 0,
            depth=run.length.constant,
            accumulate=None if run.accumulate is not self.accumulate else plan.accumulate,
            sums=self.sums,
        )
        if kernel.name not in self.module.defined:
            emit_micro_kernel(self.module, self.target, kernel)
        stride = self.left_row_stride if row_stride is None else builder.integer(row_stride)
        left = builder.gep(run.left, builder.multiply(first, stride), self.element)
        place = builder.add(builder.multiply(first, plan.accumulator_stride), panel.column)
        tile = builder.gep(self.accumulator, place, self.element)
        ahead = self._ahead_of_group(panel, group, kernel.ahead_lines)
        arguments = [left, stride, panel.right, panel.stride, panel.panel_stride, tile, run.length, run.accumulate]
        builder.call(kernel.name, "void", kernel.unknown([*arguments, ahead, panel.ahead_stride]))

    def _lines_of_turn(self, panel: _Panel) -> int:
        """Cache lines of a panel that two steps of the depth read: one turn of the micro-kernel's loop."""
        return 2 * lines_of(panel.width * self.right_itemsize)

    def _lines_ahead(self, panel: _Panel, groups: int) -> int:
        """Lines that each turn prefetches, so that all groups of rows together fetch the panel ahead."""
        if panel.ahead is None or panel.count > 1 or self.target.quick:
            return 0
        return -(-self._lines_of_turn(panel) // groups)

    def _ahead_of_group(self, panel: _Panel, group: LLVMValue, lines: int) -> LLVMValue:
        """Where a group's share of the panel ahead begins; the groups beyond all shares repeat the first."""
        builder = self.builder
        if not lines or panel.ahead is None:
            return builder.zero("ptr")
        per_row = self._lines_of_turn(panel) // 2
        line = builder.multiply(group, lines)
        line = builder.select(builder.compare("slt", line, 2 * per_row), line, builder.integer(0))
        row = builder.binary("udiv", line, builder.integer(per_row))
        column = builder.binary("urem", line, builder.integer(per_row))
        offset = builder.add(builder.multiply(row, panel.ahead_stride), builder.multiply(column, _CACHE_LINE))
        return builder.gep(panel.ahead, offset, "i8")
