"""Gathers, embeddings, indexing by tensors and their in-place twins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilewright.dtypes import DType, int32, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import Shape
from tilewright.importers.emitter import Number, Scalar
from tilewright.importers.equal_sizes import respelled
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_elements, scatter_slices
from tilewright.importers.shapes import place_from_front
from tilewright.importers.torch_fx import TorchCall
from tilewright.importers.torch_ops.choices import positions_of, select_rows
from tilewright.importers.torch_ops.reduction import norm_of
from tilewright.importers.torch_ops.shape import bounds
from tilewright.symbolic import Expression, Size, floor_divide, lift, product, simplify

TABLE = RuleTable("Indexing", "aten.")
rule = TABLE.rule


@rule("embedding.default")
def embedding(call: TorchCall, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return call.op("gather", weight, indices, axis=0)


@rule("embedding_renorm.default")
def embedding_renorm(call: TorchCall, weight: Value, indices: Value, max_norm: float, norm_type: float) -> Value:
    """The rows that indices name scaled to a norm of at most `max_norm`."""
    indices = call.reshape(indices, (-1,))
    rows = call.op("gather", weight, indices, axis=0)
    norms = norm_of(call, call.wide(rows), norm_type, [1], keepdim=True)
    scale = call.op("divide", max_norm, call.op("add", norms, 1e-7))
    scale = call.op("where", call.op("greater", norms, max_norm), scale, 1.0)
    scaled = call.cast(call.op("multiply", call.wide(rows), scale), weight.dtype)
    return call.op("scatter_update", weight, indices, scaled, axis=0)


@rule("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    call: TorchCall,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, None, None, None]:
    """Sums (mode 0), means (1) or largest elements (2) of bags of rows; zeros for bags without any."""
    size = _bag_size(call, indices, offsets)
    if include_last_offset or size is None or (mode == 2 and padding_idx >= 0):
        bags = simplify(lift(offsets.shape[0]) - int(include_last_offset))
        rows = call.op("gather", weight, indices, axis=0)
        counted = None if padding_idx < 0 else call.op("not_equal", indices, padding_idx)
        return (
            _ragged_bags(call, rows, call.slice(offsets, 0, 0, bags), mode, per_sample_weights, counted),
            None,
            None,
            None,
        )
    bags, width = floor_divide(indices.shape[0], size), weight.shape[1]
    rows = call.reshape(call.op("gather", weight, indices, axis=0), (bags, size, width))
    if mode == 2:
        return call.op("reduce_max", rows, axes=(1,)), None, None, None
    if per_sample_weights is not None:
        rows = call.op("multiply", rows, call.reshape(per_sample_weights, (bags, size, 1)))
    rows = call.wide(rows)
    count: Value = call.builder.number(size, rows.dtype)
    if padding_idx >= 0:
        counted = call.reshape(call.op("not_equal", indices, padding_idx), (bags, size, 1))
        rows = call.op("where", counted, rows, call.builder.number(0.0, rows.dtype))
        count = call.op("maximum", call.op("reduce_sum", call.cast(counted, rows.dtype), axes=(1,)), 1)
    total = call.op("reduce_sum", rows, axes=(1,))
    return call.cast(call.op("divide", total, count) if mode == 1 else total, weight.dtype), None, None, None


def _ragged_bags(
    call: TorchCall, rows: Value, offsets: Value, mode: int, weights: Value | None, counted: Value | None
) -> Value:
    """What `embedding_bag` gives of rows [n, width] where bags begin at offsets; `counted` tells rows that count."""
    bags, (count, width), dtype = offsets.shape[0], rows.shape, rows.dtype
    rows, column = call.wide(rows), call.unsqueeze(call.iota(count), 1)
    wide = rows.dtype
    begun = call.op("less_equal", call.cast(call.unsqueeze(offsets, 0), int64), column)  # [row, bag]
    bag = call.op("subtract", call.op("reduce_sum", call.cast(begun, int64), axes=(1,)), 1)
    if weights is not None:
        rows = call.op("multiply", rows, call.reshape(call.cast(weights, wide), (count, 1)))
    addends = call.full((count,), 1.0, wide) if counted is None else call.cast(counted, wide)
    members = call.op("scatter_reduce", call.full((bags,), 0.0, wide), bag, addends, axis=0, reduction="add")
    members = call.unsqueeze(members, 1)
    least = float("-inf") if mode == 2 else 0.0
    if counted is not None:
        rows = call.op("where", call.unsqueeze(counted, 1), rows, call.builder.number(least, wide))
    reduction = "maximum" if mode == 2 else "add"
    total = call.op("scatter_reduce", call.full((bags, width), least, wide), bag, rows, axis=0, reduction=reduction)
    if mode == 1:
        total = call.op("divide", total, call.op("maximum", members, 1.0))
    if mode == 2:
        none = call.op("equal", members, 0.0)
        total = call.op("where", none, call.builder.number(0.0, wide), total)
    return call.cast(total, dtype)


def _bag_size(call: TorchCall, indices: Value, offsets: Value) -> int | None:
    """How many indices each bag has, where bags are known to be equal."""
    made_by = next((node for node in reversed(call.builder.graph.nodes) if offsets in node.outputs), None)
    data = call.builder.graph.constants.get(offsets)
    size: Size | None = None
    if made_by is not None and made_by.op == "iota" and made_by.attributes["start"] == 0:
        size = made_by.attributes["step"]
    elif data is not None and data.size and isinstance(indices.shape[0], int):
        size = indices.shape[0] // data.size
        size = size if np.array_equal(data, np.arange(data.size) * size) else None
    if (
        not isinstance(size, int)
        or size < 1
        or simplify(lift(floor_divide(indices.shape[0], size)) * size) != indices.shape[0]
    ):
        return None
    return size


@rule("index_select.default")
def index_select(call: TorchCall, x: Value, dim: int, index: Value) -> Value:
    if not x.rank:
        return x
    return call.op("gather", x, index if index.rank else call.unsqueeze(index, 0), axis=dim)


@rule("gather.default")
def gather(call: TorchCall, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    return call.op("gather_elements", x, index, axis=dim) if x.rank else x


@rule("take_along_dim.default")
def take_along(call: TorchCall, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        return call.op("gather_elements", call.reshape(x, (-1,)), call.reshape(index, (-1,)), axis=0)
    return call.op("gather_elements", x, index, axis=dim)


def _counted_from_front(call: TorchCall, index: Value, extent: Size) -> Value:
    """Indices with negative ones counted from the end; positions made by iota are never negative."""
    producers = call.builder.graph.nodes
    made_by = next((node for node in reversed(producers) if index in node.outputs), None)
    if made_by is not None and made_by.op == "iota" and made_by.attributes["start"] >= 0:
        return index
    data = call.builder.graph.constants.get(index)
    if data is not None and data.size and int(data.min()) >= 0:
        return index
    return call.from_front(index, extent)


def _without_masks(call: TorchCall, indices: Sequence[Value | None], count: Size | None) -> list[Value | None]:
    """Indices with the positions of their true elements in the place of boolean masks; `count` is how many of them
    there must be."""
    found: list[Value | None] = []
    for index in indices:
        if index is None or not index.dtype.is_bool:
            found.append(index)
        elif call.symbols.run_time:
            found += positions_of(call, index, count)
        else:
            raise Unsupported(
                "indexing by a boolean mask (the result's size depends on the data)", "use torch.where on the mask"
            )
    return found


class _Selection:
    """Tensor indices of `x`, some None: which dimensions they name and one flat index for them all."""

    def __init__(self, call: TorchCall, x: Value, indices: Sequence[Value | None]) -> None:
        self.call = call
        indices = _without_masks(call, indices, None)
        self.x = x
        self.axes = [axis for axis, index in enumerate(indices) if index is not None]
        self.indices = [index for index in indices if index is not None]
        self.rest = [axis for axis in range(x.rank) if axis not in self.axes]
        self.adjacent = self.axes == list(range(self.axes[0], self.axes[-1] + 1))

    @property
    def single(self) -> bool:
        return len(self.axes) == 1

    def flat_index(self) -> tuple[Value, tuple[Size, ...]]:
        """One flat index [n] into the merged dimensions, and the broadcast shape of the indices."""
        call = self.call
        total: Value | None = None
        for axis, index in zip(self.axes, self.indices, strict=True):
            index = call.cast(_counted_from_front(call, index, self.x.shape[axis]), int64)
            if total is None:
                total = index
            else:
                scaled = call.op("multiply", total, call.value(self.x.shape[axis], int64))
                total = call.op("add", scaled, index)
        assert total is not None
        return call.reshape(total, (product(total.shape),)), total.shape

    def merged(self) -> Value:
        """x with the indexed dimensions first and merged into one."""
        return self.call.flatten(self.call.permute(self.x, self.axes + self.rest), 0, len(self.axes))

    @property
    def place(self) -> int:
        """Where the dimensions of the indices appear in the result."""
        return self.axes[0] if self.adjacent else 0


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(call: TorchCall, x: Value, indices: Sequence[Value | None]) -> Value:
    given = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if len(given) == 1 and given[0][1].dtype.is_bool and call.symbols.run_time:
        return select_rows(call, x, given[0][1], given[0][0])
    selection = _Selection(call, x, indices)
    if selection.single:
        axis = selection.axes[0]
        return call.op("gather", x, _counted_from_front(call, selection.indices[0], x.shape[axis]), axis=axis)
    flat, common = selection.flat_index()
    found = call.op("gather", selection.merged(), flat, axis=0)
    rest = [x.shape[axis] for axis in selection.rest]
    found = call.reshape(found, (*common, *rest))
    count, place = len(common), selection.place
    order = [*range(count, count + place), *range(count), *range(count + place, found.rank)]
    return call.permute(found, order)


@rule("index_put.default", "index_put_.default", "_unsafe_index_put.default")
def index_put(
    call: TorchCall, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    reduction = "add" if accumulate else "none"
    given = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if len(given) == 1 and given[0][1].dtype.is_bool:
        axis, mask = given[0]
        place = values.rank - (x.rank - axis - mask.rank) - 1  # of the dimension with an entry for each true element
        if place < 0:
            return _masked_put(call, x, axis, mask, values, accumulate)
        if values.shape[place] == 1:
            values = call.reshape(values, (*values.shape[:place], *[1] * mask.rank, *values.shape[place + 1 :]))
            return _masked_put(call, x, axis, mask, values, accumulate)
        if axis == 0 and not accumulate and _is_counted_by_data(call):
            return _rows_put(call, x, mask, values)
        indices = _without_masks(call, indices, values.shape[place])
    selection = _Selection(call, x, indices)
    values = call.cast(values, x.dtype)
    if selection.single and selection.indices[0].rank == 1:
        axis, position = selection.axes[0], selection.indices[0]
        updates = call.broadcast(values, (*x.shape[:axis], position.shape[0], *x.shape[axis + 1 :]))
        return scatter_slices(call, x, position, updates, axis, reduction)
    flat, common = selection.flat_index()
    rest = [x.shape[axis] for axis in selection.rest]
    place = selection.place
    updates = call.broadcast(values, (*rest[:place], *common, *rest[place:]))
    count = len(common)
    updates = call.permute(updates, [*range(place, place + count), *range(place), *range(place + count, updates.rank)])
    updates = call.reshape(updates, (flat.shape[0], *rest))
    merged = scatter_slices(call, selection.merged(), flat, updates, 0, reduction)
    order = selection.axes + selection.rest
    restored = call.reshape(merged, [x.shape[axis] for axis in order])
    return call.permute(restored, [order.index(axis) for axis in range(x.rank)])


def _masked_put(call: TorchCall, x: Value, axis: int, mask: Value, values: Value, accumulate: bool) -> Value:
    """x with values, which are the same for all true elements of a mask of its dimensions from `axis` on."""
    mask = call.reshape(mask, (*mask.shape, *[1] * (x.rank - axis - mask.rank)))
    values = call.cast(values, x.dtype)
    added = call.op("logical_or" if x.dtype.is_bool else "add", x, values) if accumulate else values
    return call.op("where", mask, added, x)


def _is_counted_by_data(call: TorchCall) -> bool:
    """Whether values that take the place of others are as many as an operation outside of the graph found in data."""
    values = call.node.args[2]
    fake = values.meta.get("val") if isinstance(values, fx.Node) else None
    return not call.symbols.run_time and isinstance(fake, torch.Tensor) and bool(free_unbacked_symbols(fake))


def _rows_put(call: TorchCall, x: Value, mask: Value, values: Value) -> Value:
    """x with the rows of `values`, one after the other, where a mask of its first dimensions is true."""
    rest = x.shape[mask.rank :]
    values = call.broadcast(call.cast(values, x.dtype), (values.shape[0], *rest))
    before = call.op("cumsum", call.cast(call.reshape(mask, (-1,)), int64), axis=0)
    places = call.op("maximum", call.op("subtract", before, 1), 0)
    last = call.value(simplify(lift(values.shape[0]) - 1), int64)
    rows = call.op("gather", values, call.op("minimum", places, last), axis=0)
    mask = call.reshape(mask, (*mask.shape, *[1] * len(rest)))
    return call.op("where", mask, call.reshape(rows, x.shape), x)


@rule("masked_scatter.default")
def masked_scatter(call: TorchCall, x: Value, mask: Value, source: Value) -> Value:
    """x with the elements of `source`, one after the other, where a mask is true."""
    x, mask = call.broadcast(x, call.shape), call.broadcast(mask, call.shape)
    before = call.op("cumsum", call.cast(call.reshape(mask, (-1,)), int64), axis=0)
    line = call.op("concat", call.full((1,), 0, x.dtype), call.reshape(call.cast(source, x.dtype), (-1,)), axis=0)
    last = call.value(simplify(lift(line.shape[0]) - 1), int64)
    gathered = call.op("gather", line, call.op("minimum", before, last), axis=0)
    return call.op("where", mask, call.reshape(gathered, x.shape), x)


@rule("index_copy.default")
def index_copy(call: TorchCall, x: Value, dim: int, index: Value, source: Value) -> Value:
    if not x.rank:
        return call.reshape(source, ())
    axis, index = dim % x.rank, call.reshape(index, (-1,))
    # PyTorch 2.11 has no condition that the sizes are equal, which its kernel then checks.
    source = respelled(call, source, (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]))
    return call.op("scatter_update", x, index, source, axis=axis)


@rule("index_add.default")
def index_add(call: TorchCall, x: Value, dim: int, index: Value, source: Value, alpha: Number = 1) -> Value:
    if not x.rank:
        return call.op("add", x, call.reshape(_scaled(call, call.cast(source, x.dtype), alpha), ()))
    axis = dim % x.rank
    index = _counted_from_front(call, call.reshape(index, (-1,)), x.shape[axis])
    return scatter_slices(call, x, index, _scaled(call, call.cast(source, x.dtype), alpha), axis, "add")


def _scaled(call: TorchCall, x: Value, factor: Number) -> Value:
    return x if factor == 1 else call.op("multiply", x, factor)


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(call: TorchCall, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    axis = dim % x.rank
    index = call.reshape(index, (-1,))
    updates = call.broadcast(call.value(value, x.dtype), (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]))
    return call.op("scatter_update", x, _counted_from_front(call, index, x.shape[axis]), updates, axis=axis)


def _positions(call: TorchCall, start: Size, length: Size, step: int) -> Value:
    if isinstance(start, Expression):
        return call.op("add", call.iota(length, step=step), call.value(start, int64))
    return call.iota(length, start=start, step=step)


@rule("slice_scatter.default")
def slice_scatter(
    call: TorchCall,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Value:
    axis = dim % x.rank
    first, last = bounds(x, axis, start, end)
    source = call.cast(source, x.dtype)
    if (first, last, step) == (0, x.shape[axis], 1):
        return call.broadcast(source, x.shape)
    length = simplify((lift(last) - first + (step - 1)) // step)
    updates = call.broadcast(source, (*x.shape[:axis], length, *x.shape[axis + 1 :]))
    return call.op("scatter_update", x, _positions(call, first, length, step), updates, axis=axis)


@rule("select_scatter.default")
def select_scatter(call: TorchCall, x: Value, source: Value, dim: int, index: Size) -> Value:
    axis = dim % x.rank
    position = place_from_front(index, x.shape[axis])
    updates = call.broadcast(
        call.unsqueeze(call.cast(source, x.dtype), axis), (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    )
    return call.op("scatter_update", x, _positions(call, position, 1, 1), updates, axis=axis)


@rule("diagonal_scatter.default")
def diagonal_scatter(call: TorchCall, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """x with a diagonal of the plane of two dimensions replaced by `source`, whose last dimension is along it."""
    rows, columns = dim1 % x.rank, dim2 % x.rank
    order = [axis for axis in range(x.rank) if axis not in (rows, columns)] + [rows, columns]
    planes = call.permute(x, order)
    width = call.value(planes.shape[-1], int64)
    line = call.iota(source.shape[-1])
    down, along = (call.op("add", line, max(start, 0)) for start in (-offset, offset))
    places = call.op("add", call.op("multiply", down, width), along)
    flat = call.flatten(planes, x.rank - 2, x.rank)
    merged = scatter_slices(call, flat, places, call.cast(source, x.dtype), x.rank - 2)
    return call.permute(call.reshape(merged, planes.shape), [order.index(axis) for axis in range(x.rank)])


@rule("put.default")
def put(call: TorchCall, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """x with elements at positions in it as one line replaced, or added to."""
    line, index, source = (call.reshape(item, (product(item.shape),)) for item in (x, index, source))
    index = _counted_from_front(call, call.cast(index, int64), line.shape[0])
    merged = scatter_slices(call, line, index, call.cast(source, x.dtype), 0, "add" if accumulate else "none")
    return call.reshape(merged, x.shape)


def _scattered(call: TorchCall, x: Value, dim: int, index: Value, source: Value, reduction: str) -> Value:
    """The updates are the leading part of `source` in the shape of `index`."""
    source = call.cast(source, x.dtype)
    if 0 in index.shape:  # of any number of dimensions
        return x
    if not x.rank:
        line = call.reshape(x, (1,))
        merged = scatter_slices(call, line, call.reshape(index, (1,)), call.reshape(source, (1,)), 0, reduction)
        return call.reshape(merged, ())
    for place, extent in enumerate(index.shape):
        source = call.slice(source, place, 0, extent)
    axis = dim % x.rank
    places = _line_of(call, index, axis)
    if places is not None and _without(index.shape, axis) == _without(x.shape, axis):
        return scatter_slices(call, x, places, source, axis, reduction)
    return scatter_elements(call, x, index, source, axis, reduction)


def _line_of(call: TorchCall, index: Value, axis: int) -> Value | None:
    """The indices along an axis where they are the same everywhere along the others, made so by an expand."""
    made_by = next((node for node in reversed(call.builder.graph.nodes) if index in node.outputs), None)
    source = made_by.inputs[0] if made_by is not None and made_by.op == "broadcast_to" else None
    if source is None or source.rank != index.rank or any(extent != 1 for extent in _without(source.shape, axis)):
        return None
    return call.reshape(source, (-1,)) if source.shape[axis] == index.shape[axis] else None


def _without(shape: Sequence[Size], axis: int) -> tuple[Size, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


@rule("scatter.src")
def scatter(call: TorchCall, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(call, x, dim, index, source, "none")


@rule("scatter_add.default")
def scatter_add(call: TorchCall, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(call, x, dim, index, source, "add")


@rule("scatter.reduce")
def scatter_with(call: TorchCall, x: Value, dim: int, index: Value, source: Value, reduce: str) -> Value:
    return _scattered(call, x, dim, index, source, reduce)


_REDUCTIONS = {"sum": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum", "mean": "add"}


@rule("scatter_reduce.two")
def scatter_reduce(
    call: TorchCall, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    axis = dim % max(x.rank, 1)
    if 0 in index.shape:
        return x
    line = _line_of(call, index, axis) if x.rank else None
    if line is not None and _without(index.shape, axis) == _without(x.shape, axis):
        for place, extent in enumerate(index.shape):
            source = call.slice(source, place, 0, extent)
        return _combined_slices(call, x, axis, line, source, reduce, include_self)

    def combined(start: Value, updates: Value, reduction: str) -> Value:
        return _scattered(call, start, dim, index, updates, reduction)

    return _combined(call, x, source, reduce, include_self, combined, (x.shape, source.shape))


@rule("index_reduce.default")
def index_reduce(
    call: TorchCall, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    if not x.rank:
        line, row = call.reshape(x, (1,)), call.reshape(source, (1,))
        return call.reshape(index_reduce(call, line, 0, index, row, reduce, include_self), ())
    axis = dim % x.rank
    places = _counted_from_front(call, call.reshape(index, (-1,)), x.shape[axis])
    return _combined_slices(call, x, axis, places, source, reduce, include_self)


def _combined_slices(
    call: TorchCall, x: Value, axis: int, places: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    def combined(start: Value, updates: Value, reduction: str) -> Value:
        return scatter_slices(call, start, places, updates, axis, reduction)

    own, given = (tuple(n if place == axis else 1 for place, n in enumerate(item.shape)) for item in (x, source))
    return _combined(call, x, source, reduce, include_self, combined, (own, given))


_Combine = Callable[[Value, Value, str], Value]  # of tensor, updates and the name of a reduction of the graph


def _combined(
    call: TorchCall, x: Value, source: Value, reduce: str, include_self: bool, combine: _Combine,
    counted: tuple[Shape, Shape],
) -> Value:  # fmt: skip
    """x combined with updates by a reduction of PyTorch's; without `include_self` what is updated starts anew.

    `counted`: shapes of a tensor and its updates by which these are counted.
    """
    if reduce == "mean" and x.dtype.is_float and x.dtype.bits < 32:
        return call.cast(_combined(call, call.wide(x), source, reduce, include_self, combine, counted), x.dtype)
    source = call.cast(source, x.dtype)
    if include_self and reduce != "mean":
        return combine(x, source, _REDUCTIONS[reduce])
    own, given = counted
    count = combine(call.full(own, 0, int32), call.full(given, 1, int32), "add")
    start = x
    if not include_self:
        untouched = call.op("equal", count, 0)
        start = call.op("where", untouched, x, call.builder.number(_neutral(reduce, x.dtype), x.dtype))
    total = combine(start, source, _REDUCTIONS[reduce])
    if reduce != "mean":
        return total
    count = call.op("add", count, 1) if include_self else call.op("maximum", count, 1)
    return call.op("divide" if x.dtype.is_float else "floor_divide", total, call.cast(count, x.dtype))


def _neutral(reduce: str, dtype: DType) -> float | int | bool:
    """What a reduction starts from."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype.is_bool:
        return reduce == "amin"
    if dtype.is_float:
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


@rule("scatter.value_reduce")
def scatter_value_with(call: TorchCall, x: Value, dim: int, index: Value, value: Scalar, reduce: str) -> Value:
    return _scattered(call, x, dim, index, call.broadcast(call.value(value, x.dtype), index.shape), reduce)


@rule("scatter.value")
def scatter_value(call: TorchCall, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    return scatter_value_with(call, x, dim, index, value, "none")


@rule("one_hot.default")
def one_hot(call: TorchCall, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise Unsupported("one_hot without a number of classes", "give num_classes")
    hot = call.op("equal", call.unsqueeze(x, -1), call.iota(classes))
    return call.cast(hot, int64)
