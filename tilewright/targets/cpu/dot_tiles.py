"""Matrix products of narrow types in tile registers (AMX): bfloat16 into float32, 8-bit integers into int32.

A tile register holds 16 rows of 64 bytes.  One instruction multiplies a tile of the left operand (16 rows, 64 bytes
of depth) by one of the right (16 columns) into a tile of 16 x 16 sums.  The right operand must have the `group`
steps of the depth that fill 4 bytes side by side:

    tile[k / group][column][k % group]        16 x 16 x group

for each pair of strips of 16 columns:
    copy it to scratch in this form, zero beyond the depth; it stays in the level 1 cache
    for each pair of tiles of rows: 2 x 2 tiles of sums over the depth, 2 tiles of each operand read for each step

Panels that come in this form (layout `groups`) are read where they lie, with the whole depth in one run; then rows
are the outer loop and stay near, while strips pass by.  Rows of lines are near anyway, as they overlap: panels are
their outer loop, and the next panel, which may come from memory, is fetched while one is multiplied.

Tiles 0 to 3 hold sums (2 * row tile + column tile), 4 and 5 the left operand, 6 and 7 the right.  The shape of
every tile comes from a table that is loaded before; what is left of the rows has a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.dtypes import DType
from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.dot_pack import BlockCopy, masked_part, transposed
from tilewright.targets.cpu.dot_plan import DotPlan, DotShape, round_up
from tilewright.targets.cpu.target import LEAST_TILE_ROWS, CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

_STRIP = 16  # of a tile, and columns of a strip
_BYTES = 64  # of a row of a tile
_STRIPS = 2  # taken at once, as many as tiles of rows
_LINE_BYTES = 64


def uses_tiles(target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str) -> bool:
    """Whether a product of these types and extents, with the right operand so, is done in tile registers."""
    fits = layout != "pairs" and (layout != "groups" or shape.depth * left.itemsize % _BYTES == 0)
    return fits and shape.rows >= LEAST_TILE_ROWS and target.multiplies_in_tiles(left, right)


def takes_lines(target: CPUTarget, shape: DotShape, left: DType, right: DType, group: int, length: int) -> bool:
    """Whether tiles of the left operand are read from rows that are lines of `length` elements, by a right operand in
    panels with `group` steps of the depth side by side."""
    grouped = group * left.itemsize == 4 and uses_tiles(target, shape, left, right, "groups")
    return grouped and length * left.itemsize % _BYTES == 0


class TileBlocking:
    """Block sizes of a product, and where its copies lie in scratch."""

    def __init__(self, target: CPUTarget, shape: DotShape, left: DType, layout: str) -> None:
        self.group = 4 // left.itemsize
        self.step = _BYTES // left.itemsize  # depth of one tile
        self.depth, self.strip_bytes = shape.depth, 0
        if layout != "groups":
            # The copy of two strips takes a third of the level 1 cache at most.
            longest = target.l1_bytes // 3 // (_STRIPS * _STRIP * left.itemsize) // self.step * self.step
            runs = -(-shape.depth // longest)
            self.depth = round_up(-(-shape.depth // runs), self.step)
            self.strip_bytes = self.depth // self.group * _BYTES
        # Rows of the left copy are an odd number of lines apart, so that they fall into different cache sets.
        self.left_stride = ((self.depth // self.step) | 1) * self.step
        self.left_bytes = shape.rows * self.left_stride * left.itemsize
        self.scratch_bytes = round_up(self.left_bytes, _LINE_BYTES) + _STRIPS * self.strip_bytes


def emit_tile_function(module: Module, target: CPUTarget, plan: DotPlan) -> None:
    """Add the function `plan.name` to the module; its parameters are those of `dot_function.emit_function`."""
    _TileFunction(module, target, plan).emit()


@dataclass(frozen=True)
class _TileRun:
    """One run of the depth for one or two strips of columns."""

    column: LLVMValue
    strips: LLVMValue  # the first tile of the right operand
    count: int  # strips
    left: LLVMValue
    left_stride: LLVMValue  # in elements
    left_apart: LLVMValue  # elements from one line of `left` to the next
    steps: LLVMValue  # tiles of the depth
    accumulate: LLVMValue
    ahead: tuple[LLVMValue, LLVMValue] | None  # the strips after these and the bytes between their rows


class _TileFunction:
    """Writes the function of one kind of product."""

    def __init__(self, module: Module, target: CPUTarget, plan: DotPlan) -> None:
        self.module, self.plan = module, plan
        attributes = f"noinline {function_attributes(target)}"
        self.builder = b = LLVMBuilder(
            module, plan.name, "void", DotPlan.parameters, linkage="internal", attributes=attributes
        )
        self.left, self.left_row_stride, self.left_depth_stride, self.right, self.right_stride = b.arguments[:5]
        self.accumulator, self.scratch = b.arguments[5:7]
        self.rows, self.columns, self.depth = plan.extents(b)
        self.accumulate = b.arguments[10]
        for name in ("left_row_stride", "left_depth_stride", "right_stride"):
            if getattr(plan, name) is not None:
                setattr(self, name, b.integer(getattr(plan, name)))
        self.blocking = TileBlocking(target, plan.shape, plan.left, plan.layout)
        self.lanes = self.blocking.step  # elements of a vector, which is as wide as a tile
        # Elements are moved, never computed with: integers of their width.
        self.element = f"i{plan.left.bits}"
        self.width = target.microtile(plan.accumulator)[1]
        self.in_place = plan.layout == "groups"
        self.fetches_panels = self.in_place and plan.left_lines is not None
        # Bytes from row to row of the right operand's tiles, and from strip to strip.
        self.strip_row = 4 * self.width if self.in_place else _BYTES
        self.strip_apart = _BYTES if self.in_place else self.blocking.strip_bytes
        self.strips = b.gep(self.scratch, round_up(self.blocking.left_bytes, _LINE_BYTES), "i8")
        self.instruction = "llvm.x86.tdpbf16ps"
        if plan.left.is_integer:
            self.instruction = (
                "llvm.x86.tdpb" + "".join("us"[dtype.is_signed] for dtype in (plan.left, plan.right)) + "d"
            )

    def emit(self) -> None:
        b, shape = self.builder, self.plan.shape
        if shape.depth <= self.blocking.depth:
            self._run(b.integer(0), self.depth, self.accumulate)
        else:
            with b.loop(b.integer(0), self.depth, self.blocking.depth, hint="runs") as loop:
                length = b.minimum(b.subtract(self.depth, loop.index), self.blocking.depth)
                later = b.compare("sgt", loop.index, 0)
                self._run(loop.index, length, b.binary("or", later, self.accumulate))
        b.call("llvm.x86.tilerelease", "void", [])
        b.finish()

    def _run(self, start: LLVMValue, length: LLVMValue, accumulate: LLVMValue) -> None:
        """One run of the depth: all strips of `right` and all rows."""
        b = self.builder
        left, left_stride, left_apart = self._prepare_left(start, length)
        steps = b.binary("sdiv", b.add(length, self.blocking.step - 1), b.integer(self.blocking.step))
        if self.plan.shape.rows >= 2 * _STRIP:
            self._configure([_STRIP, _STRIP])

        def block_in_place(row: LLVMValue, heights: Sequence[int], column: LLVMValue, count: int) -> None:
            place, _ = self._right_rows(column, start)
            run = _TileRun(column, place, count, left, left_stride, left_apart, steps, accumulate, None)
            self._tiles(row, heights, run)

        def rows_of(column: LLVMValue, count: int) -> None:
            self._pack(column, start, length, count)
            ahead = self._right_ahead(column, start, length)
            run = _TileRun(column, self.strips, count, left, left_stride, left_apart, steps, accumulate, ahead)
            self._each_rows(lambda row, heights: self._tiles(row, heights, run))

        def rows_in_place(column: LLVMValue, count: int) -> None:
            self._each_rows(lambda row, heights: block_in_place(row, heights, column, count))

        if not self.in_place:
            self._each_strip(rows_of)
        elif self.fetches_panels:
            self._each_strip(rows_in_place)
        else:
            self._each_rows(lambda row, heights: self._each_strip(partial(block_in_place, row, heights)))

    def _each_strip(self, body: Callable[[LLVMValue, int], None]) -> None:
        """Call `body` with the first column of each pair of strips and their number."""
        b, columns = self.builder, self.plan.shape.columns
        wide = _STRIPS * _STRIP
        narrow = columns % wide
        narrow = narrow if 0 < narrow <= _STRIP else 0
        with b.loop(b.integer(0), b.minimum(self.columns, columns - narrow), wide, hint="strips") as loop:
            body(loop.index, _STRIPS)
        if narrow:
            with b.when(b.compare("sgt", self.columns, columns - narrow), hint="narrow"):
                body(b.integer(columns - narrow), 1)

    def _each_rows(self, body: Callable[[LLVMValue, Sequence[int]], None]) -> None:
        """Call `body` with the first row of each pair of tiles and their heights, which are configured."""
        b, rows = self.builder, self.plan.shape.rows
        whole = rows // (2 * _STRIP) * 2 * _STRIP
        rest = [min(_STRIP, rows - first) for first in range(whole, rows, _STRIP)]
        if whole:
            with b.loop(b.integer(0), b.minimum(self.rows, whole), 2 * _STRIP, hint="rows") as loop:
                body(loop.index, [_STRIP, _STRIP])
        if rest:
            with b.when(b.compare("sgt", self.rows, whole), hint="rest"):
                self._configure(rest)
                body(b.integer(whole), rest)
                if whole:
                    self._configure([_STRIP, _STRIP])

    def _configure(self, heights: Sequence[int]) -> None:
        """Load the shapes of all tiles: `heights` are the rows of the one or two tiles of rows."""
        heights = [*heights, _STRIP][:2]
        rows = [heights[0], heights[0], heights[1], heights[1], *heights, _STRIP, _STRIP]
        table = bytearray(64)
        table[0] = 1  # the palette with eight tiles of 1 KiB
        for tile, count in enumerate(rows):
            table[16 + 2 * tile] = _BYTES
            table[48 + tile] = count
        text = f"[64 x i8] [{', '.join(f'i8 {byte}' for byte in table)}]"
        pointer = self.module.constant_array(text, "tiles", align=64)
        self.builder.call("llvm.x86.ldtilecfg", "void", [pointer])

    # -- One block of tiles -------------------------------------------------------------------------

    def _tiles(self, row: LLVMValue, heights: Sequence[int], run: _TileRun) -> None:
        """The sums of `heights` rows from `row` and the strips of `run` over a run of the depth."""
        b, count, itemsize = self.builder, run.count, self.plan.left.itemsize
        stride = b.multiply(run.left_stride, itemsize)
        sums = []
        for i in range(len(heights)):
            for j in range(count):
                place = self._sums_place(b.add(row, _STRIP * i), b.add(run.column, _STRIP * j))
                sums.append((2 * i + j, place))
        sums_stride = b.integer(4 * self.plan.accumulator_stride)
        add, clear, ready = b.new_block("add"), b.new_block("clear"), b.new_block("ready")
        b.branch_if(run.accumulate, add, clear)
        b.start(add)
        for tile, place in sums:
            self._move("llvm.x86.tileloadd64", tile, place, sums_stride)
        b.branch(ready)
        b.start(clear)
        for tile, _ in sums:
            self._tile_call("llvm.x86.tilezero", [tile])
        b.branch(ready)
        b.start(ready)
        first = b.gep(run.left, b.multiply(row, stride), "i8")
        following = None if self.in_place else self._following_sums(row, run)
        lines = self.plan.left_lines
        if lines is None:
            with b.loop(b.integer(0), run.steps, 1, hint="deep") as loop:
                if following is not None:
                    self._prefetch_sums(following, loop.index, count)
                    self._prefetch_right(run, row, loop.index)
                else:
                    self._prefetch_left(run, row, loop.index)
                self._step(b.gep(first, b.multiply(loop.index, _BYTES), "i8"), stride, loop.index, heights, run)
        else:
            along, apart = lines[0] * itemsize // _BYTES, b.multiply(run.left_apart, itemsize)
            with b.loop(b.integer(0), b.integer(self.plan.shape.depth // lines[0]), 1, hint="lines") as outer:
                line, step = b.gep(first, b.multiply(outer.index, apart), "i8"), b.multiply(outer.index, along)
                with b.loop(b.integer(0), b.integer(along), 1, hint="along") as loop:
                    place, number = b.gep(line, b.multiply(loop.index, _BYTES), "i8"), b.add(step, loop.index)
                    self._prefetch_panel(run, row, number)
                    self._step(place, stride, number, heights, run)
        for tile, place in sums:
            self._move("llvm.x86.tilestored64", tile, place, sums_stride)

    def _step(
        self, place: LLVMValue, stride: LLVMValue, step: LLVMValue, heights: Sequence[int], run: _TileRun
    ) -> None:
        """The products of a step of the depth; tiles of the left operand begin at `place`, with rows `stride` bytes
        apart."""
        b, line = self.builder, self.builder.integer(self.strip_row)
        strip = b.gep(run.strips, b.multiply(step, _STRIP * self.strip_row), "i8")
        # Strips that pass by are loaded with a hint that keeps them from driving the rows out of level 1.
        load_strip = "llvm.x86.tileloaddt164" if self.in_place else "llvm.x86.tileloadd64"
        for j in range(run.count):
            self._move(load_strip, 6 + j, b.gep(strip, j * self.strip_apart, "i8"), line)
        for i in range(len(heights)):
            self._move("llvm.x86.tileloadd64", 4 + i, b.gep(place, b.multiply(stride, _STRIP * i), "i8"), stride)
            for j in range(run.count):
                self._tile_call(self.instruction, [2 * i + j, 4 + i, 6 + j])

    def _sums_place(self, row: LLVMValue, column: LLVMValue) -> LLVMValue:
        """The address of accumulator[row, column]."""
        b = self.builder
        return b.gep(self.accumulator, b.add(b.multiply(row, self.plan.accumulator_stride), column), "i32")

    # -- What comes next, on its way meanwhile ---------------------------------------------------------

    def _following_sums(self, row: LLVMValue, run: _TileRun) -> LLVMValue:
        """The sums after those of `row`: further down, or in the next strips."""
        b = self.builder
        below = b.add(row, 2 * _STRIP)
        more = b.compare("slt", below, self.rows)
        column = b.select(more, run.column, b.add(run.column, run.count * _STRIP))
        return self._sums_place(b.select(more, below, b.integer(0)), column)

    def _prefetch_sums(self, sums: LLVMValue, step: LLVMValue, count: int) -> None:
        """A share of the rows of sums that are read and written next, into the level 1 cache."""
        b = self.builder
        rows = -(-2 * _STRIP // (self.blocking.depth // self.blocking.step))
        stride = self.plan.accumulator_stride
        first = b.gep(sums, b.multiply(step, rows * stride), "i32")
        for row in range(rows):
            for strip in range(count):
                self._prefetch(b.gep(first, row * stride + strip * _STRIP, "i32"), level=1)

    def _right_ahead(
        self, column: LLVMValue, start: LLVMValue, length: LLVMValue
    ) -> tuple[LLVMValue, LLVMValue] | None:
        """Where the strips after those at `column` lie, and the bytes from one step of the depth to the next."""
        b = self.builder
        if self.plan.layout in ("columns", "groups"):
            return None
        following = b.add(column, _STRIPS * _STRIP)
        more = b.compare("slt", following, self.columns)
        place, stride = self._right_rows(
            b.select(more, following, b.integer(0)), b.select(more, start, b.add(start, length))
        )
        return place, b.multiply(stride, self.plan.right.itemsize)

    def _prefetch_right(self, run: _TileRun, row: LLVMValue, step: LLVMValue) -> None:
        """A share of the strips that are copied next, into the level 2 cache; all rows together fetch them."""
        if run.ahead is None:
            return
        b, blocking = self.builder, self.blocking
        place, stride = run.ahead
        shares = -(-self.plan.shape.rows // (2 * _STRIP)) * (blocking.depth // blocking.step)
        lines = -(-blocking.depth // shares)
        turn = b.add(b.multiply(b.binary("lshr", row, b.integer(5)), run.steps), step)
        first = b.multiply(turn, lines)
        for line in range(lines):
            self._prefetch(b.gep(place, b.multiply(b.add(first, line), stride), "i8"), level=2)

    def _prefetch_left(self, run: _TileRun, row: LLVMValue, step: LLVMValue) -> None:
        """A share of the rows below, which the same strips or the next program takes, into the level 2 cache."""
        b, wide = self.builder, _STRIPS * _STRIP
        stride = b.multiply(run.left_stride, self.plan.left.itemsize)
        rows = -(-2 * _STRIP // -(-self.plan.shape.columns // wide))
        first = b.multiply(b.binary("udiv", run.column, b.integer(wide)), rows)
        below = b.add(b.add(row, first), 2 * _STRIP)
        place = b.gep(b.gep(run.left, b.multiply(below, stride), "i8"), b.multiply(step, _BYTES), "i8")
        for number in range(rows):
            self._prefetch(b.gep(place, b.multiply(stride, number), "i8"), level=2)

    def _prefetch_panel(self, run: _TileRun, row: LLVMValue, step: LLVMValue) -> None:
        """A share of the panel after the one at `run.strips`, into the level 2 cache; all rows together fetch it."""
        b, groups = self.builder, -(-self.plan.shape.rows // (2 * _STRIP))
        lines = -(-_STRIP * self.strip_row // _LINE_BYTES // groups)
        turn = b.add(b.multiply(b.binary("lshr", row, b.integer(5)), run.steps), step)
        panel = b.multiply(run.steps, _STRIP * self.strip_row)
        first = b.gep(b.gep(run.strips, panel, "i8"), b.multiply(turn, lines * _LINE_BYTES), "i8")
        for line in range(lines):
            self._prefetch(b.gep(first, line * _LINE_BYTES, "i8"), level=2)

    def _prefetch(self, address: LLVMValue, level: int) -> None:
        arguments = [address, *(self.builder.integer(number, "i32") for number in (0, 4 - level, 1))]
        self.builder.call("llvm.prefetch.p0", "void", arguments)

    def _move(self, name: str, tile: int, place: LLVMValue, stride: LLVMValue) -> None:
        self.builder.call(name, "void", [self.builder.integer(tile, "i8"), place, stride],
                          declared=["i8 immarg", "ptr", "i64"])  # fmt: skip

    def _tile_call(self, name: str, tiles: Sequence[int]) -> None:
        arguments = [self.builder.integer(tile, "i8") for tile in tiles]
        self.builder.call(name, "void", arguments, declared=["i8 immarg"] * len(tiles))

    # -- Operands -------------------------------------------------------------------------------------

    def _prepare_left(self, start: LLVMValue, length: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
        """Where rows of `left`, or the lines that they are made of, are contiguous along the depth, in whole tiles;
        their stride in elements, and that of lines."""
        b, plan, blocking = self.builder, self.plan, self.blocking
        source = b.gep(self.left, b.multiply(start, self.left_depth_stride), self.element)
        whole = plan.left_whole or not plan.limits[0]
        if plan.left_depth_stride == 1 and whole and not plan.limits[2] and plan.shape.depth % blocking.step == 0:
            return self._in_place_if_aligned(source, length)
        self._copy_left(source, length)
        return self.scratch, b.integer(blocking.left_stride), b.integer(0)

    def _in_place_if_aligned(
        self, source: LLVMValue, length: LLVMValue
    ) -> tuple[LLVMValue, LLVMValue, LLVMValue]:  # fmt: skip
        """`left` where it lies, if rows begin on cache lines; else its copy: a row in two lines takes twice as long."""
        b = self.builder
        address = b.cast("ptrtoint", source, "i64")
        lines = self.plan.left_lines or (0, 0)
        strides = b.binary("or", self.left_row_stride, b.integer(lines[1]))
        places = b.binary("or", address, b.multiply(strides, self.plan.left.itemsize))
        aligned = b.compare("eq", b.emit(f"and i64 {places.text}, {_LINE_BYTES - 1}", "i64"), 0)
        copied, ready, origin = b.new_block("copied"), b.new_block("left"), b.block
        b.branch_if(aligned, ready, copied)
        b.start(copied)
        self._copy_left(source, length)
        after_copy = b.block
        b.branch(ready)
        b.start(ready)
        stride = b.integer(self.blocking.left_stride)
        return (
            b.phi(ready, "ptr", [(source, origin), (self.scratch, after_copy)]),
            b.phi(ready, "i64", [(self.left_row_stride, origin), (stride, after_copy)]),
            b.phi(ready, "i64", [(b.integer(lines[1]), origin), (b.integer(lines[0]), after_copy)]),
        )

    def _copy_left(self, source: LLVMValue, length: LLVMValue) -> None:
        """Copy the rows to scratch, zero beyond the depth."""
        b, stride = self.builder, self.blocking.left_stride
        copy = BlockCopy(b, self.element, False, self.element, self.lanes)
        if self.plan.left_lines is not None:
            line, apart = self.plan.left_lines
            for number in range(self.plan.shape.depth // line):
                origin = b.gep(source, number * apart, self.element)
                place = b.gep(self.scratch, number * line, self.element)
                copy.copy_rows(origin, self.left_row_stride, place, stride, self.rows, b.integer(line))
            return
        if self.plan.left_depth_stride == 1:  # writes zeros to the end of a vector
            copy.copy_rows(source, self.left_row_stride, self.scratch, stride, self.rows, length)
            return
        copy.copy_elements(
            source, (self.left_row_stride, self.left_depth_stride), self.scratch, stride, self.rows, length
        )
        self._clear_beyond(length)

    def _clear_beyond(self, length: LLVMValue) -> None:
        """Zeros from the depth to the end of its last tile: an infinity times the zeros of `right` would be NaN."""
        b, step = self.builder, self.blocking.step
        last = b.emit(f"and i64 {length.text}, {-step}", "i64")
        with b.when(b.compare("slt", last, length), hint="ragged"):
            inside = b.lane_mask(b.subtract(length, last), step)
            outside = b.inverse(inside)
            with b.loop(b.integer(0), self.rows, 1, hint="clear") as loop:
                offset = b.add(b.multiply(loop.index, self.blocking.left_stride), last)
                place = b.gep(self.scratch, offset, self.element)
                b.masked_store(b.zero(f"<{step} x {self.element}>"), place, outside)

    def _pack(self, column: LLVMValue, start: LLVMValue, length: LLVMValue, count: int) -> None:
        """Copy `count` strips of columns to scratch, with steps of the depth in groups, zero beyond the depth."""
        if self.plan.layout == "columns":
            for strip in range(count):
                self._pack_columns(self.builder.add(column, strip * _STRIP), start, length, strip)
            return
        b, group = self.builder, self.blocking.group
        source, stride = self._right_rows(column, start)
        width = count * _STRIP
        limited = self.plan.layout == "rows" and (self.plan.limits[1] or self.plan.shape.columns % _STRIP != 0)
        available = b.minimum(b.subtract(self.columns, column), width) if limited else None
        groups = b.binary("sdiv", length, b.integer(group))

        def move(number: LLVMValue, present: Sequence[LLVMValue | None]) -> None:
            rows = []
            for k, exists in enumerate(present):
                place = b.gep(source, b.multiply(b.add(b.multiply(number, group), k), stride), self.element)
                rows.append(self._row(place, width, available, exists))
            self._interleave(rows, number, count)

        with b.loop(b.integer(0), groups, 1, hint="pack") as loop:
            move(loop.index, [None] * group)
        padded = b.emit(f"and i64 {b.add(length, self.lanes - 1).text}, {-self.lanes}", "i64")
        end = b.binary("sdiv", padded, b.integer(group))
        with b.loop(groups, end, 1, hint="zeros") as loop:
            first = b.multiply(loop.index, group)
            move(loop.index, [b.compare("slt", b.add(first, k), length) for k in range(group)])

    def _row(self, place: LLVMValue, width: int, available: LLVMValue | None, exists: LLVMValue | None) -> LLVMValue:
        """`width` elements at `place`: the first `available`, and only if the row `exists`; zero elsewhere."""
        b = self.builder
        if exists is not None:
            present = available if available is not None else b.integer(width)
            return masked_part(b, place, self.element, width, b.select(exists, present, b.integer(0)))
        if available is not None:
            return masked_part(b, place, self.element, width, available)
        return b.load(f"<{width} x {self.element}>", place, align=1)

    def _interleave(self, rows: list[LLVMValue], number: LLVMValue, count: int) -> None:
        """Store one group of steps of the depth: row `number` of the tiles of `count` strips."""
        b, width = self.builder, rows[0].lanes
        while len(rows) > 1:  # neighbours at half the number of rows first, so that the order comes out right
            half = len(rows) // 2
            lanes = [lane for pair in zip(range(rows[0].lanes), range(rows[0].lanes, 2 * rows[0].lanes), strict=True)
                     for lane in pair]  # fmt: skip
            rows = [b.shuffle(rows[k], rows[k + half], lanes) for k in range(half)]
        (row,) = rows
        per_strip = row.lanes // width * _STRIP
        for strip in range(count):
            part = b.shuffle(row, None, range(strip * per_strip, (strip + 1) * per_strip)) if count > 1 else row
            offset = b.add(b.multiply(number, _BYTES), strip * self.blocking.strip_bytes)
            b.store(part, b.gep(self.strips, offset, "i8"), align=64)

    def _pack_columns(self, column: LLVMValue, start: LLVMValue, length: LLVMValue, strip: int) -> None:
        """One strip of a matrix that is contiguous along the depth: squares of 16 groups by 16 columns are turned."""
        b = self.builder
        last = b.subtract(self.columns, 1)
        origins = []
        for lane in range(_STRIP):  # columns beyond the last repeat it, so that nothing outside is read
            place = b.multiply(b.minimum(b.add(column, lane), last), self.right_stride)
            origins.append(b.gep(self.right, b.add(place, start), self.element))
        full = b.emit(f"and i64 {length.text}, {-self.lanes}", "i64")
        rest = b.subtract(length, full)

        def turn(k: LLVMValue, available: LLVMValue | None) -> None:
            vectors = []
            for origin in origins:
                part = self._row(b.gep(origin, k, self.element), self.lanes, available, None)
                vectors.append(b.cast("bitcast", part, f"<{_STRIP} x i32>"))
            base = b.multiply(b.binary("sdiv", k, b.integer(self.blocking.group)), _BYTES)
            for number, row in enumerate(transposed(b, vectors)):
                offset = b.add(base, strip * self.blocking.strip_bytes + number * _BYTES)
                b.store(row, b.gep(self.strips, offset, "i8"), align=64)

        with b.loop(b.integer(0), full, self.lanes, hint="turn") as loop:
            turn(loop.index, None)
        with b.when(b.compare("sgt", rest, 0), hint="ragged"):
            turn(full, rest)

    def _right_rows(self, column: LLVMValue, start: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
        """The address of right[start, column], and the distance to the next step of the depth."""
        b = self.builder
        if self.plan.layout == "rows":
            offset, stride = b.add(b.multiply(start, self.right_stride), column), self.right_stride
        else:
            panel = b.binary("udiv", column, b.integer(self.width))
            within = b.binary("urem", column, b.integer(self.width))
            offset = b.add(b.add(b.multiply(panel, self.right_stride), b.multiply(start, self.width)), within)
            stride = b.integer(self.width)
        return b.gep(self.right, offset, self.element), stride
