"""Tensor maps: how the tensor memory accelerator (sm_90 and newer) is told of a tensor in memory.

A map is 128 bytes that the driver writes (cuTensorMapEncodeTiled) and a kernel takes by value.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.dtypes import DType, float32
from tilewright.errors import LaunchError
from tilewright.runtime.cuda.driver import api, check, failure
from tilewright.runtime.gpu_program import TensorMapUse

BYTES = 128
_CACHED_MAPS = 1024  # maps of one parameter; a program that shows a kernel more tensors than this starts over

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
        self._forms: dict[tuple[Any, ...], TensorForm] = {}  # by what tensors of a layer and the next have in common

    def __call__(self, tensor: Tensor) -> bytes:
        """The map of a tensor; raises `LaunchError` for one that cannot be described."""
        found = self._maps.get(tensor)
        if found is None:
            form = self._forms.get(tensor[1:])
            if len(self._maps) >= _CACHED_MAPS:
                self._maps.clear()
                self._forms.clear()
            if form is None:
                form = self._forms[tensor[1:]] = TensorForm(self.use, *tensor[1:], name=self.name)
            found = self._maps[tensor] = form.at(tensor[0], self.active)
        return found


class TensorForm:
    """Extents and strides (elements, slowest axis first) of tensors that a parameter may be shown.

    `rounded`: float32 elements are rounded to tf32 on their way to shared memory.  `steps`: along each axis, how far
    the elements of a box are apart (1 along the last).
    Raises `LaunchError` naming the rule that the tensor or the box breaks.
    """

    def __init__(
        self, use: TensorMapUse, shape: _Extents, strides: _Extents, rounded: bool = False,
        steps: _Extents | None = None, *, name: str = "tensor",
    ) -> None:  # fmt: skip
        self._name = name
        self._text = f"{list(shape)} of {use.element.name}, in boxes of {list(use.box)}"
        steps = steps or (1,) * len(shape)
        problem = _problem(use, shape, strides, steps)
        if problem:
            raise self._refused(problem)
        size = use.element.itemsize
        kind, *codes = _codes(_kind(use.element, rounded), use.swizzle, use.l2_promotion, use.fill)
        reach = [extent * step for extent, step in zip(use.box, steps, strict=True)]
        self._arguments_before = (kind, len(shape))
        self._arguments_after = (
            _longs(shape), _longs([stride * size for stride in strides[:-1]]), _words(reach), _words(steps), *codes,
        )  # fmt: skip

    def at(self, address: int, active: Callable[[], Any] | None = None) -> bytes:
        """The map of the tensor at `address`; `active` makes the GPU's context current, in case it is not.

        Raises `LaunchError` for an address that no tensor may have, `DeviceError` when the driver refuses.
        """
        if address % 16:
            raise self._refused(f"its address {address:#x} is not a multiple of 16 bytes")
        memory = ctypes.create_string_buffer(BYTES + 64)
        start = -(-ctypes.addressof(memory) // 64) * 64
        status = _driver_encode()(start, *self._arguments_before, address, *self._arguments_after)
        if status and active is not None:
            with active():
                status = _driver_encode()(start, *self._arguments_before, address, *self._arguments_after)
        if status:
            raise failure(status, f"describing '{self._name}', {self._text}")
        return ctypes.string_at(start, BYTES)

    def _refused(self, problem: str) -> LaunchError:
        return LaunchError(f"'{self._name}' cannot be read by tiles in hardware: {problem}")


@functools.cache
def _driver_encode() -> Callable[..., int]:
    """The driver's cuTensorMapEncodeTiled, called with numbers and arrays: a new shape may ask for hundreds of maps."""
    cuda = api()
    found = check(cuda.cuGetProcAddress(b"cuTensorMapEncodeTiled", 12000, 0), "finding cuTensorMapEncodeTiled")
    address = found[0] if isinstance(found, tuple) else found
    pointer, number = ctypes.c_void_p, ctypes.c_int
    prototype = ctypes.CFUNCTYPE(
        number, pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, *[number] * 4
    )
    call: Callable[..., int] = prototype(int(address))
    return call


@functools.cache
def _codes(kind: str, swizzle: int, promotion: int, fill: str) -> tuple[int, int, int, int, int]:
    """The driver's numbers for an element type, no interleaving, a swizzle, what L2 fetches, and the fill."""
    cuda = api()
    names = (
        (cuda.CUtensorMapDataType, f"DATA_TYPE_{kind}"),
        (cuda.CUtensorMapInterleave, "INTERLEAVE_NONE"),
        (cuda.CUtensorMapSwizzle, f"SWIZZLE_{swizzle}B" if swizzle else "SWIZZLE_NONE"),
        (cuda.CUtensorMapL2promotion, f"L2_PROMOTION_L2_{promotion}B" if promotion else "L2_PROMOTION_NONE"),
        (cuda.CUtensorMapFloatOOBfill, "FLOAT_OOB_FILL_" + ("NAN_REQUEST_ZERO_FMA" if fill == "nan" else "NONE")),
    )
    first, second, third, fourth, fifth = (int(getattr(kinds, f"CU_TENSOR_MAP_{name}")) for kinds, name in names)
    return first, second, third, fourth, fifth


def _longs(extents: Sequence[int]) -> Any:
    """An array of 64-bit numbers, fastest axis first."""
    return (ctypes.c_uint64 * max(1, len(extents)))(*reversed(extents))


def _words(extents: Sequence[int]) -> Any:
    """An array of 32-bit numbers, fastest axis first."""
    return (ctypes.c_uint32 * len(extents))(*reversed(extents))


def _problem(use: TensorMapUse, shape: _Extents, strides: _Extents, steps: _Extents) -> str:
    """The rule that a tensor's extents, strides or the box break, or ""."""
    size = use.element.itemsize
    if not len(shape) == len(strides) == len(use.box):
        return f"it has {len(shape)} axes, the kernel's tile {len(use.box)}"
    if not 1 <= len(shape) <= 5:
        return f"tensors of 1 to 5 axes can be described, it has {len(shape)}"
    if strides[-1] != 1:
        return f"its last axis has a stride of {strides[-1]} elements, and must be contiguous"
    if not all(0 < extent < 1 << 32 for extent in shape):
        return f"its extents {list(shape)} must be 1 to 2**32 - 1"
    for stride in strides[:-1]:
        if stride * size % 16 or not 0 <= stride * size < 1 << 40:
            return f"a stride of {stride} elements of {size} bytes is not a multiple of 16 bytes"
    if len(steps) != len(shape) or steps[-1] != 1:
        return f"its steps {list(steps)} are not one an axis, the last 1"
    if not all(1 <= step <= 8 for step in steps):
        return f"its steps {list(steps)} must be 1 to 8"
    if not all(1 <= extent * step <= 256 for extent, step in zip(use.box, steps, strict=True)):
        reach = [extent * step for extent, step in zip(use.box, steps, strict=True)]
        return f"the box {reach} has extents beyond 256"
    row = use.box[-1] * size
    if row % 16:
        return f"the last axis of the box {list(use.box)} is {row} bytes, and must be a multiple of 16"
    if use.swizzle and row > use.swizzle:
        return f"the last axis of the box is {row} bytes, more than the pattern of {use.swizzle}"
    return ""


def _kind(element: DType, rounded: bool) -> str:
    if rounded:
        if element != float32:
            raise LaunchError(f"float32 alone is rounded to tf32, the tensor has elements of {element.name}")
        return "TFLOAT32"
    return _KINDS.get(element.name) or _BY_SIZE[element.itemsize]
