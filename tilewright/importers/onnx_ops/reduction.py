"""Reductions, positions of extremes, softmax, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.core import Value
from tilewright.importers import formulas, sorting
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Reductions")
rule = TABLE.rule


def _axes(call: Call, x: Value) -> tuple[int, ...]:
    """The axes to reduce: all of them when none are given, unless the node says that none means none."""
    axes = call.axes(1, x.rank)
    nothing = call.attribute("noop_with_empty_axes", 0)
    if not axes:
        return () if nothing else tuple(range(x.rank))
    return axes


def _reduce(call: Call, op: str, x: Value) -> Value:
    axes, keep = _axes(call, x), bool(call.attribute("keepdims", 1))
    return call.op(op, x, axes=axes, keepdims=keep) if axes else x


def _plain(op: str) -> Callable[[Call], Value]:
    return lambda call: _reduce(call, op, call[0])


TABLE.add("ReduceSum", _plain("reduce_sum"))
TABLE.add("ReduceMax", _plain("reduce_max"))
TABLE.add("ReduceMin", _plain("reduce_min"))
TABLE.add("ReduceProd", _plain("reduce_product"))
TABLE.add("ReduceMean", _plain("reduce_mean"))


@rule("ReduceL1")
def reduce_l1(call: Call) -> Value:
    return _reduce(call, "reduce_sum", call.op("absolute", call[0]))


@rule("ReduceSumSquare")
def reduce_sum_square(call: Call) -> Value:
    return _reduce(call, "reduce_sum", call.op("multiply", call[0], call[0]))


@rule("ReduceL2")
def reduce_l2(call: Call) -> Value:
    return call.op("sqrt", reduce_sum_square(call))


@rule("ReduceLogSum")
def reduce_log_sum(call: Call) -> Value:
    return call.op("log", _reduce(call, "reduce_sum", call[0]))


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(call: Call) -> Value:
    x = call[0]
    axes, keep = _axes(call, x), call.attribute("keepdims", 1)
    if not axes:
        return x
    result = formulas.logsumexp(call, x, axes)
    if keep:
        return result
    return call.reshape(result, [size for axis, size in enumerate(result.shape) if axis not in axes])


def _position(op: str) -> Callable[[Call], Value]:
    def apply(call: Call) -> Value:
        x, axis = call[0], call.attribute("axis", 0) % max(call[0].rank, 1)
        keep = bool(call.attribute("keepdims", 1))
        if not call.attribute("select_last_index", 0):
            return call.op(op, x, axis=axis, keepdims=keep)
        found = call.op(op, call.flip(x, axis), axis=axis, keepdims=keep)
        last = call.op("subtract", call.value(x.shape[axis], found.dtype), found)
        return call.op("subtract", last, 1)

    return apply


TABLE.add("ArgMax", _position("argmax"))
TABLE.add("ArgMin", _position("argmin"))


@rule("Softmax")
def softmax(call: Call) -> Value:
    return call.op("softmax", call[0], axis=call.attribute("axis", -1))


@rule("LogSoftmax")
def log_softmax(call: Call) -> Value:
    return call.op("log_softmax", call[0], axis=call.attribute("axis", -1))


@rule("Hardmax")
def hardmax(call: Call) -> Value:
    x = call[0]
    axis = call.attribute("axis", -1) % x.rank
    best = call.op("argmax", x, axis=axis, keepdims=True)
    places = call.op("iota", shape=tuple(x.shape[axis] if i == axis else 1 for i in range(x.rank)), axis=axis)
    return call.cast(call.op("equal", places, best), x.dtype)


@rule("TopK")
def top_k(call: Call) -> tuple[Value, Value]:
    x, (count,) = call[0], call.ints(1)
    call.attribute("sorted", 1)
    return sorting.top(call, x, count, call.attribute("axis", -1) % x.rank, bool(call.attribute("largest", 1)))


@rule("CumSum")
def cumsum(call: Call) -> Value:
    x, axis = call[0], int(call.number(1)) % call[0].rank
    if call.attribute("reverse", 0):
        total = call.flip(call.op("cumsum", call.flip(x, axis), axis=axis), axis)
    else:
        total = call.op("cumsum", x, axis=axis)
    return call.op("subtract", total, x) if call.attribute("exclusive", 0) else total


@rule("LpNormalization")
def lp_normalization(call: Call) -> Value:
    x, order = call[0], call.attribute("p", 2)
    axis = call.attribute("axis", -1) % x.rank
    if order == 1:
        length = call.op("reduce_sum", call.op("absolute", x), axes=(axis,), keepdims=True)
    elif order == 2:
        length = call.op("sqrt", call.op("reduce_sum", call.op("multiply", x, x), axes=(axis,), keepdims=True))
    else:
        raise Unsupported(f"LpNormalization of order {order}", "use order 1 or 2")
    return call.op("divide", x, call.op("where", call.op("equal", length, 0.0), 1.0, length))


@rule("MeanVarianceNormalization")
def mean_variance_normalization(call: Call) -> Value:
    x = call[0]
    mean, variance = call.mean_and_variance(x, call.attribute("axes", [0, 2, 3]), 0)
    deviation = call.op("add", call.op("sqrt", variance), 1e-9)
    return call.op("divide", call.op("subtract", x, mean), deviation)
