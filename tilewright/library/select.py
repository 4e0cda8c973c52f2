"""The kernels for a fused group: candidates by class, and the choice by estimated cost.

One file for each class of group makes its candidates.  A group that no kernel takes whole is split:
the anchor alone, generated copies around it (`library.split`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.attention.cpu import attention_candidates
from tilewright.library.attention.paged import paged_attention_candidates
from tilewright.library.attention.simt import gpu_attention
from tilewright.library.candidate import Candidate
from tilewright.library.convolution.cpu.candidates import convolution_candidates
from tilewright.library.convolution.simt.candidates import gpu_convolution
from tilewright.library.excitation.separate import separate_excitation
from tilewright.library.excitation.simt import gpu_excitation
from tilewright.library.fourier.cpu import fourier_candidates
from tilewright.library.generated.elementwise import elementwise
from tilewright.library.grouped.cpu import grouped_candidates
from tilewright.library.grouped.simt import gpu_grouped
from tilewright.library.matmul.cpu import matmul_candidates
from tilewright.library.matmul.dequantized import dequantized_candidates
from tilewright.library.matmul.gate import halves_candidates
from tilewright.library.matmul.hopper.dequantized import hopper_dequantized
from tilewright.library.matmul.simt import gpu_contraction
from tilewright.library.movement.candidates import movement
from tilewright.library.pool.cpu import pool
from tilewright.library.pool.simt import gpu_pool
from tilewright.library.recurrent.candidates import cpu_recurrent_candidates, recurrent_candidates
from tilewright.library.rows.cpu import reduction
from tilewright.library.rows.cpu_program import cpu_row_program
from tilewright.library.rows.simt import gpu_reduction
from tilewright.library.rows.simt_program import gpu_row_program
from tilewright.library.slots import gate_halves
from tilewright.library.sort.cpu import sort_candidates
from tilewright.library.sort.simt import gpu_sorting
from tilewright.library.split import split_group, with_axes_moved
from tilewright.library.vendor import library_candidates
from tilewright.targets.base import Target

Maker = Callable[[Group, Graph, Target], list[Candidate]]


def _contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    makers = {
        "matmul": matmul_candidates, "dequantized_matmul": dequantized_candidates,
        "grouped_matmul": grouped_candidates, "conv": convolution_candidates,
    }  # fmt: skip
    if gate_halves(group) is not None:
        return halves_candidates(group, graph, target)
    return makers[group.anchor.op](group, graph, target)


def _gpu_contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    makers = {
        "matmul": gpu_contraction, "dequantized_matmul": hopper_dequantized, "grouped_matmul": gpu_grouped,
        "conv": gpu_convolution,
    }  # fmt: skip
    return makers[group.anchor.op](group, graph, target)


def _excitation(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return [separate_excitation(group, graph, target, candidates)]


def _rows(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return cpu_row_program(group, graph, target, candidates)


def _gpu_rows(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return gpu_row_program(group, graph, target, candidates)


def _gpu_excitation(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return [*gpu_excitation(group, graph, target), *_excitation(group, graph, target)]


_SHARED: dict[str, Maker] = {
    "elementwise": elementwise,
    "source": elementwise,
    "view": elementwise,
    "movement": movement,
    "reduction": reduction,
    "contraction": _contraction,
    "excitation": _excitation,
    "attention": attention_candidates,
    "pool": pool,
    "recurrent": recurrent_candidates,
}
# By the target's family, then by the group's class.
MAKERS: dict[str, dict[str, Maker]] = {
    "cpu": {
        **_SHARED,
        "recurrent": cpu_recurrent_candidates,
        "transform": fourier_candidates,
        "rows": _rows,
        "sorting": sort_candidates,
        "paged": paged_attention_candidates,
    },
    "cuda": {
        **_SHARED,
        "reduction": gpu_reduction,
        "rows": _gpu_rows,
        "sorting": gpu_sorting,
        "contraction": _gpu_contraction,
        "excitation": _gpu_excitation,
        "attention": gpu_attention,
        "pool": gpu_pool,
    },
}
# The calls of a vendor's library, those that may be faster than the best of ours.
VENDOR_MAKERS: dict[str, dict[str, Callable[[Group, Graph, Target, float], list[Candidate]]]] = {
    "cuda": {"contraction": library_candidates},
}


def candidates(group: Group, graph: Graph, target: Target, libraries: bool = False) -> list[Candidate]:
    """Every way we know to compute a group, at least one; calls of other libraries among them where they are allowed.

    Raises `UnsupportedOperationError` naming the op and its source when there is none.
    """
    maker = MAKERS[target.name].get(group.kind)
    if maker is None:
        raise UnsupportedOperationError(f"group {group.name}: no kernels for the class {group.kind!r}")
    group = _normal_form(group)
    found = _own(group, graph, target, maker)
    vendor = VENDOR_MAKERS.get(target.name, {}).get(group.kind) if libraries else None
    if vendor is not None:
        found += vendor(group, graph, target, min(candidate.cost.seconds for candidate in found))
    return found


def _own(group: Group, graph: Graph, target: Target, maker: Maker) -> list[Candidate]:
    """The candidates of our own kernels."""
    try:
        return maker(group, graph, target)
    except NotImplementedError as reason:
        if group.anchor is None or group.nodes == [group.anchor]:
            raise UnsupportedOperationError(
                f"group {group.name} (from {group.nodes[-1].source or 'the graph'}): {reason}"
            ) from reason
        return split_group(group, graph, target, maker, str(reason))


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
    kept = tuple(axis for axis in range(source.rank) if axis not in axes)
    attributes: dict[str, object] = {"axes": tuple(range(len(kept), source.rank)), "keepdims": False}
    return with_axes_moved(group, (*kept, *axes), attributes)


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
