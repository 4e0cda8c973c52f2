"""Sizes that a model's code makes Python's numbers of: `int(x.shape[0])`, `int(n * 0.7)`, `float(n)`, `math.sqrt(n)`.

Where Python runs the code, `int` and `float` give numbers, those of the example.  For the time of an export, what
stands for them in the model's modules leaves sizes symbols.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import FunctionType
from typing import Any
from unittest import mock

import torch

_SYMBOLS = (torch.SymInt, torch.SymFloat)


class _StandsFor(type):
    """The type of what stands for one of Python's types: it is that type to all who ask, but for calls."""

    plain: type
    symbol: type  # what is one of that type in the code
    of_symbol: Callable[[Any], Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], _SYMBOLS):
            return cls.of_symbol(args[0])
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (cls.plain, cls.symbol))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.plain)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.plain

    def __hash__(cls) -> int:
        return hash(cls.plain)


def _whole(number: Any) -> Any:
    return number if isinstance(number, torch.SymInt) else torch.sym_int(number)


class _Int(metaclass=_StandsFor):
    plain, symbol = int, torch.SymInt
    of_symbol = staticmethod(_whole)


class _Float(metaclass=_StandsFor):
    plain, symbol = float, torch.SymFloat
    of_symbol = staticmethod(torch.sym_float)


_root = math.sqrt


def _root_of(number: Any) -> Any:
    return torch._sym_sqrt(number) if isinstance(number, _SYMBOLS) else _root(number)  # type: ignore[attr-defined]


@contextmanager
def sizes_in_numbers(module: torch.nn.Module) -> Iterator[None]:
    """For the time of an export: `int`, `float` and `math.sqrt` of sizes are symbols in the code of a module, of the
    modules in it and of the functions that it calls by name."""
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for space in _namespaces(module):
            for name, stand_in in (("int", _Int), ("float", _Float)):
                if name not in space:
                    space[name] = stand_in
                    changed.append((space, name))
        with mock.patch.object(math, "sqrt", _root_of):
            yield
    finally:
        for space, name in changed:
            del space[name]


def _namespaces(module: torch.nn.Module) -> list[dict[str, Any]]:
    """The globals of a model's code; PyTorch's own are left out."""
    found: dict[int, dict[str, Any]] = {}
    for each in module.modules():
        home = sys.modules.get(type(each).__module__)
        spaces = [vars(home)] if home is not None else []
        for function in (unwrap(vars(each).get("forward", type(each).forward)), *_functions(spaces)):
            spaces += _globals_of(function)
        found |= {id(space): space for space in spaces}
    return [space for space in found.values() if str(space.get("__name__", "")).partition(".")[0] != "torch"]


def _functions(spaces: list[dict[str, Any]]) -> list[Any]:
    return [value for space in spaces for value in space.values() if isinstance(value, FunctionType)]


def _globals_of(function: Any) -> list[dict[str, Any]]:
    """The globals of a function, and of those in its closure."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return []
    inner = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    found = [function.__globals__]
    return found + [value.__globals__ for value in inner if isinstance(value, FunctionType)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
