"""Models with an If whose branches give other numbers of dimensions: an engine computes its condition, one for each
branch the model with that branch in its place."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from tilewright.errors import UnsupportedOperationError
from tilewright.importers.onnx_ops.random import TABLE as DRAWS
from tilewright.importers.onnx_structure import DEEPEST, in_order, names_read

_IF = "ai.onnx::If"


def refused_branch(model: ModelProto, error: UnsupportedOperationError) -> NodeProto | None:
    """The first If of the model's own graph that an import refused, or whose branches have what it refused."""
    names = {name for operation, name, _ in error.reasons if operation == _IF}
    for _, node in in_order(model.graph.node):
        if node.op_type == "If" and (node.name or next(filter(None, node.output), "")) in names:
            return node
    return None


def condition_of(model: ModelProto, node: NodeProto) -> ModelProto:
    """The part of a model that computes the condition of an If, which is its only output.

    Draws of random numbers before the If stay, as each number follows from how many draws come before it.
    """
    wanted, needed, before = {node.input[0]}, [], False
    for _, each in reversed(in_order(model.graph.node)):
        before = before or each.output == node.output
        if not wanted.isdisjoint(each.output) or (before and each.op_type in DRAWS.rules):
            needed.append(each)
            wanted |= names_read(each)
    result = _with_nodes(model, reversed(needed))
    del result.graph.output[:]
    result.graph.output.append(ValueInfoProto(name=node.input[0]))
    return result


def with_branch(model: ModelProto, node: NodeProto, condition: bool) -> ModelProto:
    """The model with the nodes of one branch in the place of an If."""
    key = "then_branch" if condition else "else_branch"
    branch = GraphProto()
    branch.CopyFrom(next(item.g for item in node.attribute if item.name == key))
    made = [*map(attrgetter("name"), _stored(branch)), *(name for each in branch.node for name in each.output)]
    names = {name: f"{node.output[0]}/{key}/{name}" for name in made if name}
    _rename(branch, names)
    same = [
        NodeProto(op_type="Identity", input=[names.get(entry.name, entry.name)], output=[name])
        for entry, name in zip(branch.output, node.output, strict=False)
        if name
    ]
    nodes: list[NodeProto] = []
    for _, each in in_order(model.graph.node):
        nodes += [*branch.node, *same] if each.output == node.output else [each]
    result = _with_nodes(model, nodes)
    result.graph.initializer.extend(branch.initializer)
    result.graph.sparse_initializer.extend(branch.sparse_initializer)
    return result


def _with_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> ModelProto:
    result, listed = ModelProto(), list(nodes)
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(listed)
    return result


def _rename(graph: GraphProto, names: dict[str, str], depth: int = 0) -> None:
    """Give values of a graph other names, also where graphs inside it read them."""
    for tensor in _stored(graph):
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
        for index, name in enumerate(node.output):
            node.output[index] = names.get(name, name)
        for item in node.attribute if depth < DEEPEST else []:
            for inner in _graphs(item):
                own = {entry.name for entry in (*inner.input, *_stored(inner))}
                own = own.union(*(each.output for each in inner.node))
                _rename(inner, {name: other for name, other in names.items() if name not in own}, depth + 1)
    for entry in graph.output if depth else []:
        entry.name = names.get(entry.name, entry.name)


def _stored(graph: GraphProto) -> list[TensorProto]:
    """The constants of a graph; of the sparse ones what has the name."""
    return [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
