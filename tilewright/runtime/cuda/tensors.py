"""The tensors that callers give to an engine on a GPU, and get from it: in the GPU's memory, or the host's."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from tilewright import dtypes
from tilewright.errors import InputError, LaunchError
from tilewright.runtime import tensors
from tilewright.runtime.cuda import streams
from tilewright.runtime.cuda.memory import DeviceArray, is_device_array
from tilewright.runtime.cuda.memory import inspect as inspect_array

_ADDRESS_ALIGNMENT = 16  # bytes: kernels take addresses to be multiples of it
_ELSEWHERE = (
    ": move it there, or load an engine for the other GPU where that one is current (with torch.cuda.device(…):), or "
    "start the process with CUDA_VISIBLE_DEVICES"
)


@dataclass(slots=True)
class DeviceView:
    """A caller's tensor: where it lies, dtype name and shape; `owner` keeps it alive.

    `library` is the one that knows the stream to work on, "" for memory of the host.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: Any
    library: str
    copied: bool = False  # the caller's own memory could not be used

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtypes.BY_NAME[self.dtype].itemsize

    @property
    def on_host(self) -> bool:
        return not self.library

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.address + self.bytes

    @property
    def stream(self) -> int:
        """The stream on which the caller works with this tensor now, on the GPU where it lies."""
        if self.library == streams.INTERFACE:
            return streams.interface_stream(self.owner)
        return streams.LEGACY_DEFAULT


def view(value: Any, name: str, dtype: str, ordinal: int, role: str = "input") -> DeviceView:
    """Look at a caller's tensor; it must be contiguous where it is in the memory of GPU `ordinal`.

    PyTorch tensors that are not contiguous or not aligned are copied.  Raises `InputError`.
    """
    if tensors.is_torch(value) and value.device.type != "cpu":
        return _view_torch(value, name, dtype, ordinal, role)
    if not tensors.is_torch(value) and is_device_array(value):
        return _view_array(value, name, dtype, ordinal, role)
    found = tensors.view(value, name, dtype, role)
    return DeviceView(found.address, found.dtype, found.shape, found.owner, "", found.copied)


def _view_torch(tensor: Any, name: str, dtype: str, ordinal: int, role: str) -> DeviceView:
    if tensor.device.type != "cuda" or tensor.device.index != ordinal:
        raise InputError(f"{role} {name!r} is on {tensor.device}, the engine runs on cuda:{ordinal}{_ELSEWHERE}")
    plain = tensors.plain_torch(tensor, name, dtype, role)
    if plain.data_ptr() % _ADDRESS_ALIGNMENT:
        plain = plain.clone()
    copied = plain.data_ptr() != tensor.data_ptr()
    return DeviceView(plain.data_ptr(), dtype, tuple(plain.shape), plain, streams.TORCH, copied)


def _view_array(value: Any, name: str, dtype: str, ordinal: int, role: str) -> DeviceView:
    try:
        found = inspect_array(value)
    except LaunchError as error:
        raise InputError(f"{role} {name!r}: {error}") from error
    if found.element.name != dtype:
        raise InputError(
            f"{role} {name!r} is {found.element.name}, the engine was built for {dtype}: convert it before the call"
        )
    if found.place.ordinal != ordinal:
        raise InputError(f"{role} {name!r} is on {found.place}, the engine runs on GPU {ordinal}{_ELSEWHERE}")
    step = 1
    for extent, stride in zip(reversed(found.shape), reversed(found.strides), strict=True):
        if extent != 1 and stride != step or found.address % _ADDRESS_ALIGNMENT:
            raise InputError(
                f"{role} {name!r} is not contiguous from a multiple of {_ADDRESS_ALIGNMENT} bytes on: pass a copy"
            )
        step *= extent
    return DeviceView(found.address, dtype, found.shape, value, found.place.library)


def allocate(like: Any, dtype: str, shape: tuple[int, ...], ordinal: int) -> Any:
    """A fresh tensor of the kind of `like`: PyTorch, CuPy, or `DeviceArray` for other arrays on a GPU; for memory of
    the host what `runtime.tensors.allocate` gives."""
    if tensors.is_torch(like) and like.device.type == "cuda":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=tensors.torch_dtype(dtype), device=like.device)
    if tensors.is_torch(like) or like is None or not is_device_array(like):
        return tensors.allocate(like, dtype, shape)
    memory = DeviceArray(shape, dtypes.BY_NAME[dtype].numpy, ordinal)
    if type(like).__module__.partition(".")[0] == "cupy":
        return sys.modules["cupy"].asarray(memory)
    return memory
