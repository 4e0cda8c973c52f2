"""Tensor maps: how the tensor memory accelerator (sm_90 and newer) is told of a tensor in memory.

A map is 128 bytes that the driver writes (cuTensorMapEncodeTiled) and a kernel takes by value.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.dtypes import DType, float32
from tilewright.errors import LaunchError
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.program import TensorMapUse

BYTES = 128
_KEPT = 1024  # maps of one parameter; a program that shows a kernel more tensors than this starts over

# Address, extents and strides in elements, slowest axis first; then, if wanted, whether float32 is rounded to tf32, and
# how far neighbours of a box are apart along each axis.
_Extents = tuple[int, ...]
Tensor = (
    tuple[int, _Extents, _Extents]
    | tuple[int, _Extents, _Extents, bool]
    | tuple[int, _Extents, _Extents, bool, _Extents]
)

# Types whose bits are only moved are unsigned integers of their size.
# Stores that take the lesser or greater number need to know signed ones.
_KINDS = {
    "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32", "float64": "FLOAT64",
    "int32": "INT32", "int64": "INT64",
}  # fmt: skip
_BY_SIZE = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}


class TensorMaps:
    """The maps of one parameter of a kernel, encoded once for each tensor that it is launched with."""

    def __init__(self, use: TensorMapUse, name: str, active: Callable[[], Any]) -> None:
        self.use = use
        self.name = name  # of the parameter, for errors
        self.active = active  # makes the GPU's context current, without which the driver describes nothing
        self._maps: dict[Tensor, bytes] = {}

    def __call__(self, tensor: Tensor) -> bytes:
        """The map of a tensor; raises `LaunchError` for one that cannot be described."""
        found = self._maps.get(tensor)
        if found is None:
            with self.active():
                found = encode(self.use, *tensor, name=self.name)
            if len(self._maps) >= _KEPT:
                self._maps.clear()
            self._maps[tensor] = found
        return found


def encode(
    use: TensorMapUse,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    rounded: bool = False,
    steps: tuple[int, ...] | None = None,
    *,
    name: str = "tensor",
) -> bytes:
    """The map of the tensor at `address` with these extents and strides (elements, slowest axis first).

    `rounded`: float32 elements are rounded to tf32 on their way to shared memory.  `steps`: along each axis, how far
    the elements of a box are apart (1 along the last).
    Raises `LaunchError` naming the rule that the tensor or the box breaks.
    """
    steps = steps or (1,) * len(shape)
    _validate(use, address, shape, strides, steps, name)
    cuda = api()
    element = use.element
    kind = getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_kind(element, rounded)}")
    swizzle = f"{use.swizzle}B" if use.swizzle else "NONE"
    promotion = f"L2_{use.l2_promotion}B" if use.l2_promotion else "NONE"
    fill = "NAN_REQUEST_ZERO_FMA" if use.fill == "nan" else "NONE"
    encoded = check(
        cuda.cuTensorMapEncodeTiled(
            kind,
            len(shape),
            address,
            [cuda.cuuint64_t(extent) for extent in reversed(shape)],
            [cuda.cuuint64_t(stride * element.itemsize) for stride in reversed(strides[:-1])],
            [cuda.cuuint32_t(extent * step) for extent, step in zip(reversed(use.box), reversed(steps), strict=True)],
            [cuda.cuuint32_t(step) for step in reversed(steps)],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            getattr(cuda.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
            getattr(cuda.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
        ),
        f"describing '{name}', {list(shape)} of {element.name}, in boxes of {list(use.box)}",
    )
    return _bytes(encoded)


def _validate(
    use: TensorMapUse, address: int, shape: _Extents, strides: _Extents, steps: _Extents, name: str
) -> None:  # fmt: skip
    size = use.element.itemsize

    def require(condition: bool, problem: str) -> None:
        if not condition:
            raise LaunchError(f"'{name}' cannot be read by tiles in hardware: {problem}")

    require(len(shape) == len(strides) == len(use.box), f"it has {len(shape)} axes, the kernel's tile {len(use.box)}")
    require(1 <= len(shape) <= 5, f"tensors of 1 to 5 axes can be described, it has {len(shape)}")
    require(address % 16 == 0, f"its address {address:#x} is not a multiple of 16 bytes")
    require(strides[-1] == 1, f"its last axis has a stride of {strides[-1]} elements, and must be contiguous")
    require(all(0 < extent < 1 << 32 for extent in shape), f"its extents {list(shape)} must be 1 to 2**32 - 1")
    for stride in strides[:-1]:
        require(
            stride * size % 16 == 0 and 0 <= stride * size < 1 << 40,
            f"a stride of {stride} elements of {size} bytes is not a multiple of 16 bytes",
        )
    require(len(steps) == len(shape) and steps[-1] == 1, f"its steps {list(steps)} are not one an axis, the last 1")
    require(all(1 <= step <= 8 for step in steps), f"its steps {list(steps)} must be 1 to 8")
    reach = [extent * step for extent, step in zip(use.box, steps, strict=True)]
    require(all(1 <= extent <= 256 for extent in reach), f"the box {reach} has extents beyond 256")
    row = use.box[-1] * size
    require(row % 16 == 0, f"the last axis of the box {list(use.box)} is {row} bytes, and must be a multiple of 16")
    require(
        not use.swizzle or row <= use.swizzle,
        f"the last axis of the box is {row} bytes, more than the pattern of {use.swizzle}",
    )


def _kind(element: DType, rounded: bool) -> str:
    if rounded:
        if element != float32:
            raise LaunchError(f"float32 alone is rounded to tf32, the tensor has elements of {element.name}")
        return "TFLOAT32"
    return _KINDS.get(element.name) or _BY_SIZE[element.itemsize]


def _bytes(encoded: Any) -> bytes:
    return ctypes.string_at(int(encoded.getPtr()), BYTES)
