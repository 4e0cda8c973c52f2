"""Memory that arrays of other libraries lend through DLPack, read from the record in the capsule.

NumPy's own reader knows neither bfloat16 nor the fp8 types, takes every record without a version for read-only, and
believes what a record says: one without extents ends the process.

tensor = borrow(array)          # element type, address, extents, strides; `array` is asked for its capsule
tensor.numpy()                  # the same memory as a NumPy array

A `Borrowed` tensor owns its record: when it is dropped, and every array that `numpy` made of it, the record's deleter
is called, which lets the exporter free the memory.  The layout of the records is that of DLPack's C header, versions
0.x (``dltensor``) and 1.x (``dltensor_versioned``).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, a_kind

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 11, 13  # device types
HOST = (CPU, CUDA_HOST, ROCM_HOST)  # memory that the CPU reads and writes
ON_CUDA = (CUDA, CUDA_MANAGED)

_VERSION = (1, 0)  # the newest major version that is read here
_READ_ONLY, _COPIED = 1, 2  # flags


class _Tensor(ctypes.Structure):
    """``DLTensor``"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # called with the GIL held, as NumPy calls it


class _Managed(ctypes.Structure):
    """``DLManagedTensor``: what capsules called ``dltensor`` point to."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``: what capsules called ``dltensor_versioned`` point to."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# Element types by type code and bits: integers, floats, bfloat16, booleans, and the fp8 formats by number.
_ELEMENTS = {
    **{(0, bits): dtypes.BY_NAME[f"int{bits}"] for bits in (8, 16, 32, 64)},
    **{(1, bits): dtypes.BY_NAME[f"uint{bits}"] for bits in (8, 16, 32, 64)},
    **{(2, bits): dtypes.BY_NAME[f"float{bits}"] for bits in (16, 32, 64)},
    (4, 16): dtypes.bfloat16,
    (6, 8): dtypes.int1,
    (10, 8): dtypes.BY_NAME["float8e4nv"],
    (11, 8): dtypes.BY_NAME["float8e4b8"],
    (12, 8): dtypes.BY_NAME["float8e5"],
    (13, 8): dtypes.BY_NAME["float8e5b16"],
}

_api = ctypes.pythonapi
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_set_name = _api.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

_NEW = b"dltensor_versioned"
# By the name of a capsule: what it is called when it has been read (the capsule keeps a pointer to that name, so that
# it must live as long as the process), and the record's layout.
_CAPSULES: tuple[tuple[bytes, bytes, type[_Managed] | type[_Versioned]], ...] = (
    (_NEW, b"used_dltensor_versioned", _Versioned),
    (b"dltensor", b"used_dltensor", _Managed),
)
_MOST_AXES = 64  # NumPy has no more
_FIRST_PAGE = 4096  # addresses below belong to nobody
_ADDRESSES = 2**56  # no processor gives a program more


class Borrowed:
    """A tensor of another library: `address` (bytes), `element`, `shape`, `strides` (elements), device, `writable`.

    Raises `LaunchError` for a record that is not read here, or that describes no memory.
    """

    def __init__(self, capsule: Any, exporter: str) -> None:
        self._exporter = exporter
        record = _take(capsule, exporter)
        if record.deleter:
            release = weakref.finalize(self, _Deleter(record.deleter), ctypes.addressof(record))
            release.atexit = False  # the exporter may be gone by then
        flags = 0
        if isinstance(record, _Versioned):
            if record.major > _VERSION[0]:
                raise LaunchError(
                    f"this {exporter} exports DLPack {record.major}.{record.minor}; "
                    f"tilewright reads versions up to {_VERSION[0]}.x: pass a NumPy array"
                )
            flags = record.flags
        if flags & _COPIED:
            raise LaunchError(
                f"this {exporter} lends only a copy of its memory through DLPack, so that nothing would see what a "
                "kernel stores; make the copy yourself and pass that"
            )
        self.writable = not flags & _READ_ONLY
        tensor = record.tensor
        rank = tensor.ndim
        if not 0 <= rank <= _MOST_AXES:
            raise _damaged(exporter, f"{rank} axes: there are 0 to {_MOST_AXES}")
        if rank and not tensor.shape:
            raise _damaged(exporter, f"{rank} axes and no extents")
        self.device_type, self.device_id = tensor.device_type, tensor.device_id
        self.element = _element(tensor, exporter)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[:rank])
        self.strides = tuple(tensor.strides[:rank]) if tensor.strides else packed(self.shape)
        size = self.element.itemsize
        _check_memory(self.address, size, self.shape, [stride * size for stride in self.strides], exporter)

    def numpy(self) -> np.ndarray:
        """The same memory as a NumPy array, which keeps this record; raises `LaunchError` for memory of a device."""
        self.require_host()
        try:
            array = np.asarray(_Described(self))
        except (OverflowError, ValueError) as error:  # extents or strides that no array has
            raise _damaged(self._exporter, str(error)) from error
        return array.view(self.element.numpy)

    def require_host(self) -> None:
        """Raise `LaunchError` unless the CPU can use the memory."""
        if self.device_type not in HOST:
            raise LaunchError(
                f"this {self._exporter} is in the memory of a device (DLPack type {self.device_type}, "
                f"number {self.device_id}); copy it to the CPU, or pass a NumPy array"
            )


class _Described:
    """What NumPy reads a borrowed tensor through; bytes of elements that it does not know go as integers."""

    def __init__(self, tensor: Borrowed) -> None:
        self._tensor = tensor
        size = tensor.element.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{size}").str,
            "data": (tensor.address, not tensor.writable),
            "shape": tensor.shape,
            "strides": tuple(stride * size for stride in tensor.strides),
        }


def as_numpy(value: Any) -> np.ndarray:
    """The memory that `value` lends, which the CPU must reach, as an array that keeps it alive.

    NumPy reads what it can, because it is quicker.  Raises `LaunchError` with the reason where there is no such memory.
    """
    exporter = type(value).__name__
    capsule = _capsule(value)
    if _is_valid(capsule, _NEW) and _numpy_may_read(_Versioned.from_address(_get_pointer(capsule, _NEW))):
        try:
            array = np.from_dlpack(_Lent(capsule), copy=False)
        except Exception:  # the capsule is as it was: it is read here, or refused with a reason
            return Borrowed(capsule, exporter).numpy()
        if not array.flags.c_contiguous:
            address, size = array.__array_interface__["data"][0], array.itemsize
            _check_memory(address, size, array.shape, array.strides, exporter)
        return array
    return Borrowed(capsule, exporter).numpy()


class _Lent:
    """A capsule in the hands of NumPy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


def _numpy_may_read(record: _Versioned) -> bool:
    """Whether NumPy's reader survives a record, and takes it for what it is."""
    tensor = record.tensor
    rank = tensor.ndim
    described = 0 <= rank <= _MOST_AXES and (bool(tensor.shape) or not rank)
    address = (tensor.data or 0) + tensor.byte_offset
    somewhere = _FIRST_PAGE <= address < _ADDRESSES and tensor.device_type in HOST
    return described and somewhere and record.major == _VERSION[0] and not record.flags & _COPIED


def borrow(value: Any, stream: int | None = None) -> Borrowed:
    """The memory that `value` lends through ``__dlpack__``; raises `LaunchError` with the reason where it cannot.

    `stream` is the one of a GPU on which the memory is to be ready; there is none for the CPU's memory.
    """
    options = {} if stream is None else {"stream": stream}
    return Borrowed(_capsule(value, **options), type(value).__name__)


def _capsule(value: Any, **options: Any) -> Any:
    """What ``__dlpack__`` gives; raises `LaunchError` where it fails."""
    try:
        try:
            return value.__dlpack__(max_version=_VERSION, copy=False, **options)
        except TypeError:  # an exporter from before there were versions
            return value.__dlpack__(**options)
    except Exception as error:  # whatever the exporter raises
        raise LaunchError(
            f"cannot read this {type(value).__name__} through DLPack ({str(error) or type(error).__name__}); "
            "copy it to the CPU, or pass a NumPy array"
        ) from error


def on_cuda(value: Any) -> bool:
    """Whether an exporter says that its memory is a CUDA GPU's; raises `LaunchError` for an answer that is none."""
    try:
        kind, _ = value.__dlpack_device__()
        return int(kind) in ON_CUDA
    except Exception as error:  # whatever the exporter raises
        raise LaunchError(
            f"the __dlpack_device__ of this {type(value).__name__} does not tell where its memory is "
            f"({str(error) or type(error).__name__}); pass a NumPy array or a PyTorch tensor"
        ) from error


def _take(capsule: Any, exporter: str) -> _Managed | _Versioned:
    """The record of a capsule, which is renamed so that nobody else takes it."""
    for name, used, layout in _CAPSULES:
        if _is_valid(capsule, name):
            record = layout.from_address(_get_pointer(capsule, name))
            _set_name(capsule, used)
            return record
    raise LaunchError(
        f"the __dlpack__ of this {exporter} returned {a_kind(capsule)} and no DLPack capsule that has not been read "
        "yet; pass a NumPy array"
    )


def _element(tensor: _Tensor, exporter: str) -> DType:
    element = _ELEMENTS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if element is None:
        lanes = f", {tensor.lanes} lanes" if tensor.lanes != 1 else ""
        raise LaunchError(
            f"this {exporter} has elements of a type (DLPack code {tensor.code}, {tensor.bits} bits{lanes}) that "
            "kernels do not know; convert it first"
        )
    return element


def _check_memory(address: int, size: int, shape: Sequence[int], strides: Sequence[int], exporter: str) -> None:
    """Raise `LaunchError` unless all elements, of `size` bytes and so many bytes apart, may have memory."""
    if shape and min(shape) < 0:
        raise _damaged(exporter, f"the extents {list(shape)}")
    low = high = address
    count = size
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        low, high = (low, high + reach) if reach > 0 else (low + reach, high)
        count *= extent
    if count and (low < _FIRST_PAGE or high + size > _ADDRESSES or count > _ADDRESSES):
        raise _damaged(
            exporter, f"elements at {low:#x} to {high:#x} (extents {list(shape)}, bytes between them {list(strides)})"
        )


def _damaged(exporter: str, defect: str) -> LaunchError:
    return LaunchError(f"the DLPack record of this {exporter} describes no memory: {defect}; pass a NumPy array")


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))[: len(shape)]
