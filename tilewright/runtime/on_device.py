"""Tensors that stay in a GPU's memory between the parts of an engine; what the host reads of them is copied once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.runtime import tensors
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.cuda import driver
from tilewright.runtime.cuda.driver import check
from tilewright.runtime.cuda.memory import inspect, is_device_array
from tilewright.runtime.cuda.tensors import allocate, view
from tilewright.runtime.tensors import TensorView


class OnDevice:
    """A contiguous tensor of PyTorch or another library in a GPU's memory."""

    __slots__ = ("_host", "dtype", "element", "shape", "tensor")

    def __init__(self, tensor: Any, element: str, shape: tuple[int, ...]) -> None:
        """`element` is the name of its type."""
        self.tensor, self.element, self.shape = tensor, element, shape
        self.dtype = dtypes.BY_NAME[element].numpy
        self._host: np.ndarray | None = None

    def host(self) -> np.ndarray:
        """Its elements in the host's memory, when all work in front has ended."""
        if self._host is None:
            self._host = self._read()
        return self._host

    def copy(self) -> OnDevice:
        """The same elements in memory of their own."""
        if tensors.is_torch(self.tensor):
            return OnDevice(self.tensor.clone(), self.element, self.shape)
        return on_device(self.host(), self.element, self.tensor)

    def fill(self, values: np.ndarray | OnDevice) -> None:
        """Take other elements, in the same memory."""
        self._host = None
        if tensors.is_torch(self.tensor):
            if isinstance(values, OnDevice) and tensors.is_torch(values.tensor):
                self.tensor.detach().copy_(values.tensor)
            else:
                self.tensor.detach().copy_(_torch_copy(host(values), self.element))
            return
        found, data = inspect(self.tensor), np.ascontiguousarray(host(values))
        with _waited(found.place.ordinal):
            check(driver.api().cuMemcpyHtoD(found.address, data.ctypes.data, data.nbytes), "copying to a GPU")

    def _read(self) -> np.ndarray:
        if tensors.is_torch(self.tensor):
            return tensors.as_array(tensors.view(self.tensor.detach().cpu(), "", self.element))
        found, result = inspect(self.tensor), np.empty(self.shape, self.dtype)
        with _waited(found.place.ordinal):
            check(driver.api().cuMemcpyDtoH(result.ctypes.data, found.address, result.nbytes), "copying from a GPU")
        return result


def is_on_gpu(value: Any) -> bool:
    """Whether a caller's tensor is in a GPU's memory."""
    if tensors.is_torch(value):
        return bool(value.is_cuda)
    if isinstance(value, np.ndarray) or value is None:
        return False
    return is_device_array(value)


def viewed(value: Any, name: str, element: str, ordinal: int | None, role: str) -> tuple[OnDevice, TensorView]:
    """A caller's tensor in the memory of GPU `ordinal`, None for any, and where it lies. Raises `InputError`."""
    if ordinal is None:
        ordinal = value.device.index if tensors.is_torch(value) else inspect(value).place.ordinal
    found = view(value, name, element, ordinal, role)
    place = TensorView(found.address, element, found.shape, found.owner, found.copied)
    return OnDevice(found.owner, element, found.shape), place


def host(value: Any) -> Any:
    """A value between parts as the host reads it."""
    return value.host() if isinstance(value, OnDevice) else value


def on_device(values: np.ndarray, element: str, like: Any) -> OnDevice:
    """An array in a GPU's memory, of the library and on the GPU of `like`."""
    if tensors.is_torch(like):
        return OnDevice(_torch_copy(values, element).to(like.device), element, values.shape)
    found = OnDevice(allocate(like, element, values.shape, inspect(like).place.ordinal), element, values.shape)
    found.fill(values)
    return found


def as_row(value: Any) -> Any:
    """A value with a dimension of 1 in front."""
    if not isinstance(value, OnDevice):
        return value[None]
    if tensors.is_torch(value.tensor):
        return OnDevice(value.tensor[None], value.element, (1, *value.shape))
    return value.host()[None]


def joined(rows: Sequence[Any]) -> OnDevice | None:
    """PyTorch's tensors of one shape, one after the other; None where there are others among them."""
    if not rows or not all(isinstance(row, OnDevice) and tensors.is_torch(row.tensor) for row in rows):
        return None
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        return None
    found = sys.modules["torch"].cat([row.tensor for row in rows])
    return OnDevice(found, rows[0].element, tuple(found.shape))


def _torch_copy(values: np.ndarray, element: str) -> Any:
    """A PyTorch tensor of the host with an array's elements, in memory of its own."""
    torch = sys.modules["torch"]
    result = tensors.allocate(torch.empty(0, device="cpu"), element, values.shape)
    tensors.as_array(tensors.view(result, "", element))[...] = values
    return result


def _waited(ordinal: int) -> Any:
    """A context in which a GPU's memory can be copied: all work on it has ended."""

    @contextmanager
    def active() -> Any:
        with devices.device(ordinal).active():
            check(driver.api().cuCtxSynchronize(), "waiting for a GPU")
            yield

    return active()
