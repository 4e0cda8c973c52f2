"""The innermost loop of the CPU matrix product: one register tile, for a run of the depth.

    tile[i, j] = (tile[i, j] or 0) + sum over k < depth of left[i, k] * right[k, j]

`rows` x `vectors` accumulators stay in registers.  For each k the kernel loads `vectors` vectors of
the right operand and broadcasts one element of each left row; a multiply-add per accumulator follows.
With few rows, several panels of the right operand are taken at once (more streams from memory), and
with few accumulators the depth is split over several independent sets of them, because one set alone
would wait for the latency of its own additions.  What the next call will read of the right operand is
prefetched into the level 2 cache on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.dot_groups import GroupSums
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module, vector_type
from tilewright.targets.llvm.optimize import FEW_PASSES

Argument = TypeVar("Argument")

_CHAINS = 8  # accumulators that keep two multiply-add units busy at a latency of four cycles
_UNROLLED_DEPTH = 2  # steps of the depth in one turn of the loop; more gave nothing and compiles slower
_SIZES = {"float": 4, "double": 8, "i32": 4, "i16": 2, "half": 2, "bfloat": 2, "i8": 1}
_STREAM_AHEAD = 768  # bytes that several panels at once are prefetched ahead: 17.6 instead of 16.1 GB/s


@dataclass(frozen=True)
class MicroKernel:
    """One register tile. Strides are in elements; None is what only the run knows (an argument).

    What is known here need not be found out by LLVM, which would go through twice the text to the same code.
    """

    element: str  # LLVM type of the left operand and the accumulators: float, double, i32
    right: str  # LLVM type of the right operand in memory, widened to `element` on the way
    rows: int
    panels: int  # taken at once, `panel_stride` apart
    vectors: int  # of one panel
    lanes: int
    left_row_stride: int | None
    left_depth_stride: int
    tile_stride: int
    signed: bool  # of an integer right operand
    ahead_lines: int  # cache lines prefetched in one turn of the loop
    right_stride: int | None  # from one k to the next
    panel_stride: int | None
    ahead_stride: int | None  # bytes, from one k to the next in what is prefetched
    depth: int | None
    accumulate: bool | None
    sums: GroupSums | None = None  # of narrow numbers: one k is a group of the depth

    @property
    def name(self) -> str:
        known = (self.left_row_stride, self.right_stride, self.panel_stride, self.ahead_stride, self.depth)
        numbers = ".".join("x" if number is None else str(number) for number in known)
        tile = f"{self.rows}x{self.panels}x{self.vectors * self.lanes}.{self.tile_stride}"
        right = self.right if self.signed else f"u{self.right}"
        if self.sums is not None:
            right += f"x{self.sums.group}{'s' * self.sums.swapped}{'f' * self.sums.flips}"
        start = {True: "a", False: "z", None: ""}[self.accumulate]
        return f"tile.{self.element}.{right}.{tile}.{self.left_depth_stride}.{self.ahead_lines}.{numbers}{start}"

    def unknown(self, arguments: Sequence[Argument]) -> list[Argument]:
        """Those of the ten arguments that the function takes: what is known is in its code."""
        known = (
            *(False, self.left_row_stride is not None, False, self.right_stride is not None),
            *(self.panel_stride is not None, False, self.depth is not None, self.accumulate is not None),
            *(self.ahead_lines == 0, self.ahead_stride is not None),
        )
        return [argument for argument, is_known in zip(arguments, known, strict=True) if not is_known]

    @property
    def is_known(self) -> bool:
        """Whether all strides and the depth are known: what is written then is what LLVM makes of it."""
        strides = (self.left_row_stride, self.right_stride, self.panel_stride, self.ahead_stride)
        return self.depth is not None and None not in strides

    @property
    def chains(self) -> int:
        """Independent sets of accumulators along the depth."""
        return min(4, max(1, _CHAINS // (self.rows * self.columns)))

    @property
    def columns(self) -> int:
        """Vectors in one row of the tile."""
        return self.panels * self.vectors

    @property
    def unroll(self) -> int:
        return max(_UNROLLED_DEPTH, self.chains)

    @property
    def itemsize(self) -> int:
        return _SIZES[self.element]

    @property
    def right_itemsize(self) -> int:
        return _SIZES[self.right]


def emit_micro_kernel(module: Module, target: CPUTarget, kernel: MicroKernel) -> None:
    """Add the kernel's function, called `kernel.name`, to the module.

    `void (ptr left, i64 left_row_stride, ptr right, i64 right_stride, i64 panel_stride, ptr tile, i64 depth,
    i1 accumulate, ptr ahead, i64 ahead_stride)`, without what the kernel knows (`MicroKernel.unknown`); `right_stride`
    leads from one k to the next, `ahead_stride` (bytes) does in what is prefetched.
    """
    parameters = kernel.unknown(
        [
            ("ptr", "left", "noalias readonly"),
            ("i64", "left_row_stride", ""),
            ("ptr", "right", "noalias readonly"),
            ("i64", "right_stride", ""),
            ("i64", "panel_stride", ""),
            ("ptr", "tile", "noalias"),
            ("i64", "depth", ""),
            ("i1", "accumulate", ""),
            ("ptr", "ahead", ""),
            ("i64", "ahead_stride", ""),
        ]
    )
    # LLVM's schedules for older AVX-512 models need a register more than there are; the order matters little
    model = "sapphirerapids" if target.vector_bits == 512 else None
    few = FEW_PASSES + " " if kernel.is_known else ""
    attributes = f"noinline {few}{function_attributes(target, model)}"
    builder = LLVMBuilder(module, kernel.name, "void", parameters, linkage="internal", attributes=attributes)
    _Emitter(builder, kernel, target.fused_multiply_add).emit()
    builder.finish()


def widen(builder: LLVMBuilder, value: LLVMValue, element: str, signed: bool = True) -> LLVMValue:
    """A scalar or vector in the wider type that products are computed in."""
    if value.element == element:
        return value
    operator = "fpext" if value.is_float else "sext" if signed else "zext"
    return builder.cast(operator, value, vector_type(element, value.lanes))


def lines_of(size: int) -> int:
    """Cache lines that `size` bytes take."""
    return -(-size // 64)


class _Emitter:
    """Writes one micro-kernel."""

    def __init__(self, builder: LLVMBuilder, kernel: MicroKernel, fused: bool) -> None:
        self.builder = builder
        self.kernel = kernel
        self.fused = fused
        self.vector = vector_type(kernel.element, kernel.lanes)
        arguments = iter(builder.arguments)

        def number(known: int | None) -> LLVMValue:
            return next(arguments) if known is None else builder.integer(known)

        left, stride = next(arguments), number(kernel.left_row_stride)
        self.rows = [builder.gep(left, builder.multiply(stride, row), kernel.element) for row in range(kernel.rows)]
        right, self.right_stride, stride = next(arguments), number(kernel.right_stride), number(kernel.panel_stride)
        self.panels = [builder.gep(right, builder.multiply(stride, p), kernel.right) for p in range(kernel.panels)]
        self.tile, self.depth = next(arguments), number(kernel.depth)
        self.accumulate = next(arguments) if kernel.accumulate is None else None
        self.ahead = next(arguments) if kernel.ahead_lines else None
        self.ahead_stride = number(kernel.ahead_stride)

    def emit(self) -> None:
        builder, kernel = self.builder, self.kernel
        self._prefetch_tile()
        count, unroll = kernel.rows * kernel.columns, kernel.unroll
        zeros = [builder.zero(self.vector)] * (count * kernel.chains)
        known = kernel.depth
        if known is None:
            end = builder.emit(f"and i64 {self.depth.text}, {-unroll}", "i64")
        else:
            end = builder.integer(known // unroll * unroll)
        metadata = self._no_unroll()
        if kernel.sums is not None and kernel.sums.flips:
            zeros[:count] = self._starts()
        sums = zeros[:count]
        if end.constant != 0:
            with builder.loop(builder.integer(0), end, unroll, zeros, hint="deep", metadata=metadata) as loop:
                values = list(loop.values)
                self._prefetch_ahead(loop.index)
                for step in range(unroll):
                    chain = step % kernel.chains
                    part = slice(chain * count, (chain + 1) * count)
                    values[part] = self._step(builder.add(loop.index, step), values[part])
                loop.next(values)
            sums = self._add_chains(loop.results, count)
        if known is not None and known % unroll == 1:
            sums = self._step(end, sums)
        elif known is None or known % unroll:
            with builder.loop(end, self.depth, 1, sums, hint="rest", metadata=metadata) as rest:
                rest.next(self._step(rest.index, list(rest.values)))
            sums = rest.results
        self._store(sums)

    def _starts(self) -> list[LLVMValue]:
        """What the sums of every row begin with: the panel's line before the first one."""
        builder, kernel = self.builder, self.kernel
        (panel,) = self.panels
        line = builder.gep(panel, builder.subtract(builder.integer(0), self.right_stride), kernel.right)
        places = [builder.gep(line, number * kernel.lanes, kernel.right) for number in range(kernel.vectors)]
        return [builder.load(self.vector, place, align=4) for place in places] * kernel.rows

    def _step(self, k: LLVMValue, sums: list[LLVMValue]) -> list[LLVMValue]:
        """One k: the accumulators plus left[:, k] times right[k, :]."""
        builder, kernel = self.builder, self.kernel
        offset = builder.multiply(k, self.right_stride)
        vectors = []
        for panel in self.panels:
            base = builder.gep(panel, offset, kernel.right)
            if kernel.panels > 1:  # few rows: the time is that of the right operand's way from memory
                for line in range(lines_of(kernel.vectors * kernel.lanes * kernel.right_itemsize)):
                    self._prefetch(builder.gep(base, _STREAM_AHEAD + 64 * line, "i8"), level=2)
            for number in range(kernel.vectors):
                address = builder.gep(base, number * kernel.lanes, kernel.right)
                loaded = builder.load(vector_type(kernel.right, kernel.lanes), address, align=1)
                if kernel.sums is None:
                    vectors.append(widen(builder, loaded, kernel.element, kernel.signed))
                else:
                    vectors.append(kernel.sums.prepared(builder, loaded, kernel.signed))
        depth = builder.multiply(k, kernel.left_depth_stride)
        results = []
        for row in range(kernel.rows):
            place = builder.gep(self.rows[row], depth, kernel.element)
            align = kernel.itemsize if kernel.sums is None else 1
            broadcast = builder.splat(builder.load(kernel.element, place, align=align), kernel.lanes)
            for number, vector in enumerate(vectors):
                results.append(self._multiply_add(broadcast, vector, sums[row * kernel.columns + number]))
        return results

    def _multiply_add(self, left: LLVMValue, right: LLVMValue, total: LLVMValue) -> LLVMValue:
        if self.kernel.sums is not None:
            return self.kernel.sums.multiply_add(self.builder, left, right, total)
        if left.is_float and self.fused:
            return self.builder.intrinsic("fma", [left, right, total])
        if left.is_float:
            return self.builder.binary("fadd", total, self.builder.binary("fmul", left, right))
        return self.builder.add(total, self.builder.multiply(left, right))

    def _add(self, left: LLVMValue, right: LLVMValue) -> LLVMValue:
        return self.builder.binary("fadd" if left.is_float else "add", left, right)

    def _add_chains(self, values: list[LLVMValue], count: int) -> list[LLVMValue]:
        """The sets of accumulators added up pairwise."""
        sets = [values[start : start + count] for start in range(0, len(values), count)]
        while len(sets) > 1:
            pairs = [
                [self._add(a, b) for a, b in zip(sets[i], sets[i + 1], strict=True)] for i in range(0, len(sets) - 1, 2)
            ]
            sets = pairs + (sets[-1:] if len(sets) % 2 else [])
        return sets[0]

    def _store(self, sums: list[LLVMValue]) -> None:
        """Write the tile, added to what is there if asked."""
        builder, kernel = self.builder, self.kernel
        places = [
            builder.gep(self.tile, row * kernel.tile_stride + number * kernel.lanes, kernel.element)
            for row in range(kernel.rows)
            for number in range(kernel.columns)
        ]
        if self.accumulate is None:
            self._store_at(places, sums, bool(kernel.accumulate))
            return
        add, plain, after = builder.new_block("add"), builder.new_block("plain"), builder.new_block("stored")
        builder.branch_if(self.accumulate, add, plain)
        for block, added in ((add, True), (plain, False)):
            builder.start(block)
            self._store_at(places, sums, added)
            builder.branch(after)
        builder.start(after)

    def _store_at(self, places: list[LLVMValue], sums: list[LLVMValue], added: bool) -> None:
        builder, itemsize = self.builder, self.kernel.itemsize
        for place, value in zip(places, sums, strict=True):
            total = self._add(builder.load(self.vector, place, align=itemsize), value) if added else value
            builder.store(total, place, align=itemsize)

    def _prefetch_tile(self) -> None:
        kernel = self.kernel
        line = 64 // kernel.itemsize
        for row in range(kernel.rows):
            for column in range(0, kernel.columns * kernel.lanes, line):
                self._prefetch(self.builder.gep(self.tile, row * kernel.tile_stride + column, kernel.element))

    def _prefetch_ahead(self, k: LLVMValue) -> None:
        builder, kernel = self.builder, self.kernel
        if self.ahead is None:
            return
        line = builder.gep(self.ahead, builder.multiply(k, self.ahead_stride), "i8")
        per_row = lines_of(kernel.vectors * kernel.lanes * kernel.itemsize)
        for number in range(kernel.ahead_lines):
            row, column = divmod(number, per_row)
            place = builder.gep(line, builder.multiply(self.ahead_stride, row), "i8")
            self._prefetch(builder.gep(place, 64 * column, "i8"), level=2)

    def _prefetch(self, address: LLVMValue, level: int = 1) -> None:
        """Fetch a cache line into the level 1 or 2 cache."""
        arguments = [address, *(self.builder.integer(number, "i32") for number in (0, 4 - level, 1))]
        self.builder.call("llvm.prefetch.p0", "void", arguments)

    def _no_unroll(self) -> str:
        unroll = self.builder.module.metadata('!{!"llvm.loop.unroll.disable"}')
        return self.builder.module.distinct_metadata(f"!{{{{self}}, {unroll}}}")
