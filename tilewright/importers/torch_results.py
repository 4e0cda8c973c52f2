"""The result of an engine call: the structure of the module's own results, filled with the engine's outputs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tilewright.dtypes import DType, float64, int1, int64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import normalize
from tilewright.importers.torch_objects import holds_tensors, put_together

_NUMBERS = {bool: int1, int: int64, float: float64}  # types of constants that can be outputs


class Results:
    """Makes a module's results of the outputs of its engine, in order."""

    def __init__(self, structure: Any, leaves: Sequence[Any], pattern: Any, names: Sequence[str]) -> None:
        """`leaves` are the nodes and constants that the program returns, in `structure`; `pattern` is a result with the
        objects whose tensors these are, or None; `names` are those of outputs, one for each leaf."""
        self.structure = structure
        self.names = names
        numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
        computed = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)}
        self.constants = {place: leaf for place, leaf in enumerate(leaves) if place not in computed}
        self.numbers = {place for place, leaf in computed.items() if isinstance(leaf.meta.get("val"), numbers)}
        self._pattern = pattern

    @property
    def computed(self) -> list[int]:
        """The places that are filled with outputs."""
        return [place for place in range(len(self.names)) if place not in self.constants]

    def __call__(self, outputs: Sequence[Any]) -> Any:
        leaves = [self.constants.get(place) for place in range(len(self.names))]
        for place, value in zip(self.computed, outputs, strict=True):
            leaves[place] = value.item() if place in self.numbers else value
        return put_together(self._pattern, pytree.tree_unflatten(leaves, self.structure))

    def compute(self, graph: Graph, places: Iterable[int]) -> None:
        """Let numbers that are constants be outputs of their graph."""
        outputs = dict(zip(self.computed, graph.outputs, strict=True))
        for place in places:
            if place in self.constants:
                name, number = self.names[place], self.constants.pop(place)
                dtype = _NUMBERS[type(number)]
                given = {"shape": (), "value": number, "dtype": dtype}
                outputs[place] = Value(f"{name}_number", dtype, ())
                graph.nodes.append(Node("full", [], [outputs[place]], normalize("full", [], given)))
                graph.remarks = [each for each in graph.remarks if each != always(name, number)]
                self.numbers.add(place)
        graph.outputs = [outputs[place] for place in self.computed]
        graph.output_names = [self.names[place] for place in self.computed]


def constants_of(graph: Graph) -> dict[str, Any]:
    """The results that nothing computes, by name."""
    made = graph.results_of
    return {made.names[place]: each for place, each in made.constants.items()} if isinstance(made, Results) else {}


def always(name: str, constant: Any) -> str:
    """The remark on a result that is no tensor and that nothing computes."""
    return f"{name!r} is always {constant!r}, no tensor: it is not among the outputs"


def are_of_one_kind(first: Graph, other: Graph) -> bool:
    """Whether two graphs return tensors, numbers, None and containers in the same places, of the same types and ranks.

    A number may be computed in one of them and a constant in the other.
    """
    return _places_that_differ([first, other]) is not None and _types(first) == _types(other)


def _types(graph: Graph) -> dict[str, tuple[DType, int]]:
    """The element types and ranks of tensors and numbers among the results, by name."""
    found = {name: (value.dtype, value.rank) for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    numbers = {name: _NUMBERS.get(type(constant)) for name, constant in constants_of(graph).items()}
    return found | {name: (dtype, 0) for name, dtype in numbers.items() if dtype is not None}


def share_numbers(graphs: Sequence[Graph]) -> None:
    """Make Python numbers that differ, or that only some of the graphs compute, outputs of all of them: graphs of one
    kind."""
    places = _places_that_differ(graphs)
    for graph in graphs:
        if isinstance(graph.results_of, Results):
            graph.results_of.compute(graph, places or ())


def forget_constants_that_differ(graphs: Sequence[Graph]) -> None:
    """Take away the remarks on results that are constants where they are not the same in all graphs."""
    remarks = [{always(*item) for item in constants_of(graph).items()} for graph in graphs]
    shared = set.intersection(*remarks)
    for graph, own in zip(graphs, remarks, strict=True):
        graph.remarks = [each for each in graph.remarks if each in shared or each not in own]


def _places_that_differ(graphs: Sequence[Graph]) -> list[int] | None:
    """The places in the results of graphs where numbers are not the same; None where more than that differs."""
    made = [graph.results_of for graph in graphs]
    several = [each for each in made if isinstance(each, Results)]
    if not several:
        return []
    if len(several) < len(made) or any(each.structure != several[0].structure for each in several):
        return None
    same = [_is_same(several, place) for place in range(len(several[0].names))]
    return None if None in same else [place for place, is_same in enumerate(same) if not is_same]


def _is_same(several: Sequence[Results], place: int) -> bool | None:
    """Whether a place of the results is computed everywhere, or one constant; None where not all have a number."""
    constants = [each.constants[place] for each in several if place in each.constants]
    tensors = sum(place not in each.constants and place not in each.numbers for each in several)
    if not constants and tensors in (0, len(several)):
        return True
    if len(constants) == len(several) and len({(type(each), repr(each)) for each in constants}) == 1:
        return True
    return None if tensors or not all(type(each) in _NUMBERS for each in constants) else False


def filled(structure: Any, count: int) -> tuple[list[torch.Tensor], Any]:
    """A structure with other tensors in it, and these: classes such as packed sequences take nothing but tensors."""
    items = [torch.empty(0) for _ in range(count)]
    return items, pytree.tree_unflatten(list(items), structure)


def results_of(structure: Any, leaves: Sequence[Any], pattern: Any, names: Sequence[str]) -> Results | None:
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
    return Results(structure, leaves, pattern if objects else None, names)
