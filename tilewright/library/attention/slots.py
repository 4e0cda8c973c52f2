"""The epilogue of attention, for the slots of its kernels: results are quantized before they are stored."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from functools import lru_cache

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.language.function import SourceFunction
from tilewright.library.generated.generate import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.kernel import identity
from tilewright.library.slots import Slots, chain_slots


@lru_cache(maxsize=8)
def quantizing(dtype: DType) -> SourceFunction:
    """The epilogue that stores results times the one number of `extra`, to the nearest of a type of 8 bits, what is
    beyond its range at the end of that."""
    stored, integers = tl.dtype(dtype), dtype.is_integer

    @tilewright.jit
    def epilogue(value, row, column, mask, extra):
        value = value * extra[0]
        if integers:
            value = tl.math.rint(value)
        return value.to(stored)

    return epilogue


def movement_behind(group: Group) -> list[Node]:
    """The permutes and reshapes behind the anchor."""
    return [node for node in group.epilogue if node.op in ("permute", "reshape")]


def computes(group: Group) -> bool:
    """Whether there is arithmetic behind the anchor, and not movement alone."""
    return len(movement_behind(group)) < len(group.epilogue)


def attention_slots(group: Group, graph: Graph, extra: ExtraReferences) -> Slots:
    """The epilogue of a group, of elements [batch, head, query, column]: its row counts queries of all heads."""
    assert group.anchor is not None
    (stored,) = group.outputs
    if not computes(group):
        return Slots(identity, extra, stored)
    chain = Chain(tuple(group.epilogue), group.anchor.output, stored, graph.constants, moved=True)
    return chain_slots(chain, extra).rounded()
