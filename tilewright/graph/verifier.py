"""Checks that a graph obeys the rules of the Graph IR."""

from __future__ import annotations

from tilewright.dtypes import from_numpy
from tilewright.errors import InvalidIRError, ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import OPS, infer_types, normalize
from tilewright.symbolic import Size, free_symbols, lift, simplify


def verify(graph: Graph) -> None:
    """Raise `InvalidIRError` naming the first node that breaks a rule.

    The rules: every value is defined once and before its use; names are unique; ops, arities and
    attributes are those of the table; recorded types are the inferred ones; constants match their
    data; symbols are declared; outputs and mutations exist and fit.
    """
    defined = _verify_sources(graph)
    names = {value.name for value in defined}
    for node in graph.nodes:
        _verify_node(graph, node, defined)
        for output in node.outputs:
            if output in defined or output.name in names:
                raise _error(graph, f"%{output.name} is defined twice", node)
            defined.add(output)
            names.add(output.name)
    if len(graph.outputs) != len(graph.output_names) or len(set(graph.output_names)) != len(graph.output_names):
        raise _error(graph, f"{len(graph.outputs)} outputs need as many distinct names, got {graph.output_names}")
    for value in graph.results():
        if value not in defined:
            raise _error(graph, f"the result {value!r} is not computed")
    for target, value in graph.mutations.items():
        if target not in graph.inputs or (target.dtype, target.shape) != (value.dtype, value.shape):
            raise _error(graph, f"{target!r} cannot be mutated to {value!r}")


def _verify_sources(graph: Graph) -> set[Value]:
    defined: set[Value] = set()
    names: set[str] = set()
    for value in [*graph.inputs, *graph.constants]:
        if value in defined or value.name in names:
            raise _error(graph, f"%{value.name} is defined twice")
        defined.add(value)
        names.add(value.name)
        for extent in value.shape:
            _verify_size(graph, extent, None)
    for value, data in graph.constants.items():
        if tuple(data.shape) != value.shape or from_numpy(data.dtype) != value.dtype:
            raise _error(graph, f"the data of {value!r} is {data.dtype}{list(data.shape)}")
    return defined


def _verify_node(graph: Graph, node: Node, defined: set[Value]) -> None:
    if node.op not in OPS:
        raise _error(graph, f"unknown op {node.op!r}", node)
    for item in node.inputs:
        if item is not None and item not in defined:
            raise _error(graph, f"{item!r} is used before it is defined", node)
    try:
        if normalize(node.op, node.inputs, node.attributes) != node.attributes:
            raise _error(graph, f"attributes are not normalised: {node.attributes}", node)
        types = infer_types(node.op, node.inputs, node.attributes)
    except ShapeError as error:
        raise _error(graph, str(error), node) from error
    for item in node.attributes.values():
        if isinstance(item, Graph):
            verify(item)
    recorded = [(output.dtype, output.shape) for output in node.outputs]
    if not _same_types(recorded, types):
        raise _error(graph, f"recorded types {recorded} are not the inferred {types}", node)
    for output in node.outputs:
        for extent in output.shape:
            _verify_size(graph, extent, node)


def _same_types(recorded: list, types: list) -> bool:
    """Equal types; extents may be written differently when their difference is zero."""
    return len(recorded) == len(types) and all(
        dtype == other and len(shape) == len(extents) and all(_equal(a, b) for a, b in zip(shape, extents, strict=True))
        for (dtype, shape), (other, extents) in zip(recorded, types, strict=True)
    )


def _equal(left: Size, right: Size) -> bool:
    return left == right or simplify(lift(left) - right) == 0


def _verify_size(graph: Graph, extent: Size, node: Node | None) -> None:
    for symbol in free_symbols(extent):
        if graph.symbols.get(symbol.name) != symbol:
            raise _error(graph, f"size {extent} uses the undeclared symbol {symbol.name}", node)
    if isinstance(extent, int) and extent < 0:
        raise _error(graph, f"negative size {extent}", node)


def _error(graph: Graph, message: str, node: Node | None = None) -> InvalidIRError:
    where = ""
    if node is not None:
        source = f", from {node.source}" if node.source else ""
        where = f" in {node.op} -> {', '.join(f'%{output.name}' for output in node.outputs)}{source}"
    return InvalidIRError(f"graph {graph.name}{where}: {message}")
