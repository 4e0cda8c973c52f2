"""The tensors that callers give and get: NumPy arrays, PyTorch CPU tensors, anything with DLPack.

PyTorch is never imported here: whoever passes a tensor of it has imported it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.errors import InputError, LaunchError, ShapeError, TilewrightError, a_kind
from tilewright.runtime import dlpack
from tilewright.runtime.memory import array_address

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
        if not (self.bytes and other.bytes):
            return False
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
    if type(value) is np.ndarray:
        return _view_numpy(value, name, dtype, role)
    try:
        return _view_other(value, name, dtype, role)
    except TilewrightError:
        raise
    except Exception as error:  # of code that is the tensor's own
        raise InputError(
            f"{role} {name!r}: {a_kind(value)} that cannot be read ({type(error).__name__}: {error}); pass a NumPy "
            "array or a PyTorch CPU tensor"
        ) from error


def _view_other(value: Any, name: str, dtype: str, role: str) -> TensorView:
    if is_torch(value):
        return _view_torch(value, name, dtype, role)
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{role} {name!r} is a masked array, {_NO_MASKS}")
    if isinstance(value, np.ndarray):
        return _view_numpy(np.asarray(value), name, dtype, role)
    if hasattr(value, "__dlpack__"):
        try:
            array = dlpack.as_numpy(value)
        except LaunchError as error:
            raise InputError(f"{role} {name!r}: {error}") from error
        return _view_numpy(array, name, dtype, role)
    if isinstance(value, _PLAIN):
        return _view_plain(value, name, dtype, role)
    advice = "numpy.asarray(…) of it, " if hasattr(value, "__array__") or isinstance(value, _BUFFERS) else ""
    raise InputError(
        f"{role} {name!r}: cannot read {a_kind(value)}; pass {advice}a NumPy array, a PyTorch CPU tensor, "
        "or an object with __dlpack__"
    )


_NO_MASKS = "and engines know no masks: pass array.filled(value), or array.data with the mask as an input of the model"
_PLAIN = (bool, int, float, list, tuple, np.generic)  # Python's own values, which become arrays: copies
_BUFFERS = (memoryview, bytes, bytearray)


def _has_masked(value: Any) -> bool:
    """Whether lists hold a masked array anywhere, whose masks NumPy drops."""
    if isinstance(value, list | tuple):
        return any(_has_masked(item) for item in value)
    return isinstance(value, np.ma.MaskedArray)


def _view_plain(value: Any, name: str, dtype: str, role: str) -> TensorView:
    """Numbers and lists, as an array of their own."""
    target = dtypes.BY_NAME[dtype].numpy
    try:
        if isinstance(value, np.generic):
            array = np.asarray(value)
        else:
            array = np.asarray(value, target)
            if target.kind in "biu" and np.asarray(value).dtype.kind in "fc":  # which NumPy truncates
                raise TypeError("there are fractions among them")
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{role} {name!r}: these values do not make a {dtype} tensor: {error}") from error
    if _has_masked(value):  # after NumPy has refused lists that hold themselves
        raise InputError(f"{role} {name!r} has a masked array in a list, {_NO_MASKS}")
    found = _view_numpy(array, name, dtype, role)
    found.copied = True
    return found


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
        try:
            return torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")  # whatever the default device is
        except RuntimeError as error:  # PyTorch's for memory that the system does not give
            raise MemoryError(str(error).splitlines()[0]) from error
    return np.empty(shape, dtypes.BY_NAME[dtype].numpy)


def finish(result: Any, like: Any) -> Any:
    """Hand a result of `allocate` to a caller who works with `like`: to its library, when that is another one
    and follows the Python array API standard."""
    if isinstance(like, np.ndarray) or is_torch(like) or not hasattr(like, "__array_namespace__"):
        return result
    try:
        return like.__array_namespace__().from_dlpack(result)
    except Exception as error:  # of that library
        raise InputError(
            f"the library of {a_kind(like)} does not take a result ({type(error).__name__}: {error}); pass NumPy arrays"
        ) from error


def _view_numpy(array: np.ndarray, name: str, dtype: str, role: str) -> TensorView:
    if array.dtype != dtypes.BY_NAME[dtype].numpy:
        how = f".astype(numpy.{dtypes.BY_NAME[dtype].numpy.name})"
        if array.dtype.kind == "c":
            how = "numpy.stack([x.real, x.imag], axis=-1)"
        raise _wrong_dtype(f"{role} {name!r}", str(array.dtype), dtype, how)
    if array.base is not None:
        _check_mapped(array, name, role)
    copied = False
    if not (array.flags.c_contiguous and array.flags.aligned):
        array, copied = np.array(array, order="C"), True
    address = array_address(array)
    if address == 0 and array.size:
        raise InputError(f"{role} {name!r} is an array at address 0, where no memory is: pass one that has memory")
    return TensorView(address, dtype, array.shape, array, copied)


def _check_mapped(array: np.ndarray, name: str, role: str) -> None:
    """Raise `InputError` where the memory of an array was given back: a mapped file or shared memory that was closed.

    (An array over a buffer that NumPy keeps open cannot lose it.)
    """
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    if type(base) is mmap.mmap and base.closed:
        raise InputError(f"{role} {name!r}: its shared memory or mapped file was closed: pass a copy made before that")


def _view_torch(tensor: Any, name: str, dtype: str, role: str) -> TensorView:
    if not tensor.is_cpu:
        raise InputError(f"{role} {name!r} is on {tensor.device}, the engine runs on the CPU: pass tensor.cpu()")
    plain = plain_torch(tensor, name, dtype, role)
    address = plain.data_ptr()
    if address % dtypes.BY_NAME[dtype].itemsize:
        plain = plain.clone()
        address = plain.data_ptr()
    return TensorView(address, dtype, tuple(plain.shape), plain, plain is not tensor)


def plain_torch(tensor: Any, name: str, dtype: str, role: str) -> Any:
    """A PyTorch tensor of the wanted type, contiguous, with memory of its own or the caller's: a copy only where it
    must be.

    Raises `InputError` for other element types, sparse and nested tensors, and those without memory.
    """
    torch = sys.modules["torch"]
    if tensor.dtype is not torch_dtype(dtype):
        given = str(tensor.dtype).removeprefix("torch.")
        how = "torch.view_as_real" if tensor.is_complex() else f".to(torch.{_TO_TORCH.get(dtype, dtype)})"
        raise _wrong_dtype(f"{role} {name!r}", _TORCH_NAMES.get(given, given), dtype, how)
    if tensor.layout is not torch.strided:
        raise InputError(f"{role} {name!r} is {tensor.layout}: pass tensor.to_dense()")
    if tensor.is_nested:
        raise InputError(f"{role} {name!r} is a nested tensor: pass tensor.to_padded_tensor(0)")
    reason = no_memory(tensor)
    if reason:
        raise InputError(f"{role} {name!r} {reason}")
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().contiguous()


def no_memory(tensor: Any) -> str:
    """Why the elements of a strided PyTorch tensor are not in memory, as the end of a sentence; "" where they are."""
    count = tensor.numel()
    if not count:
        return ""
    storage = tensor.untyped_storage()
    if type(tensor) is not sys.modules["torch"].Tensor and storage.device.type == "meta":
        return WITHOUT_MEMORY  # a FakeTensor, which would warn if it were asked for its address
    if tensor.is_contiguous():
        span = count
    else:
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + span) * tensor.element_size()
    if needed > storage.nbytes():
        return (
            f"reaches over {needed} bytes of a storage that was resized to {storage.nbytes()}: pass a tensor that "
            "has memory for its elements"
        )
    return "" if tensor.data_ptr() else WITHOUT_MEMORY


WITHOUT_MEMORY = (
    "has a shape and no memory, as tensors of FakeTensorMode, torch.compile, torch.export and torch.func do: pass a "
    "tensor that holds values"
)


def torch_dtype(dtype: str) -> Any:
    """PyTorch's element type of this name; PyTorch is imported."""
    return getattr(sys.modules["torch"], _TO_TORCH.get(dtype, dtype))


def _wrong_dtype(subject: str, given: str, wanted: str, how: str) -> InputError:
    return InputError(f"{subject} is {given}, the engine was built for {wanted}: convert it with {how}")


def check_writable(found: TensorView, value: Any, role: str, is_output: bool = False) -> None:
    """Raise unless the run can write to the caller's own memory, and PyTorch would (`out=` if it `is_output`)."""
    if isinstance(value, _PLAIN):
        raise InputError(
            f"{role} is written in place, and {a_kind(value)} has no memory for it: pass a NumPy array or a PyTorch "
            f"tensor of {found.dtype}, and keep it"
        )
    if found.copied:
        raise ShapeError(f"{role} is written in place and must be contiguous: pass a contiguous copy and keep it")
    if isinstance(found.owner, np.ndarray) and not found.owner.flags.writeable:
        raise InputError(f"{role} is written in place and is read-only: pass a writable copy of the {type(value)}")
    if is_torch(value) and value.requires_grad:
        check_gradient(value, role, is_output)


def as_array(found: TensorView) -> np.ndarray:
    """The memory of a view as an array, which keeps it alive."""
    if isinstance(found.owner, np.ndarray):
        return found.owner
    dtype = dtypes.BY_NAME[found.dtype].numpy
    if not found.bytes:
        return np.empty(found.shape, dtype)
    memory = (ctypes.c_char * found.bytes).from_address(found.address)
    memory.owner = found.owner  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), dtype).reshape(found.shape)


def torch_array(tensor: Any, name: str) -> np.ndarray:
    """A PyTorch tensor of any device in the host's memory as an array; raises `InputError` as `view` does."""
    given = str(tensor.dtype).removeprefix("torch.")
    dtype = _TORCH_NAMES.get(given, given)
    if dtype not in dtypes.BY_NAME:
        raise InputError(f"{name!r} is {given}, which NumPy has no type for")
    return as_array(view(tensor.detach().cpu(), name, dtype))


def check_overlaps(views: Sequence[TensorView], names: Sequence[str], written: Iterable[int]) -> None:
    """Raise `InputError` where a tensor that is written, by its number, shares memory with another; `names` are for
    errors."""
    for number in written:
        for other, found in enumerate(views):
            if other != number and views[number].overlaps(found):
                raise InputError(
                    f"{names[number]} is written in place and shares memory with {names[other]}: pass a copy"
                )


def check_gradient(tensor: Any, role: str, is_output: bool) -> None:
    """Raise `InputError` for a tensor that requires a gradient, where PyTorch's own operations do not write to it."""
    if not sys.modules["torch"].is_grad_enabled():
        return
    root = tensor._base if tensor._is_view() else tensor
    if is_output or root.is_leaf:
        raise InputError(
            f"{role} is written in place and requires a gradient, which would be wrong then: call the engine under "
            "torch.no_grad(), or pass tensor.detach()"
        )


def track_updates(values: Iterable[Any]) -> None:
    """Before a run changes these in place: tell PyTorch's autograd of its tensors, as operations of PyTorch do.

    A tensor that has a history gets one with the run in it, whose backward raises `InputError`.
    """
    plain = []
    for value in values:
        if is_torch(value) and value.requires_grad and sys.modules["torch"].is_grad_enabled():
            try:
                _update_function().apply(value)
            except RuntimeError as error:
                raise InputError(f"a tensor cannot be updated in place: {error}") from error
        else:
            plain.append(value)
    raise_versions(plain)


@functools.cache
def _update_function() -> Any:
    """The run of an engine as autograd sees a tensor that it changes in place."""
    torch = sys.modules["torch"]

    class EngineUpdate(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(context: Any, tensor: Any) -> Any:
            context.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            raise InputError(
                "an engine changed this tensor in place, and engines have no gradients: call the engine under "
                "torch.no_grad(), or pass tensor.detach()"
            )

    return EngineUpdate
