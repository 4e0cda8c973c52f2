"""Memory on a GPU for programs without a GPU library: `DeviceArray`, and what arrays of other libraries are.

x = DeviceArray.from_numpy(values)
kernel[grid](x, …)
x.numpy()
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.runtime import dlpack
from tilewright.runtime.cuda.device import current_device, device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.streams import (
    CUPY,
    DLPACK,
    INTERFACE,
    LEGACY_DEFAULT,
    DevicePlace,
    not_captured,
    synchronize,
)


class DeviceArray:
    """A contiguous array in a GPU's memory. It is freed with this object; kernels must be done with it by then.

    It may be made, and filled by `from_numpy`, while a CUDA graph is captured: neither becomes part of the graph.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype | type, ordinal: int | None = None) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.ordinal = current_device().ordinal if ordinal is None else ordinal
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        with device(self.ordinal).active(), not_captured():
            action = f"allocating {self.nbytes} bytes on GPU {self.ordinal}"
            self.address = int(check(api().cuMemAlloc(max(self.nbytes, 1)), action))
        release = weakref.finalize(self, _free, self.address, self.ordinal, os.getpid())
        release.atexit = False  # the driver may be gone by then

    @classmethod
    def from_numpy(cls, values: np.ndarray, ordinal: int | None = None) -> DeviceArray:
        """A copy of an array on a GPU."""
        values = np.ascontiguousarray(values)
        result = cls(values.shape, values.dtype, ordinal)
        cuda, action = api(), "copying to a GPU"
        with device(result.ordinal).active(), not_captured():
            # On a stream of its own: the default one waits for others, which may be captured.
            stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING), action)
            check(cuda.cuMemcpyHtoDAsync(result.address, values.ctypes.data, values.nbytes, stream), action)
            check(cuda.cuStreamSynchronize(stream), action)
            check(cuda.cuStreamDestroy(stream), action)
        return result

    def numpy(self) -> np.ndarray:
        """A copy in host memory, of what the array holds when all kernels of the default stream are done."""
        return _on_host(self.ordinal, self.address, self.shape, self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "strides": None,
            "typestr": self.dtype.str,
            "version": 3,
            "stream": LEGACY_DEFAULT,
        }


@dataclass(frozen=True)
class DevicePart:
    """A contiguous part of a `DeviceArray`, from a byte on, as an array of its own shape and type."""

    whole: DeviceArray
    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def numpy(self) -> np.ndarray:
        """A copy in host memory, as `DeviceArray.numpy`."""
        return _on_host(self.whole.ordinal, self.whole.address + self.begin, self.shape, self.dtype)

    def write(self, values: np.ndarray) -> None:
        """Copy contiguous values of its shape and type there, after all kernels of the default stream."""
        with device(self.whole.ordinal).active():
            check(
                api().cuMemcpyHtoD(self.whole.address + self.begin, values.ctypes.data, values.nbytes),
                "copying to a GPU",
            )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        facts = self.whole.__cuda_array_interface__
        return {**facts, "data": (self.whole.address + self.begin, False), "shape": self.shape,
                "typestr": self.dtype.str}  # fmt: skip


def _on_host(ordinal: int, address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    synchronize(ordinal)
    result = np.empty(shape, dtype)
    with device(ordinal).active():
        check(api().cuMemcpyDtoH(result.ctypes.data, address, result.nbytes), "copying from a GPU")
    return result


def _free(address: int, ordinal: int, process: int) -> None:
    if os.getpid() != process:  # a fork has the object, but not the memory
        return
    with device(ordinal).active(), not_captured():
        check(api().cuMemFree(address), "freeing memory of a GPU")


@dataclass(frozen=True)
class DeviceMemory:
    """Where an array of some library lies: GPU and library, address, element type, extents and strides (elements)."""

    place: DevicePlace
    address: int
    element: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writable: bool = True


def is_device_array(value: Any) -> bool:
    """Whether an array of another library than PyTorch is in a GPU's memory."""
    if hasattr(type(value), "__dlpack_device__"):
        return dlpack.on_cuda(value)
    return hasattr(value, "__cuda_array_interface__")


def inspect(value: Any) -> DeviceMemory:
    """What an array in a GPU's memory is; raises `LaunchError` for element types that kernels do not know.

    CuPy's arrays, and those without DLPack, are read through ``__cuda_array_interface__``, which names a stream.
    Others are asked, through DLPack, to be ready on the legacy default stream.
    """
    if _is_cupy(value) or not hasattr(type(value), "__dlpack__"):
        return _through_interface(value)
    return _through_dlpack(value)


def _is_cupy(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "cupy"


def _through_interface(value: Any) -> DeviceMemory:
    facts = value.__cuda_array_interface__
    try:
        kind = np.dtype(getattr(value, "dtype", None) or facts["typestr"])
        address, read_only = facts["data"]
        shape = tuple(int(extent) for extent in facts["shape"])
        strides = facts.get("strides")
        strides = dlpack.packed(shape) if strides is None else tuple(stride // kind.itemsize for stride in strides)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"its '{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise LaunchError(f"a __cuda_array_interface__ that cannot be read: {reason}") from None
    try:
        element = dtypes.from_numpy(kind)
    except KeyError:
        raise LaunchError(f"an array of dtype {kind} cannot be passed to a kernel; convert it first") from None
    library = CUPY if _is_cupy(value) else INTERFACE
    return DeviceMemory(DevicePlace(_ordinal(address), library), int(address), element, shape, strides, not read_only)


def _ordinal(address: int) -> int:
    """The number of the GPU whose memory an address is in; an array without elements may be anywhere."""
    if address == 0:
        return current_device().ordinal
    cuda = api()
    kind = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(cuda.cuPointerGetAttribute(kind, address), f"asking what lies at {address:#x}"))


def _through_dlpack(value: Any) -> DeviceMemory:
    found = dlpack.borrow(value, LEGACY_DEFAULT)
    place = DevicePlace(found.device_id, DLPACK)
    return DeviceMemory(place, found.address, found.element, found.shape, found.strides, found.writable)
