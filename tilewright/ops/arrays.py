"""The caller's arrays: device, type, layout, and allocation of arrays of the same kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, a_kind
from tilewright.ir.types import PointerType
from tilewright.launch.arguments import classify, element_of
from tilewright.launch.cuda import target_of
from tilewright.measure import timers
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.cuda import driver, memory, streams
from tilewright.runtime.cuda.driver import check
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import DevicePlace
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine
from tilewright.targets.registry import get_target

INTERPRETED = "cuda:sm_90a"  # whose kernels are interpreted where arrays are in the CPU's memory
_TORCH_NAMES = {"int1": "bool", "float8e5": "float8_e5m2", "float8e4nv": "float8_e4m3fn"}


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array as kernels see it: extents and strides in elements; `place` is None in the CPU's memory."""

    base: Any
    address: int
    element: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    place: DevicePlace | None

    def pointer(self) -> str:
        """The type of a pointer to its elements, as text."""
        return f"*{self.element}"

    def changed(self, shape: Sequence[int], strides: Sequence[int]) -> ArrayView:
        """The same memory seen with other extents and strides."""
        return ArrayView(self.base, self.address, self.element, tuple(shape), tuple(strides), self.place)

    @property
    def described(self) -> str:
        """Its shape, for messages; with its strides where it is not contiguous."""
        apart = "" if self.contiguous else f" with strides {list(self.strides)}: make it contiguous"
        return f"{list(self.shape)}{apart}"

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in order without gaps."""
        return all(
            extent == 1 or stride == packed
            for extent, stride, packed in zip(self.shape, self.strides, packed_strides(self.shape), strict=True)
        )


def view(value: Any, name: str) -> ArrayView:
    """What an array is; raises `LaunchError` naming the parameter for what is none."""
    kind, address = classify(value)
    element = getattr(getattr(kind, "type", None), "element", None)
    place: DevicePlace | None = getattr(kind, "place", None)
    if not isinstance(element, PointerType):
        raise LaunchError(f"{name} must be an array, got {a_kind(value)}")
    if not hasattr(value, "shape"):  # known by DLPack or __cuda_array_interface__ only
        found = memory.inspect(value)
        return ArrayView(value, address, element.element, found.shape, found.strides, place)
    shape = tuple(value.shape)
    strides = packed_strides(shape) if 0 in shape else _strides(value)  # NumPy has any where there is no element
    return ArrayView(value, address, element.element, shape, strides, place)


def float_view(value: Any, name: str) -> ArrayView:
    """The same of an array of floats of 16 or 32 bits; raises `LaunchError` for others."""
    found = view(value, name)
    if found.element not in FLOATS:
        raise LaunchError(f"{name} must be float32, float16 or bfloat16, got {found.element.name}")
    return found


def _strides(value: Any) -> tuple[int, ...]:
    if callable(getattr(value, "stride", None)):  # PyTorch
        return tuple(value.stride())
    if isinstance(value, np.ndarray):
        return tuple(stride // value.itemsize for stride in value.strides)
    return memory.inspect(value).strides


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def element_type(kind: Any) -> DType:
    """The element type that a dtype of PyTorch, NumPy or the tile language names; raises `LaunchError`."""
    return element_of(kind)


def result_type(default: DType, out: ArrayView | None, out_dtype: Any) -> DType:
    """The element type of a result: that of `out`, the one that is named, or the default."""
    if out is not None:
        return out.element
    return default if out_dtype is None else element_type(out_dtype)


def empty(like: ArrayView, shape: Sequence[int], element: DType) -> Any:
    """A new array on the GPU, and of the library, of `like`; raises `LaunchError` for libraries without any."""
    if like.place is None and isinstance(like.base, np.ndarray):
        return np.empty(tuple(shape), element.numpy)
    module = type(like.base).__module__.partition(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        dtype = getattr(torch, _TORCH_NAMES.get(element.name, element.name))
        return torch.empty(tuple(shape), dtype=dtype, device=like.base.device)
    if isinstance(like.base, DeviceArray):
        return DeviceArray(tuple(shape), element.numpy, like.base.ordinal)
    if module == "cupy":
        return sys.modules["cupy"].empty(tuple(shape), element.numpy)
    if like.place is not None and like.place.library == streams.DLPACK:
        raise LaunchError(_NO_STREAMS)
    raise LaunchError(f"results for arrays of type {type(like.base).__name__} must be given: pass out=")


def empty_like(found: ArrayView) -> ArrayView:
    """New memory with the extents and strides of an array, for what is stored while a call is timed."""
    return view(empty(found, _extents(found), found.element), "out").changed(found.shape, found.strides)


def cold(weights: ArrayView, ordinal: int, l2_bytes: int) -> list[ArrayView]:
    """Weights on a GPU, and copies, so many that each of launches on them by turns finds its own out of the L2
    cache."""
    extents, found = _extents(weights), [weights]
    size = math.prod(extents) * weights.element.itemsize
    with devices.device(ordinal).active():
        while len(found) < timers.cold_copies(size, l2_bytes):
            copy = DeviceArray(extents, weights.element.numpy, ordinal)
            check(driver.api().cuMemcpyDtoD(copy.address, weights.address, size), "copying weights")
            found.append(view(copy, "weights").changed(weights.shape, weights.strides))
    return found


def _extents(found: ArrayView) -> tuple[int, ...]:
    """Extents of a contiguous array that has room for one with any strides."""
    if found.contiguous:
        return found.shape
    return (1 + sum((extent - 1) * stride for extent, stride in zip(found.shape, found.strides, strict=True)),)


_NO_STREAMS = (
    "operations take arrays of one library that has streams: PyTorch, CuPy or DeviceArray; others become tensors of "
    "PyTorch by torch.from_dlpack, arrays of CuPy by cupy.from_dlpack"
)


def common_place(views: Sequence[ArrayView], operation: str) -> DevicePlace | None:
    """The one GPU that all arrays are on; None for the CPU's memory, which only interpreted calls may be in."""
    ordinals = {found.place.ordinal if found.place is not None else None for found in views}
    if len(ordinals) > 1:
        raise LaunchError(f"{operation} got arrays on several devices: move them to one GPU")
    (place,) = {found.place for found in views[:1]}
    if place is None and not settings.interpret:
        raise LaunchError(f"{operation} is for arrays on a GPU: move them there, or set TILEWRIGHT_INTERPRET=1")
    return place


def target_at(ordinal: int | None) -> Target:
    """The target of a GPU by its number; with None that whose kernels are interpreted."""
    return get_target(INTERPRETED) if ordinal is None else target_of(ordinal)


def machine_at(place: DevicePlace | None) -> Machine:
    """The rates of the GPU at a place; with None those of the target whose kernels are interpreted."""
    return target_at(None if place is None else place.ordinal).machine()


def stream_of(views: Sequence[ArrayView]) -> int:
    """The stream of the arrays' library on which a call belongs; others of another library wait for it not.

    Raises `LaunchError` where arrays of several libraries, or of DLPack alone, would need to be ordered.
    """
    libraries = {found.place.library for found in views if found.place is not None}
    place = next(found.place for found in views if found.place is not None)
    if len(libraries) > 1 or place.library == streams.DLPACK:
        raise LaunchError(_NO_STREAMS)
    if place.library == streams.INTERFACE:
        return streams.interface_stream(views[0].base)
    return streams.current_stream(place.library)(place.ordinal)


def capturing(stream: int, ordinal: int) -> bool:
    """Whether a CUDA graph is being captured on a stream, so that nothing may be measured."""
    with devices.device(ordinal).active():
        status = check(driver.api().cuStreamIsCapturing(stream), "asking whether a graph is captured")
    return int(status) != 0


FLOATS = (dtypes.bfloat16, dtypes.float16, dtypes.float32)
NARROW_TYPES = (dtypes.int8, dtypes.uint8, dtypes.float8e4nv, dtypes.float8e5)  # multiplied, and quantized to


def torch_stream() -> Callable[[int], int]:
    """PyTorch's current stream by the number of a GPU."""
    return streams.current_stream(streams.TORCH)
