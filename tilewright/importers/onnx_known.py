"""Shape arithmetic at import time: ONNX ops on tensors whose elements are known, maybe symbolic sizes.

A rule returns the known elements of the result, or `UNKNOWN` when they are not decidable here; then
the ordinary rule of the op runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Unsupported
from tilewright.symbolic import (
    Expression,
    Size,
    floor_divide,
    lift,
    lower_bound,
    maximum,
    minimum,
    modulo,
    product,
    simplify,
    upper_bound,
)

UNKNOWN: Any = object()
LARGEST = 4096  # elements; larger constants are left to the graph's own folding
KnownRule = Callable[[Call], Any]
KNOWN: dict[str, KnownRule] = {}


class Undecided(Exception):
    """The result depends on the value of a symbol."""


def _rule(*names: str) -> Callable[[KnownRule], KnownRule]:
    def register(function: KnownRule) -> KnownRule:
        KNOWN.update(dict.fromkeys(names, function))
        return function

    return register


def evaluate(name: str, call: Call) -> Any:
    """The known result of a node, or `UNKNOWN`."""
    rule = KNOWN.get(name)
    if rule is None:
        return UNKNOWN
    if name not in ("Shape", "Size"):
        for tensor in call.inputs:
            if tensor is not None and (tensor.known is None or tensor.known.size > LARGEST):
                return UNKNOWN
    try:
        return rule(call)
    except (Undecided, Unsupported, TypeError, IndexError, ZeroDivisionError):
        return UNKNOWN


def _known(call: Call, index: int) -> np.ndarray:
    known = call.tensor(index).known
    if known is None:
        raise Undecided
    return known


def _objects(items: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    filled = np.empty(len(items), object)
    filled[:] = items
    return filled.reshape(shape)


# Shapes of tensors -----------------------------------------------------------------------------------


@_rule("Shape")
def shape(call: Call) -> np.ndarray:
    extents = list(call.tensor(0).shape)
    return _objects(extents[call.attribute("start", 0) : call.attribute("end")], (-1,))


@_rule("Size")
def size(call: Call) -> np.ndarray:
    return _objects([product(call.tensor(0).shape)], ())


# Movement --------------------------------------------------------------------------------------------


@_rule("Identity", "Dropout")
def identity(call: Call) -> np.ndarray:
    return _known(call, 0)


@_rule("Gather")
def gather(call: Call) -> np.ndarray:
    return np.take(_known(call, 0), _known(call, 1).astype(np.int64), axis=call.attribute("axis", 0))


@_rule("Concat")
def concat(call: Call) -> np.ndarray:
    return np.concatenate([_known(call, index) for index in range(len(call.inputs))], axis=call.attribute("axis"))


@_rule("Slice")
def slice_(call: Call) -> np.ndarray:
    data = _known(call, 0)
    starts, ends = call.ints(1), call.ints(2)
    axes = call.ints(3) if call.has(3) else list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    window: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        stop = None if step < 0 and end < -data.shape[axis] else end
        window[axis] = slice(start, stop, step)
    return data[tuple(window)]


@_rule("Squeeze")
def squeeze(call: Call) -> np.ndarray:
    data = _known(call, 0)
    axes = call.axes(1, data.ndim)
    return np.squeeze(data, axis=axes)


@_rule("Unsqueeze")
def unsqueeze(call: Call) -> np.ndarray:
    data, axes = _known(call, 0), call.ints(1)
    return np.expand_dims(data, tuple(axes))


@_rule("Reshape")
def reshape(call: Call) -> np.ndarray:
    data, target = _known(call, 0), call.ints(1)
    if not call.attribute("allowzero", 0):
        target = [data.shape[index] if extent == 0 else extent for index, extent in enumerate(target)]
    return data.reshape(target)


@_rule("Expand")
def expand(call: Call) -> np.ndarray:
    data, target = _known(call, 0), call.ints(1)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(target)))


@_rule("Transpose")
def transpose(call: Call) -> np.ndarray:
    return np.transpose(_known(call, 0), call.attribute("perm"))


@_rule("ConstantOfShape")
def constant_of_shape(call: Call) -> np.ndarray:
    value = call.attribute("value", np.zeros(1, np.float32))
    extents = call.ints(0)
    if int(np.prod(extents)) > LARGEST:
        raise Undecided
    return np.full(extents, value.reshape(-1)[0], value.dtype)


@_rule("Range")
def range_(call: Call) -> np.ndarray:
    start, limit, step = (_known(call, index) for index in range(3))
    if any(item.dtype == object for item in (start, limit, step)):
        raise Undecided
    result = np.arange(start.item(), limit.item(), step.item()).astype(start.dtype)
    if result.size > LARGEST:
        raise Undecided
    return result


# Arithmetic ------------------------------------------------------------------------------------------


def _divide(left: Size, right: Size) -> Size:
    """ONNX truncates; sizes are not negative, so that this is a floor."""
    if lower_bound(left) < 0 or lower_bound(right) < 0:
        raise Undecided
    return floor_divide(left, right)


def _compare(left: Size, right: Size) -> int:
    """-1, 0 or 1 when the order of two sizes is certain for every value of the symbols."""
    difference = simplify(lift(left) - right)
    if difference == 0:
        return 0
    if upper_bound(difference) < 0:
        return -1
    if lower_bound(difference) > 0:
        return 1
    raise Undecided


def _equal(left: Size, right: Size) -> bool:
    return _compare(left, right) == 0


SYMBOLIC: dict[str, Callable[[Size, Size], Any]] = {
    "Add": lambda a, b: simplify(lift(a) + b),
    "Sub": lambda a, b: simplify(lift(a) - b),
    "Mul": lambda a, b: simplify(lift(a) * b),
    "Div": _divide,
    "Mod": modulo,
    "Max": maximum,
    "Min": minimum,
    "Equal": _equal,
    "Less": lambda a, b: _compare(a, b) < 0,
    "LessOrEqual": lambda a, b: _compare(a, b) <= 0,
    "Greater": lambda a, b: _compare(a, b) > 0,
    "GreaterOrEqual": lambda a, b: _compare(a, b) >= 0,
}


def _numeric_divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind not in "iu":
        return left / right
    return (np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))).astype(left.dtype)


NUMERIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _numeric_divide,
    "Mod": np.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "Pow": lambda a, b: np.power(a, b).astype(a.dtype),
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Not": np.logical_not,
    "Reciprocal": lambda x: (1 / x).astype(x.dtype),
}


def _binary(name: str) -> KnownRule:
    def rule(call: Call) -> np.ndarray:
        if name == "Mod" and call.attribute("fmod", 0):
            raise Undecided
        arrays = [_known(call, index) for index in range(len(call.inputs))]
        total = arrays[0]
        for other in arrays[1:]:
            total = _apply(name, total, other)
        return total

    return rule


def _apply(name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype != object and right.dtype != object:
        return np.asarray(NUMERIC[name](left, right))
    if name not in SYMBOLIC:
        raise Undecided
    left, right = np.broadcast_arrays(left, right)
    pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
    items = [SYMBOLIC[name](_size(a), _size(b)) for a, b in pairs]
    if items and all(isinstance(item, bool) for item in items):
        return np.array(items, np.bool_).reshape(left.shape)
    return _objects(items, left.shape)


def _size(item: Any) -> Size:
    if isinstance(item, Expression):
        return item
    if isinstance(item, (float, np.floating)):
        raise Undecided
    return int(item)


def _unary(name: str) -> KnownRule:
    def rule(call: Call) -> np.ndarray:
        data = _known(call, 0)
        if data.dtype == object:
            if name != "Neg":
                raise Undecided
            return _objects([simplify(lift(0) - item) for item in data.reshape(-1)], data.shape)
        return np.asarray(UNARY[name](data))

    return rule


for _name in NUMERIC:
    KNOWN[_name] = _binary(_name)
for _name in UNARY:
    KNOWN[_name] = _unary(_name)


@_rule("Where")
def where(call: Call) -> np.ndarray:
    condition, left, right = (_known(call, index) for index in range(3))
    if left.dtype == object or right.dtype == object:
        condition, left, right = np.broadcast_arrays(condition, left, right)
        triples = zip(condition.reshape(-1), left.reshape(-1), right.reshape(-1), strict=True)
        return _objects([_size(a if chosen else b) for chosen, a, b in triples], condition.shape)
    return np.where(condition, left, right)


@_rule("Cast")
def cast(call: Call) -> np.ndarray:
    """Between numbers; symbolic sizes stay sizes as int64 only."""
    data, dtype = _known(call, 0), call.attribute("to").numpy
    if data.dtype != object:
        return data.astype(dtype)
    if dtype != np.dtype(np.int64):
        raise Undecided  # symbolic sizes are int64
    return data


@_rule("ReduceProd")
def reduce_product(call: Call) -> np.ndarray:
    data = _known(call, 0)
    axes = call.axes(1, data.ndim)
    if data.ndim != 1 or axes not in (None, (0,)):
        raise Undecided
    total = product([_size(item) for item in data])
    return _objects([total], (1,) if call.attribute("keepdims", 1) else ())
