"""One kind of matrix product: extents, types, facts about the operands; and the parameters of its function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.dtypes import DType
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class DotShape:
    """The compile-time extents of one product: left [rows, depth], right [depth, columns]."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class DotPlan:
    """One kind of product: all that its function depends on."""

    shape: DotShape
    left: DType
    right: DType
    accumulator: DType
    layout: str
    accumulator_stride: int
    left_row_stride: int | None  # None: known only at run time
    left_depth_stride: int | None
    right_stride: int | None
    left_whole: bool  # all rows of `left` may be read, whatever the limit
    limits: tuple[bool, bool, bool]  # run-time limits on rows, columns, depth
    accumulate: bool | None  # whether the accumulator is read; None: known only at run time
    narrow: bool = False  # whether the limit on columns may leave one vector of a panel
    left_lines: tuple[int, int] | None = None  # a row of `left` is lines: elements of one, and from one to the next

    # Strides are in elements.
    parameters: ClassVar[tuple[tuple[str, str, str], ...]] = (
        *(("ptr", "left", "readonly"), ("i64", "left_row_stride", ""), ("i64", "left_depth_stride", "")),
        *(("ptr", "right", "readonly"), ("i64", "right_stride", "")),
        *(("ptr", "accumulator", "noalias"), ("ptr", "scratch", "noalias")),
        *(("i64", "rows", ""), ("i64", "columns", ""), ("i64", "depth", ""), ("i1", "accumulate", "")),
    )

    def extents(self, builder: LLVMBuilder) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
        """Rows, columns and depth inside the function: its arguments where they are limited at run time."""
        known = (self.shape.rows, self.shape.columns, self.shape.depth)
        rows, columns, depth = (
            value if limited else builder.integer(extent)
            for value, limited, extent in zip(builder.arguments[7:10], self.limits, known, strict=True)
        )
        return rows, columns, depth

    @property
    def name(self) -> str:
        shape, limits = self.shape, "".join("rcd"[i] for i, limited in enumerate(self.limits) if limited)
        known = (self.left_row_stride, self.left_depth_stride, self.right_stride)
        strides = "x".join("n" if stride is None else str(stride) for stride in known)
        types = f"{self.left}.{self.right}.{self.accumulator}"
        sizes = f"{shape.rows}x{shape.columns}x{shape.depth}"
        whole = ("w" if self.left_whole else "") + ("n" if self.narrow else "")
        start = {True: "a", False: "z", None: ""}[self.accumulate]
        lines = "" if self.left_lines is None else f".{self.left_lines[0]}l{self.left_lines[1]}"
        return f"dot.{types}.{sizes}.{self.layout}.{strides}.{self.accumulator_stride}.{limits}{whole}{start}{lines}"
