"""Cuts a graph at sizes known only at run time: compiled parts, and host ops between them.

    staged = partition(graph)     # nodes of the host, of control, and `part` nodes; the parts are staged.parts

A node of level l waits for the ops of the host up to level l; those of level l wait for the parts below l.  All
compiled nodes of one level are one part, whose inputs are tensors from outside.  Sizes that no such tensor has in its
shape come as inputs without a use, named ``size.<symbol>``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.dtypes import HOST_ONLY, int1
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import ON_HOST, kind_of
from tilewright.graph.specialize import with_sizes
from tilewright.symbolic import (
    Expression,
    Size,
    Symbol,
    free_symbols,
    lift,
    plain_symbol,
    product,
    simplify,
    substitute,
    symbol,
)

OnHost = Callable[[Node], bool]
CARRIER = "size."  # begins the name of an input that stands for a size
_SMALL = 64  # elements of what the host computes where only sizes are made of it
_SMALL_SOURCE = 4096  # elements of what that is computed from


def is_staged(graph: Graph) -> bool:
    """Whether a graph needs more than one compiled part; text that nothing reads needs none."""
    return any(node.op != "text" and (_runs_on_host(node) or has_no_numbers(node)) for node in graph.nodes) or any(
        value.dtype in HOST_ONLY for value in (*graph.inputs, *graph.outputs)
    )


def partition(graph: Graph, on_host: OnHost = lambda node: False) -> Graph:
    """The graph with `part` nodes and parts; `on_host` tells nodes that shall not be compiled."""
    parts: list[Graph] = []
    staged = _partition(graph, on_host, set(), parts)
    staged.parts = parts
    return staged


def symbols_of(item: Any) -> set[Symbol]:
    """The symbols in an attribute, a shape, or what a graph inside sees of those outside."""
    if isinstance(item, Expression):
        return free_symbols(item)
    if isinstance(item, (tuple, list)):
        return set().union(*map(symbols_of, item))
    if isinstance(item, Graph):
        used = set().union(*map(_symbols_read, item.nodes), *(symbols_of(value.shape) for value in item.outputs))
        return used - _given(item)
    return set()


def _symbols_read(node: Node) -> set[Symbol]:
    values = [*node.outputs, *(value for value in node.inputs if value is not None)]
    shapes = set().union(*(symbols_of(value.shape) for value in values))
    return shapes.union(*map(symbols_of, node.attributes.values()))


def _given(graph: Graph) -> set[Symbol]:
    """The symbols that get their values in a graph: from its inputs' shapes, and from what its host computes."""
    on_host = [value for node in graph.nodes if _runs_on_host(node) for value in node.outputs]
    return set().union(*(symbols_of(value.shape) for value in (*graph.inputs, *on_host)))


def _runs_on_host(node: Node) -> bool:
    return kind_of(node.op) in ON_HOST


def has_no_numbers(node: Node) -> bool:
    """Whether a node has to do with a tensor that has no elements, or none that are numbers: no kernel computes it."""
    values = [*node.outputs, *(value for value in node.inputs if value is not None)]
    sized = node.outputs if node.op == "concat" else values
    return any(value.dtype in HOST_ONLY for value in values) or any(0 in value.shape for value in sized)


def _partition(graph: Graph, on_host: OnHost, outer: set[Symbol], parts: list[Graph], inside: bool = False) -> Graph:
    nodes = _needed(graph)
    known = {s for value in graph.inputs for s in symbols_of(value.shape)}
    hosted = {id(node) for node in nodes if _runs_on_host(node) or has_no_numbers(node) or on_host(node)}
    if not inside or any(id(node) in hosted and kind_of(node.op) != "control" for node in nodes):
        # Else rounds may run without the host.
        hosted |= _apart(nodes, hosted, _sizes_only(graph, nodes, hosted), known | outer)
    levels = _levels(nodes, hosted, known | outer)
    staged = Graph(graph.name, dict(graph.symbols), graph.inputs, graph.outputs, graph.output_names)
    staged.keep_facts(graph)
    staged.remarks = list(graph.remarks)
    for level in sorted(set(levels.values())):
        here = [node for node in nodes if levels[id(node)] == level]
        for node in (node for node in here if id(node) in hosted):
            staged.nodes.append(_with_parts_inside(node, on_host, {*graph.symbols.values()}, parts))
        compiled = [node for node in here if id(node) not in hosted]
        if compiled:
            staged.nodes.append(_part(graph, compiled, nodes, parts))
    used = {value for node in staged.nodes for value in node.inputs} | set(graph.results())
    staged.constants = {value: data for value, data in graph.constants.items() if value in used}
    return staged


def _with_parts_inside(node: Node, on_host: OnHost, outer: set[Symbol], parts: list[Graph]) -> Node:
    """A node whose graphs are cut as well."""
    if not any(isinstance(item, Graph) for item in node.attributes.values()):
        return node
    attributes = {
        key: _partition(item, on_host, outer, parts, inside=True) if isinstance(item, Graph) else item
        for key, item in node.attributes.items()
    }
    return Node(node.op, node.inputs, node.outputs, attributes, node.source)


def _needed(graph: Graph) -> list[Node]:
    """The nodes that results need: for their values, for the sizes that they tell, or for what they check of sizes."""
    needed, sizes = set(graph.results()), symbols_of([value.shape for value in graph.outputs])
    found: list[Node] = []
    for node in reversed(graph.nodes):
        tells = symbols_of([value.shape for value in node.outputs]) if _runs_on_host(node) else set()
        if tells & sizes or _is_check(node) or any(output in needed for output in node.outputs):
            found.append(node)
            needed.update(item for item in node.inputs if item is not None)
            sizes |= _symbols_read(node)
    return found[::-1]


def _is_check(node: Node) -> bool:
    """Whether a node is a condition, or one on sizes: a reshape that not all of them allow. Nothing need read it."""
    if node.op == "condition":
        return True
    if node.op != "reshape":
        return False
    (source,), (result,) = node.inputs, node.outputs
    return source is not None and simplify(lift(product(source.shape)) - product(result.shape)) != 0


def _sizes_only(graph: Graph, nodes: list[Node], hosted: set[int]) -> set[int]:
    """Small integer arithmetic that only nodes of the host need: no part is worth making for it."""
    small = {value for value in (*graph.inputs, *graph.constants) if _elements(value) <= _SMALL_SOURCE}
    small |= {output for node in nodes if id(node) in hosted for output in node.outputs}
    cheap: list[Node] = []
    for node in nodes:
        fits = all(map(is_small, node.outputs))
        if id(node) not in hosted and fits and all(item is None or item in small for item in node.inputs):
            cheap.append(node)
            small.update(node.outputs)
    users: dict[Value, set[int]] = {}
    for node in nodes:
        for item in node.inputs:
            if item is not None:
                users.setdefault(item, set()).add(id(node))
    found: set[int] = set()
    results = set(graph.results())
    for node in reversed(cheap):
        reading = set().union(*(users.get(output, set()) for output in node.outputs))
        if reading and reading <= hosted | found and not results & set(node.outputs):
            found.add(id(node))
    return found


def _apart(nodes: list[Node], hosted: set[int], small: set[int], known: set[Symbol]) -> set[int]:
    """Those of `small` that read nothing of a part of their own level, where one more operation costs nothing."""
    levels = _levels(nodes, hosted, known)
    producer = {output: node for node in nodes for output in node.outputs}
    found = set(small)
    for node in (node for node in nodes if id(node) in small):
        before = [producer[item] for item in node.inputs if item in producer]
        if any(id(other) not in hosted | found and levels[id(other)] == levels[id(node)] for other in before):
            found.discard(id(node))
    return found


def is_small(value: Value) -> bool:
    """Whether a tensor has few elements, whatever the sizes."""
    return _elements(value) <= _SMALL


def _elements(value: Value) -> float:
    sizes = [size for size in value.shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(value.shape) else math.inf


def _levels(nodes: list[Node], hosted: set[int], known: set[Symbol]) -> dict[int, int]:
    """The level of each node, by its id."""
    producer = {output: node for node in nodes for output in node.outputs}
    teller: dict[Symbol, Node] = {}
    found: dict[int, int] = {}
    for node in nodes:
        inner = {s for value in node.outputs for s in map(plain_symbol, value.shape) if s is not None}
        determined = {s for s in inner if s not in known and s not in teller} if id(node) in hosted else set()
        waits = [producer[value] for value in node.inputs if value in producer]
        waits += [teller[s] for s in _symbols_read(node) - determined if s in teller]
        compiled = id(node) not in hosted
        levels = [found[id(other)] + (not compiled and id(other) not in hosted) for other in waits]
        found[id(node)] = max(levels, default=0)
        teller.update(dict.fromkeys(determined, node))
    return found


def _part(graph: Graph, compiled: list[Node], nodes: list[Node], parts: list[Graph]) -> Node:
    """The `part` node of some nodes, whose graph joins the parts."""
    own = {output for node in compiled for output in node.outputs}
    read = dict.fromkeys(item for node in compiled for item in node.inputs if item is not None and item not in own)
    inside = {id(node) for node in compiled}
    outside = {item for node in nodes if id(node) not in inside for item in node.inputs} | set(graph.results())
    outputs = [value for node in compiled for value in node.outputs if value in outside]
    inputs = [value for value in read if value not in graph.constants]
    used = sorted(set().union(*map(_symbols_read, compiled)), key=str)
    plain = {plain_symbol(size) for value in inputs for size in value.shape}
    carriers = [Value(f"{CARRIER}{s.name}", int1, (symbol(s.name, s.low, s.high),)) for s in used if s not in plain]
    inner = Graph(f"{graph.name}.{len(parts)}", {s.name: s for s in used}, [*inputs, *carriers], outputs)
    inner.output_names, inner.nodes = [value.name for value in outputs], compiled
    inner.constants = {value: graph.constants[value] for value in read if value in graph.constants}
    types = tuple((value.dtype, value.shape) for value in outputs)
    node = Node("part", list(inputs), outputs, {"number": len(parts), "types": types}, inner.name)
    parts.append(_above_zero(inner))
    return node


def _above_zero(part: Graph) -> Graph:
    """A part at sizes of 1 and more, as kernels compute at least one element: where a size is 0, the host runs it.  It
    runs `at_zero` where one of the sizes, such as ``min(n, 1)``, is simpler above 0 and another number at 0."""
    symbols = [found for found in part.symbols.values() if found.low < 1]
    if not symbols:
        return part
    replaced = {found.name: symbol(found.name, 1, max(1, found.high)) for found in symbols}
    back = {found.name: symbol(found.name, found.low, found.high) for found in symbols}
    sizes = {size for node in part.nodes for size in _sizes_in([node.attributes.values(), *_shapes_of(node)])}
    found = with_sizes(part, replaced)
    if any(substitute(substitute(size, replaced), back) != size for size in sizes):
        found.at_zero = part
    return found


def _sizes_in(item: Any) -> set[Expression]:
    """The expressions in attributes and shapes."""
    if isinstance(item, Expression):
        return {item}
    if isinstance(item, (str, Graph)) or not isinstance(item, Iterable):
        return set()
    return set().union(*map(_sizes_in, item))


def _shapes_of(node: Node) -> list[tuple[Size, ...]]:
    return [value.shape for value in (*node.inputs, *node.outputs) if value is not None]
