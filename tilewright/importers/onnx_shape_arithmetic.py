"""Shape arithmetic at import time: ONNX ops on tensors with known elements, which may be symbolic sizes.

A rule returns the known elements of the result, or raises `Undecided` when they are not decidable here; then the
ordinary rule of the op runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DType, float32, float64, int32, int64
from tilewright.graph.inference import MOST_DIMENSIONS
from tilewright.importers import float_sizes
from tilewright.importers.float_sizes import Number, Ratio, Undecided, number_of
from tilewright.importers.onnx_call import OnnxCall, Tensor, known_tensor
from tilewright.importers.onnx_ops.shape import slice_operands
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.shapes import check_sizes
from tilewright.symbolic import (
    Expression,
    Size,
    at_most,
    floor_divide,
    lower_bound,
    modulo,
    product,
)

SIZE_TYPES = (int64, int32, float32, float64)  # in which sizes stay exact
MOST_KNOWN_ELEMENTS = 4096  # elements; larger constants are left to the graph's own folding
KnownRule = Callable[[OnnxCall], Any]
KNOWN_RULES: dict[str, KnownRule] = {}


def _rule(*names: str) -> Callable[[KnownRule], KnownRule]:
    def register(function: KnownRule) -> KnownRule:
        KNOWN_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def evaluate(name: str, call: OnnxCall, result: str) -> Tensor | None:
    """The known tensor `result` of a node; None where it is not decidable here."""
    rule = KNOWN_RULES.get(name)
    if rule is None:
        return None
    if name not in ("Shape", "Size"):
        for tensor in call.inputs:
            if tensor is not None and (tensor.known is None or tensor.known.size > MOST_KNOWN_ELEMENTS):
                return None
    try:
        with np.errstate(all="ignore"):
            found = rule(call)
    except (Undecided, Unsupported, Invalid):  # the ordinary rule says what is wrong, if anything is
        return None
    return known_tensor(result, found, _result_type(name, call) if found.dtype == object else int64)


def known_elements(name: str, call: OnnxCall) -> list[Size | None] | None:
    """The elements of a list of integers of which only some are known; None where none is, or for another op."""
    if name in ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"):
        return call.tensor(0).hints
    if name != "Concat" or any(item is None or len(item.shape) != 1 for item in call.inputs):
        return None
    found: list[Size | None] = []
    for tensor in call.inputs:
        assert tensor is not None
        count = tensor.shape[0]
        if not tensor.dtype.is_integer or not isinstance(count, int) or len(found) + count > MOST_DIMENSIONS:
            return None
        known = [None] * count if tensor.known is None else [_whole_size(item) for item in tensor.known]
        found += tensor.hints or known
    return found if any(item is not None for item in found) else None


def _whole_size(item: Any) -> Size | None:
    """An element of a known list, where it is a size."""
    number = number_of(item)
    return None if isinstance(number, Ratio) else number


def compared(name: str, call: OnnxCall) -> tuple[Size, Size] | None:
    """The two sizes that a node compares for equality; None for other nodes."""
    if name != "Equal":
        return None
    found = [tensor.known for tensor in call.inputs if tensor is not None and tensor.known is not None]
    if len(found) != 2 or any(item.size != 1 for item in found) or all(item.dtype != object for item in found):
        return None
    left, right = (item.reshape(-1)[0] for item in found)
    left, right = (int(item) if isinstance(item, np.integer) else item for item in (left, right))
    return (left, right) if isinstance(left, (int, Expression)) and isinstance(right, (int, Expression)) else None


def _result_type(name: str, call: OnnxCall) -> DType:
    """The element type of a result that holds sizes."""
    if name in ("Shape", "Size"):
        return int64
    if name == "Cast":
        return call.dtype("to") or int64
    return call.tensor(1 if name == "Where" else 0).dtype


def _known(call: OnnxCall, index: int) -> np.ndarray:
    known = call.tensor(index).known
    if known is None:
        raise Undecided
    return known


def _require(condition: bool) -> None:
    """Leave a use of an operation to its ordinary rule unless a condition holds."""
    if not condition:
        raise Undecided


def _small(shape: Sequence[int]) -> None:
    """Leave results of more than `MOST_KNOWN_ELEMENTS` elements to the ordinary rule."""
    _require(math.prod(extent for extent in shape if extent) <= MOST_KNOWN_ELEMENTS and len(shape) <= MOST_DIMENSIONS)


def _broadcast(*arrays: np.ndarray) -> tuple[int, ...]:
    """The small shape that arrays broadcast to."""
    shape = broadcast_shapes_of(arrays)
    _require(shape is not None)
    assert shape is not None
    _small(shape)
    return shape


def broadcast_shapes_of(arrays: Sequence[np.ndarray]) -> tuple[int, ...] | None:
    """The shape that arrays broadcast to; None when they do not."""
    rank = max(array.ndim for array in arrays)
    shape = []
    for position in range(-rank, 0):
        extents = {array.shape[position] for array in arrays if array.ndim >= -position} - {1}
        if len(extents) > 1:
            return None
        shape.append(extents.pop() if extents else 1)
    return tuple(shape)


def _objects(items: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    filled = np.empty(len(items), object)
    filled[:] = items
    return filled.reshape(shape)


# Shapes of tensors -----------------------------------------------------------------------------------


@_rule("Shape")
def shape(call: OnnxCall) -> np.ndarray:
    extents = list(call.tensor(0).shape)
    return _objects(extents[call.attribute("start", 0) : call.attribute("end")], (-1,))


@_rule("Size")
def size(call: OnnxCall) -> np.ndarray:
    return _objects([product(call.tensor(0).shape)], ())


# Movement --------------------------------------------------------------------------------------------


@_rule("Identity")
def identity(call: OnnxCall) -> np.ndarray:
    return _known(call, 0)


@_rule("Gather")
def gather(call: OnnxCall) -> np.ndarray:
    data, indices = _known(call, 0), _known(call, 1)
    _require(indices.dtype != object)  # places that are symbolic sizes
    indices = indices.astype(np.int64)
    axis = call.axis(data.ndim, 0)
    extent = data.shape[axis]
    _require(indices.size == 0 or -extent <= int(indices.min()) <= int(indices.max()) < extent)
    _small((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
    gathered = np.take(data, indices, axis=axis)
    return gathered if isinstance(gathered, np.ndarray) or data.dtype != object else _objects([gathered], ())


@_rule("Concat")
def concat(call: OnnxCall) -> np.ndarray:
    arrays = [_known(call, index) for index in range(len(call.inputs))]
    first = arrays[0]
    axis = call.axis(first.ndim, 1)
    for array in arrays:
        _require(array.ndim == first.ndim)
        _require((array.shape[:axis], array.shape[axis + 1 :]) == (first.shape[:axis], first.shape[axis + 1 :]))
    _require(sum(array.size for array in arrays) <= MOST_KNOWN_ELEMENTS)
    return np.concatenate(arrays, axis=axis)


@_rule("Slice")
def slice_(call: OnnxCall) -> np.ndarray:
    data, (starts, ends, given, steps) = _known(call, 0), slice_operands(call)
    _require(len(starts) <= data.ndim)
    axes = call.places(range(len(starts)) if given is None else given, data.ndim)
    window: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        _require(isinstance(start, int) and isinstance(end, int))
        assert isinstance(end, int)
        stop = None if step < 0 and end < -data.shape[axis] else end
        window[axis] = slice(start, stop, step)
    return data[tuple(window)]


@_rule("Squeeze")
def squeeze(call: OnnxCall) -> np.ndarray:
    data = _known(call, 0)
    axes = call.axes(1, data.ndim) or None
    _require(axes is None or all(data.shape[axis] == 1 for axis in axes))
    return np.squeeze(data, axis=axes)


@_rule("Unsqueeze")
def unsqueeze(call: OnnxCall) -> np.ndarray:
    data, axes = _known(call, 0), call.listed(1, "axes")
    assert axes is not None  # they are required, there or here
    _require(data.ndim + len(axes) <= MOST_DIMENSIONS)
    return np.expand_dims(data, call.places(axes, data.ndim + len(axes)))


@_rule("Reshape")
def reshape(call: OnnxCall) -> np.ndarray:
    data, target = _known(call, 0), call.ints(1)
    if not call.attribute("allowzero", 0):
        _require(all(index < data.ndim for index, extent in enumerate(target) if extent == 0))
        target = [data.shape[index] if extent == 0 else extent for index, extent in enumerate(target)]
    _require(len(target) <= MOST_DIMENSIONS and all(extent >= -1 for extent in target))
    rest = math.prod(extent for extent in target if extent != -1)
    if target.count(-1) == 1:
        _require(rest > 0 and data.size % rest == 0)
    else:
        _require(rest == data.size and -1 not in target)
    return data.reshape(target)


@_rule("Expand")
def expand(call: OnnxCall) -> np.ndarray:
    data, target = _known(call, 0), call.ints(1)
    _require(all(extent >= 0 for extent in target))
    _small(target)
    return np.broadcast_to(data, _broadcast(data, np.broadcast_to(np.int8(0), target)))


@_rule("Transpose")
def transpose(call: OnnxCall) -> np.ndarray:
    data = _known(call, 0)
    order = call.places(call.attribute("perm") or range(data.ndim)[::-1], data.ndim)
    _require(len(order) == data.ndim)
    return np.transpose(data, order)


@_rule("ConstantOfShape")
def constant_of_shape(call: OnnxCall) -> np.ndarray:
    value = call.attribute("value", np.zeros(1, np.float32))
    extents = call.ints(0)
    _require(value.size == 1 and all(extent >= 0 for extent in extents))
    _small(extents)
    return np.full(extents, value.reshape(-1)[0], value.dtype)


@_rule("Range")
def range_(call: OnnxCall) -> np.ndarray:
    start, limit, step = (_known(call, index) for index in range(3))
    _require(all(item.dtype != object and item.size == 1 for item in (start, limit, step)) and bool(step))
    count = (float(limit.item()) - float(start.item())) / float(step.item())
    _require(math.isfinite(count) and count <= MOST_KNOWN_ELEMENTS)
    positions = np.arange(max(0, math.ceil(count)))
    return (start.reshape(()) + positions * step.reshape(())).astype(start.dtype)


# Arithmetic ------------------------------------------------------------------------------------------


def _divide(left: Number, right: Number) -> Size:
    """ONNX truncates; sizes are not negative, so that this is a floor."""
    _require(not isinstance(left, Ratio) and not isinstance(right, Ratio))
    assert not isinstance(left, Ratio) and not isinstance(right, Ratio)
    _require(at_most(0, left) and lower_bound(right) > 0)
    return floor_divide(left, right)


def _modulo(left: Number, right: Number) -> Size:
    _require(not isinstance(left, Ratio) and not isinstance(right, Ratio))
    assert not isinstance(left, Ratio) and not isinstance(right, Ratio)
    _require(lower_bound(right) > 0)
    return modulo(left, right)


SYMBOLIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": float_sizes.add,
    "Sub": float_sizes.subtract,
    "Mul": float_sizes.multiply,
    "Div": float_sizes.divide,
    "Mod": _modulo,
    "Max": float_sizes.largest,
    "Min": float_sizes.smallest,
    "Equal": lambda a, b: float_sizes.compare(a, b) == 0,
    "Less": lambda a, b: float_sizes.compare(a, b) < 0,
    "LessOrEqual": lambda a, b: float_sizes.compare(a, b) <= 0,
    "Greater": lambda a, b: float_sizes.compare(a, b) > 0,
    "GreaterOrEqual": lambda a, b: float_sizes.compare(a, b) >= 0,
}


def _numeric_divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind not in "iu":
        return left / right
    _require(bool((right != 0).all()))
    return (np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))).astype(left.dtype)


def _numeric_modulo(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    _require(left.dtype.kind in "iu" and bool((right != 0).all()))
    return np.mod(left, right)


def _numeric_power(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    _require(left.dtype.kind not in "iu" or (right.dtype.kind in "iu" and bool((right >= 0).all())))
    return np.power(left, right).astype(left.dtype)


NUMERIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _numeric_divide,
    "Mod": _numeric_modulo,
    "Max": np.maximum,
    "Min": np.minimum,
    "Pow": _numeric_power,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
UNARY_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
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
    def rule(call: OnnxCall) -> np.ndarray:
        _require(not call.attributes)  # fmod; how arrays broadcast before opset 7
        arrays = [_known(call, index) for index in range(len(call.inputs))]
        whole = call.tensor(0).dtype.is_integer
        total = arrays[0]
        for other in arrays[1:]:
            total = _apply(name, total, other, whole)
        return total

    return rule


def _apply(name: str, left: np.ndarray, right: np.ndarray, whole: bool) -> np.ndarray:
    """Two arrays; `whole`: of integers, whose division leaves a remainder out."""
    shape = _broadcast(left, right)
    if left.dtype != object and right.dtype != object:
        return np.asarray(NUMERIC[name](left, right))
    _require(name in SYMBOLIC)
    operation = _divide if name == "Div" and whole else SYMBOLIC[name]
    left, right = np.broadcast_to(left, shape), np.broadcast_to(right, shape)
    pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
    items = [_in_range(operation(number_of(a), number_of(b))) for a, b in pairs]
    if items and all(isinstance(item, bool) for item in items):
        return np.array(items, np.bool_).reshape(left.shape)
    return _objects(items, left.shape)


def _in_range(item: Any) -> Any:
    """A size that int64 can hold and that is not too long."""
    if isinstance(item, (Expression, Ratio)):
        check_sizes(float_sizes.parts(item))
    elif not isinstance(item, bool):
        _require(-(2**63) <= item < 2**63)
    return item


SYMBOLIC_UNARY: dict[str, Callable[[Number], Number]] = {
    "Neg": lambda x: float_sizes.subtract(0, x),
    "Floor": float_sizes.floor,
    "Ceil": float_sizes.ceil,
    "Abs": lambda x: _not_negative(x),
    "Round": lambda x: _whole(x),
}


def _not_negative(number: Number) -> Number:
    _require(at_most(0, float_sizes.parts(number)[0]))
    return number


def _whole(number: Number) -> Number:
    _require(not isinstance(number, Ratio))
    return number


def _unary(name: str) -> KnownRule:
    def rule(call: OnnxCall) -> np.ndarray:
        data = _known(call, 0)
        if data.dtype == object:
            _require(name in SYMBOLIC_UNARY)
            return _objects([_in_range(SYMBOLIC_UNARY[name](number_of(item))) for item in data.reshape(-1)], data.shape)
        return np.asarray(UNARY_FUNCTIONS[name](data))

    return rule


for _name in NUMERIC:
    KNOWN_RULES[_name] = _binary(_name)
for _name in UNARY_FUNCTIONS:
    KNOWN_RULES[_name] = _unary(_name)


@_rule("Where")
def where(call: OnnxCall) -> np.ndarray:
    condition, left, right = (_known(call, index) for index in range(3))
    shape = _broadcast(condition, left, right)
    if left.dtype == object or right.dtype == object:
        condition, left, right = (np.broadcast_to(item, shape) for item in (condition, left, right))
        triples = zip(condition.reshape(-1), left.reshape(-1), right.reshape(-1), strict=True)
        return _objects([number_of(a if chosen else b) for chosen, a, b in triples], condition.shape)
    return np.where(condition, left, right)


@_rule("Cast")
def cast(call: OnnxCall) -> np.ndarray:
    """Between numbers that both types hold; symbolic sizes stay sizes, as integers and as floats."""
    data, dtype = _known(call, 0), call.dtype("to")
    assert dtype is not None  # the attribute is required
    if data.dtype == object:
        _require(dtype in SIZE_TYPES)
        return (
            data if dtype.is_float else _objects([float_sizes.truncate(item) for item in data.reshape(-1)], data.shape)
        )
    _require(not dtype.is_float or dtype.bits > 8)
    if data.dtype.kind not in "iub" and dtype.is_integer and not dtype.is_bool:
        limits = np.iinfo(dtype.numpy)
        wide = data.astype(np.float64)
        _require(bool((np.isfinite(wide) & (wide > limits.min - 1.0) & (wide < limits.max)).all()))
    return data.astype(dtype.numpy)


@_rule("ReduceProd")
def reduce_product(call: OnnxCall) -> np.ndarray:
    data = _known(call, 0)
    axes = call.axes(1, data.ndim)
    if data.ndim != 1 or axes not in (None, (0,)):
        raise Undecided
    if data.dtype != object:
        return np.prod(data, keepdims=bool(call.attribute("keepdims", 1)), dtype=data.dtype)
    check_sizes(data)
    total: Number = 1
    for item in data:
        total = _in_range(float_sizes.multiply(total, number_of(item)))
    return _objects([total], (1,) if call.attribute("keepdims", 1) else ())
