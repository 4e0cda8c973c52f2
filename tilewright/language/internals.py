"""Internal names of ``triton.language.core`` that programs import nevertheless.

They are found through `core` (``tl.core._aggregate``); nothing in tilewright uses them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

from tilewright.language.aggregate import Aggregate, aggregate
from tilewright.language.core import BUILTIN, builtin
from tilewright.language.function import SourceFunction
from tilewright.language.tensor import tensor
from tilewright.language.tiles import tensor_descriptor
from tilewright.language.types import block_type, constexpr, constexpr_type, dtype, tuple_type, unwrap


class base_value(ABC):  # noqa: B024
    """``isinstance(x, base_value)`` holds for what kernels compute with: tensors, constants, descriptors, aggregates.

    A class cannot become one by inheriting from it: `tilewright.aggregate` makes one.
    """

    def __init_subclass__(cls) -> None:
        raise TypeError(f"{cls.__name__}: values of one's own are made with @triton.aggregate, not from base_value")


class base_type(ABC):  # noqa: B024
    """``isinstance(x, base_type)`` holds for dtypes and the types of blocks, pointers, tuples and constants."""

    def __init_subclass__(cls) -> None:
        raise TypeError(f"{cls.__name__}: types of one's own come with @triton.aggregate, not from base_type")


for _kind in (tensor, constexpr, tensor_descriptor, Aggregate, tuple):
    base_value.register(_kind)
for _kind in (dtype, block_type, tuple_type, constexpr_type):
    base_type.register(_kind)


@builtin
def _unwrap_if_constexpr(value: Any) -> Any:
    """What a `constexpr` holds; lists and tuples entry by entry; anything else as it is."""
    if isinstance(value, (list, tuple)):
        entries = [_unwrap_if_constexpr(entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    return unwrap(value)


def is_builtin(function: Any) -> bool:
    """Whether the front end calls a function while it traces a kernel."""
    return bool(getattr(function, BUILTIN, False))


def _tensor_member_fn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a function of the language that is also a method of tensors, ``x.function(…)``."""
    name = function.name if isinstance(function, SourceFunction) else function.__name__
    if not hasattr(tensor, name):
        setattr(tensor, name, function if isinstance(function, SourceFunction) else builtin(function))
    return function


_aggregate = aggregate
_constexpr_to_value = _unwrap_if_constexpr
tensor_descriptor_base = tensor_descriptor
TRITON_BUILTIN = BUILTIN
CONSTEXPR_0 = constexpr(0)  # the default of ``descending``
