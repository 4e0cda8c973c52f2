"""The tensors that callers give and get: NumPy arrays, PyTorch CPU tensors, anything with DLPack.

PyTorch is never imported here: whoever passes a tensor of it has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.errors import InputError, LaunchError, ShapeError, a_kind
from tilewright.runtime import dlpack

# PyTorch's dtype names where they differ from ours.
_TORCH_NAMES = {
    "bool": "int1",
    "float8_e5m2": "float8e5",
    "float8_e4m3fn": "float8e4nv",
    "float8_e5m2fnuz": "float8e5b16",
    "float8_e4m3fnuz": "float8e4b8",
}
_TO_TORCH = {name: torch_name for torch_name, name in _TORCH_NAMES.items()}


@dataclass(slots=True)
class TensorView:
    """A tensor's memory: address, dtype name and shape; `owner` keeps it alive."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: Any
    copied: bool  # the caller's own memory could not be used

    def overlaps(self, other: TensorView) -> bool:
        """Whether both reach a byte of the same memory."""
        return self.address < other.address + other.bytes and other.address < self.address + self.bytes

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtypes.BY_NAME[self.dtype].itemsize


def view(value: Any, name: str, dtype: str, role: str = "input") -> TensorView:
    """Look at a caller's tensor as contiguous CPU memory; copies one that is not contiguous.

    `role` and `name` say in errors what it is.  `dtype` is what the engine expects: plain Python numbers and
    lists become it, tensors must have it.
    Raises `InputError`.
    """
    if isinstance(value, np.ndarray):
        return _view_numpy(value, name, dtype, role)
    if is_torch(value):
        return _view_torch(value, name, dtype, role)
    if hasattr(value, "__dlpack__"):
        try:
            array = dlpack.as_numpy(value)
        except LaunchError as error:
            raise InputError(f"{role} {name!r}: {error}") from error
        return _view_numpy(array, name, dtype, role)
    if isinstance(value, (bool, int, float, list, tuple, np.generic)):
        target = dtypes.BY_NAME[dtype].numpy
        try:
            return _view_numpy(
                np.asarray(value, value.dtype if isinstance(value, np.generic) else target), name, dtype, role
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{role} {name!r}: these values do not make a {dtype} tensor: {error}") from error
    raise InputError(
        f"{role} {name!r}: cannot read {a_kind(value)}; pass a NumPy array, a PyTorch CPU tensor, "
        "or an object with __dlpack__"
    )


def is_torch(value: Any) -> bool:
    """Whether this is a PyTorch tensor; False while PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def version_raiser() -> Callable[[tuple[Any, ...]], None]:
    """PyTorch's function that raises the versions of tensors, by which autograd knows that they were changed in place.

    It is what ``torch.autograd.graph.increment_version`` calls, and costs a third of it.  PyTorch is imported.
    """
    torch = sys.modules["torch"]
    raiser: Callable[[tuple[Any, ...]], None] = getattr(
        torch._C, "_increment_version", torch.autograd.graph.increment_version
    )
    return raiser


def raise_versions(values: Iterable[Any]) -> None:
    """Tell PyTorch's autograd that these of its tensors are changed in place; other arrays have no versions."""
    stored = tuple(filter(is_torch, values))
    if stored:
        version_raiser()(stored)


def allocate(like: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """A fresh tensor of the kind of `like` (PyTorch for a PyTorch tensor, else NumPy)."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch_dtype(dtype))
    return np.empty(shape, dtypes.BY_NAME[dtype].numpy)


def finish(result: Any, like: Any) -> Any:
    """Hand a result of `allocate` to a caller who works with `like`: to its library, when that is another one
    and follows the Python array API standard."""
    if isinstance(like, np.ndarray) or is_torch(like) or not hasattr(like, "__array_namespace__"):
        return result
    return like.__array_namespace__().from_dlpack(result)


def _view_numpy(array: np.ndarray, name: str, dtype: str, role: str) -> TensorView:
    if array.dtype != dtypes.BY_NAME[dtype].numpy:
        raise _wrong_dtype(
            f"{role} {name!r}", str(array.dtype), dtype, f".astype(numpy.{dtypes.BY_NAME[dtype].numpy.name})"
        )
    copied = False
    if not (array.flags.c_contiguous and array.flags.aligned):
        array, copied = np.array(array, order="C"), True
    return TensorView(array.__array_interface__["data"][0], dtype, array.shape, array, copied)


def _view_torch(tensor: Any, name: str, dtype: str, role: str) -> TensorView:
    if tensor.device.type != "cpu":
        raise InputError(f"{role} {name!r} is on {tensor.device}, the engine runs on the CPU: pass tensor.cpu()")
    plain = plain_torch(tensor, name, dtype, role)
    address = plain.data_ptr()
    if address % dtypes.BY_NAME[dtype].itemsize:
        plain = plain.clone()
        address = plain.data_ptr()
    return TensorView(address, dtype, tuple(plain.shape), plain, address != tensor.data_ptr())


def plain_torch(tensor: Any, name: str, dtype: str, role: str) -> Any:
    """A PyTorch tensor of the wanted type, contiguous, without its gradient; a copy only where it must be.

    Raises `InputError` for other element types and sparse tensors.
    """
    given = str(tensor.dtype).removeprefix("torch.")
    given = _TORCH_NAMES.get(given, given)
    if given != dtype:
        raise _wrong_dtype(f"{role} {name!r}", given, dtype, f".to(torch.{_TO_TORCH.get(dtype, dtype)})")
    if str(tensor.layout) != "torch.strided":
        raise InputError(f"{role} {name!r} is {tensor.layout}: pass tensor.to_dense()")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def torch_dtype(dtype: str) -> Any:
    """PyTorch's element type of this name; PyTorch is imported."""
    return getattr(sys.modules["torch"], _TO_TORCH.get(dtype, dtype))


def _wrong_dtype(what: str, given: str, wanted: str, how: str) -> InputError:
    return InputError(f"{what} is {given}, the engine was built for {wanted}: convert it with {how}")


def check_writable(found: TensorView, value: Any, role: str) -> None:
    """Raise unless the run can write to the caller's own memory."""
    if found.copied:
        raise ShapeError(f"{role} is written in place and must be contiguous: pass a contiguous copy and keep it")
    if isinstance(found.owner, np.ndarray) and not found.owner.flags.writeable:
        raise InputError(f"{role} is written in place and is read-only: pass a writable copy of the {type(value)}")
