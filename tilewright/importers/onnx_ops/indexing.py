"""Gathers, scatters and one-hot encodings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.graph.inference import shape_text
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_elements, scatter_slices
from tilewright.symbolic import Size, lower_bound, maximum, product, simplify, upper_bound

TABLE = RuleTable("Indexing")
rule = TABLE.rule


def check_range(call: OnnxCall, indices: np.ndarray, extent: Size) -> None:
    """Raise `Invalid` for known indices outside a dimension; one of a dynamic size is checked at the call."""
    if indices.size == 0:
        return
    least, most = int(indices.min()), int(indices.max())
    needed = max(most + 1, -least)
    if not isinstance(extent, int):
        if lower_bound(extent) < needed:
            call.require_equal(extent, maximum(extent, needed))
    elif needed > extent:
        raise Invalid(
            f"the indices from {least} to {most} are out of range: the dimension takes {-extent}..{extent - 1}"
        )


def from_front(call: OnnxCall, index: int, extent: Size) -> Value:
    """An input of indices with negative ones counted from the end; known ones are settled at import."""
    tensor = call.tensor(index)
    if tensor.known is not None and not tensor.symbolic:
        check_range(call, tensor.known, extent)
        if tensor.known.size == 0 or int(tensor.known.min()) >= 0:
            return call[index]
        if isinstance(extent, int):
            wrapped = tensor.known + (tensor.known < 0) * extent
            return call.constant(wrapped.astype(tensor.known.dtype), tensor.name)
    return call.from_front(call[index], extent)


@rule("Gather")
def gather(call: OnnxCall) -> Value:
    """Embedding tables are read without a check for negative ids: token ids count from zero."""
    x = call[0]
    axis = call.axis(x.rank, 0)
    index = call.tensor(1)
    if index.known is not None and not index.symbolic:
        check_range(call, index.known, x.shape[axis])
        if index.known.ndim == 0:
            return call.select(x, axis, int(index.known))
    table = call.tensor(0).known is not None and x.rank == 2 and index.known is None
    return call.op("gather", x, call[1] if table else from_front(call, 1, x.shape[axis]), axis=axis)


@rule("GatherElements")
def gather_elements(call: OnnxCall) -> Value:
    x = call[0]
    axis = call.axis(x.rank, 0)
    _check_elements(call, x, axis)
    return call.op("gather_elements", x, from_front(call, 1, x.shape[axis]), axis=axis)


def _check_elements(call: OnnxCall, x: Value, axis: int) -> None:
    """Raise `Invalid` for indices that reach beyond the data along another axis."""
    indices = call[1]
    call.require_rank(indices, x.rank, x.rank)
    for place, (count, extent) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if place == axis or count == extent or upper_bound(count) <= lower_bound(extent):
            continue
        if lower_bound(count) > upper_bound(extent):
            raise Invalid(f"the indices {indices!r} reach beyond dimension {place} of {x!r}")
        if call.is_found_at_run_time(count) or call.is_found_at_run_time(extent):
            call.require_equal(count, extent)
        else:
            raise Unsupported(f"indices {indices!r} that may reach beyond dimension {place} of {x!r}", "fix both sizes")


def _flat_indices(call: OnnxCall, indices: Value, extents: Sequence[Size]) -> Value:
    """Index tuples [.., depth] into dimensions of `depth` extents as one flat index [..]."""
    total: Value | None = None
    for axis, extent in enumerate(extents):
        part = call.from_front(call.cast(call.select(indices, indices.rank - 1, axis), int64), extent)
        total = part if total is None else call.op("add", call.op("multiply", total, call.value(extent, int64)), part)
    assert total is not None
    return total


def _check_tuples(call: OnnxCall, extents: Sequence[Size]) -> None:
    """Raise `Invalid` for known index tuples outside their dimensions."""
    tensor = call.tensor(1)
    if tensor.known is not None and not tensor.symbolic:
        for axis, extent in enumerate(extents):
            check_range(call, tensor.known[..., axis], extent)


def _depth(call: OnnxCall, indices: Value, most: int) -> int:
    """The length of the index tuples, from 1 to `most`."""
    call.require_rank(indices, 1)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise Unsupported("index tuples of a dynamic length", "fix the last dimension of the indices")
    if not 1 <= depth <= most:
        raise Invalid(f"the indices {indices!r} are tuples of {depth} numbers; there may be 1 to {most}")
    return depth


@rule("GatherND")
def gather_nd(call: OnnxCall) -> Value:
    x, indices, batch = call[0], call[1], call.attribute("batch_dims", 0)
    if not 0 <= batch < min(x.rank, indices.rank):
        raise Invalid(f"the attribute 'batch_dims' is {batch}; it must be from 0 to {min(x.rank, indices.rank) - 1}")
    if batch:
        return _batched_gather(call, x, indices, batch)
    depth = _depth(call, indices, x.rank)
    _check_tuples(call, x.shape[:depth])
    flat = call.reshape(_flat_indices(call, indices, x.shape[:depth]), (-1,))
    found = call.op("gather", call.flatten(x, 0, depth), flat, axis=0)
    return call.reshape(found, (*indices.shape[:-1], *x.shape[depth:]))


def _batched_gather(call: OnnxCall, x: Value, indices: Value, batch: int) -> Value:
    """Leading dimensions shared by data and indices: their position becomes part of the flat index."""
    depth, lead = _depth(call, indices, x.rank - batch), x.shape[:batch]
    indices = must_be(call, indices, (*lead, *indices.shape[batch:]))
    if indices.shape[:batch] != lead:
        raise Invalid(f"{x!r} and {indices!r} differ in their first {batch} dimensions")
    inner = x.shape[batch : batch + depth]
    _check_tuples(call, inner)
    merged = call.flatten(call.flatten(x, 0, batch), 1, 1 + depth)  # [batch, product(inner), rest..]
    rows = call.reshape(indices, (product(lead), product(indices.shape[batch:-1]), depth))
    base = call.op("multiply", call.unsqueeze(call.iota(product(lead)), 1), call.value(product(inner), int64))
    flat = call.reshape(call.op("add", _flat_indices(call, rows, inner), base), (-1,))
    found = call.op("gather", call.flatten(merged, 0, 2), flat, axis=0)
    return call.reshape(found, (*indices.shape[:-1], *x.shape[batch + depth :]))


def _reduction(call: OnnxCall) -> str:
    """The graph's name of a scatter's `reduction`."""
    names = {"none": "none", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    return names[call.choice("reduction", *names)]


@rule("ScatterND")
def scatter_nd(call: OnnxCall) -> Value:
    x, indices = call[0], call[1]
    depth = _depth(call, indices, x.rank)
    wanted = (*indices.shape[:-1], *x.shape[depth:])
    updates = must_be(call, call[2], wanted)
    if updates.shape != wanted:
        raise Invalid(f"the updates {updates!r} must have the shape {shape_text(wanted)}")
    _check_tuples(call, x.shape[:depth])
    flat = call.reshape(_flat_indices(call, indices, x.shape[:depth]), (-1,))
    updates = call.reshape(updates, (flat.shape[0], *x.shape[depth:]))
    merged = scatter_slices(call, call.flatten(x, 0, depth), flat, updates, 0, _reduction(call))
    return call.reshape(merged, x.shape)


@rule("ScatterElements", "Scatter")
def scatter(call: OnnxCall) -> Value:
    x = call[0]
    axis = call.axis(x.rank, 0)
    _check_elements(call, x, axis)
    updates = must_be(call, call[2], call[1].shape)
    if updates.shape != call[1].shape:
        raise Invalid(f"the updates {updates!r} and the indices {call[1]!r} must have one shape")
    return scatter_elements(call, x, from_front(call, 1, x.shape[axis]), updates, axis, _reduction(call))


@rule("TensorScatter")
def tensor_scatter(call: OnnxCall) -> Value:
    """Opset 24's cache update: `update` goes to `past` from a start for each batch entry."""
    past, update = call[0], call[1]
    call.require_rank(update, past.rank, past.rank)
    axis = call.axis(past.rank, -2)
    update = must_be(call, update, (*past.shape[:axis], update.shape[axis], *past.shape[axis + 1 :]))
    if axis == 0 or any(
        a != b for place, (a, b) in enumerate(zip(past.shape, update.shape, strict=True)) if place != axis
    ):
        raise Invalid(f"{update!r} does not fit into {past!r} along axis {axis}")
    if lower_bound(update.shape[axis]) > upper_bound(past.shape[axis]):
        raise Invalid(f"{update!r} is longer than {past!r} along axis {axis}")
    circular = call.choice("mode", "linear", "circular") == "circular"
    places = call.iota(update.shape[axis])
    if call.has(2):
        starts = call.reshape(call.cast(call[2], int64), (-1, *[1] * (past.rank - 1)))
        line = call.reshape(places, [-1 if place == axis else 1 for place in range(past.rank)])
        places = call.op("add", line, starts)
        if circular:
            places = call.op("remainder", places, call.value(past.shape[axis], int64))
        return scatter_elements(call, past, call.broadcast(places, update.shape), update, axis)
    return call.op("scatter_update", past, places, update, axis=axis)


@rule("OneHot")
def one_hot(call: OnnxCall) -> Value:
    indices, depths = call[0], call.lengths(1, "depth")
    if len(depths) != 1 or (isinstance(depths[0], int) and depths[0] < 1):
        raise Invalid(f"the depth is {list(map(str, depths))}; it must be one positive number")
    values = must_be(call, call[2], (2,))
    if values.shape != (2,):
        raise Invalid(f"the values {values!r} must be two: for off and on")
    (depth,), axis = depths, call.place(call.attribute("axis", -1), indices.rank + 1)
    off, on = (call.select(values, 0, index) for index in range(2))
    places = call.op(
        "iota", shape=tuple(depth if i == axis else 1 for i in range(indices.rank + 1)), axis=axis, dtype=int64
    )
    number = call.from_front(call.cast(indices, int64), simplify(depth))
    return call.op("where", call.op("equal", call.unsqueeze(number, axis), places), on, off)
