"""Helpers of the CPU target's tests: aligned and guarded memory, and functions emitted, loaded and called."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.runtime.library import load_objects
from tilewright.targets.cpu.assemble import assemble, function_attributes
from tilewright.targets.cpu.dot import (
    Accumulator,
    DotShape,
    LeftOperand,
    RightOperand,
    accumulator_extents,
    emit_dot,
    scratch_bytes,
)
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, Module
from tilewright.targets.llvm.optimize import MachineCode

_keep: list[object] = []  # guarded mappings and libraries live as long as the tests


def aligned(shape: Sequence[int], dtype: np.dtype | type, fill: int = 0) -> np.ndarray:
    """An array on a 64-byte boundary, its bytes set to `fill`."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.full(size + 64, fill, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is followed by a page that must not be touched (where the system can do so)."""
    if sys.platform == "win32":
        return array.copy()
    page = mmap.PAGESIZE
    length = -(-array.nbytes // page) * page
    region = mmap.mmap(-1, length + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    result = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(start + length), page, 0)
    assert result == 0, "mprotect failed"
    copy = np.frombuffer(region, np.uint8, array.nbytes, length - array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    _keep.append(region)
    return copy


def load(code: MachineCode, symbol: str, arguments: Sequence[type]) -> Callable[..., None]:
    """The function `symbol` of an object, callable from here."""
    library = load_objects([code.image], [symbol])
    _keep.append(library)
    return ctypes.CFUNCTYPE(None, *arguments)(library.address(symbol))


def emit_product(
    target: CPUTarget,
    shape: DotShape,
    layout: str,
    types: tuple[DType, DType, DType],
    limits: tuple[bool, bool, bool] = (False, False, False),
    row_stride: int | None = None,
    depth_stride: int | None = 1,
    known_right_stride: int | None = None,
    whole: bool = False,
    starts: bool | None = None,
    narrow: bool = False,
    lines: tuple[int, int] | None = None,
) -> tuple[str, tuple[int, int], int]:
    """LLVM text of a function `product` around one `emit_dot`; accumulator extents; scratch bytes.

    `starts`: whether it accumulates, where the code is to know it.  `narrow` as `emit_dot` has it, `lines` as the left
    operand.
    """
    module = Module()
    names = ["left", "right", "accumulator", "scratch"]
    parameters = [("ptr", name, "") for name in names]
    parameters += [
        ("i64", name, "") for name in ("row_stride", "depth_stride", "right_stride", "rows", "columns", "depth")
    ]
    parameters += [("i1", "accumulate", "")]
    b = LLVMBuilder(module, "product", "void", parameters, attributes=function_attributes(target))
    left, right, accumulator, scratch, rows_apart, depth_apart, right_stride, *sizes, accumulate = b.arguments
    extents = accumulator_extents(target, shape, types[2])
    rows, columns, depth = (size if limited else None for size, limited in zip(sizes, limits, strict=True))
    emit_dot(
        b,
        target,
        shape,
        LeftOperand(
            left,
            rows_apart if row_stride is None else row_stride,
            depth_apart if depth_stride is None else depth_stride,
            types[0],
            whole,
            lines,
        ),
        RightOperand(right, layout, right_stride if known_right_stride is None else known_right_stride, types[1]),
        Accumulator(accumulator, extents[1], types[2]),
        scratch,
        rows=rows,
        columns=columns,
        depth=depth,
        accumulate=accumulate if starts is None else starts,
        narrow=narrow,
    )
    b.finish()
    return module.text, extents, scratch_bytes(target, shape, *types[:2], layout, types[2])


def random_block(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> np.ndarray:
    """Normal floats, or integers of the full range."""
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype.numpy)


def arrange_right(block: np.ndarray, layout: str, width: int, depth: int) -> tuple[np.ndarray, int]:
    """The right operand in memory, and its stride; panels are `depth` deep, in groups that fill four bytes or pairs."""
    if layout == "rows":
        return block, block.shape[1]
    if layout == "columns":
        return np.ascontiguousarray(block.T), block.shape[0]
    panels = np.zeros((-(-block.shape[1] // width), depth, width), block.dtype)
    for number in range(len(panels)):
        part = block[:, number * width : (number + 1) * width]
        panels[number, : part.shape[0], : part.shape[1]] = part
    if layout in ("groups", "pairs", "bounded"):
        group = 2 if layout == "pairs" else 4 // block.itemsize
        panels = np.ascontiguousarray(panels.reshape(len(panels), -1, group, width).swapaxes(2, 3))
    return panels, depth * width


FLOAT32 = (dtypes.float32, dtypes.float32, dtypes.float32)


def product_code(target: CPUTarget, *arguments: object, keep_texts: bool = False) -> MachineCode:
    """The object of `emit_product`."""
    text, _, _ = emit_product(target, *arguments)  # type: ignore[arg-type]
    return assemble(text, target, keep_texts)
