"""Operations on lists of tensors (``torch._foreach_add``) as operations on each of the tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

_PREFIX = "_foreach_"
_WITH_VALUE = ("addcdiv", "addcmul")
_OTHERS: dict[str, Callable[..., Any]] = {
    "copy": lambda x, source, *_: source.to(x.dtype).expand_as(x).clone(),
    "max": torch.amax,
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "powsum": lambda x, order=2, dtype=None: x.abs().pow(order).sum(dtype=dtype),
    "zero": torch.zeros_like,
}
_OF_NUMBERS: dict[str, Callable[..., Any]] = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}


@functools.cache
def each_of_lists() -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions of the operations on lists that this PyTorch has, without those in place."""
    listed = {name.removeprefix("aten::").split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    found: dict[OpOverload, Callable[..., Any]] = {}
    for name in sorted(each for each in listed if each.startswith(_PREFIX) and not each.endswith("_")):
        packet = getattr(torch.ops.aten, name)
        for overload in (getattr(packet, each) for each in packet.overloads()):
            function = None if overload._schema.is_mutable else _function(name.removeprefix(_PREFIX), overload)
            if function is not None:
                found[overload] = functools.partial(_by_elements, function)
    return found


def _function(name: str, overload: OpOverload) -> Callable[..., Any] | None:
    """What an operation does to each of the tensors; None where it is not known."""
    kind = overload._schema.overload_name
    if name in _WITH_VALUE:  # whose values may be a tensor, which these functions do not take
        return None if kind == "Tensor" else functools.partial(_with_value, getattr(torch, name))
    if name in _OF_NUMBERS and kind != "List":
        return _OF_NUMBERS[name]
    found: Callable[..., Any] | None = _OTHERS.get(name) or getattr(torch, name, None)
    return found


def _with_value(function: Callable[..., Any], x: Any, left: Any, right: Any, value: Any = 1) -> Any:
    return function(x, left, right, value=value)


def _by_elements(function: Callable[..., Any], *args: Any, **named: Any) -> list[torch.Tensor]:
    """What a function gives for each tensor: lists have an argument for each, what is no list is the same for all."""
    count = next(len(item) for item in args if isinstance(item, (list, tuple)))
    return [
        function(*(item[index] if isinstance(item, (list, tuple)) else item for item in args), **named)
        for index in range(count)
    ]
