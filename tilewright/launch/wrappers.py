"""Arguments that stand for an array: by dtype alone, with another dtype, or by address.

MockTensor(torch.float32)                        # for `kernel.warmup`: an aligned array that does not exist
reinterpret(x, tl.float8e5)                      # x's memory as another dtype
pointer(address, tl.float32)                     # memory that some other library owns
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import LaunchError, brief
from tilewright.language.types import dtype


class MockTensor:
    """An array of which only the dtype is known; it counts as aligned to 16 bytes and cannot be launched on."""

    def __init__(self, dtype: Any, shape: Sequence[int] | None = None) -> None:
        self.dtype = dtype
        self.shape = list(shape) if shape is not None else [1]

    @staticmethod
    def wrap_dtype(value: Any) -> Any:
        """A dtype of PyTorch, NumPy or the language as a `MockTensor`; other values as they are."""
        torch = sys.modules.get("torch")
        is_dtype = isinstance(value, (dtype, np.dtype)) or torch is not None and isinstance(value, torch.dtype)
        return MockTensor(value) if is_dtype else value

    def stride(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis, row-major."""
        strides = [1]
        for extent in reversed(self.shape[1:]):
            strides.append(strides[-1] * extent)
        return tuple(reversed(strides))

    @staticmethod
    def data_ptr() -> int:
        """Address 0: aligned."""
        return 0

    @staticmethod
    def ptr_range() -> int:
        """Bytes that are known to be reachable: none."""
        return 0


class TensorWrapper:
    """The memory of a tensor under another dtype; see `reinterpret`."""

    def __init__(self, base: Any, dtype: Any) -> None:
        self.base = base
        self.dtype = dtype
        self.data = getattr(base, "data", base)
        self.device = getattr(base, "device", None)
        self.shape = base.shape

    def data_ptr(self) -> int:
        """The address."""
        if isinstance(self.base, np.ndarray):
            return int(self.base.ctypes.data)
        return int(self.base.data_ptr())

    def stride(self, *axes: int) -> Any:
        """Elements between neighbours along each axis, or along one."""
        if isinstance(self.base, np.ndarray):
            strides = tuple(stride // self.base.itemsize for stride in self.base.strides)
            return strides[axes[0]] if axes else strides
        return self.base.stride(*axes)

    def element_size(self) -> int:
        """Bytes of an element."""
        return int(self.base.itemsize if isinstance(self.base, np.ndarray) else self.base.element_size())

    def cpu(self) -> TensorWrapper:
        """A copy in the CPU's memory, or itself."""
        return TensorWrapper(self.base.cpu(), self.dtype)

    def clone(self) -> TensorWrapper:
        """A copy."""
        copy = self.base.copy() if isinstance(self.base, np.ndarray) else self.base.clone()
        return TensorWrapper(copy, self.dtype)

    def copy_(self, other: TensorWrapper) -> None:
        """Take the values of another one."""
        if isinstance(self.base, np.ndarray):
            self.base[...] = other.base
        else:
            self.base.copy_(other.base)

    def to(self, device: Any) -> TensorWrapper:
        """The same on another device."""
        return TensorWrapper(self.base.to(device), self.dtype)

    def new_empty(self, sizes: Sequence[int]) -> TensorWrapper:
        """A tensor of the same kind with other extents."""
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __repr__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """The memory of a tensor under another dtype of the same width: an 8-bit float that its library does not have.

    Back to its own dtype gives the tensor itself.  Raises `TypeError` for what is no tensor.
    """
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if not (hasattr(base, "data_ptr") or isinstance(base, np.ndarray)):
        raise TypeError(f"a tensor is needed to be seen as {dtype}, got {type(tensor).__name__}")
    return base if dtype == base.dtype else TensorWrapper(base, dtype)


class RawPointer:
    """An address and the dtype of what lies there; see `pointer`."""

    def __init__(self, address: int, dtype: Any) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address."""
        return self.address

    def __repr__(self) -> str:
        return f"pointer({self.address:#x}, {self.dtype})"


def pointer(address: int, dtype: Any) -> RawPointer:
    """An argument that points to memory which somebody else owns and keeps alive.

    `dtype` is a dtype of the language, of NumPy or of PyTorch.  Nothing is checked: a wrong address ends the program.
    """
    if not isinstance(address, int) or isinstance(address, bool) or address < 0:
        raise LaunchError(f"an address is a whole number of at least 0, got {brief(address)}")
    return RawPointer(address, dtype)


def stands_for_array(value: Any) -> bool:
    """Whether a value has an address and a dtype."""
    return callable(getattr(value, "data_ptr", None)) and hasattr(value, "dtype")
