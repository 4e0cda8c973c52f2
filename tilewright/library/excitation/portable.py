"""Squeeze and excitation: the mean of an image, two small products of it, as groups one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.library.candidate import Candidate
from tilewright.library.cost import Cost
from tilewright.library.excitation.problem import parts_of
from tilewright.library.makers import Maker
from tilewright.symbolic import lift, simplify
from tilewright.targets.base import Target


def separate_excitation(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    """The likeliest candidates of the parts, one after the other."""
    parts = parts_of(group)
    groups = [
        _group("reduction", [parts.mean], parts.mean, parts.mean.output, group, "mean"),
        _group("contraction", [parts.first, *parts.between], parts.first, parts.hidden, group, "first"),
        _group("contraction", [parts.second, *parts.after], parts.second, group.outputs[0], group, "second"),
    ]
    found = [min(candidates(part, graph, target), key=lambda candidate: candidate.cost.seconds) for part in groups]
    moved, flops = found[0].cost.bytes, found[0].cost.flops
    for other in found[1:]:
        moved, flops = simplify(lift(moved) + other.cost.bytes), simplify(lift(flops) + other.cost.flops)
    candidate = Candidate(
        "separate products",
        tuple(stage for candidate in found for stage in candidate.stages),
        Cost(moved, flops, sum(candidate.cost.seconds for candidate in found)),
        (parts.mean.output, parts.hidden, *(value for candidate in found for value in candidate.temporaries)),
        {"kernels": [candidate.name for candidate in found]},
    )
    return [candidate]


def _group(kind: str, nodes: Sequence[Node], anchor: Node, output: Value, whole: Group, name: str) -> Group:
    return Group(kind, list(nodes), read_outside(nodes), [output], anchor, f"{whole.name}.{name}")
