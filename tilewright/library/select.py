"""Selects the kernels of a fused group: candidates by class, and the choice by estimated cost.

The makers of a target's family (`cpu_makers.py`, `gpu_makers.py`) make the candidates of each class of group, one file
for each.  A group that no kernel takes whole is split: the anchor alone, generated copies around it (`library.split`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.makers import Maker, Makers
from tilewright.library.split import split_group, with_axes_moved
from tilewright.targets.base import Target
from tilewright.targets.families import FAMILIES, part


@cache
def _makers(family: str) -> Makers:
    found: Makers = part(FAMILIES[family].makers)(candidates)
    return found


# The makers of each family of targets: a build imports the kernels of its own target only.
MAKERS: dict[str, Callable[[], Makers]] = {family: partial(_makers, family) for family in FAMILIES}


def candidates(group: Group, graph: Graph, target: Target, libraries: bool = False) -> list[Candidate]:
    """Every way we know to compute a group, at least one; calls of other libraries among them where they are allowed.

    Raises `UnsupportedOperationError` naming the op and its source when there is none.
    """
    makers = MAKERS[target.name]()
    maker = makers.own.get(group.kind)
    if maker is None:
        raise UnsupportedOperationError(f"group {group.name}: no kernels for the class {group.kind!r}")
    group = _normal_form(group)
    found = _own(group, graph, target, maker)
    vendor = makers.vendor.get(group.kind) if libraries else None
    if vendor is not None:
        found += vendor(group, graph, target, min(candidate.cost.seconds for candidate in found))
    return found


def _own(group: Group, graph: Graph, target: Target, maker: Maker) -> list[Candidate]:
    """The candidates of our own kernels, at least one."""
    found, cause = list[Candidate](), NotImplementedError("no kernel fits it")
    try:
        found = maker(group, graph, target)
    except NotImplementedError as reason:
        cause = reason
    if not found and group.anchor is not None and group.nodes != [group.anchor]:
        found = split_group(group, graph, target, maker, str(cause))
    if not found:
        source = group.nodes[-1].source or "the graph"
        raise UnsupportedOperationError(f"group {group.name} (from {source}): {cause}") from cause
    return found


def choose(found: Sequence[Candidate]) -> Candidate:
    """The candidate with the least estimated time; the first of equals."""
    return min(found, key=lambda candidate: candidate.cost.seconds)


def _normal_form(group: Group) -> Group:
    """The group with its anchor in the form that the kernels have: channels last, reduced axes at the end."""
    anchor = group.anchor
    if anchor is None or anchor.inputs[:1] == [None] or not anchor.inputs:
        return group
    source = anchor.inputs[0]
    assert source is not None
    if anchor.attributes.get("layout") == "NCHW" and source.rank >= 3:
        return _channels_last(group)
    if anchor.op in ("softmax", "log_softmax") and any(n != 1 for n in source.shape[anchor.attributes["axis"] + 1 :]):
        axis = anchor.attributes["axis"]
        order = tuple(i for i in range(source.rank) if i != axis) + (axis,)
        return with_axes_moved(group, order, {"axis": source.rank - 1})
    if anchor.op.startswith("reduce_"):
        return _reduced_axes_together(group, source)
    return group


def _reduced_axes_together(group: Group, source: Value) -> Group:
    """Reduced axes that are not neighbours are moved to the end by a copy."""
    anchor = group.anchor
    assert anchor is not None
    axes = [axis for axis in anchor.attributes["axes"] if source.shape[axis] != 1]
    if not axes or all(axis in axes or source.shape[axis] == 1 for axis in range(min(axes), max(axes) + 1)):
        return group
    other_axes = tuple(axis for axis in range(source.rank) if axis not in axes)
    attributes: dict[str, object] = {"axes": tuple(range(len(other_axes), source.rank)), "keepdims": False}
    return with_axes_moved(group, (*other_axes, *axes), attributes)


def _channels_last(group: Group) -> Group:
    """A channels-first convolution or pool between two permutes."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, output = anchor.inputs[0], anchor.output
    spatial = tuple(range(2, source.rank))
    order, back = (0, *spatial, 1), (0, source.rank - 1, *range(1, source.rank - 1))
    moved = Value(f"{source.name}.nhwc", source.dtype, tuple(source.shape[axis] for axis in order))
    result = Value(f"{output.name}.nhwc", output.dtype, tuple(output.shape[axis] for axis in order))
    before = Node("permute", [source], [moved], {"order": order}, anchor.source)
    after = Node("permute", [result], [output], {"order": back}, anchor.source)
    inner = Node(
        anchor.op, [moved, *anchor.inputs[1:]], [result], {**anchor.attributes, "layout": "NHWC"}, anchor.source
    )
    nodes = [*group.prologue, before, inner, after, *group.epilogue]
    return Group(group.kind, nodes, group.inputs, group.outputs, inner, group.name)
