"""Sizes that must be equal but have different expressions: compared at run time; unequal ones raise an error.

A dimension gets the other's spelling by a reshape, which moves nothing; `build.size_conditions` makes of it a
condition that is checked when sizes are first met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.graph.ops import OPS
from tilewright.importers.assumptions import SizeIsFixed
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import Expression, Size, lift, lower_bound, plain_symbol, simplify, upper_bound

Operands = list[Any]  # values, numbers and None


def may_be_equal(left: Size, right: Size) -> bool:
    """Whether some values of the symbols make two sizes equal, as far as bounds tell."""
    if left == right:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return False
    difference = simplify(lift(left) - right)
    return lower_bound(difference) <= 0 <= upper_bound(difference)


def respelled(emit: Emitter, value: Value, shape: Sequence[Size]) -> Value:
    """The value with another spelling of its sizes; the value itself where one of them can never be equal."""
    fits = len(shape) == value.rank and all(map(may_be_equal, value.shape, shape))
    if not fits or value.shape == tuple(shape):
        return value
    return emit.op("reshape", value, shape=tuple(shape), same=True)


def must_be(emit: Emitter, value: Value, shape: Sequence[Size]) -> Value:
    """As `respelled`, where no other size would do; raises `SizeIsFixed` for a dimension of an input that must then
    have one size."""
    inputs = emit.builder.graph.inputs if not emit.builder.is_inside else []
    for extent, wanted in zip(value.shape, shape, strict=False):
        symbol = plain_symbol(extent)
        if symbol is not None and isinstance(wanted, int) and symbol.low <= wanted <= symbol.high:
            if any(extent in tensor.shape for tensor in inputs):
                raise SizeIsFixed(symbol.name, wanted)
    return respelled(emit, value, shape)


def agreed(emit: Emitter, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Operands | None:
    """The operands of a graph op with one spelling for sizes that must be equal; None if nothing is to be done."""
    values = [item for item in inputs if isinstance(item, Value)]
    if name == "concat":
        found = _joined(emit, inputs, attributes["axis"])
    elif name == "matmul":
        found = _multiplied(emit, inputs, bool(attributes.get("transpose_b", False)))
    elif name == "conv" and attributes.get("layout", "NCHW") == "NCHW":
        found = _convolved(emit, inputs, attributes.get("groups", 1))
    elif name == "attention":
        found = _attended(emit, inputs)
    elif name in ("batch_norm", "group_norm") and values[0].rank >= 2:
        channels = next((value.shape[0] for value in values[1:] if value.rank == 1), values[0].shape[1])
        x = must_be(emit, values[0], (values[0].shape[0], channels, *values[0].shape[2:]))
        found = [x, *inputs[1:]]
    elif name == "broadcast_to" and values:
        shape = _stretched(values[0].shape, attributes["shape"])
        found = [respelled(emit, values[0], shape)]
    elif name in ("scatter_update", "scatter_reduce"):
        found = _scattered(emit, inputs, attributes["axis"])
    elif name in OPS and OPS[name].kind == "elementwise" and len(values) > 1:
        found = _broadcast(emit, inputs)
    else:
        return None
    return None if all(a is b for a, b in zip(found, inputs, strict=True)) else found


def chosen(sizes: Sequence[Size]) -> Size:
    """The spelling to keep: a number, else the shortest."""
    return min(sizes, key=lambda size: (isinstance(size, Expression), len(str(size)), str(size)))


def _broadcast(emit: Emitter, inputs: Sequence[Any], fixed: int = 0) -> Operands:
    """Operands that broadcast together, but for their last `fixed` dimensions."""
    values = [item for item in inputs if isinstance(item, Value)]
    rank = max(value.rank for value in values)
    spelling: dict[int, Size] = {}
    for position in range(-rank, -fixed):
        extents = [value.shape[position] for value in values if value.rank >= -position]
        extents = [extent for extent in extents if extent != 1]
        if extents:
            spelling[position] = chosen(extents)
    found: Operands = []
    for item in inputs:
        if not isinstance(item, Value):
            found.append(item)
            continue
        positions = range(-item.rank, 0)
        shape = [
            extent if extent == 1 or position not in spelling else spelling[position]
            for position, extent in zip(positions, item.shape, strict=True)
        ]
        found.append(respelled(emit, item, shape))
    return found


def stretched_shape(shape: Sequence[Size], target: Sequence[Size]) -> tuple[Size, ...]:
    """A tensor's shape broadcast with another, in the other's spelling of sizes that may be equal: stretching the
    tensor to it then checks that they are."""
    own = [1] * (len(target) - len(shape)) + list(shape)
    for place, wanted in enumerate(target, start=len(own) - len(target)):
        if 1 not in (own[place], wanted) and may_be_equal(own[place], wanted):
            own[place] = wanted
    return broadcast_shapes(tuple(own), tuple(target))


def _stretched(shape: Sequence[Size], target: Sequence[Size]) -> list[Size]:
    """A shape in the spelling of the one that it is stretched to."""
    lead = len(target) - len(shape)
    return [extent if extent == 1 else target[lead + axis] for axis, extent in enumerate(shape)] if lead >= 0 else []


def _joined(emit: Emitter, inputs: Sequence[Any], axis: int) -> Operands:
    ranks = {item.rank for item in inputs}
    if len(ranks) != 1:
        return list(inputs)
    (rank,) = ranks
    spelling = [chosen([item.shape[place] for item in inputs]) for place in range(rank)]
    return [
        must_be(emit, item, [item.shape[place] if place == axis else spelling[place] for place in range(rank)])
        for item in inputs
    ]


def _multiplied(emit: Emitter, inputs: Sequence[Any], transposed: bool) -> Operands:
    """Leading sizes that broadcast, and the size that is summed over."""
    left, right = inputs
    if left.rank < 2 or right.rank < 2:
        return list(inputs)
    left, right = _broadcast(emit, [left, right], fixed=2)
    place = -1 if transposed else -2
    depth = chosen([left.shape[-1], right.shape[place]])
    other = (right.shape[-2], depth) if transposed else (depth, right.shape[-1])
    return [
        must_be(emit, left, (*left.shape[:-1], depth)),
        must_be(emit, right, (*right.shape[:-2], *other)),
    ]


def _convolved(emit: Emitter, inputs: Sequence[Any], groups: int) -> Operands:
    """The channels that the weight has."""
    image, weight, *rest = inputs
    if image.rank < 3:
        return list(inputs)
    channels = simplify(lift(weight.shape[1]) * groups)
    return [must_be(emit, image, (image.shape[0], channels, *image.shape[2:])), weight, *rest]


def _scattered(emit: Emitter, inputs: Sequence[Any], axis: int) -> Operands:
    """One update for each index, with the target's other sizes."""
    x, indices, updates = inputs
    if indices.rank != 1 or not -x.rank <= axis < x.rank:
        return list(inputs)
    place = axis % x.rank
    return [x, indices, must_be(emit, updates, (*x.shape[:place], indices.shape[0], *x.shape[place + 1 :]))]


def _attended(emit: Emitter, inputs: Sequence[Any]) -> Operands:
    """Queries [B, H, S, D], keys [B, G, T, D], values [B, G, T, E], and what is added to the scores [B, H, S, T]."""
    query, key, value, *rest = inputs
    if not query.rank == key.rank == value.rank == 4:
        return list(inputs)
    batch = chosen([item.shape[0] for item in (query, key, value)])
    heads, keys = (chosen([key.shape[axis], value.shape[axis]]) for axis in (1, 2))
    width = chosen([query.shape[3], key.shape[3]])
    scores = (batch, *query.shape[1:3], keys)
    return [
        must_be(emit, query, (batch, *query.shape[1:3], width)),
        must_be(emit, key, (batch, heads, keys, width)),
        must_be(emit, value, (batch, heads, keys, value.shape[3])),
        *(respelled(emit, item, _stretched(item.shape, scores)) if isinstance(item, Value) else item for item in rest),
    ]
