"""Elementwise groups and plain copies: generated kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.expressions import OPERATION_WEIGHTS
from tilewright.library.generated.generate import Result, elementwise_call, loops_of
from tilewright.library.generated.index import dense_strides
from tilewright.library.generated.joint import mean_sectors, together
from tilewright.symbolic import Size, floor_divide, lift, product, simplify
from tilewright.targets.base import Target


def tensor_bytes(value: Value) -> Size:
    """The memory of a dense tensor."""
    return simplify(lift(product(value.shape)) * value.dtype.itemsize)


def chain_operations(nodes: Sequence[Node]) -> Size:
    """The estimated vector-operation count of elementwise nodes, in elements."""
    total: Size = 0
    for node in nodes:
        weight = int(OPERATION_WEIGHTS.get(node.op, 1))
        total = simplify(lift(total) + lift(product(node.output.shape)) * weight)
    return total


def total_bytes(inputs: Sequence[Value], outputs: Sequence[Value], nodes: Sequence[Node] = ()) -> Size:
    """What a group reads and writes, every tensor once; tables that `nodes` only look up count as what is taken."""
    total: Size = 0
    for value in inputs:
        total = simplify(lift(total) + _read_bytes(value, nodes))
    for value in outputs:
        total = simplify(lift(total) + tensor_bytes(value))
    return total


def _read_bytes(value: Value, nodes: Sequence[Node]) -> Size:
    whole = tensor_bytes(value)
    users = [node for node in nodes if value in node.inputs]
    if not users or any(node.op != "gather" or node.inputs[0] is not value for node in users):
        return whole
    gathered: Size = 0
    for node in users:
        gathered = simplify(lift(gathered) + tensor_bytes(node.output))
    return min(whole, gathered) if isinstance(whole, int) and isinstance(gathered, int) else gathered


def elementwise(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A loop for each shape among the group's results: one generated kernel, or one each.

    The parts of a concat are results that are stored beside each other; a `scatter_update` whose updates do not meet
    stores them where its indices say.
    """
    producers = {output: node for node in group.nodes for output in node.outputs}
    by_shape: dict[tuple[Size, ...], list[Result]] = {}
    for output in group.outputs:
        for result in _results(output, producers):
            by_shape.setdefault(_loop_shape(result.value, producers), []).append(result)
    work = [(needed_nodes(group.nodes, results), results) for results in by_shape.values()]
    elements: Size = 0
    for _, results in work:
        elements = simplify(lift(elements) + product(results[0].value.shape))
    stages: list[tuple[KernelCall, ...]] = []
    for end, loops in loops_of(target).by_size(elements):
        calls = [elementwise_call(nodes, results, graph.constants, target, loops) for nodes, results in work]
        calls = together(calls, target)
        if end is not None:
            calls = [replace(call, condition=(elements, end)) for call in calls]
        stages = [(*before, call) for before, call in zip(stages or [()] * len(calls), calls, strict=True)]
    return [copy_candidate("generated", stages, group, target)]


def _results(output: Value, producers: Mapping[Value, Node]) -> list[Result]:
    """What is stored for one of a group's outputs."""
    node = producers.get(output)
    if node is not None and node.op == "scatter_update":
        return [_updated(node)]
    if node is None or node.op != "concat":
        return [Result(output, output)]
    axis, strides = node.attributes["axis"], dense_strides(output.shape)
    parts: list[Result] = []
    start: Size = 0
    for part in node.inputs:
        assert part is not None
        if part.shape[axis] != 0:
            parts.append(Result(part, output, strides, simplify(lift(start) * strides[axis])))
        start = simplify(lift(start) + part.shape[axis])
    return parts


def needed_nodes(nodes: Sequence[Node], results: Sequence[Result]) -> list[Node]:
    """The nodes that compute results, and the places of updates."""
    wanted = {result.value for result in results}
    places = [result.update.inputs[1] for result in results if result.update is not None]
    wanted.update(place for place in places if place is not None)
    found: list[Node] = []
    for node in reversed(nodes):
        if node.output in wanted:
            found.insert(0, node)
            wanted.update(item for item in node.inputs if item is not None)
    return found


def _updated(update: Node) -> Result:
    """The updates of a tensor, as what a kernel stores."""
    value = update.inputs[2]
    assert value is not None
    return Result(value, update.output, update=update)


def _loop_shape(value: Value, producers: Mapping[Value, Node]) -> tuple[Size, ...]:
    """The dimensions other than 1 in which a value is computed: reshapes of one value share a loop."""
    while value in producers and producers[value].op == "reshape":
        source = producers[value].inputs[0]
        assert source is not None
        value = source
    return tuple(extent for extent in value.shape if extent != 1)


def _moved_bytes(group: Group, written: Size) -> Size:
    """What a group that moves elements reads: no more than it writes, nor than there is."""
    sizes = [tensor_bytes(value) for value in group.inputs]
    if any(node.op in ("scatter_update", "scatter_reduce") for node in group.nodes):
        return written
    if not isinstance(written, int) or not all(isinstance(size, int) for size in sizes):
        return written
    return min(written, sum(size for size in sizes if isinstance(size, int)))


def copy_candidate(
    name: str, stages: Sequence[tuple[KernelCall, ...]], group: Group, target: Target
) -> Candidate:  # fmt: skip
    """A candidate of launches that run one after the other, each one of several for ranges of sizes."""
    calls = [stage[0] for stage in stages]
    programs = product(calls[0].grid)
    updates = {node.output: node for node in group.nodes if node.op == "scatter_update" and group.anchor is not node}
    updated = {node.inputs[0] for node in updates.values()}
    read = [value for value in group.inputs if group.kind == "elementwise" and value not in updated]
    written = [_updated(updates[value]).value if value in updates else value for value in group.outputs]
    moved = total_bytes(read, written, group.nodes)
    if group.kind != "elementwise":
        moved = simplify(lift(moved) + _moved_bytes(group, moved))
    sectors = mean_sectors(calls)
    if sectors > 1:
        moved = floor_divide(simplify(lift(moved) * round(100 * sectors)), 100)
    cost = estimate(target.machine(), moved, chain_operations(group.nodes), programs, efficiency=0.25)
    reasons = {"form": [call.kernel.__name__ for call in calls], "grid": [str(call.grid) for call in calls]}
    return Candidate(name, tuple(map(Stage, stages)), cost, (), reasons)
