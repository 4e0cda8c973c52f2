"""Values that callers may pass for a tensor: arrays and tensors of every kind, exporters, and what is none of them.

What a value holds, and the memory that it may not lose or change, comes with it, so that a target can check a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool", "complex64")
ODD_DTYPES: tuple[Any, ...] = (">f4", "O", "U3", "V4", "M8[s]", [("a", "<f4"), ("b", "<i2")], ml_dtypes.bfloat16)


@dataclass
class Given:
    """A value, the array of the memory behind it (None where nobody can see it), and what it is called."""

    value: Any
    memory: np.ndarray | None
    name: str
    before: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.before = b"" if self.memory is None else self.memory.tobytes()

    @property
    def changed(self) -> bool:
        """Whether the memory holds anything else than when the value was made."""
        return self.memory is not None and self.memory.tobytes() != self.before


class Foreign:
    """An array of another library: nothing but DLPack."""

    def __init__(self, array: Any, old: bool = False) -> None:
        self._array, self._old = array, old

    def __dlpack__(self, **options: Any) -> Any:
        if self._old and options:
            raise TypeError("unexpected keywords")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Described:
    """An array of another library: nothing but ``__array_interface__``."""

    def __init__(self, array: np.ndarray, **facts: Any) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, **facts}


class OnlyArray:
    """Nothing but ``__array__``."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        return self._array


class Raising:
    """Every protocol of arrays, and each raises."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def _raise(self, *arguments: Any, **options: Any) -> Any:
        raise self._error("no")

    __dlpack__ = __dlpack_device__ = __array__ = __len__ = __getitem__ = data_ptr = _raise
    dtype = shape = property(_raise)


class Answering:
    """Every protocol of arrays, and each gives the same answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.__array_interface__ = self.__cuda_array_interface__ = answer
        self.dtype = self.shape = answer

    def _give(self, *arguments: Any, **options: Any) -> Any:
        return self._answer

    __dlpack__ = __dlpack_device__ = _give


class Subclass(np.ndarray):
    """An array class of a user's own."""


class Wrapper(torch.Tensor):
    """A tensor class that carries out PyTorch's operations itself, without memory."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        raise NotImplementedError(str(function))


class Tensor(torch.Tensor):
    """A tensor class of a user's own."""


def _resized(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor)


# From a tensor of the wanted type and shape: one without its memory.
WITHOUT_MEMORY: tuple[Callable[[torch.Tensor], Any], ...] = (
    _resized,
    _fake,
    torch._to_functional_tensor,
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor.to_sparse(),
    lambda tensor: torch._efficientzerotensor(tuple(tensor.shape), dtype=tensor.dtype),
    Wrapper,
    lambda tensor: torch.nn.UninitializedParameter(),
)

PLAIN: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: 3,
    lambda: -1,
    lambda: 2**63,
    lambda: 2**80,
    lambda: 1.5,
    lambda: float("nan"),
    lambda: 1j,
    lambda: True,
    lambda: "text",
    lambda: "",
    lambda: b"bytes",
    lambda: bytearray(32),
    lambda: memoryview(bytearray(32)),
    lambda: {},
    lambda: {"a": 1},
    lambda: set(),
    lambda: [],
    lambda: [[]],
    lambda: [[1, 2], [3]],
    lambda: [None],
    lambda: ["a"],
    lambda: (1, 2),
    lambda: range(4),
    lambda: iter([1]),
    lambda: object(),
    lambda: int,
    lambda: Ellipsis,
    lambda: np.float32(1),
    lambda: np.str_("a"),
    lambda: np.datetime64(0, "s"),
    lambda: np.bool_(True),
    lambda: torch.float32,
    lambda: torch.device("cpu"),
    lambda: torch.Size([2]),
    lambda: slice(2),
)

ANSWERS: tuple[Any, ...] = (None, 0, -1, 2**70, 1.5, "x", (), (1,), (1, 2), [], {}, {"data": None}, object())
ERRORS = (KeyError, AttributeError, TypeError, OSError, RuntimeError, ZeroDivisionError, MemoryError, AssertionError)


class Odd:
    """Draws values for a tensor of one element type and shape."""

    def __init__(self, chance: random.Random, dtype: str, shape: tuple[int, ...]) -> None:
        self.chance, self.dtype, self.shape = chance, dtype, shape

    def array(self, dtype: Any = None, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """An array of small numbers, somewhere in a larger one."""
        shape = self.shape if shape is None else shape
        count = int(np.prod(shape))
        whole = np.zeros(count + 8, np.dtype(dtype or self.dtype))
        if whole.dtype.kind in "iufb":
            whole[:] = np.arange(count + 8) % 7
        start = self.chance.choice((0, 0, 0, 1, 4))
        return whole[start : start + count].reshape(shape)

    def good(self) -> Given:
        """A value of the right type and shape, with memory that may be written."""
        array = self.array()
        kind = self.chance.randrange(6)
        if kind == 0:
            return Given(array.view(Subclass), array, "subclass")
        if kind == 1:
            return Given(Foreign(array, self.chance.random() < 0.5), array, "DLPack")
        if kind in (2, 3):
            tensor = torch.from_numpy(array)
            return Given(tensor if kind == 2 else tensor.as_subclass(Tensor), array, "tensor")
        return Given(array, array, "array")

    def draw(self) -> Given:
        """Any value."""
        makers = (self._layout, self._type, self._shape, self._torch, self._protocol, self._plain, self._hollow)
        return self.chance.choice(makers)()

    def _layout(self) -> Given:
        array = self.array()
        kind = self.chance.randrange(8)
        if kind == 0:
            array.flags.writeable = False
            return Given(array, array, "read-only")
        if kind == 1:
            return Given(array[..., ::-1], array, "backwards")
        if kind == 2:
            return Given(np.asfortranarray(array), array, "by columns")
        if kind == 3:
            return Given(np.broadcast_to(array[:1], array.shape), array, "broadcast")
        if kind == 4:
            raw = np.zeros(array.nbytes + 1, np.uint8)
            return Given(raw[1:].view(array.dtype).reshape(array.shape), raw, "not aligned")
        if kind == 5:
            return Given(np.ma.masked_array(array, array > 1), array, "masked")
        if kind == 6:
            return Given(array.tolist(), None, "list")
        return Given(OnlyArray(array), array, "only __array__")

    def _type(self) -> Given:
        array = self.array(self.chance.choice((*DTYPES, *ODD_DTYPES)))
        return Given(array, array, f"array of {array.dtype}")

    def _shape(self) -> Given:
        sizes = (0, 1, 2, 3, 8, 9)
        array = self.array(shape=tuple(self.chance.choice(sizes) for _ in range(self.chance.randrange(4))))
        return Given(array, array, f"array of rank {array.ndim}")

    def _torch(self) -> Given:
        array = self.array()
        tensor = torch.from_numpy(array)
        kind = self.chance.randrange(7)
        if kind == 0 and tensor.is_floating_point():
            return Given(tensor.requires_grad_(), array, "leaf")
        if kind == 1 and tensor.is_floating_point():
            return Given(torch._neg_view(tensor), array, "negated")
        if kind == 2:
            return Given(tensor[:1].expand(tensor.shape), array, "expanded")
        if kind == 3:
            return Given(torch.nn.Parameter(tensor, False), array, "parameter")
        if kind == 4:
            return Given(tensor.t().contiguous().t() if tensor.ndim == 2 else tensor[::2], array, "strided")
        if kind == 5:
            return Given(
                tensor.to(self.chance.choice((torch.bfloat16, torch.complex64, torch.int16))), None, "other type"
            )
        return Given(torch.ones(3, *self.shape), None, "other rank")

    def _hollow(self) -> Given:
        make = self.chance.choice(WITHOUT_MEMORY)
        tensor = torch.ones(self.shape, dtype=getattr(torch, self.dtype))
        return Given(make(tensor), None, "without memory")

    def _protocol(self) -> Given:
        array = self.array()
        kind = self.chance.randrange(5)
        if kind == 0:
            return Given(Raising(self.chance.choice(ERRORS)), None, "raising")
        if kind == 1:
            return Given(Answering(self.chance.choice(ANSWERS)), None, "answering")
        if kind == 2:
            name = self.chance.choice(("shape", "typestr", "data", "strides", "version"))
            return Given(Described(array, **{name: self.chance.choice(ANSWERS)}), array, "described")
        if kind == 3:
            return Given(Described(array), array, "described")
        capsule = array.__dlpack__()
        return Given(capsule, array, "capsule")

    def _plain(self) -> Given:
        return Given(self.chance.choice(PLAIN)(), None, "plain")
