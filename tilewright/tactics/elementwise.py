"""Elementwise groups and plain copies: generated kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.tactics.core import Candidate, KernelCall, Stage
from tilewright.tactics.expressions import OPERATION_WEIGHTS
from tilewright.tactics.generate import Result, elementwise_call
from tilewright.targets.base import Target
from tilewright.tune.cost import estimate, machine_of


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


def total_bytes(inputs: Sequence[Value], outputs: Sequence[Value]) -> Size:
    """What a group reads and writes, every tensor once; a gathered table counts as what is taken of it."""
    total: Size = 0
    for value in (*inputs, *outputs):
        total = simplify(lift(total) + tensor_bytes(value))
    return total


def elementwise(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """One generated kernel for each shape among the group's outputs."""
    by_extent: dict[Size, list[Value]] = {}
    for output in group.outputs:
        by_extent.setdefault(product(output.shape), []).append(output)
    calls = [
        elementwise_call(group.nodes, [Result(value, value) for value in values], graph.constants, target)
        for values in by_extent.values()
    ]
    return [copy_candidate("generated", calls, group, target)]


def copy_candidate(name: str, calls: Sequence[KernelCall], group: Group, target: Target) -> Candidate:
    """A candidate of launches that run one after the other."""
    programs = product(calls[0].grid)
    moved = total_bytes([value for value in group.inputs if group.kind == "elementwise"], group.outputs)
    if group.kind != "elementwise":
        moved = simplify(lift(moved) * 2)
    cost = estimate(machine_of(target), moved, chain_operations(group.nodes), programs, efficiency=0.25)
    reasons = {"form": [call.kernel.__name__ for call in calls], "grid": [str(call.grid) for call in calls]}
    return Candidate(name, tuple(Stage((call,)) for call in calls), cost, (), reasons)
