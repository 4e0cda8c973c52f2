"""Reductions, positions of extremes, softmax, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.dtypes import float64, int64, uint8
from tilewright.graph.core import Value
from tilewright.importers import formulas, sorting
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.run_time import along_axis, top_k, with_axes
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lower_bound, maximum, product, upper_bound

TABLE = RuleTable("Reductions")
rule = TABLE.rule


def _axes(call: OnnxCall, x: Value) -> tuple[int, ...]:
    """The axes to reduce: all of them when none are given, unless the node says that none means none."""
    axes = call.axes(1, x.rank)
    nothing = call.attribute("noop_with_empty_axes", 0)
    if not axes:
        return () if nothing else tuple(range(x.rank))
    return axes


def _reduce(call: OnnxCall, op: str, x: Value) -> Value:
    axes, keep = _axes(call, x), bool(call.attribute("keepdims", 1))
    return call.op(op, x, axes=axes, keepdims=keep) if axes else x


def _plain(op: str) -> Callable[[OnnxCall], Value]:
    return with_axes(lambda call: _reduce(call, op, call[0]))


def _extreme(op: str) -> Callable[[OnnxCall], Value]:
    """Of booleans as of the numbers 0 and 1."""

    def apply(call: OnnxCall) -> Value:
        x = call[0]
        if any(x.shape[axis] == 0 for axis in _axes(call, x)):
            return _of_nothing(call, x, op == "reduce_max")
        found = _reduce(call, op, call.cast(x, uint8) if x.dtype.is_bool else x)
        return call.cast(found, x.dtype)

    return with_axes(apply)


def _of_nothing(call: OnnxCall, x: Value, largest: bool) -> Value:
    """The largest or smallest of no elements: what no element of the type is below, or above."""
    axes, keep = _axes(call, x), bool(call.attribute("keepdims", 1))
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keep or axis not in axes]
    if x.dtype.is_bool:
        return call.full(shape, not largest, x.dtype)
    if x.dtype.is_float:
        return call.full(shape, -math.inf if largest else math.inf, x.dtype)
    limits = np.iinfo(x.dtype.numpy)
    return call.full(shape, int(limits.min if largest else limits.max), x.dtype)


TABLE.add("ReduceSum", _plain("reduce_sum"))
TABLE.add("ReduceMax", _extreme("reduce_max"))
TABLE.add("ReduceMin", _extreme("reduce_min"))
TABLE.add("ReduceProd", _plain("reduce_product"))


def _floats(call: OnnxCall) -> Value:
    """The input as real numbers: what follows has no meaning for integers."""
    x = call[0]
    return x if x.dtype.is_float else call.cast(x, float64)


@rule("ReduceMean")
@with_axes
def reduce_mean(call: OnnxCall) -> Value:
    """The mean of nothing is 0, as ONNX Runtime has it."""
    x = call[0]
    count = product([x.shape[axis] for axis in _axes(call, x)])
    if count == 0:
        return _reduce(call, "reduce_sum", x)
    if not x.dtype.is_float:
        return call.op("divide", _reduce(call, "reduce_sum", x), call.value(maximum(count, 1), x.dtype))
    mean = _reduce(call, "reduce_mean", x)
    if lower_bound(count) > 0:
        return mean
    nothing = call.op("equal", call.value(count, int64), 0)
    return call.op("where", nothing, call.builder.number(0.0, x.dtype), mean)


@rule("ReduceL1")
@with_axes
def reduce_l1(call: OnnxCall) -> Value:
    return _reduce(call, "reduce_sum", call.op("absolute", call[0]))


@rule("ReduceSumSquare")
@with_axes
def reduce_sum_square(call: OnnxCall) -> Value:
    return _reduce(call, "reduce_sum", call.op("multiply", call[0], call[0]))


@rule("ReduceL2")
@with_axes
def reduce_l2(call: OnnxCall) -> Value:
    x = call.wide(_floats(call))
    total = call.op("sqrt", _reduce(call, "reduce_sum", call.op("multiply", x, x)))
    return call.cast(total, call[0].dtype)


@rule("ReduceLogSum")
@with_axes
def reduce_log_sum(call: OnnxCall) -> Value:
    return call.cast(call.op("log", _reduce(call, "reduce_sum", _floats(call))), call[0].dtype)


@rule("ReduceLogSumExp")
@with_axes
def reduce_log_sum_exp(call: OnnxCall) -> Value:
    x = _floats(call)
    axes, keep = _axes(call, x), call.attribute("keepdims", 1)
    if not axes:
        return call[0]
    if any(x.shape[axis] == 0 for axis in axes):
        return _of_nothing(call, call[0], largest=True)
    result = call.cast(formulas.logsumexp(call, x, axes), call[0].dtype)
    if keep:
        return result
    return call.reshape(result, [size for axis, size in enumerate(result.shape) if axis not in axes])


def _position(op: str) -> Callable[[OnnxCall], Value]:
    def apply(call: OnnxCall) -> Value:
        x = call[0]
        axis = call.axis(max(x.rank, 1), 0)
        keep = bool(call.attribute("keepdims", 1))
        if not call.attribute("select_last_index", 0) or not x.rank:
            return call.op(op, x, axis=axis, keepdims=keep)
        found = call.op(op, call.flip(x, axis), axis=axis, keepdims=keep)
        last = call.op("subtract", call.value(x.shape[axis], found.dtype), found)
        return call.op("subtract", last, 1)

    return apply


TABLE.add("ArgMax", _position("argmax"))
TABLE.add("ArgMin", _position("argmin"))


def _along_rows(apply: Callable[[OnnxCall, Value, int], Value]) -> Callable[[OnnxCall], Value]:
    """Along one axis; before opset 13 over all dimensions from the axis on, as one."""

    def rule_(call: OnnxCall) -> Value:
        x = call[0]
        if call.opset >= 13:
            return apply(call, x, call.axis(x.rank, -1))
        axis = call.attribute("axis", 1)
        axis = axis if axis == x.rank else call.place(axis, x.rank)
        rows = call.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
        return call.reshape(apply(call, rows, 1), x.shape)

    return rule_


def _hardmax(call: OnnxCall, x: Value, axis: int) -> Value:
    if x.shape[axis] == 0:
        return x
    best = call.op("argmax", x, axis=axis, keepdims=True)
    places = call.op("iota", shape=tuple(x.shape[axis] if i == axis else 1 for i in range(x.rank)), axis=axis)
    return call.cast(call.op("equal", places, best), x.dtype)


TABLE.add("Softmax", _along_rows(lambda call, x, axis: call.op("softmax", x, axis=axis)))
TABLE.add("LogSoftmax", _along_rows(lambda call, x, axis: call.op("log_softmax", x, axis=axis)))
TABLE.add("Hardmax", _along_rows(_hardmax))


@rule("TopK")
def largest(call: OnnxCall) -> tuple[Value, Value]:
    """The count is an attribute before opset 10."""
    x = call[0]
    axis = call.axis(x.rank, -1)
    if call.opset >= 10 and call.is_unknown(1):
        call.attribute("sorted", 1)
        return top_k(call, x, axis, bool(call.attribute("largest", 1)))
    counts: list[Size] = call.sizes(1) if call.opset >= 10 else [call.attribute("k")]
    if len(counts) != 1:
        raise Invalid(f"the count k has {len(counts)} elements; it must have one")
    count, extent = counts[0], x.shape[axis]
    if not isinstance(count, int) or count == 0:
        call.attribute("sorted", 1)
        return top_k(call, x, axis, bool(call.attribute("largest", 1)), count)
    if count < 0 or count > upper_bound(extent):
        raise Invalid(f"k is {count}, but the dimension {axis} has {extent} elements")
    call.require_extent(x, axis, count)
    call.attribute("sorted", 1)
    return sorting.top(call, x, count, axis, bool(call.attribute("largest", 1)))


def _cumulative(op: str, neutral: int) -> Callable[[OnnxCall], Value]:
    def apply(call: OnnxCall) -> Value:
        if call.is_unknown(1):
            return along_axis(call, call[0], lambda moved, axis: along(call, moved, axis))
        return along(call, call[0], call.place(int(call.number(1)), call[0].rank))

    def along(call: OnnxCall, x: Value, axis: int) -> Value:
        reverse = bool(call.attribute("reverse", 0))
        x = call.flip(x, axis) if reverse else x
        result = call.op(op, x, axis=axis)
        if call.attribute("exclusive", 0):
            pads = tuple((1, 0) if place == axis else (0, 0) for place in range(x.rank))
            result = call.slice(call.op("pad", result, pads=pads, value=neutral), axis, 0, x.shape[axis])
        return call.flip(result, axis) if reverse else result

    return apply


TABLE.add("CumSum", _cumulative("cumsum", 0))
TABLE.add("CumProd", _cumulative("cumprod", 1))


@rule("LpNormalization")
def lp_normalization(call: OnnxCall) -> Value:
    x, order = call.wide(call[0]), call.attribute("p", 2)
    axis = call.axis(x.rank, -1)
    if order == 1:
        length = call.op("reduce_sum", call.op("absolute", x), axes=(axis,), keepdims=True)
    elif order == 2:
        length = call.op("sqrt", call.op("reduce_sum", call.op("multiply", x, x), axes=(axis,), keepdims=True))
    else:
        raise Unsupported(f"LpNormalization of order {order}", "use order 1 or 2")
    scaled = call.op("divide", x, call.op("where", call.op("equal", length, 0.0), 1.0, length))
    return call.cast(scaled, call[0].dtype)


@rule("MeanVarianceNormalization")
def mean_variance_normalization(call: OnnxCall) -> Value:
    """Before opset 9, as ONNX Runtime has it, over the channels too or not, and divided by the deviation or not."""
    x = call.wide(call[0])
    if call.opset < 9:
        axes = range(x.rank) if call.attribute("across_channels", 0) else [axis for axis in range(x.rank) if axis != 1]
        mean, variance = call.mean_and_variance(x, axes, 0)
        centred, deviation = call.op("subtract", x, mean), call.op("sqrt", variance)
        result = call.op("divide", centred, deviation) if call.attribute("normalize_variance", 1) else centred
    else:
        mean, variance = call.mean_and_variance(x, call.places(call.attribute("axes", [0, 2, 3]), x.rank), 0)
        deviation = call.op("add", call.op("sqrt", variance), 1e-9)
        result = call.op("divide", call.op("subtract", x, mean), deviation)
    return call.cast(result, call[0].dtype)
