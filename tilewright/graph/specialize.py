"""Narrows a graph's dynamic sizes: a symbol becomes a number or gets a smaller range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.symbolic import Expression, Size, Symbol, free_symbols, substitute, symbol


def restrict_shapes(graph: Graph, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> Graph:
    """The graph with its inputs' dimensions held to inclusive ranges, one per dimension.

    Raises `ShapeError` for an unknown input, a wrong rank, a size that the model does not have, or a
    range that does not lie inside the model's own.
    """
    inputs = {value.name: value for value in graph.inputs}
    replacements: dict[str, Size] = {}
    for name, dimensions in ranges.items():
        if name not in inputs:
            raise ShapeError(f"the model has no input {name!r}; its inputs are {', '.join(inputs)}")
        shape = inputs[name].shape
        if len(shape) != len(dimensions):
            raise ShapeError(f"input {name!r} has rank {len(shape)}: give {len(shape)} sizes, not {len(dimensions)}")
        for index, (size, limits) in enumerate(zip(shape, dimensions, strict=True)):
            _restrict(f"dimension {index} of input {name!r}", size, limits, replacements)
    return with_sizes(graph, replacements)


def _restrict(subject: str, size: Size, limits: tuple[int, int], replacements: dict[str, Size]) -> None:
    low, high = limits
    symbols = free_symbols(size)
    if isinstance(size, int) or len(symbols) != 1 or str(size) != next(iter(symbols)).name:
        if (size, size) != limits:
            raise ShapeError(f"{subject} is {size} in the model and cannot be {_range_text(limits)}")
        return
    (found,) = symbols
    if low < found.low or high > found.high:
        raise ShapeError(f"{subject} may be {found.low}..{found.high} in the model and cannot be {_range_text(limits)}")
    wanted: Size = low if low == high else symbol(found.name, low, high)
    if replacements.setdefault(found.name, wanted) != wanted:
        raise ShapeError(f"{subject} is {found.name}, which was already given as {replacements[found.name]}")


def _range_text(limits: tuple[int, int]) -> str:
    return str(limits[0]) if limits[0] == limits[1] else f"{limits[0]}..{limits[1]}"


def with_sizes(graph: Graph, replacements: Mapping[str, Size]) -> Graph:
    """The graph with symbols replaced by sizes: numbers, or symbols of the same name with another range."""
    values: dict[Value, Value] = {}

    def renewed(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.name, value.dtype, _attribute(value.shape, replacements))
        return values[value]

    nodes = [
        Node(
            node.op,
            [None if value is None else renewed(value) for value in node.inputs],
            [renewed(value) for value in node.outputs],
            {name: _attribute(attribute, replacements) for name, attribute in node.attributes.items()},
            node.source,
        )
        for node in graph.nodes
    ]
    return Graph(
        name=graph.name,
        symbols={name: restricted for name, old in graph.symbols.items() if (restricted := _symbol(old, replacements))},
        inputs=[renewed(value) for value in graph.inputs],
        outputs=[renewed(value) for value in graph.outputs],
        output_names=list(graph.output_names),
        nodes=nodes,
        constants={renewed(value): array for value, array in graph.constants.items()},
        mutations={renewed(value): renewed(result) for value, result in graph.mutations.items()},
        remarks=list(graph.remarks),
        fixed=dict(graph.fixed),
        seed=graph.seed,
    )


def _symbol(old: Symbol, replacements: Mapping[str, Size]) -> Symbol | None:
    """The symbol with its new range; None when it became a number."""
    size = replacements.get(old.name, symbol(old.name, old.low, old.high))
    return None if isinstance(size, int) else next(iter(free_symbols(size)))


def _attribute(attribute: Any, replacements: Mapping[str, Size]) -> Any:
    if isinstance(attribute, Expression):
        return substitute(attribute, replacements)
    if isinstance(attribute, Graph):
        return with_sizes(attribute, replacements)
    if isinstance(attribute, tuple):
        return tuple(_attribute(entry, replacements) for entry in attribute)
    if isinstance(attribute, list):
        return [_attribute(entry, replacements) for entry in attribute]
    return attribute
