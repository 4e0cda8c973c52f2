"""`tl.tensor`: a value of the kernel being traced. Its operators and methods are attached in `core`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.core import Attribute, Region, SSAValue
from tilewright.ir.types import PointerType
from tilewright.language import types
from tilewright.language.context import LanguageError, create
from tilewright.language.types import Number, block_type, wrap


class tensor:
    """A scalar, a block, a pointer or a block of pointers inside a kernel.

    `shape` is a tuple of compile-time ints (empty for a scalar), `dtype` the element type, `type` the
    dtype of a scalar or the `block_type` of a block.  `constant` is the number that a scalar is known
    to hold at compile time, or None: such a scalar may be used where a constant is required.
    """

    __slots__ = ("handle", "constant")

    handle: SSAValue
    constant: Number | None

    def __init__(self, handle: SSAValue, constant: Number | None = None) -> None:
        self.handle = handle
        self.constant = constant

    if TYPE_CHECKING:  # the operators that `core` attaches
        __add__: Callable[[Any], tensor]
        __sub__: Callable[[Any], tensor]
        __mul__: Callable[[Any], tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.handle.type.shape

    @property
    def rank(self) -> int:
        return self.handle.type.rank

    ndim = rank

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.handle.type.size

    @property
    def element(self) -> DType | PointerType:
        """The IR element type."""
        return self.handle.type.element

    @property
    def dtype(self) -> types.dtype:
        return wrap(self.handle.type.element)

    @property
    def type(self) -> Union[types.dtype, block_type]:
        return block_type(self.dtype, self.shape) if self.shape else self.dtype

    @property
    def number(self) -> DType:
        """The IR element type of numbers; raises `LanguageError` for pointers."""
        element = self.handle.type.element
        if isinstance(element, PointerType):
            raise LanguageError(f"a number is needed here, got a pointer ({self.type})", "load from it first")
        return element

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.handle.type.element, PointerType)

    def __bool__(self) -> bool:
        if self._array is not None and self._array.size == 1:
            return bool(self._array)
        raise LanguageError("the truth of a run-time value is not known at compile time", "use tl.where or a plain if")

    def __iter__(self) -> Any:
        raise LanguageError("a tensor cannot be iterated over or unpacked", "split it with tl.split")

    # While a kernel is run by Python (`launch.eager`) its values are there to look at.

    @property
    def _array(self) -> np.ndarray | None:
        return getattr(self.handle, "array", None)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of the numbers, for a debugger: ``p np.max(x)``. Pointers are addresses of the interpreter."""
        if self._array is None:
            raise LanguageError("the values of a tensor are known at run time only", "use tl.device_print")
        return np.array(self._array, dtype)

    def __repr__(self) -> str:
        return f"tensor({self.type})" if self._array is None else f"tensor({self.type}, {self})"

    def __str__(self) -> str:
        return repr(self) if self._array is None else str(self.handle.array_text())  # type: ignore[attr-defined]

    def __format__(self, specification: str) -> str:
        if self._array is not None and not self._array.ndim and not self.is_pointer:
            return format(self._array.item(), specification)
        return format(str(self), specification)

    __hash__ = object.__hash__


def emit(
    opcode: str,
    operands: list[tensor],
    attributes: dict[str, Attribute] | None = None,
    regions: list[Region] | None = None,
) -> tensor:
    """Emit an operation with one result."""
    return tensor(create(opcode, [operand.handle for operand in operands], attributes, regions).result)


def emit_many(
    opcode: str,
    operands: list[tensor],
    attributes: dict[str, Attribute] | None = None,
    regions: list[Region] | None = None,
) -> list[tensor]:
    """Emit an operation with any number of results."""
    operation = create(opcode, [operand.handle for operand in operands], attributes, regions)
    return [tensor(result) for result in operation.results]


def type_text(value: Any) -> str:
    """How error messages speak of a value's type."""
    if isinstance(value, tensor):
        return str(value.type)
    return f"the constant {value!r}" if isinstance(value, (bool, int, float, str)) else brief(value)
