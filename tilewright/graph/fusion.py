"""Fused groups: the result of `graph.passes.fuse`, from which tactics choose kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts


@dataclass(eq=False)
class Group:
    """Nodes computed by one kernel (or one chain of kernels).

    `kind` is the class: elementwise, reduction, rows (several reductions over the same rows), contraction, projection
    (a contraction whose columns are heads, with what turns and stores these), excitation, attention, movement (gather,
    concat, scatter, pad, …), pool, or view (no work: the output is the input's memory).
    `anchor` is the node that gives the loop structure (the matmul, the convolution, the softmax, …), None for
    elementwise and rows.
    `nodes` are in topological order; `prologue` are those that lead to the anchor, `epilogue` the others.
    Views, index arithmetic and cheap nodes may be in several groups: each computes them for itself, and
    only the group that has them in `outputs` stores them.
    """

    kind: str
    nodes: list[Node]
    inputs: list[Value]  # not produced inside; constants included
    outputs: list[Value]  # used outside
    anchor: Node | None = None
    name: str = ""

    @property
    def prologue(self) -> list[Node]:
        return [] if self.anchor is None else self.nodes[: self.nodes.index(self.anchor)]

    @property
    def epilogue(self) -> list[Node]:
        return [] if self.anchor is None else self.nodes[self.nodes.index(self.anchor) + 1 :]


@dataclass(eq=False)
class FusedGraph:
    """A graph and its partition into groups, in a valid execution order."""

    graph: Graph
    groups: list[Group]
    remarks: list[str] = field(default_factory=list)


def with_results(graph: Graph, groups: Sequence[Group]) -> Graph:
    """The graph with all that its groups store as outputs too, by the names of the values; views store nothing."""
    outputs = dict(zip(graph.outputs, graph.output_names, strict=True))
    extra = [value for group in groups if group.kind != "view" for value in group.outputs if value not in outputs]
    names = list(graph.output_names)
    for value in extra:
        name = value.name
        while name in names:
            name += "_"
        names.append(name)
    return replace(graph, outputs=[*graph.outputs, *extra], output_names=names)


def read_outside(nodes: Sequence[Node]) -> list[Value]:
    """What nodes read and none of them computes, in order of first use."""
    made = {output for node in nodes for output in node.outputs}
    return list(dict.fromkeys(item for node in nodes for item in node.inputs if item is not None and item not in made))


def is_block_attention(node: Node, kernels: KernelFacts) -> bool:
    """Whether all queries and keys of a head are one block: its kernel reads rows from where index arithmetic says."""
    if node.op != "attention" or node.attributes["causal"] or node.attributes["softcap"] or len(node.inputs) > 4:
        return False
    queries, keys = (node.inputs[number].shape[2] for number in (0, 1))  # type: ignore[union-attr]
    if not isinstance(queries, int) or not isinstance(keys, int):
        return False
    return 1 < queries <= kernels.block_queries and 1 < keys <= kernels.block_keys
