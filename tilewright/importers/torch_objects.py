"""Arguments and results that are objects of classes of their own, such as caches of keys and values: taken apart into
their tensors for `torch.export`, and put together inside the model.

An object holds tensors by its attributes, or in objects and containers that it has as attributes.  Its copy gets other
tensors in their places and shares all else.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

import torch
from torch.utils import _pytree as pytree

_MOST_NESTED = 8  # objects inside each other


def holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether a value is an object, not known to PyTorch as a container, with tensors in it."""
    if (
        depth > _MOST_NESTED
        or isinstance(value, (torch.Tensor, torch.nn.Module, type))
        or not hasattr(value, "__dict__")
    ):
        return False
    if callable(value) or type(value).__module__.startswith(("torch.", "builtins")):
        return False
    leaves = pytree.tree_leaves(list(vars(value).values()))
    return any(isinstance(leaf, torch.Tensor) or holds_tensors(leaf, depth + 1) for leaf in leaves)


def as_plain_attributes(value: Any) -> Any:
    """The value with a dict of attributes in place of each object that holds tensors."""

    def apart(leaf: Any) -> Any:
        if not holds_tensors(leaf):
            return leaf
        parts = {name: as_plain_attributes(item) for name, item in vars(leaf).items()}
        return {name: item for name, item in parts.items() if _has_tensors(item)}

    return pytree.tree_map(apart, value)


def plain_fields(value: Any, name: str = "") -> dict[str, bool | int | float | str]:
    """The fields of dataclasses with tensors that are numbers or texts: they have the example's values in every call.

    Objects of other classes, such as caches, may count what they hold in theirs.
    """
    found: dict[str, bool | int | float | str] = {}
    if isinstance(value, (Mapping, list, tuple)):
        keys = value.keys() if isinstance(value, Mapping) else getattr(value, "_fields", range(len(value)))
        items = value.values() if isinstance(value, Mapping) else value
        for key, item in zip(keys, items, strict=True):
            found |= plain_fields(item, f"{name}_{key}" if name else str(key))
    elif dataclasses.is_dataclass(value) and holds_tensors(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name, None)
            if isinstance(item, (bool, int, float, str)):
                found[f"{name}_{field.name}"] = item
            else:
                found |= plain_fields(item, f"{name}_{field.name}")
    return found


def put_together(pattern: Any, value: Any) -> Any:
    """`value`, which has the structure of `as_plain_attributes(pattern)`, with objects like those of `pattern`."""
    leaves, structure = pytree.tree_flatten(pattern)
    if not any(map(holds_tensors, leaves)):
        return value
    values = structure.flatten_up_to(value)
    return pytree.tree_unflatten([_like(*pair) for pair in zip(leaves, values, strict=True)], structure)


def _like(pattern: Any, value: Any) -> Any:
    if not holds_tensors(pattern):
        return value
    made = copy.copy(pattern)
    for name, attribute in vars(pattern).items():
        part = value[name] if name in value else copy.copy(attribute)
        object.__setattr__(made, name, put_together(attribute, part) if name in value else part)
    return made


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def signature_of(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> inspect.Signature:
    """The module's own, where each argument that ``**kwargs`` would take has its name: export knows it by that."""
    signature = inspect.signature(module.forward)
    known = signature.parameters.values()
    others = [name for name in kwargs if name not in signature.parameters]
    if not others or not all(name.isidentifier() and not iskeyword(name) for name in others):
        return signature
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in others]
    named = [parameter for parameter in known if parameter.kind != inspect.Parameter.VAR_KEYWORD]
    if len(named) == len(known):  # nothing would take them, as the call says
        return signature
    return signature.replace(parameters=[*named, *own])


@contextmanager
def plain_calls(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
    """For the time of an export the module takes what `as_plain_attributes` makes of its arguments, and returns so too.

    Yields a list that gets the results of its calls, as the module returns them.
    """
    results: list[Any] = []
    patterns = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    forward: Callable[..., Any] = module.forward
    own = vars(module).get("forward")

    @functools.wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(forward).bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = put_together(patterns.get(name), value)
        results.append(forward(*bound.args, **bound.kwargs))
        return as_plain_attributes(results[-1])

    plain.__signature__ = signature_of(module, kwargs)  # type: ignore[attr-defined]
    module.forward = plain
    try:
        yield results
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
