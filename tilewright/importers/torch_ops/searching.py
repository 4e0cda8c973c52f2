"""Positions in sorted rows, medians, running extremes with their positions."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Value
from tilewright.importers import sorting
from tilewright.importers.emitter import Scalar
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import floor_divide, lift, lower_bound, simplify

TABLE = RuleTable("Searches", "aten.")
rule = TABLE.rule

_COMPARED_EDGES = 16  # edges that are all compared with each value; more take a step for each halving


def places(call: TorchCall, edges: Value, values: Value, right: bool) -> Value:
    """How many edges [.., S] lie before each value [.., V]: those that are less, with `right` those that are equal too.

    No edge is beyond NaN, and NaN is beyond none. Of a fixed number of floats those are compared that PyTorch compares,
    in its order: edges may end in NaN.
    """
    count = edges.shape[-1]
    if isinstance(count, int) and (count > _COMPARED_EDGES or (count and _may_have_nan(call, edges))):
        return call.cast(_searched(call, edges, values, right, count), call.dtype)
    edge, value = call.unsqueeze(edges, edges.rank - 1), call.unsqueeze(values, values.rank)
    before = call.cast(_is_before(call, edge, value, right), int32)
    return call.cast(call.op("reduce_sum", before, axes=(before.rank - 1,)), call.dtype)


def _may_have_nan(call: TorchCall, x: Value) -> bool:
    data = call.builder.graph.constants.get(x)
    return x.dtype.is_float and (data is None or bool((data != data).any()))


def _is_before(call: TorchCall, edge: Value, value: Value, right: bool) -> Value:
    return call.op("logical_not", call.op("greater" if right else "greater_equal", edge, value))


def _searched(call: TorchCall, edges: Value, values: Value, right: bool, count: int) -> Value:
    """The same by halving: of the edges that may lie before a value the middle one decides between the halves."""
    axis, kind = edges.rank - 1, int32 if count < 2**30 else int64
    first, end = (call.broadcast(call.builder.number(place, kind), values.shape) for place in (0, count))
    for _ in range(count.bit_length()):
        middle = call.op("floor_divide", call.op("add", first, end), 2)
        edge = call.op("gather_elements", edges, call.op("minimum", middle, count - 1), axis=axis)
        open_ = call.op("less", first, end)
        before = call.op("logical_and", open_, _is_before(call, edge, values, right))
        beyond = call.op("logical_and", open_, call.op("logical_not", before))
        first = call.op("where", before, call.op("add", middle, 1), first)
        end = call.op("where", beyond, middle, end)
    return first


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def search_sorted(
    call: TorchCall,
    edges: Value,
    values: Scalar,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None:
        edges = call.op("gather_elements", edges, sorter, axis=edges.rank - 1)
    edges, found = call.pair(edges, values)
    flat = found if edges.rank == found.rank and edges.rank > 1 else call.reshape(found, (-1,))
    return call.reshape(places(call, edges, flat, right or side == "right"), call.shape)


@rule("bucketize.Tensor", "bucketize.Scalar")
def bucketize(call: TorchCall, values: Scalar, edges: Value, out_int32: bool = False, right: bool = False) -> Value:
    found, edges = call.pair(values, edges)
    return call.reshape(places(call, edges, call.reshape(found, (-1,)), right), call.shape)


def _ordered(call: TorchCall, x: Value, axis: int, place: int | None, keepdim: bool) -> tuple[Value, Value]:
    """The element at a place of the ascending order, and its position; without a place the lower median, which is NaN
    where any element is."""
    length = x.shape[axis]
    values, positions = sorting.sort(call, x, axis, descending=False)
    end = simplify(lift(length) - 1)
    middle = floor_divide(end, 2) if place is None else place
    if place is not None and lower_bound(length) <= place:  # a slice would have a length of 0 for some sizes
        call.require_extent(x, axis, place + 1)
        start = call.reshape(call.value(place, int64), (1,))
        found = [call.op("gather", item, start, axis=axis) for item in (values, positions)]
    else:
        found = [call.slice(item, axis, middle, simplify(lift(middle) + 1)) for item in (values, positions)]
    if place is None and x.dtype.is_float:
        last = call.slice(values, axis, end, length)
        nan = call.cast(call.op("isnan", x), int32)
        first = call.op("argmax", nan, axis=axis, keepdims=True)
        missing = call.op("isnan", last)
        found = [call.op("where", missing, *pair) for pair in zip((last, first), found, strict=True)]
    if not keepdim:
        found = [call.squeeze(item, [axis]) for item in found]
    return found[0], found[1]


@rule("median.dim")
def median_along(call: TorchCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    if not x.rank:
        return x, call.full((), 0, int64)
    return _ordered(call, x, dim % x.rank, None, keepdim)


@rule("median.default")
def median(call: TorchCall, x: Value) -> Value:
    return call.reshape(_ordered(call, call.reshape(x, (-1,)), 0, None, False)[0], ())


@rule("nanmedian.dim")
def median_of_numbers(call: TorchCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower median of the elements that are no NaN; NaN where there is no other."""
    if not x.rank:
        return x, call.full((), 0, int64)
    axis = dim % x.rank
    if not x.dtype.is_float:
        return _ordered(call, x, axis, None, keepdim)
    numbers = call.cast(call.op("logical_not", call.op("isnan", x)), int64)
    count = call.op("reduce_sum", numbers, axes=(axis,), keepdims=True)
    middle = call.op("floor_divide", call.op("maximum", call.op("subtract", count, 1), 0), 2)
    pair = sorting.sort(call, x, axis, descending=False)
    found = [call.op("gather_elements", item, middle, axis=axis) for item in pair]
    if not keepdim:
        found = [call.squeeze(item, [axis]) for item in found]
    return found[0], found[1]


@rule("nanmedian.default")
def median_of_all_numbers(call: TorchCall, x: Value) -> Value:
    return call.reshape(median_of_numbers(call, call.reshape(x, (-1,)), 0)[0], ())


@rule("kthvalue.default")
def kth_value(call: TorchCall, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if not x.rank:
        return x, call.full((), 0, int64)
    return _ordered(call, x, dim % x.rank, k - 1, keepdim)


@rule("mode.default")
def most_frequent(call: TorchCall, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The least of the values that come most often, and the last place where it stands."""
    if not x.rank:
        return x, call.full((), 0, int64)
    axis = dim % x.rank
    values, positions = sorting.sort(call, x, axis, descending=False)
    line = call.reshape(call.iota(x.shape[axis]), [-1 if place == axis else 1 for place in range(x.rank)])
    before = call.reshape(call.op("maximum", call.op("subtract", line, 1), 0), (-1,))
    same = call.op("equal", values, call.op("gather", values, before, axis=axis))
    begins = call.op("where", same, call.builder.number(0, int64), line)  # of the run that an element is in
    lengths = call.op("subtract", line, call.op("cummax", begins, axis=axis))
    best = call.op("argmax", lengths, axis=axis, keepdims=True)
    found = [call.op("gather_elements", item, best, axis=axis) for item in (values, positions)]
    if not keepdim:
        found = [call.squeeze(item, [axis]) for item in found]
    return found[0], found[1]


def _running(op: str) -> Callable[[TorchCall, Value, int], tuple[Value, Value]]:
    """Running extremes, and the position of the last element that is as extreme."""

    def apply(call: TorchCall, x: Value, dim: int) -> tuple[Value, Value]:
        if not x.rank:
            return x, call.full((), 0, int64)
        axis = dim % x.rank
        values = call.op(op, x, axis=axis)
        hit = call.op("equal", x, values)
        if x.dtype.is_float:
            hit = call.op("logical_or", hit, call.op("isnan", x))
        line = call.reshape(call.iota(x.shape[axis]), [x.shape[axis], *[1] * (x.rank - 1 - axis)])
        places = call.op("where", hit, line, call.builder.number(0, int64))
        return values, call.op("cummax", places, axis=axis)

    return apply


TABLE.add("cummax.default", _running("cummax"))
TABLE.add("cummin.default", _running("cummin"))
