"""The rules for an ONNX model as a whole, checked before anything is imported.

Versions, unique names, nodes in an order in which they can run, and bounds on what a small file can ask for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from tilewright.errors import ImportModelError
from tilewright.importers.onnx_schema import DOMAINS, NEWEST

OLDEST_OPSET = 1
DEEPEST = 32  # functions and branches inside each other
MOST_MODEL_NODES = 1 << 16  # of a model, calls of functions replaced by their bodies

FunctionKey = tuple[str, str, str]  # domain, name, overload


@dataclass
class Structure:
    """What the check found out: opsets of the model and of its functions by domain."""

    opset: int
    functions: dict[FunctionKey, FunctionProto] = field(default_factory=dict)


def check_structure(model: ModelProto) -> Structure:
    """Raise `ImportModelError` for a model that breaks a rule of the ONNX format, or is beyond the bounds above."""
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise ImportModelError(
            f"the model has the IR version {model.ir_version}; 1 to {onnx.IR_VERSION} are known: export it again, "
            "or install a newer onnx package"
        )
    opset = opset_of(model.opset_import, "the model", 1 if model.ir_version < 3 else 0)
    if not model.graph.output:
        raise ImportModelError("the model has no outputs; export it again")
    _check_text([model.graph.name], "the model")
    structure = Structure(opset, _functions(model.functions))
    _check_graph(model.graph, (), "the model")
    for function in model.functions:
        _check_function(function)
    _check_size(model.graph, structure.functions)
    return structure


def _check_text(names: Iterable[str], where: str) -> None:
    """Raise `ImportModelError` for a name that is no UTF-8 text: protobuf gives it as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ImportModelError(f"{where} has a name that is no UTF-8 text: {name!r}; the file is damaged")


def opset_of(imports: Iterable[onnx.OperatorSetIdProto], whose: str, default: int = 0) -> int:
    """The version of ONNX's own operations that is imported; 0 where none has to be.

    Raises `ImportModelError` for a version that is not known, and for two versions of one domain.
    """
    versions: dict[str, int] = {}
    imports = list(imports)
    _check_text([entry.domain for entry in imports], whose)
    for entry in imports:
        domain = "" if entry.domain in DOMAINS else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ImportModelError(
                f"{whose} imports versions {versions[domain]} and {entry.version} of the domain {domain or 'ai.onnx'!r}"
            )
    opset = versions.get("", default)
    if "" in versions and not OLDEST_OPSET <= opset <= NEWEST:
        raise ImportModelError(
            f"{whose} imports opset {opset}; {OLDEST_OPSET} to {NEWEST} are known: export it with one of them, or "
            "install a newer onnx package"
        )
    return opset


def key_of(node: NodeProto) -> FunctionKey:
    """Under which a node's function is found, if it calls one."""
    return ("" if node.domain in DOMAINS else node.domain, node.op_type, node.overload)


def node_text(node: NodeProto, number: int | None = None) -> str:
    """A node in messages: ``node 'pool' (MaxPool)``; one without a name by its number."""
    if node.name or number is None:
        return f"node {node.name or next(iter(node.output), '')!r} ({node.op_type})"
    return f"node number {number} ({node.op_type})"


def _functions(functions: Iterable[FunctionProto]) -> dict[FunctionKey, FunctionProto]:
    found: dict[FunctionKey, FunctionProto] = {}
    for function in functions:
        _check_text([function.domain, function.name, function.overload], "a function of the model")
        key = ("" if function.domain in DOMAINS else function.domain, function.name, function.overload)
        if key in found:
            raise ImportModelError(f"the function {function.name!r} of domain {function.domain!r} is defined twice")
        found[key] = function
    return found


# Names -------------------------------------------------------------------------------------------------


def _check_graph(graph: GraphProto, outer: tuple[set[str], ...], where: str) -> None:
    if len(outer) > DEEPEST:
        raise ImportModelError(f"{where} has graphs that are nested more than {DEEPEST} deep")
    defined: set[str] = set()
    _check_text([entry.name for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)], where)
    _check_text([dim.dim_param for entry in graph.input for dim in entry.type.tensor_type.shape.dim], where)
    for entry in graph.input:
        _define(entry.name, defined, where, "an input")
    stored = [tensor.name for tensor in graph.initializer] + [item.values.name for item in graph.sparse_initializer]
    _no_repeats(stored, where, "initializers")
    if not all(stored):
        raise ImportModelError(f"{where} has an initializer without a name")
    defined.update(stored)
    _check_nodes(graph.node, defined, outer, where)
    names = [entry.name for entry in graph.output]
    _no_repeats(names, where, "outputs")
    for name in names:
        if name not in defined and not any(name in names for names in outer):
            raise ImportModelError(f"output {name!r} of {where} is computed by no node of the model")


def _check_nodes(nodes: Sequence[NodeProto], defined: set[str], outer: tuple[set[str], ...], where: str) -> None:
    for node in nodes:
        _check_text([node.op_type, node.domain, node.name, node.overload, *node.input, *node.output], where)
    ordered = in_order(nodes)
    for place, (number, node) in enumerate(ordered):
        text = f"{node_text(node, number)} of {where}"
        if not node.op_type:
            raise ImportModelError(f"{text} names no operation")
        for name in node.input:
            if name and name not in defined and not any(name in names for names in outer):
                raise ImportModelError(_undefined(name, text, [later for _, later in ordered[place:]]))
        for attribute in _checked_attributes(node, text):
            for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                _check_graph(graph, (*outer, defined), f"the attribute {attribute.name!r} of {text}")
        for name in node.output:
            if name:
                _define(name, defined, where, text)
        if not any(node.output):
            raise ImportModelError(f"{text} has no outputs")


def in_order(nodes: Iterable[NodeProto]) -> list[tuple[int, NodeProto]]:
    """Nodes with their numbers in the file, each after those that it reads from; in the file's order where it may be.

    ONNX wants them sorted, but converters append nodes at the end, and ONNX Runtime sorts them.  Those of a cycle stay
    where they are.
    """
    numbered = list(enumerate(nodes))
    makers = {name: number for number, node in numbered for name in node.output if name}
    needs = [{makers[name] for name in names_read(node) if name in makers} for _, node in numbered]
    if all(need < number for number, found in enumerate(needs) for need in found):
        return numbered
    readers: list[list[int]] = [[] for _ in numbered]
    for number, found in enumerate(needs):
        for need in found:
            readers[need].append(number)
    ready = [number for number, found in enumerate(needs) if not found]
    order = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            needs[reader].discard(number)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    return [numbered[number] for number in order] if len(order) == len(numbered) else numbered


def names_read(node: NodeProto, depth: int = 0) -> set[str]:
    """The names that a node reads, those that its graphs take from outside of them included."""
    names = set(node.input)
    graphs = [graph for item in node.attribute for graph in (*item.graphs, *([item.g] if item.HasField("g") else []))]
    for graph in graphs if depth <= DEEPEST else []:
        inner = {entry.name for entry in graph.output}
        inner = inner.union(*(names_read(each, depth + 1) for each in graph.node))
        own = {entry.name for entry in (*graph.input, *graph.initializer)}
        own |= {sparse.values.name for sparse in graph.sparse_initializer}
        names |= inner - own.union(*(each.output for each in graph.node))
    return names


def depending(
    node: NodeProto, rest: Sequence[tuple[int, NodeProto]]
) -> tuple[list[tuple[int, NodeProto]], list[tuple[int, NodeProto]]]:
    """Of the nodes after one, in order: those that use its results, also through others, and those that do not."""
    made = {name for name in node.output if name}
    following: list[tuple[int, NodeProto]] = []
    others: list[tuple[int, NodeProto]] = []
    for numbered in rest:
        uses = not made.isdisjoint(names_read(numbered[1]))
        (following if uses else others).append(numbered)
        if uses:
            made.update(name for name in numbered[1].output if name)
    return following, others


def continued(node: NodeProto, following: Sequence[NodeProto], results: Sequence[str]) -> NodeProto:
    """An If with the nodes that use its results in both of its branches; it gives `results`.

    A branch stays a graph of its own, whose names the nodes after it do not see: that of an If that takes it always.
    """
    found = NodeProto(op_type="If", name=node.name, input=node.input, output=results)
    for key in ("then_branch", "else_branch"):
        branch = next(item.g for item in node.attribute if item.name == key)
        always = f"{node.output[0]}/{key}"
        graph = found.attribute.add(name=key, type=AttributeProto.GRAPH).g
        graph.name = branch.name
        known = graph.node.add(op_type="Constant", output=[always]).attribute.add(
            name="value", type=AttributeProto.TENSOR
        )
        known.t.CopyFrom(TensorProto(data_type=TensorProto.BOOL, dims=[1], int32_data=[1]))
        inside = graph.node.add(op_type="If", name=node.name, input=[always], output=node.output)
        inside.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g.CopyFrom(branch)
        inside.attribute.add(name="else_branch", type=AttributeProto.GRAPH).g.name = branch.name
        graph.node.extend(following)
        for name in results:
            graph.output.add(name=name)
    return found


def _undefined(name: str, text: str, following: list[NodeProto]) -> str:
    for later in following:
        if name in later.output:
            return (
                f"{text} reads {name!r}, which {node_text(later)} computes, and that waits for it: nodes must "
                "have no cycles"
            )
    return (
        f"{text} cannot run: it reads {name!r}, which no input, initializer or earlier node defines; correct the model"
    )


def _checked_attributes(node: NodeProto, text: str) -> Iterable[AttributeProto]:
    _check_text([name for item in node.attribute for name in (item.name, item.ref_attr_name)], text)
    _no_repeats([attribute.name for attribute in node.attribute], text, "attributes")
    return node.attribute


def _define(name: str, defined: set[str], where: str, subject: str) -> None:
    if not name:
        raise ImportModelError(f"{where} has {subject} without a name")
    if name in defined:
        raise ImportModelError(f"{where} defines {name!r} twice: {subject} does it again; names must be unique")
    defined.add(name)


def _no_repeats(names: list[str], where: str, subject: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ImportModelError(f"{where} has two {subject} named {twice!r}; names must be unique")


def _check_function(function: FunctionProto) -> None:
    where = f"the function {function.name!r}"
    opset_of(function.opset_import, where)
    _check_text([*function.input, *function.output, *function.attribute], where)
    defined: set[str] = set()
    for name in function.input:
        _define(name, defined, where, "an input")
    _no_repeats([*function.attribute, *(item.name for item in function.attribute_proto)], where, "attributes")
    _check_nodes(function.node, defined, (), where)
    _no_repeats(list(function.output), where, "outputs")
    for name in function.output:
        if name not in defined:
            raise ImportModelError(f"{where} has an output {name!r} that none of its nodes computes")


# Size --------------------------------------------------------------------------------------------------


def _check_size(graph: GraphProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Refuse functions that call themselves, and models of too many nodes once calls are replaced by bodies."""
    sizes: dict[FunctionKey, tuple[int, int]] = {}  # nodes and depth of each function's body

    def measure(nodes: Iterable[NodeProto], calls: tuple[FunctionKey, ...]) -> tuple[int, int]:
        total, depth = 0, 0
        for node in nodes:
            parts = [(1, 0)]
            for attribute in node.attribute:
                for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                    parts.append(measure(inner.node, calls))
            key = key_of(node)
            if key in functions:
                parts.append(body(key, calls))
            total += sum(count for count, _ in parts)
            depth = max(depth, *(level for _, level in parts))
        return total, depth

    def body(key: FunctionKey, calls: tuple[FunctionKey, ...]) -> tuple[int, int]:
        if key in calls:
            circle = " -> ".join(name for _, name, _ in (*calls[calls.index(key) :], key))
            raise ImportModelError(f"functions call each other in a circle: {circle}; ONNX does not allow it")
        if key not in sizes and len(calls) <= DEEPEST:
            count, depth = measure(functions[key].node, (*calls, key))
            sizes[key] = count, depth + 1
        if key not in sizes or sizes[key][1] > DEEPEST:
            raise ImportModelError(f"functions call each other more than {DEEPEST} deep; write the calls out")
        return sizes[key]

    total, _ = measure(graph.node, ())
    if total > MOST_MODEL_NODES:
        raise ImportModelError(
            f"the model has {total} nodes when calls of functions are replaced by their bodies; at most "
            f"{MOST_MODEL_NODES} are supported"
        )


# Declared types ----------------------------------------------------------------------------------------


def declared_types(entries: Iterable[ValueInfoProto]) -> dict[str, onnx.TypeProto]:
    """The types that a graph declares of its values, by name."""
    return {entry.name: entry.type for entry in entries if entry.HasField("type")}
