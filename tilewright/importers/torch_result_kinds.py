"""Ways of the code whose results differ in kind: one graph has the outputs of all kinds, and tells which a call has.

    return x.squeeze()      # of another rank where a size is 1

Tensors of one name that differ only in rank are one output, which has dimensions of 1 more where the rank is lower. An
output that a kind does not have is empty there. The last output is the number of the kind, by which a call makes what
the module returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType, int64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import normalize
from tilewright.importers.torch_results import are_of_one_kind, forget_constants_that_differ, share_numbers
from tilewright.symbolic import Size, evaluate

Sizes = Mapping[str, int]  # of dimensions, by name
_Slot = tuple[str, DType]  # an output of all kinds


@dataclass(frozen=True)
class _Own:
    """A result of a kind: its place among the outputs of all kinds, and the axes there that it does not have."""

    place: int
    added: tuple[int, ...]

    def of(self, outputs: Sequence[Any]) -> Any:
        value = outputs[self.place]
        own = [size for axis, size in enumerate(value.shape) if axis not in self.added]
        return value.reshape(own) if self.added else value


class ResultsOfKinds:
    """Makes a module's results of the outputs of all kinds, of which the last is the number of the kind."""

    def __init__(self, kinds: Sequence[tuple[Callable[[Sequence[Any]], Any] | None, Sequence[_Own]]]) -> None:
        """For each kind what makes its results, and the outputs that it makes them of."""
        self._kinds = kinds

    def __call__(self, outputs: Sequence[Any]) -> Any:
        make, results = self._kinds[int(outputs[-1].item())]
        own = [each.of(outputs) for each in results]
        return make(own) if make is not None else own[0] if len(own) == 1 else tuple(own)


def share_outputs(graphs: Sequence[Graph], accepted: Sequence[Sequence[Sizes]]) -> ResultsOfKinds | None:
    """Give all graphs the same outputs; None where their results are of one kind, in which numbers that differ become
    outputs. `accepted` are sizes that each graph takes.
    """
    alike: list[list[Graph]] = []
    for graph in graphs:
        known = next((each for each in alike if are_of_one_kind(each[0], graph)), None)
        alike.append([graph]) if known is None else known.append(graph)
    for each in alike:
        share_numbers(each)
    if len(alike) == 1:
        return None
    forget_constants_that_differ(graphs)
    widest = _widest(graphs)
    names = [name for name, _ in widest]
    labels: list[str] = []
    for name, dtype in widest:
        others = {*names, *labels}
        labels.append(name if names.count(name) == 1 else _other_than(others, f"{name}_{dtype.name}"))
    slots = dict(zip(labels, widest.values(), strict=True))
    kinds: dict[tuple[int, tuple[_Own, ...]], Any] = {}
    for graph, sizes in zip(graphs, accepted, strict=True):
        own = []
        for name, value in zip(graph.output_names, graph.outputs, strict=True):
            slot = name, value.dtype
            own.append(_Own(list(widest).index(slot), _added(value, widest[slot], sizes)))
        number = next(number for number, each in enumerate(alike) if graph in each)
        kinds.setdefault((number, tuple(own)), graph.results_of)
        _give(graph, slots, own, list(kinds).index((number, tuple(own))))
    return ResultsOfKinds([(make, own) for (_, own), make in kinds.items()])


def _widest(graphs: Sequence[Graph]) -> dict[_Slot, Value]:
    """The outputs of all graphs, each from the one in which it has the highest rank."""
    found: dict[_Slot, Value] = {}
    for graph in graphs:
        for name, value in zip(graph.output_names, graph.outputs, strict=True):
            slot = name, value.dtype
            if slot not in found or found[slot].rank < value.rank:
                found[slot] = value
    return found


def _added(value: Value, widest: Value, accepted: Sequence[Sizes]) -> tuple[int, ...]:
    """The axes of the widest output that another does not have: those that are 1 for the sizes that its graph takes,
    where the others agree; else the first ones."""
    count = widest.rank - value.rank
    for axes in itertools.combinations(range(widest.rank), count):
        own = iter(value.shape)
        shape: list[Size] = [1 if axis in axes else next(own) for axis in range(widest.rank)]
        with suppress(KeyError):  # of a size that only the run knows
            pairs = zip(shape, widest.shape, strict=True)
            if all(evaluate(one, sizes) == evaluate(other, sizes) for one, other in pairs for sizes in accepted):
                return axes
    return tuple(range(count))


def _give(graph: Graph, slots: Mapping[str, Value], own: Sequence[_Own], kind: int) -> None:
    """Give a graph the outputs of all kinds, and the number of its own."""
    made = {each.place: (each.added, value) for each, value in zip(own, graph.outputs, strict=True)}
    outputs = {}
    for place, (name, widest) in enumerate(slots.items()):
        added, value = made.get(place, ((), None))
        if value is None:
            shape: tuple[Size, ...] = (0,) * widest.rank
            value = _computed(graph, "full", [], shape=shape, value=0, dtype=widest.dtype)
        elif added:
            sizes = iter(value.shape)
            shape = tuple(1 if axis in added else next(sizes) for axis in range(widest.rank))
            value = _computed(graph, "reshape", [value], shape=shape)
        outputs[name] = value
    outputs[_other_than(outputs, "kind")] = _computed(graph, "full", [], shape=(), value=kind, dtype=int64)
    graph.outputs, graph.output_names = list(outputs.values()), list(outputs)


def _computed(graph: Graph, op: str, inputs: list[Value | None], **attributes: Any) -> Value:
    """The result of a node that a graph gets; `attributes` have its shape, and its type where there are no inputs."""
    names = {value.name for node in graph.nodes for value in node.outputs}.union(value.name for value in graph.inputs)
    dtype = inputs[0].dtype if inputs and inputs[0] is not None else attributes["dtype"]
    result = Value(_other_than(names, "of_kind"), dtype, attributes["shape"])
    graph.nodes.append(Node(op, inputs, [result], normalize(op, inputs, attributes)))
    return result


def _other_than(names: Container[str], name: str) -> str:
    while name in names:
        name += "_"
    return name
