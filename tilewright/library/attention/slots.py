"""The epilogue of attention, for the slots of its kernels: results are quantized before they are stored."""

from __future__ import annotations

import ml_dtypes

from tilewright.dtypes import float8e4nv, float8e5, float32, int8, uint8
from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.library.epilogue import Epilogue, EpilogueCost, quantizing
from tilewright.library.generated.slot_functions import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.slots import Slots, chain_slots

_QUANTIZED = (int8, uint8, float8e4nv, float8e5)


def trailing_movement(group: Group) -> list[Node]:
    """The permutes and reshapes after the anchor."""
    return [node for node in group.epilogue if node.op in ("permute", "reshape")]


def computes(group: Group) -> bool:
    """Whether there is arithmetic after the anchor, and not movement alone."""
    return len(trailing_movement(group)) < len(group.epilogue)


def quantized_by(group: Group, graph: Graph) -> float | None:
    """What results are multiplied by, in float32, before they are rounded to a type of 8 bits and its range; None where
    something else follows the anchor."""
    nodes = [node for node in group.epilogue if node.op not in ("permute", "reshape")]
    stored = group.outputs[-1].dtype
    if [node.op for node in nodes if node.op != "round"] != ["cast", "multiply", "clip", "cast"]:
        return None
    multiply, clip = nodes[1], nodes[-2]
    if multiply.output.dtype != float32 or stored not in _QUANTIZED or len(nodes) != 4 + stored.is_integer:
        return None
    limits = ml_dtypes.iinfo(stored.numpy) if stored.is_integer else ml_dtypes.finfo(stored.numpy)
    if (clip.attributes["low"], clip.attributes["high"]) != (float(limits.min), float(limits.max)):
        return None
    factors = [graph.constants[value] for value in multiply.inputs if value in graph.constants]
    return float(factors[0]) if len(factors) == 1 and factors[0].size == 1 else None


def attention_slots(group: Group, graph: Graph, extra: ExtraReferences) -> Slots:
    """The epilogue of a group, of elements [batch, head, query, column]: its row counts queries of all heads."""
    assert group.anchor is not None
    (stored,) = group.outputs
    if not computes(group):
        return Slots(stored, extra)
    inverse = quantized_by(group, graph)
    if inverse is not None:  # one kernel for all scales
        return Slots(stored, extra, Epilogue(quantizing(stored.dtype, extra.number(inverse)), EpilogueCost()))
    chain = Chain(tuple(group.epilogue), group.anchor.output, stored, graph.constants, moved=True)
    return chain_slots(chain, extra).rounded()
