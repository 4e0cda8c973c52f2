"""The register-blocked matrix product of the CPU target, emitted as LLVM text.

The lowering of `dot` (`lower*.py`) says where its operands lie and calls `emit_dot`; how they are
packed, blocked and unrolled is decided here.

    accumulator[i, j] = (accumulator[i, j] or 0) + sum over k of left[i, k] * right[k, j]

Every kind of product becomes one internal function that walks the block like this:

    for each run of the depth that lets a panel of `right` stay in the level 1 cache:
        copy the rows of `left` to scratch, unless they can be read in place
        for each panel of `right`, one register tile wide:
            copy the panel to scratch, unless it can be read in place
            for each group of rows, as equal in size as can be:
                run the micro-kernel (`dot_kernel.py`): left streams by, the panel stays
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.dot_kernel import MicroKernel, emit_micro_kernel
from tilewright.targets.cpu.dot_pack import BlockCopy
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

Extent = LLVMValue | int

_LLVM_TYPES = {"f32": "float", "f64": "double", "bf16": "bfloat", "f16": "half", "i8": "i8", "u8": "i8", "i32": "i32"}
_IN_PLACE_ROWS = 4  # up to so many rows of `left` are read in place through one pointer each
_LINE = 64


@dataclass(frozen=True)
class DotShape:
    """The compile-time extents of one product: left [rows, depth], right [depth, columns]."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class LeftOperand:
    """left[i, k] lies at `pointer + i * row_stride + k * depth_stride`; strides are in elements.

    Any memory will do (the user's, or a scratch copy): the kernel makes its own packed copy where
    that is faster.  Give strides that are known as plain ints: a block whose depth stride is 1 and
    whose row stride is known and not near a multiple of 4 KiB is read in place.
    """

    pointer: LLVMValue
    row_stride: Extent
    depth_stride: Extent
    dtype: DType


@dataclass(frozen=True)
class RightOperand:
    """right[k, j] in one of three layouts; strides are in elements.

    - ``rows``: at `pointer + k * stride + j` (contiguous columns).
    - ``columns``: at `pointer + k + j * stride` (contiguous along the depth, a transposed matrix).
    - ``panels``: at `pointer + (j // width) * stride + k * width + j % width` with
      `width == target.microtile(dtype)[1]`; every panel is `width` wide in memory, its padding zero.
    """

    pointer: LLVMValue
    layout: str
    stride: Extent
    dtype: DType


@dataclass(frozen=True)
class Accumulator:
    """The result at `pointer + i * row_stride + j`, 64-byte aligned, in private memory.

    Allocate `accumulator_extents(...)`: the kernel may write (never reads for meaning) past the
    demanded rows and columns, up to the padded extents.  `dtype` is float32, float64 or int32.
    """

    pointer: LLVMValue
    row_stride: int
    dtype: DType


def accumulator_extents(target: CPUTarget, shape: DotShape, dtype: DType) -> tuple[int, int]:
    """Rows to allocate and row stride (elements) of an accumulator for products of this shape."""
    lanes = target.lanes(dtype)
    stride = _round_up(shape.columns, lanes)
    if stride * dtype.itemsize % 1024 == 0 and shape.rows > 8:
        stride += max(lanes, _LINE // dtype.itemsize)  # rows of a tile must not share a few cache sets
    return _round_up(shape.rows, 2), stride


def scratch_bytes(
    target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str, accumulator: DType
) -> int:
    """Bytes of 64-byte aligned scratch that `emit_dot` needs for such a product; reusable between calls."""
    return _Blocking(target, shape, accumulator).scratch_bytes


def emit_dot(
    builder: LLVMBuilder,
    target: CPUTarget,
    shape: DotShape,
    left: LeftOperand,
    right: RightOperand,
    accumulator: Accumulator,
    scratch: LLVMValue,
    *,
    rows: LLVMValue | None = None,
    columns: LLVMValue | None = None,
    depth: LLVMValue | None = None,
    accumulate: LLVMValue | bool = True,
) -> None:
    """Emit one product at the builder's position, as a call of a function made once per kind.

    `rows`, `columns`, `depth` (i64 values, at most the extents of `shape`) are run-time limits:
    operands are not read beyond them (panels of `right`: whole panels are), results outside are
    unspecified.  `accumulate` false (a constant or an i1 value) starts from zero instead of reading
    the accumulator.

    Element types (left, right, accumulator): (f32, f32, f32), (f64, f64, f64), (bf16 or f16, same,
    f32), (i8 or u8, i8 or u8, i32).
    """
    plan = _Plan(
        shape,
        left.dtype,
        right.dtype,
        accumulator.dtype,
        right.layout,
        accumulator.row_stride,
        _known(left.row_stride),
        _known(left.depth_stride),
        (rows is not None, columns is not None, depth is not None),
    )
    if plan.name not in _emitted(builder):
        _emitted(builder).add(plan.name)
        _DotFunction(builder, target, plan).emit()

    def value(extent: Extent) -> LLVMValue:
        return builder.integer(extent) if isinstance(extent, int) else extent

    if isinstance(accumulate, bool):
        accumulate = builder.constant("i1", accumulate)
    limits = [rows, columns, depth]
    extents = [shape.rows, shape.columns, shape.depth]
    arguments = [
        *(left.pointer, value(left.row_stride), value(left.depth_stride), right.pointer, value(right.stride)),
        *(accumulator.pointer, scratch),
        *(limit or builder.integer(extent) for limit, extent in zip(limits, extents, strict=True)),
        accumulate,
    ]
    builder.call(plan.name, "void", arguments)


def _emitted(builder: LLVMBuilder) -> set[str]:
    """Names of the product functions that the builder's module has already."""
    names: set[str] = builder.module.__dict__.setdefault("_dot_functions", set())
    return names


def _known(extent: Extent) -> int | None:
    return extent if isinstance(extent, int) else extent.constant


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class _Plan:
    """One kind of product: all that its function depends on."""

    shape: DotShape
    left: DType
    right: DType
    accumulator: DType
    layout: str
    accumulator_stride: int
    left_row_stride: int | None
    left_depth_stride: int | None
    limits: tuple[bool, bool, bool]

    @property
    def name(self) -> str:
        shape, limits = self.shape, "".join("rcd"[i] for i, limited in enumerate(self.limits) if limited)
        known = (self.left_row_stride, self.left_depth_stride)
        strides = "x".join("n" if stride is None else str(stride) for stride in known)
        types = f"{self.left}.{self.right}.{self.accumulator}"
        sizes = f"{shape.rows}x{shape.columns}x{shape.depth}"
        return f"dot.{types}.{sizes}.{self.layout}.{strides}.{self.accumulator_stride}.{limits}"


class _Blocking:
    """Block sizes of a product, and where its packed copies lie in scratch."""

    def __init__(self, target: CPUTarget, shape: DotShape, accumulator: DType) -> None:
        itemsize = accumulator.itemsize
        self.max_rows, self.width = target.microtile(accumulator)
        self.lanes = target.lanes(accumulator)
        # a panel of `right` takes about three quarters of the level 1 cache
        longest = max(64, target.l1_bytes * 3 // 4 // (self.width * itemsize) // 64 * 64)
        runs = -(-shape.depth // longest)
        self.depth = min(shape.depth, _round_up(-(-shape.depth // runs), 4))
        # one line more than a multiple of lines, odd: rows then fall into different cache sets
        per_line = _LINE // itemsize
        self.left_stride = (_round_up(self.depth, max(per_line, self.lanes)) // per_line | 1) * per_line
        if self.left_stride < self.depth + self.lanes:
            self.left_stride += 2 * per_line
        left_rows = _round_up(shape.rows, 2) + 2
        self.transposed_stride = _round_up(shape.rows + 2, self.lanes) + per_line
        left = itemsize * max(left_rows * self.left_stride, (self.depth + 1) * self.transposed_stride)
        self.right_offset = _round_up(left, _LINE)
        self.scratch_bytes = self.right_offset + _round_up((self.depth + 1) * self.width * itemsize, _LINE)


class _DotFunction:
    """Writes the function of one kind of product."""

    def __init__(self, caller: LLVMBuilder, target: CPUTarget, plan: _Plan) -> None:
        self.module, self.target, self.plan = caller.module, target, plan
        parameters = [
            *(("ptr", "left", "readonly"), ("i64", "left_row_stride", ""), ("i64", "left_depth_stride", "")),
            *(("ptr", "right", "readonly"), ("i64", "right_stride", "")),
            *(("ptr", "accumulator", "noalias"), ("ptr", "scratch", "noalias")),
            *(("i64", "rows", ""), ("i64", "columns", ""), ("i64", "depth", ""), ("i1", "accumulate", "")),
        ]
        attributes = f"noinline {function_attributes(target)}"
        builder = LLVMBuilder(self.module, plan.name, "void", parameters, linkage="internal", attributes=attributes)
        self.builder = builder
        values = builder.arguments
        self.left, self.left_row_stride, self.left_depth_stride, self.right, self.right_stride = values[:5]
        self.accumulator, self.scratch = values[5:7]
        self.accumulate = values[10]
        extents = (plan.shape.rows, plan.shape.columns, plan.shape.depth)
        self.rows, self.columns, self.depth = (
            value if limited else builder.integer(extent)
            for value, limited, extent in zip(values[7:10], plan.limits, extents, strict=True)
        )
        if plan.left_row_stride is not None:
            self.left_row_stride = builder.integer(plan.left_row_stride)
        if plan.left_depth_stride is not None:
            self.left_depth_stride = builder.integer(plan.left_depth_stride)
        self.blocking = _Blocking(target, plan.shape, plan.accumulator)
        self.element = _LLVM_TYPES[plan.accumulator.text]
        self.left_type, self.right_type = _LLVM_TYPES[plan.left.text], _LLVM_TYPES[plan.right.text]
        self.right_pack = builder.gep(self.scratch, self.blocking.right_offset, "i8")
        self.left_in_place = self._can_read_left()
        once = plan.shape.rows <= self.blocking.max_rows
        self.right_in_place = plan.layout != "columns" and (once or self._panels_fit())
        self.kernels: set[str] = set()

    def _can_read_left(self) -> bool:
        """Whether rows of `left` are read where they are; see `LeftOperand`."""
        plan = self.plan
        if self.left_type != self.element or plan.left_depth_stride != 1:
            return False
        if plan.shape.rows <= _IN_PLACE_ROWS:
            return True
        if plan.left_row_stride is None or plan.limits[0]:
            return False
        distance = plan.left_row_stride * plan.left.itemsize % 4096
        return 512 <= distance <= 4096 - 512 or plan.shape.rows * plan.left_row_stride * plan.left.itemsize <= 16 << 10

    def _panels_fit(self) -> bool:
        """Whether `right` is prepacked in the type that is computed in."""
        return self.plan.layout == "panels" and self.right_type == self.element

    # -- The walk ---------------------------------------------------------------------------------

    def emit(self) -> None:
        builder = self.builder
        self._plan_row_groups()
        if self.plan.shape.depth <= self.blocking.depth:
            self._depth_run(builder.integer(0), self.depth, self.accumulate)
        else:
            with builder.loop(builder.integer(0), self.depth, self.blocking.depth, hint="runs") as loop:
                length = builder.minimum(builder.subtract(self.depth, loop.index), self.blocking.depth)
                later = builder.compare("sgt", loop.index, 0)
                self._depth_run(loop.index, length, builder.binary("or", later, self.accumulate))
        builder.finish()

    def _depth_run(self, start: LLVMValue, length: LLVMValue, accumulate: LLVMValue) -> None:
        """One run of the depth: all panels of `right` and all rows."""
        builder, width = self.builder, self.blocking.width
        left = self._prepare_left(start, length)
        panels = self.plan.shape.columns // width * width
        if panels:
            end = builder.minimum(self.columns, panels)
            with builder.loop(builder.integer(0), end, width, hint="panels") as loop:
                self._panel(loop.index, start, length, left, accumulate, width)
        rest = self.plan.shape.columns - panels
        if rest:
            narrow = self.blocking.lanes if rest <= self.blocking.lanes else width
            with builder.when(builder.compare("sgt", self.columns, panels), hint="narrow"):
                self._panel(builder.integer(panels), start, length, left, accumulate, narrow)

    def _panel(
        self, column: LLVMValue, start: LLVMValue, length: LLVMValue, left: LLVMValue, accumulate: LLVMValue, width: int
    ) -> None:
        """All rows of one panel of `right`, `width` columns from `column`."""
        builder = self.builder
        source = self._right_place(column, start)
        available = builder.subtract(self.columns, column)
        packed = [self.right_pack, builder.integer(self.blocking.width)]
        if self.right_in_place and self._is_whole(width):
            stride = builder.integer(self.blocking.width) if self.plan.layout == "panels" else self.right_stride
            self._row_groups(left, source, stride, column, length, accumulate, width, self.right_type)
        elif not self.right_in_place or self.right_type != self.element:
            self._pack_right(source, available, length, width)
            self._row_groups(left, *packed, column, length, accumulate, width, self.element)
        else:  # panels of one type: only the last one must be copied, because reading it whole would leave the matrix
            whole = builder.compare("sge", available, width)
            copy, go = builder.new_block("copy_panel"), builder.new_block("panel")
            origin = builder.block
            builder.branch_if(whole, go, copy)
            builder.start(copy)
            self._pack_right(source, available, length, width)
            copied = builder.block
            builder.branch(go)
            builder.start(go)
            right = builder.phi(go, "ptr", [(source, origin), (packed[0], copied)])
            stride = builder.phi(go, "i64", [(self.right_stride, origin), (packed[1], copied)])
            self._row_groups(left, right, stride, column, length, accumulate, width, self.right_type)

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
        if self.plan.left_depth_stride == 1:
            copy.copy_rows(source, self.left_row_stride, target, stride, self.rows, length)
        elif self._left_is_transposed():
            wide = self.blocking.transposed_stride
            copy.copy_rows(source, self.left_depth_stride, target, wide, length, self.rows)
        else:
            strides = (self.left_row_stride, self.left_depth_stride)
            copy.copy_elements(source, strides, target, stride, self.rows, length)
        return target

    def _left_is_transposed(self) -> bool:
        return self.plan.left_row_stride == 1 and self.plan.left_depth_stride != 1

    def _left_strides(self) -> tuple[int | None, int]:
        """Row and depth stride of what `_prepare_left` gives."""
        if self.left_in_place:
            return self.plan.left_row_stride, 1
        return (1, self.blocking.transposed_stride) if self._left_is_transposed() else (self.blocking.left_stride, 1)

    def _right_place(self, column: LLVMValue, start: LLVMValue) -> LLVMValue:
        """The address of right[start, column]."""
        builder, layout, width = self.builder, self.plan.layout, self.blocking.width
        if layout == "panels":
            panel = builder.emit(f"udiv i64 {column.text}, {width}", "i64") if column.constant is None else None
            panel = panel or builder.integer(column.constant // width)  # type: ignore[operator]
            offset = builder.add(builder.multiply(panel, self.right_stride), builder.multiply(start, width))
        elif layout == "rows":
            offset = builder.add(builder.multiply(start, self.right_stride), column)
        else:
            offset = builder.add(start, builder.multiply(column, self.right_stride))
        return builder.gep(self.right, offset, self.right_type)

    def _pack_right(self, source: LLVMValue, available: LLVMValue, length: LLVMValue, width: int) -> None:
        builder, stride = self.builder, self.blocking.width
        copy = BlockCopy(builder, self.right_type, self.plan.right.kind != "uint", self.element, self.blocking.lanes)
        if self.plan.layout == "columns":
            copy.copy_transposed(source, self.right_stride, self.right_pack, stride, available, length, width)
            return
        if self.plan.layout == "panels":
            columns, source_stride = builder.integer(width), builder.integer(stride)
        else:
            columns = builder.integer(width) if self._is_whole(width) else builder.minimum(available, width)
            source_stride = self.right_stride
        copy.copy_rows(source, source_stride, self.right_pack, stride, length, columns)

    # -- Rows -------------------------------------------------------------------------------------

    def _row_groups(
        self,
        left: LLVMValue,
        right: LLVMValue,
        right_stride: LLVMValue,
        column: LLVMValue,
        length: LLVMValue,
        accumulate: LLVMValue,
        width: int,
        right_type: str,
    ) -> None:
        """Run the micro-kernel on all rows, in groups as equal as can be."""
        tile = _Tile(left, right, right_stride, column, length, accumulate, width, right_type)
        if self.plan.limits[0]:
            self._limited_row_groups(tile)
            return
        builder, rows = self.builder, self.plan.shape.rows
        groups = -(-rows // self.blocking.max_rows)
        small, extra = divmod(rows, groups)
        for first, count, size in ((0, extra, small + 1), (extra * (small + 1), groups - extra, small)):
            if count:
                with builder.loop(
                    builder.integer(first), builder.integer(first + count * size), size, hint="rows"
                ) as loop:
                    self._run_tile(tile, loop.index, size)

    def _plan_row_groups(self) -> None:
        """For a run-time number of rows: how many groups, and their sizes in units.

        Rows that lie in a packed copy are grouped in even sizes, which halves the number of
        micro-kernels; the odd row too many is computed from the copy's spare row.
        """
        if not self.plan.limits[0]:
            return
        builder, most = self.builder, self.blocking.max_rows
        self.unit = 1 if self.left_in_place else 2
        units = self.rows
        if self.unit == 2:
            units = builder.binary("lshr", builder.add(self.rows, 1), builder.integer(1))
        self.group_count, self.small, self.extra = builder.integer(1), units, builder.integer(0)
        if self.plan.shape.rows > most:
            self.group_count = builder.binary("udiv", builder.add(self.rows, most - 1), builder.integer(most))
            self.small = builder.binary("udiv", units, builder.maximum(self.group_count, 1))
            self.extra = builder.subtract(units, builder.multiply(self.small, self.group_count))

    def _limited_row_groups(self, tile: _Tile) -> None:
        """Groups of the sizes that `_plan_row_groups` found: one micro-kernel for each size."""
        builder = self.builder
        largest = min(self.blocking.max_rows, _round_up(self.plan.shape.rows, self.unit)) // self.unit
        with builder.loop(builder.integer(0), self.group_count, 1, [builder.integer(0)], hint="groups") as loop:
            first = loop.values[0]
            larger = builder.cast("zext", builder.compare("slt", loop.index, self.extra), "i64")
            size = builder.add(self.small, larger)
            blocks = [builder.new_block("size") for _ in range(largest)]
            done = builder.new_block("sized")
            builder.switch(size, done, [(number + 1, block) for number, block in enumerate(blocks)])
            for number, block in enumerate(blocks):
                builder.start(block)
                self._run_tile(tile, first, (number + 1) * self.unit)
                builder.branch(done)
            builder.start(done)
            loop.next([builder.add(first, builder.multiply(size, self.unit))])

    def _run_tile(self, tile: _Tile, first: LLVMValue, rows: int) -> None:
        """Call the micro-kernel for `rows` rows from row `first`."""
        builder, plan = self.builder, self.plan
        row_stride, depth_stride = self._left_strides()
        kernel = MicroKernel(
            element=self.element,
            right=tile.right_type,
            rows=rows,
            vectors=tile.width // self.blocking.lanes,
            lanes=self.blocking.lanes,
            left_row_stride=row_stride,
            left_depth_stride=depth_stride,
            tile_stride=plan.accumulator_stride,
            signed=plan.right.kind != "uint",
        )
        if kernel.name not in _emitted(builder):
            _emitted(builder).add(kernel.name)
            emit_micro_kernel(self.module, self.target, kernel)
        stride = self.left_row_stride if row_stride is None else builder.integer(row_stride)
        left = builder.gep(tile.left, builder.multiply(first, stride), self.element)
        place = builder.add(builder.multiply(first, plan.accumulator_stride), tile.column)
        target = builder.gep(self.accumulator, place, self.element)
        arguments = [left, stride, tile.right, tile.right_stride, target, tile.length, tile.accumulate]
        builder.call(kernel.name, "void", arguments)


@dataclass(frozen=True)
class _Tile:
    """What all groups of rows of one panel have in common."""

    left: LLVMValue
    right: LLVMValue
    right_stride: LLVMValue
    column: LLVMValue
    length: LLVMValue
    accumulate: LLVMValue
    width: int
    right_type: str
