"""Arrays with unwritten memory, for the checks: declared by the user, or made by ``empty`` functions.

While ``TILEWRIGHT_INTERPRET=check`` is set, what the functions of NumPy and PyTorch named ``empty…`` and the methods
``Tensor.new_empty…`` give is declared unwritten (`ir.unwritten`).  No other setting changes these functions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tilewright.ir import unwritten as marks
from tilewright.ir.memory import span
from tilewright.launch.arguments import as_array
from tilewright.settings import settings

A = TypeVar("A")
_watched: set[str] = set()


def unwritten(array: A) -> A:
    """Declare that nobody has written the memory of a NumPy array or CPU tensor, and fill it with a pattern.

    A kernel that runs with ``TILEWRIGHT_INTERPRET=check`` and reads an element before it is written stops with
    an error.  Writes of kernels and of the host count alike.  Returns the array.
    """
    seen = as_array(array)
    flat, _ = span(seen)
    if not flat.flags.writeable:
        raise ValueError("a read-only array cannot be declared unwritten")
    marks.declare(flat, seen.itemsize, array)
    return array


def watch_allocations() -> None:
    """Declare what the ``empty`` functions of NumPy, and of PyTorch once it is imported, give from now on."""
    _watch("numpy", np, ("empty", "empty_like"))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        _watch("torch", torch, ("empty", "empty_like", "empty_strided", "empty_permuted"))
        _watch("torch.Tensor", torch.Tensor, ("new_empty", "new_empty_strided"))


def _watch(name: str, owner: Any, functions: tuple[str, ...]) -> None:
    if name in _watched:
        return
    _watched.add(name)
    for function in functions:
        setattr(owner, function, _declaring(getattr(owner, function)))


def _declaring(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def empty(*arguments: Any, **keywords: Any) -> Any:
        array = make(*arguments, **keywords)
        if settings.interpret == "check" and _plain(array):
            unwritten(array)
        return array

    return empty


def _plain(array: Any) -> bool:
    """Whether an array is ordinary memory of numbers, on the CPU."""
    if type(array) is np.ndarray:
        return array.dtype.kind in "biufV" and not array.dtype.hasobject and array.dtype.names is None
    torch = sys.modules.get("torch")
    if torch is None or type(array) is not torch.Tensor:
        return False
    return bool(array.device.type == "cpu" and array.layout == torch.strided and not array.is_quantized)
