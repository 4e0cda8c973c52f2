"""A function of the tile language applied to every element of arrays on a GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.launch.jit import JITFunction
from tilewright.launch.sizes import cdiv
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView

_BLOCK = {1: 4096, 2: 4096, 4: 2048, 8: 1024}  # elements of a CTA of 4 warps, by the size of the widest element
_WARPS = 4


@lru_cache(maxsize=256)
def _kernel(function: Any, kinds: tuple[str, ...], compute: tuple[bool, ...]) -> JITFunction:
    """The kernel of a function: `kinds` says for each array whether it is whole, a row, or one number."""
    names = [f"x{number}" for number in range(len(kinds))]
    places = {"whole": "index", "row": "index % columns", "number": "0"}
    loads = [
        f"    v{number} = tl.load({name} + {places[kind]}{', mask=mask' if kind != 'number' else ''})"
        f"{'.to(tl.float32)' if wide else ''}"
        for number, (name, kind, wide) in enumerate(zip(names, kinds, compute, strict=True))
    ]
    values = ", ".join(f"v{number}" for number in range(len(kinds)))
    source = "\n".join(
        [
            f"def elementwise(out, {', '.join(names)}, count, columns, BLOCK: tl.constexpr, MASK: tl.constexpr):",
            "    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "    mask = None",
            "    if MASK:",
            "        mask = index < count",
            *loads,
            f"    tl.store(out + index, function({values}).to(out.dtype.element_ty), mask=mask)",
            "",
        ]
    )
    return JITFunction.from_source(source, "elementwise", {"tl": tl, "function": function})


def elementwise(function: Any, *operands: Any, out: Any = None, out_dtype: Any = None) -> Any:
    """out = function(*operands), element by element; `function` is a `tilewright.jit` function of as many values.

    The first array gives the shape; others have it too, or are of the shape of its last axis, or have one element.
    All are contiguous, on one GPU.  float16 and bfloat16 reach the function as float32.  The result is of the type of
    the first array unless `out` or `out_dtype` says otherwise.  Raises `LaunchError`.
    """
    views = [arrays.view(value, f"operand {number}") for number, value in enumerate(operands)]
    if not views:
        raise LaunchError("elementwise needs an array")
    shape = views[0].shape
    element = views[0].element if out_dtype is None else arrays.element_type(out_dtype)
    target = arrays.view(arrays.empty(views[0], shape, element) if out is None else out, "out")
    if target.shape != shape or not target.contiguous:
        raise LaunchError(f"out must be contiguous of the shape {list(shape)}")
    kinds = tuple(_kind(found, shape, number) for number, found in enumerate(views))
    arrays.common_place([*views, target], "elementwise")
    count = 1
    for extent in shape:
        count *= extent
    if count:
        wide = tuple(found.element in (dtypes.float16, dtypes.bfloat16) for found in views)
        block = _BLOCK[max(found.element.itemsize for found in (*views, target))]
        kernel = _kernel(function, kinds, wide)
        kernel[(cdiv(count, block),)](
            target.base, *operands, count, shape[-1] if shape else 1, BLOCK=block, MASK=count % block != 0,
            num_warps=_WARPS,
        )  # fmt: skip
    return target.base


def _kind(found: ArrayView, shape: tuple[int, ...], number: int) -> str:
    if not found.contiguous:
        raise LaunchError(f"operand {number} must be contiguous")
    if found.shape == shape:
        return "whole"
    if found.shape == shape[-1:]:
        return "row"
    if all(extent == 1 for extent in found.shape):
        return "number"
    raise LaunchError(f"operand {number} has the shape {list(found.shape)}, which does not fit {list(shape)}")
