"""The fallback for groups that no kernel computes whole: the anchor alone, with generated copies around it.

Every class of group can fall back to this: what leads to the anchor is computed into temporaries,
the bare anchor runs on them, and a generated kernel does the rest.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, Cost
from tilewright.library.generated.elementwise import copy_candidate
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.makers import Maker
from tilewright.symbolic import product
from tilewright.targets.base import Target


def split_group(group: Group, graph: Graph, target: Target, maker: Maker, reason: str) -> list[Candidate]:
    """The anchor of a group by each candidate of `maker`, its neighbours as generated kernels around it."""
    anchor = group.anchor
    assert anchor is not None
    temporaries: list[Value] = []

    def generated(value: Value) -> Candidate:
        call = elementwise_call(around, [Result(value, value)], graph.constants, target)
        return copy_candidate("generated", [(call,)], group, target)

    around = [node for node in group.nodes if node is not anchor]
    produced = {output for node in around for output in node.outputs}
    leading = [value for value in dict.fromkeys(anchor.inputs) if value is not None and value in produced]
    temporaries += [value for value in leading if value not in group.outputs]
    if anchor.output not in group.outputs:
        temporaries.append(anchor.output)
    before = [generated(value) for value in leading]
    after = [generated(value) for value in group.outputs if value is not anchor.output and value not in anchor.inputs]
    bare = Group(group.kind, [anchor], [v for v in anchor.inputs if v is not None], [anchor.output], anchor, group.name)
    found = []
    for candidate in maker(bare, graph, target):
        parts = [*before, candidate, *after]
        cost = Cost(candidate.cost.bytes, candidate.cost.flops, sum(part.cost.seconds for part in parts))
        found.append(
            Candidate(
                "anchor alone",
                tuple(stage for part in parts for stage in part.stages),
                cost,
                (*temporaries, *candidate.temporaries),
                {**candidate.reasons, "split": reason},
            )
        )
    return found


def with_axes_moved(group: Group, order: tuple[int, ...], anchor_attributes: dict[str, object]) -> Group:
    """A group whose anchor works on a permuted copy of its input, the result permuted back if it keeps
    the input's rank (`order` are the input's axes in their new order)."""
    anchor = group.anchor
    assert anchor is not None
    source = anchor.inputs[0]
    assert source is not None
    moved = Value(f"{source.name}.moved", source.dtype, tuple(source.shape[axis] for axis in order))
    before = Node("permute", [source], [moved], {"order": order}, anchor.source)
    attributes = {**anchor.attributes, **anchor_attributes}
    op, view, shape = "reshape", {"shape": anchor.output.shape}, anchor.output.shape
    if anchor.output.rank == source.rank and product(shape) == product(source.shape):
        op, view, shape = "permute", {"order": tuple(map(order.index, range(len(order))))}, moved.shape
    result = Value(f"{anchor.output.name}.moved", anchor.output.dtype, shape)
    after = Node(op, [result], [anchor.output], view, anchor.source)
    inner = Node(anchor.op, [moved, *anchor.inputs[1:]], [result], attributes, anchor.source)
    nodes = [*group.prologue, before, inner, after, *group.epilogue]
    return Group(group.kind, nodes, group.inputs, group.outputs, inner, group.name)
