"""Paged attention: one launch for prompt chunks and single tokens."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.attention.paged_kernel import paged_attention
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

QUERY_BLOCK = 64  # rows of a tile: queries of the heads that share keys
VECTOR_TILE_ROWS = 16  # up to this many, a tile of one vector


def paged_attention_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `attention.paged_kernel`; raises `NotImplementedError` where the group holds other nodes."""
    anchor = group.anchor
    assert anchor is not None
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: attention over pages stands alone")
    query, keys, values, tables, starts, lengths = anchor.inputs[:6]
    assert query is not None and keys is not None and values is not None
    assert tables is not None and starts is not None and lengths is not None
    tokens, heads, width = query.shape
    key_heads, page = keys.shape[1], anchor.attributes["page"]
    assert isinstance(heads, int) and isinstance(key_heads, int)
    few = max(VECTOR_TILE_ROWS, -(-heads // key_heads // VECTOR_TILE_ROWS) * VECTOR_TILE_ROWS)
    block = max(QUERY_BLOCK, few)
    constants: dict[str, Any] = {
        "HEADS": heads, "KEY_HEADS": key_heads, "HEAD": width, "VALUE_HEAD": values.shape[2], "PAGE": page,
        "BLOCK": block, "FEW": few, "WINDOW": anchor.attributes["window"],
        "SOFTCAP": float(anchor.attributes["softcap"]), "scale": float(anchor.attributes["scale"]),
        "TYPE": language_type(compute_type(query.dtype)),
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "q": query, "keys": keys, "values": values, "tables": tables, "starts": starts, "lengths": lengths,
        "out": anchor.output, **scales_of(anchor),
    }  # fmt: skip
    types: dict[str, str] = {}
    sizes: dict[str, Size] = {"tokens": tokens, "slots": keys.shape[0], "columns": tables.shape[1]}
    bind_sizes(sizes, operands, types, constants)
    rows = simplify(lift(tokens) * (heads // key_heads))
    grid = (ceil_divide(rows, block), key_heads, lengths.shape[0])
    call = KernelCall(paged_attention, operands, types, constants, grid)
    context = simplify(lift(product(tables.shape)) * page)  # of all sequences, at most
    columns = simplify(lift(width) + values.shape[2])
    of_keys = simplify(lift(context) * key_heads * columns * keys.dtype.itemsize)
    moved = simplify(lift(of_keys) + lift(tokens) * heads * columns * query.dtype.itemsize)
    per_sequence = simplify(lift(tables.shape[1]) * page)
    flops = simplify(lift(tokens) * heads * per_sequence * columns * 2)
    cost = estimate(target.machine(), moved, flops, product(grid), query.dtype, 0.5)
    return [Candidate("paged attention", (Stage((call,)),), cost, (), {"page": page, "rows": [few, block]})]


def scales_of(anchor: Node) -> dict[str, Value]:
    """The scales of keys and values, as the kernels' last operands."""
    return {f"scales_{number}": scale for number, scale in enumerate(anchor.inputs[6:]) if scale is not None}
