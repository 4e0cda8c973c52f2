"""Few rows times a transposed matrix: inner products along the depth, which both operands have contiguous.

    tile[j] = (tile[j] or 0) + sum over k < depth of left[k] * right[j, k]      for one vector of columns j

Turning the matrix first would move every element twice to use it once.  One vector of columns is read
as so many streams at once; the sums of their lanes are taken together by a transposition.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.dot_kernel import widen
from tilewright.targets.cpu.dot_pack import masked_part, transposed
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module, vector_type


@dataclass(frozen=True)
class InnerKernel:
    """One row times `lanes` columns; LLVM types of the operands in memory and of what is computed in."""

    left: str
    right: str
    element: str
    lanes: int
    left_signed: bool
    right_signed: bool

    @property
    def name(self) -> str:
        signs = "".join("u" if not signed else "s" for signed in (self.left_signed, self.right_signed))
        return f"inner.{self.left}.{self.right}.{self.element}.{self.lanes}.{signs}"


def emit_inner_kernel(module: Module, target: CPUTarget, kernel: InnerKernel) -> None:
    """Add the kernel's function, called `kernel.name`, to the module.

    `void (ptr left, ptr right, i64 column_stride, ptr tile, i64 depth, i64 columns, i1 accumulate)`; columns at
    and beyond `columns` (at least 1) repeat the last one, so that nothing outside is read.
    """
    parameters = [
        *(("ptr", "left", "noalias readonly"), ("ptr", "right", "noalias readonly"), ("i64", "column_stride", "")),
        *(("ptr", "tile", "noalias"), ("i64", "depth", ""), ("i64", "columns", ""), ("i1", "accumulate", "")),
    ]
    attributes = f"noinline {function_attributes(target)}"
    b = LLVMBuilder(module, kernel.name, "void", parameters, linkage="internal", attributes=attributes)
    left, right, column_stride, tile, depth, columns, accumulate = b.arguments
    last = b.subtract(columns, 1)
    streams = [
        b.gep(right, b.multiply(b.minimum(b.integer(lane), last), column_stride), kernel.right)
        for lane in range(kernel.lanes)
    ]
    full = b.emit(f"and i64 {depth.text}, {-kernel.lanes}", "i64")
    vector = vector_type(kernel.element, kernel.lanes)
    no_unroll = module.metadata('!{!"llvm.loop.unroll.disable"}')
    metadata = module.distinct_metadata(f"!{{{{self}}, {no_unroll}}}")
    zeros = [b.zero(vector)] * kernel.lanes
    with b.loop(b.integer(0), full, kernel.lanes, zeros, hint="deep", metadata=metadata) as loop:
        loop.next(_step(b, kernel, left, streams, loop.index, None, loop.values, target))
    rest = b.subtract(depth, full)
    with b.loop(full, depth, kernel.lanes, loop.results, hint="rest", metadata=metadata) as tail:  # at most once
        tail.next(_step(b, kernel, left, streams, tail.index, rest, tail.values, target))
    rows = transposed(b, tail.results)
    total = rows[0]
    for row in rows[1:]:
        total = _add(b, total, row)
    old = b.select(accumulate, b.load(vector, tile, align=1), b.zero(vector))
    b.store(_add(b, old, total), tile, align=1)
    b.finish()


def _step(
    b: LLVMBuilder,
    kernel: InnerKernel,
    left: LLVMValue,
    streams: list[LLVMValue],
    k: LLVMValue,
    count: LLVMValue | None,
    sums: list[LLVMValue],
    target: CPUTarget,
) -> list[LLVMValue]:
    """One vector of the depth (its first `count` elements, if given) added to the sums of all columns."""

    def part(pointer: LLVMValue, kind: str, signed: bool) -> LLVMValue:
        place = b.gep(pointer, k, kind)
        if count is None:
            value = b.load(vector_type(kind, kernel.lanes), place, align=1)
        else:
            value = masked_part(b, place, kind, kernel.lanes, count)
        return widen(b, value, kernel.element, signed)

    row = part(left, kernel.left, kernel.left_signed)
    results = []
    for stream, total in zip(streams, sums, strict=True):
        column = part(stream, kernel.right, kernel.right_signed)
        if row.is_float and target.fused_multiply_add:
            results.append(b.intrinsic("fma", [row, column, total]))
        else:
            product = b.binary("fmul", row, column) if row.is_float else b.multiply(row, column)
            results.append(_add(b, total, product))
    return results


def _add(b: LLVMBuilder, left: LLVMValue, right: LLVMValue) -> LLVMValue:
    return b.binary("fadd" if left.is_float else "add", left, right)
