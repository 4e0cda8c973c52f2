"""Attention of new tokens over keys and values in pages, on arrays of a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright import dtypes
from tilewright.errors import LaunchError, ShapeError, brief
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.launch.sizes import next_power_of_2
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView

# Of the arrays, in order.
RANKS = {"q": 3, "keys": 3, "values": 3, "tables": 2, "starts": 1, "lengths": 1, "key_scales": 2, "value_scales": 2}


def paged_attention(
    q: Any, keys: Any, values: Any, tables: Any, starts: Any, lengths: Any, *, page: int, scale: float | None = None,
    window: int = 0, softcap: float = 0.0, out: Any = None, key_scales: Any = None, value_scales: Any = None,
) -> Any:  # fmt: skip
    """Attention of the new tokens of several sequences, whose keys and values are in pages.

    `q` is [tokens, heads, size], one sequence after the other; `keys` [slots, key heads, size] and `values` [slots, key
    heads, value size] have slot ``page number * page + offset`` for each token; all are float32, float16 or bfloat16.
    Or keys and values have 8 bits: e4m3, e5m2, or int8; `key_scales` and `value_scales` [slots, key heads], float32,
    are what the numbers of a token and head are multiplied by, which int8 needs.
    Of int32, on the GPU: `tables` [sequences, columns] are the pages of each sequence, `starts` [sequences + 1] where
    its new tokens begin in `q` (the last is the end), `lengths` [sequences] its tokens in all, the new ones last.
    A sequence may have one new token or many.

    A token sees the keys up to its own, of which `window` (0: all) are the nearest.  Scores are ``scale q k``, with
    `softcap` c (0: none) ``c tanh(scale q k / c)``; `scale` is 1 / sqrt(size) unless given.  The result is [tokens,
    heads, value size], like `q`; rows of tokens of no sequence are undefined.  All arrays are contiguous.  What tables,
    starts and lengths hold is not checked: page numbers must be those of pages.  Raises `LaunchError`.
    """
    given = _views((q, keys, values, tables, starts, lengths, key_scales, value_scales))
    query, sequences = given["q"], given["lengths"]
    _check(given)
    target = calls.result_like(query, (*query.shape[:2], given["values"].shape[2]), query.element, out)
    place = arrays.common_place([*given.values(), target], "paged_attention")
    factor = _number("scale", 1 / math.sqrt(query.shape[2] or 1) if scale is None else scale)
    cap = _number("softcap", softcap)
    attributes: dict[str, Any] = {"scale": factor, "page": page, "window": window, "softcap": cap}

    def graph() -> Graph:
        b = GraphBuilder("paged_attention")
        inputs = [b.input(name, found.element, found.shape) for name, found in given.items()]
        try:
            b.output(b.op("paged_attention", inputs, **attributes))
        except ShapeError as reason:
            raise LaunchError(f"these do not fit each other: {reason}") from None
        return b.finish()

    shapes = tuple(found.shape for found in given.values())
    if 0 in target.shape or not sequences.shape[0]:
        graph()  # refuses what does not fit
        return target.base
    kinds = query.element.name, given["keys"].element.name, len(given)
    fixed = (*kinds, *query.shape[1:], *given["values"].shape[1:], page, window, factor, cap)
    sizes = [next_power_of_2(size) for size in (query.shape[0], sequences.shape[0], given["tables"].shape[1])]
    used = [*given.values(), target]
    calls.prepared(("paged_attention", fixed, shapes), (fixed, *sizes), used, place, graph).run(given, target)
    return target.base


def _views(operands: Sequence[Any]) -> dict[str, ArrayView]:
    """The arrays by name, without scales that there are not."""
    given = {
        name: arrays.view(item, name)
        for name, item in zip(RANKS, operands, strict=True)
        if item is not None or name not in ("key_scales", "value_scales")
    }
    if "value_scales" in given and "key_scales" not in given:
        raise LaunchError("value_scales are given without key_scales: pass both, or neither")
    return given


def _check(given: Mapping[str, ArrayView]) -> None:
    """Refuse arrays of other ranks and types."""
    for name, found in given.items():
        if len(found.shape) != RANKS[name] or not found.contiguous:
            raise LaunchError(f"{name} has {RANKS[name]} dimensions and is contiguous, got {found.described}")
        if name in ("tables", "starts", "lengths") and found.element != dtypes.int32:
            raise LaunchError(f"{name} must be int32, got {found.element.name}")
    if given["q"].element not in arrays.FLOATS:
        raise LaunchError(f"q, keys and values are float32, float16 or bfloat16, got {given['q'].element.name}")


def _number(name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
        raise LaunchError(f"{name} is a finite number, not {brief(given)}")
    return float(given)
