"""The register-blocked matrix product of the CPU target, emitted as LLVM text.

The lowering of `dot` (`lower*.py`) says where its operands lie and calls `emit_dot`; how they are
packed, blocked and unrolled is decided here.

    accumulator[i, j] = (accumulator[i, j] or 0) + sum over k of left[i, k] * right[k, j]

Every kind of product becomes one internal function, which the call runs: in vector registers (`dot_function.py`,
`dot_grouped_function.py`), or in tile registers where the CPU has them for the operands' types (`dot_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.targets.cpu.dot_function import Blocking, emit_function
from tilewright.targets.cpu.dot_grouped_function import emit_grouped_function
from tilewright.targets.cpu.dot_groups import GROUPED_LAYOUTS, GroupSums, group_sums, packed_sums, sums_of_layout
from tilewright.targets.cpu.dot_packed_function import emit_packed_function
from tilewright.targets.cpu.dot_plan import DotPlan, DotShape, round_up
from tilewright.targets.cpu.dot_tiles import TileBlocking, emit_tile_function, uses_tiles
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

Extent = LLVMValue | int

_LINE_BYTES = 64
_PANELS = ("panels", *GROUPED_LAYOUTS)
_LEAST_PACKED_ROWS = 5  # of 8-bit integers: fewer use a packed panel too seldom
__all__ = [
    "Accumulator", "DotShape", "LeftOperand", "RightOperand", "accumulator_extents", "emit_dot", "scratch_bytes",
    "grouped_layout", "takes_groups",
]  # fmt: skip


@dataclass(frozen=True)
class LeftOperand:
    """left[i, k] lies at `pointer + i * row_stride + k * depth_stride`; strides are in elements.

    Any memory will do (the user's, or a scratch copy): the kernel makes its own packed copy where
    that is faster.  Give strides that are known as plain ints: a block whose depth stride is 1 and
    whose row stride is known and no large power of two is read in place.  `whole` promises that all
    `shape.rows` rows may be read, whatever the run-time limit.

    With `lines` = (length, apart) left[i, k] lies at `pointer + i * row_stride + k // length * apart + k % length`: the
    windows of an image.  Tile registers read it so, for right operands in groups.
    """

    pointer: LLVMValue
    row_stride: Extent
    depth_stride: Extent
    dtype: DType
    whole: bool = False
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class RightOperand:
    """right[k, j] in one of these layouts; strides are in elements.

    - ``rows``: at `pointer + k * stride + j` (contiguous columns).
    - ``columns``: at `pointer + k + j * stride` (contiguous along the depth, a transposed matrix).
    - ``panels``: at `pointer + (j // width) * stride + k * width + j % width` with
      `width == target.microtile(dtype)[1]`; every panel is `width` wide in memory, its padding zero.
    - ``groups``: panels whose depth comes in groups of `group` steps that fill four bytes (where `takes_groups`), at
      `pointer + (j // width) * stride + (k // group * width + j % width) * group + k % group`.
    - ``pairs``: the same of 8-bit integers in groups of two.
    - ``bounded``: groups of four 8-bit integers, of which sums of two neighbouring products fit 16 bits.
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
    stride = round_up(shape.columns, lanes)
    if stride * dtype.itemsize % 1024 == 0 and shape.rows > 8:
        stride += max(lanes, _LINE_BYTES // dtype.itemsize)  # rows of a tile must not share a few cache sets
    return round_up(shape.rows, 2), stride


def scratch_bytes(
    target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str, accumulator: DType
) -> int:
    """Bytes of 64-byte aligned scratch that `emit_dot` needs for such a product; reusable between calls."""
    if uses_tiles(target, shape, left, right, layout):
        return TileBlocking(target, shape, left, layout).scratch_bytes
    return _blocking(target, shape, left, right, layout, accumulator)[0].scratch_bytes


def _blocking(
    target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str, accumulator: DType
) -> tuple[Blocking, int]:
    """The blocks of a product in vector registers, whose depth may be in groups, and how large these are."""
    sums, packed = sums_of_layout(target, left, right, layout), _packed(target, shape, left, right, layout)
    if packed is not None:
        return Blocking(target, packed.in_groups(shape), accumulator, "columns", packed), packed.group
    if sums is None:
        return Blocking(target, shape, accumulator, layout), 1
    return Blocking(target, sums.in_groups(shape), accumulator, "panels", sums), sums.group


def _packed(target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str) -> GroupSums | None:
    """The instruction of a product whose right operand is packed in groups at run time."""
    if layout not in ("rows", "columns") or shape.rows < _LEAST_PACKED_ROWS:
        return None
    return packed_sums(target, left, right)


def takes_groups(
    target: CPUTarget, shape: DotShape, left: DType, right: DType, group: int, pairs_fit: bool = False
) -> bool:
    """Whether the right operand may lie in panels with `group` steps of the depth side by side; `pairs_fit`:
    sums of products of two neighbours are numbers of 16 bits."""
    layout = grouped_layout(target, left, right, group, pairs_fit)
    if uses_tiles(target, shape, left, right, layout) and group * left.itemsize == 4:
        return True
    sums = sums_of_layout(target, left, right, layout)
    return sums is not None and group == sums.group and shape.depth % group == 0


def grouped_layout(target: CPUTarget, left: DType, right: DType, group: int, pairs_fit: bool) -> str:
    """The layout of panels with `group` steps of the depth side by side, as `RightOperand` names it."""
    if group == 1:
        return "panels"
    if group * right.itemsize < 4:
        return "pairs"
    plain = group_sums(target, left, right)
    bounded = pairs_fit and plain is not None and plain.group != group and not target.multiplies_in_tiles(left, right)
    return "bounded" if bounded else "groups"


def kernel_text(target: CPUTarget, shape: DotShape, left: DType, right: DType, layout: str, accumulator: DType) -> str:
    """How such a product is computed, for people."""
    if uses_tiles(target, shape, left, right, layout):
        depth = TileBlocking(target, shape, left, layout).depth
        return f"tile registers, {depth} steps of the depth at once; the right operand lies in {layout}"
    blocking, group = _blocking(target, shape, left, right, layout, accumulator)
    rows, columns = min(blocking.max_rows, shape.rows), blocking.panels * blocking.width
    if shape.columns <= blocking.lanes:  # a panel that is cut short to one vector
        columns = blocking.lanes
    vectors = columns // blocking.lanes
    if _packed(target, shape, left, right, layout) is not None:
        layout += f", copied with {group} steps of the depth side by side"
    pairs = "; pairs of products are added, subnormal numbers count as zeros" if group > 1 and left.is_float else ""
    return (
        f"sums of {rows} x {columns} in registers ({vectors} vector{'s' * (vectors > 1)} of {blocking.lanes} a row), "
        f"{blocking.depth * group} steps of the depth at once; the right operand lies in {layout}{pairs}"
    )


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
    narrow: bool = False,
) -> None:
    """Emit one product at the builder's position, as a call of a function made once per kind.

    `rows`, `columns`, `depth` (i64 values, at most the extents of `shape`) are run-time limits:
    operands are not read beyond them (panels of `right`: whole panels are), results outside are
    unspecified; panels in groups take no limit on the depth.  `accumulate` false (a constant or an i1
    value) starts from zero instead of reading the accumulator.  `narrow` says that a run-time number of columns may
    end in a panel of which it has one vector at most.

    Element types (left, right, accumulator): (f32, f32, f32), (f64, f64, f64), (bf16 or f16, same,
    f32), (i8 or u8, i8 or u8, i32).
    """
    width = target.microtile(accumulator.dtype)[1]
    plan = DotPlan(
        shape,
        left.dtype,
        right.dtype,
        accumulator.dtype,
        right.layout,
        accumulator.row_stride,
        _known(left.row_stride),
        _known(left.depth_stride),
        _known(right.stride),
        left.whole,
        (rows is not None, columns is not None, depth is not None),
        accumulate if isinstance(accumulate, bool) else _truth(accumulate),
        narrow and columns is not None and right.layout in _PANELS and shape.columns % width == 0,
        left.lines,
    )
    if plan.name not in builder.module.defined:
        _emitter(target, plan)(builder.module, target, plan)

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


def _emitter(target: CPUTarget, plan: DotPlan) -> Callable[[Module, CPUTarget, DotPlan], None]:
    """What writes the function of a product."""
    if uses_tiles(target, plan.shape, plan.left, plan.right, plan.layout):
        return emit_tile_function
    if _packed(target, plan.shape, plan.left, plan.right, plan.layout) is not None:
        return emit_packed_function
    return emit_grouped_function if plan.layout in GROUPED_LAYOUTS else emit_function


def _truth(value: LLVMValue) -> bool | None:
    """The value of an i1 literal, else None."""
    return {"true": True, "false": False}.get(value.text)


def _known(extent: Extent) -> int | None:
    return extent if isinstance(extent, int) else extent.constant
