"""What is done with a convolution's operands before its kernel: copies, and the bias as an addition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.weights import PackedOperand
from tilewright.targets.base import Target


def with_bias_in_epilogue(group: Group) -> Group:
    """The bias as an addition after the anchor."""
    anchor = group.anchor
    assert anchor is not None
    if len(anchor.inputs) < 3 or anchor.inputs[2] is None:
        return group
    plain = Value(f"{anchor.output.name}.product", anchor.output.dtype, anchor.output.shape)
    inner = Node("conv", anchor.inputs[:2], [plain], anchor.attributes, anchor.source)
    bias, view = anchor.inputs[2], []
    if anchor.attributes["layout"] != "NHWC":
        shape = (*bias.shape, *(1,) * (anchor.output.rank - 2))
        channels = Value(f"{bias.name}.channels", bias.dtype, shape)
        bias, view = channels, [Node("reshape", [bias], [channels], {"shape": shape}, anchor.source)]
    add = Node("add", [plain, bias], [anchor.output], {}, anchor.source)
    nodes = [*group.prologue, inner, *view, add, *group.epilogue]
    return Group(group.kind, nodes, group.inputs, group.outputs, inner, group.name)


@dataclass(frozen=True)
class Moves:
    """Copies that run before a convolution, and what they write; the nodes whose place they take."""

    stages: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()


def preceded_by(before: Moves | PackedOperand, candidate: Candidate) -> Candidate:
    """A candidate with what must run first."""
    temporaries = (*before.temporaries, *candidate.temporaries)
    return replace(candidate, stages=(*before.stages, *candidate.stages), temporaries=temporaries)


def with_image_moved(group: Group, graph: Graph, target: Target) -> tuple[Group, Moves]:
    """A group whose image is in memory in the order of its convolution, and the copy that puts it there."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    image = anchor.inputs[0]
    if anchor.attributes["layout"] != "NHWC" or all(image not in node.outputs for node in group.prologue):
        return group, Moves()
    call = elementwise_call(group.prologue, [Result(image, image)], graph.constants, target)
    rest = [node for node in group.nodes if node not in group.prologue]
    read = {value for node in rest for value in node.inputs}
    inputs = [image, *(value for value in group.inputs if value in read)]
    moves = Moves((Stage((call,)),), (image,), tuple(group.prologue))
    return Group(group.kind, rest, inputs, group.outputs, anchor, group.name), moves
