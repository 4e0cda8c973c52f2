"""PyTorch's composite operators, listed once: PyTorch lists them three times for each program that it decomposes, and
takes a quarter of what importing a small module takes to put entries for each of them into its tables.

What is here means the same as PyTorch's own (`torch.export.exported_program`, versions 2.11 to 2.14).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._export import utils
from torch._higher_order_ops.utils import autograd_not_implemented
from torch._ops import OpOverload
from torch._subclasses import fake_impls
from torch.export import decomp_utils, exported_program

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_SPLIT = "_split_decomp_table_to_cia_and_python_decomp"
_collect = utils._collect_all_valid_cia_ops  # PyTorch's own, whatever takes its place later
_split = getattr(exported_program, _SPLIT)


def composites() -> tuple[str, ...]:
    """The names of all operators that are made of others: what is kept holds until a library registers more of them."""
    return tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))


@contextmanager
def operators_listed_once() -> Iterator[None]:
    """For the time of the block, PyTorch decomposes programs with the list and the tables of this module."""
    with ExitStack() as stack:
        for module in (decomp_utils, exported_program):
            stack.enter_context(mock.patch.object(module, "_collect_all_valid_cia_ops", _collected))
        stack.enter_context(mock.patch.object(exported_program, "_override_composite_implicit_decomp", _overridden))
        stack.enter_context(mock.patch.object(exported_program, _SPLIT, _parted))
        yield


def _collected() -> set[Any]:
    return set(_collected_for(composites()))


@functools.lru_cache(maxsize=1)
def _collected_for(names: tuple[str, ...]) -> frozenset[Any]:
    return frozenset(_collect())


_latest: dict[str, Any] = {}  # of the table that was parted last: it is the same for all programs of an importer


def _parted(table: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
    """The table's entries for composite operators, and the others."""
    cached = dict(_latest)
    if not cached or cached["names"] != composites() or cached["table"] != table:
        given = dict(table)
        cached = {"names": composites(), "table": given, "parts": _split(dict(table))}
        _latest.update(cached)
    return tuple(dict(part) for part in cached["parts"])


@contextmanager
def _overridden(decompositions: Mapping[OpOverload, Callable[..., Any]]) -> Iterator[None]:
    """These operators decompose as given; below that, and without a graph, they do what they did before."""
    rules, saved = fake_impls.op_implementations_dict, {}
    without_gradients = exported_program._AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE
    backends = exported_program._BACKEND_KEYS_TO_OVERRIDE
    try:
        for operator, decomposition in decompositions.items():
            before = utils._get_decomp_for_cia(operator)
            saved[operator] = operator.py_kernels, rules.get(operator)
            operator.py_kernels = {
                **dict.fromkeys(without_gradients, autograd_not_implemented(operator, deferred_error=True)),
                **dict.fromkeys(backends, before),
                **operator.py_kernels,
                _COMPOSITE: decomposition,
            }
            operator._dispatch_cache.clear()
            rules.setdefault(operator, functools.partial(_inside, before))
        yield
    finally:
        for operator, (kernels, rule) in saved.items():
            operator.py_kernels = kernels
            operator._dispatch_cache.clear()
            if rule is None:
                rules.pop(operator, None)


def _inside(composite: Callable[..., Any], mode: Any, operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What a tensor without memory does with an operator that is kept: its parts are computed without memory, too."""
    with mode:
        return composite(*args, **kwargs)
