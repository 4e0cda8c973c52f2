"""The result of an engine call: the structure of the module's own results, filled with the engine's outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tilewright.importers.torch_objects import holds_tensors, put_together


class Results:
    """Makes a module's results of the outputs of its engine, in order."""

    def __init__(self, structure: Any, leaves: Sequence[Any], pattern: Any) -> None:
        """`leaves` are the nodes and constants that the program returns, in `structure`; `pattern` is a result with the
        objects that were taken apart, or None."""
        self._structure = structure
        self._leaves = [None if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        self._computed = [place for place, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
        numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
        self._numbers = {place for place in self._computed if isinstance(leaves[place].meta.get("val"), numbers)}
        self._pattern = pattern

    def __call__(self, outputs: Sequence[Any]) -> Any:
        leaves = list(self._leaves)
        for place, value in zip(self._computed, outputs, strict=True):
            leaves[place] = value.item() if place in self._numbers else value
        return put_together(self._pattern, pytree.tree_unflatten(leaves, self._structure))


def filled(structure: Any, count: int) -> tuple[list[torch.Tensor], Any]:
    """A structure with other tensors in it, and these: classes such as packed sequences take nothing but tensors."""
    items = [torch.empty(0) for _ in range(count)]
    return items, pytree.tree_unflatten(list(items), structure)


def results_of(structure: Any, leaves: Sequence[Any], pattern: Any) -> Results | None:
    """What makes a module's results; None where they are a tensor, or a tuple of several, as an engine gives them."""
    if structure is None:
        return None
    objects = pattern is not None and any(map(holds_tensors, pytree.tree_leaves(pattern)))
    items, tree = filled(structure, len(leaves))
    several = type(tree) is tuple and 1 < len(tree) == len(items)
    flat = tree is items[0] if not several and items else several and all(map(operator.is_, tree, items))
    tensors = all(isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor) for leaf in leaves)
    if flat and tensors and not objects:
        return None
    return Results(structure, leaves, pattern if objects else None)
