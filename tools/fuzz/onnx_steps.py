"""Nodes for random ONNX programs: what a node of each kind may look like, given values that there are.

A step may ask for something that no implementation takes (an axis too many, a type without a kernel): the program
runs each node when it is drawn, and leaves out those that fail.  So steps are short.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np

FLOATS = (np.float32, np.float32, np.float32, np.float64, np.float16)
SIGNED = (np.int32, np.int64, np.int8, np.int16)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
TYPES = (*FLOATS, *SIGNED, *UNSIGNED, np.bool_)
UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg",
    "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu", "Size", "NonZero", "GlobalAveragePool", "GlobalMaxPool", "DynamicQuantizeLinear",
    "Unique",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
    "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu", "Pow", "MatMul",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


class Drawer(Protocol):
    """What steps use of a program."""

    random: random.Random
    numbers: np.random.Generator
    opset: int
    shapes: dict[str, list[str | int]]  # of inputs
    fixed: bool  # whether sizes are the same in each run

    def value(self, kinds: str = "fiub", least_rank: int = 0) -> tuple[str, np.ndarray] | None: ...
    def constant(self, data: Any, dtype: Any = np.int64) -> str: ...
    def node(self, operation: str, inputs: list[str], results: int = 1, **attributes: Any) -> None: ...
    def like(self, array: np.ndarray) -> str: ...


def data(numbers: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random elements of a type: small numbers, of which some are equal."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(numbers.random(shape) < 0.5)
    if kind == "f":
        found = numbers.standard_normal(shape)
        return np.asarray(np.where(numbers.random(shape) < 0.2, np.round(found), found), dtype)
    return np.asarray(numbers.integers(0 if kind == "u" else -9, 10, shape), dtype)


def unary(p: Drawer) -> None:
    name, array = p.value()
    operation = p.random.choice(UNARY)
    if operation == "GlobalMaxPool" and array.dtype != np.float32 and array.ndim != 4:
        return  # ONNX's reference, which other types need, is for four dimensions
    if operation == "NonZero" and not array.ndim:
        return  # ONNX Runtime gives a row of positions, which ONNX forbids
    p.node(operation, [name], {"DynamicQuantizeLinear": 3, "Unique": 4}.get(operation, 1))


def binary(p: Drawer) -> None:
    name, array = p.value()
    operation = p.random.choice(BINARY)
    other = p.like(array)
    if operation == "Pow" and array.dtype.kind != "f":
        if (np.abs(array.astype(np.float64)) ** 3 > 2**31).any():
            return  # ONNX Runtime computes powers in float64, which has other results where integers overflow
        other = p.constant(p.numbers.integers(0, 4, array.shape[-1:]), array.dtype)
    if operation == "MatMul" and array.ndim:
        other = p.constant(
            data(p.numbers, (array.shape[-1], *p.random.choice([(), (1,), (4,)])), array.dtype), array.dtype
        )
    p.node(operation, [name, other] if operation in ("Pow", "MatMul") else p.random.sample([name, other], 2))


def divided(p: Drawer) -> None:
    name, array = p.value("fiu")
    divisor = data(p.numbers, array.shape[-1:], array.dtype)
    divisor[divisor == 0] = 3
    operation = p.random.choice(["Div", "Mod"])
    attributes = {"fmod": 1} if operation == "Mod" and (array.dtype.kind == "f" or p.random.random() < 0.3) else {}
    p.node(operation, [name, p.constant(divisor, array.dtype)], **attributes)


def shifted(p: Drawer) -> None:
    name, array = p.value("u")
    amount = p.constant(p.numbers.integers(0, 8, array.shape[-1:]), array.dtype)
    p.node("BitShift", [name, amount], direction=p.random.choice(["LEFT", "RIGHT"]))


def cast(p: Drawer) -> None:
    from onnx import helper

    name, array = p.value()
    target = np.dtype(p.random.choice(TYPES))
    if target.kind in "u" and array.dtype.kind == "f":
        p.node("Abs", [name])  # what negative numbers, NaN and infinity become is nowhere said
        name, array = p.value("f")
        if not ((array >= 0) & np.isfinite(array)).all():
            return
    p.node("Cast", [name], to=helper.np_dtype_to_tensor_dtype(target))


def choice(p: Drawer) -> None:
    name, array = p.value()
    condition = p.constant(p.numbers.random(array.shape[p.random.randint(0, array.ndim) :]) < 0.5, np.bool_)
    p.node("Where", [condition, *p.random.sample([name, p.like(array)], 2)])


def clip(p: Drawer) -> None:
    name, array = p.value("fiu")
    low, high = (p.constant(number, array.dtype) for number in (0, 2))
    p.node("Clip", p.random.choice([[name, low, high], [name, "", high], [name, low]]))


def _axis(p: Drawer, array: np.ndarray) -> int:
    return p.random.randint(-array.ndim, array.ndim - 1)


def reduction(p: Drawer) -> None:
    name, array = p.value("fiu")
    operation, keep = p.random.choice(REDUCTIONS if array.size else REDUCTIONS[:1]), p.random.randrange(2)
    if operation == "ReduceLogSumExp" and array.dtype.kind != "f":
        return  # ONNX Runtime's results of integers depend on how it walks the axes
    if operation == "ReduceProd" and array.dtype.kind != "f" and (np.abs(array.astype(np.float64)) > 9).any():
        return  # a product that overflows is the largest number in ONNX Runtime, or the least
    if operation == "ReduceL2" and array.dtype.kind != "f" and (array.astype(np.float64) > 1e4).any():
        return  # ONNX's reference adds squares of integers in their own type, in which they overflow
    axes = p.random.sample(range(-array.ndim, 0), p.random.randint(0, array.ndim))
    as_input = p.opset >= (13 if operation == "ReduceSum" else 18)
    if as_input:
        p.node(
            operation, [name, p.constant(axes)] if axes else [name], keepdims=keep,
            noop_with_empty_axes=p.random.randrange(2),
        )  # fmt: skip
    else:
        p.node(operation, [name], keepdims=keep, **({"axes": axes} if axes else {}))


def along(p: Drawer) -> None:
    """Operations that go along one axis."""
    name, array = p.value("fiu", 1)
    axis, keep = _axis(p, array), p.random.randrange(2)
    kind = p.random.randrange(6)
    if kind == 0:
        last = {"select_last_index": p.random.randrange(2)} if p.opset >= 12 else {}
        p.node(p.random.choice(["ArgMax", "ArgMin"]), [name], axis=axis, keepdims=keep, **last)
    elif kind == 1:
        p.node("CumSum", [name, p.constant(axis)], exclusive=keep, reverse=p.random.randrange(2))
    elif kind == 2:
        count = p.random.randint(0, array.shape[axis])
        p.node("TopK", [name, p.constant([count])], 2, axis=axis, largest=keep)
    elif kind == 3:
        operation = p.random.choice(["Softmax", "LogSoftmax", "Hardmax"])
        if operation == "Hardmax" and array.dtype.kind == "f" and name not in p.shapes:
            return  # among computed numbers there may be NaNs, which ONNX Runtime finds neither greater nor less
        p.node(operation, [name], axis=axis)
    elif kind == 4:
        p.node("LpNormalization", [name], axis=axis, p=p.random.choice([1, 2]))
    else:
        p.node("Flatten", [name], axis=axis)


def norm(p: Drawer) -> None:
    name, array = p.value("f", 2)
    if not array.size:  # of which ONNX Runtime's kernels crash
        return
    kind, features = p.random.randrange(4), array.shape[1]
    one = lambda: p.constant(np.abs(data(p.numbers, (features,), array.dtype)) + 0.5, array.dtype)  # noqa: E731
    if kind == 0:
        p.node("BatchNormalization", [name, one(), one(), one(), one()])
    elif kind == 1:
        p.node("InstanceNormalization", [name, one(), one()])
    elif kind == 2:
        weights = [p.constant(data(p.numbers, array.shape[-1:], array.dtype), array.dtype) for _ in "ab"]
        p.node("LayerNormalization", [name, *weights[: p.random.randint(1, 2)]], axis=-1)
    elif array.dtype == np.float32:  # ONNX's reference, which other types need, leaves channels out
        p.node("LRN", [name], size=3)


def shape(p: Drawer) -> None:
    name, array = p.value()
    kind = p.random.randrange(7)
    if kind == 0 and array.ndim:
        p.node("Transpose", [name], perm=p.random.sample(range(array.ndim), array.ndim))
    elif kind == 1:
        axes = p.random.sample(range(-array.ndim - 1, array.ndim + 1), 1)
        _with_axes(p, "Unsqueeze", name, axes)
    elif kind == 2:
        _with_axes(p, "Squeeze", name, [axis for axis, size in enumerate(array.shape) if size == 1][:1])
    elif kind == 3:
        count = array.size
        divisors = [number for number in range(1, count + 1) if count % number == 0] or [1]
        first = p.random.choice(divisors)
        wanted = p.random.choice([[-1], [first, -1], [0, -1], [1, *array.shape], [*array.shape[::-1]]])
        p.node("Reshape", [name, p.constant(wanted)])
    elif kind == 4:
        wider = [p.random.choice([0, 2, 3]) if size == 1 else size for size in array.shape]
        p.node("Expand", [name, p.constant([*p.random.choice([[], [2], [1]]), *wider])])
    elif kind == 5:
        p.node("Tile", [name, p.constant([p.random.randint(0, 2) for _ in array.shape])])
    else:
        p.node("Shape", [name])


def _with_axes(p: Drawer, operation: str, name: str, axes: list[int]) -> None:
    if p.opset >= 13:
        p.node(operation, [name, p.constant(axes)])
    elif axes:
        p.node(operation, [name], axes=axes)


def part(p: Drawer) -> None:
    """Slices, splits and pads."""
    name, array = p.value("fiub", 1)
    axis, kind = _axis(p, array), p.random.randrange(3)
    size = array.shape[axis]
    if kind == 0:
        start, step = p.random.randint(-size - 1, size + 1), p.random.choice([1, 1, 2, -1, -2])
        end = p.random.choice([size - 1, -1, -(2**31), 0, 1, 2**31 - 1][: 6 if step > 0 else 5])
        p.node("Slice", [name, *(p.constant([number]) for number in (start, end, axis, step))])
    elif kind == 1:
        first = p.random.randint(0, size)
        if p.opset >= 13:
            p.node("Split", [name, p.constant([first, size - first])], 2, axis=axis)
        else:
            p.node("Split", [name], 2, axis=axis, split=[first, size - first])
    else:
        mode = p.random.choice(["constant", "constant", "reflect", "edge", "wrap"][: 5 if p.opset >= 19 else 4])
        pads = [p.random.randint(-1 if mode == "constant" else 0, 2) for _ in range(2 * array.ndim)]
        fill = [p.constant(1, array.dtype)] if mode == "constant" and p.random.random() < 0.5 else []
        p.node("Pad", [name, p.constant(pads), *fill], mode=mode)


def join(p: Drawer) -> None:
    name, array = p.value("fiub", 1)
    p.node("Concat", [name, *(p.like(array) for _ in range(p.random.randint(0, 2)))], axis=_axis(p, array))


def gather(p: Drawer) -> None:
    name, array = p.value("fiub", 1)
    axis, kind = _axis(p, array), p.random.randrange(7)
    size = array.shape[axis]
    if not size:
        return
    dtype = p.random.choice([np.int64, np.int32])
    if kind == 0:
        chosen = p.numbers.integers(-size, size, p.random.choice([(), (1,), (0,), (3,), (2, 2)]))
        p.node("Gather", [name, p.constant(chosen, dtype)], axis=axis)
    elif kind == 1:
        chosen = p.numbers.integers(-size, size, array.shape)
        p.node("GatherElements", [name, p.constant(chosen, dtype)], axis=axis)
    elif kind == 2 and array.shape[0]:
        chosen = p.numbers.integers(0, array.shape[0], (p.random.choice([0, 1, 3]), 1))
        p.node("GatherND", [name, p.constant(chosen)])
    elif kind == 3:
        chosen = p.numbers.permuted(np.broadcast_to(np.arange(size), np.moveaxis(array, axis, -1).shape), axis=-1)
        indices = np.moveaxis(chosen, -1, axis)
        how = {"reduction": p.random.choice(["none", "add", "mul", "max", "min"])} if p.opset >= 18 else {}
        updates = p.constant(data(p.numbers, array.shape, array.dtype), array.dtype)
        p.node("ScatterElements", [name, p.constant(indices, dtype), updates], axis=axis, **how)
    elif kind == 4:
        rows = p.numbers.permutation(array.shape[0])[: p.random.randint(0, array.shape[0])]
        updates = p.constant(data(p.numbers, (len(rows), *array.shape[1:]), array.dtype), array.dtype)
        p.node("ScatterND", [name, p.constant(rows[:, None]), updates])
    elif kind == 5:
        mask = p.numbers.random(size) < 0.6
        p.node("Compress", [name, p.constant(mask, np.bool_)], axis=axis)
    elif array.ndim >= 2 and array.shape[0] and p.fixed:  # with longer ones ONNX Runtime crashes
        lengths = p.constant(p.numbers.integers(1, array.shape[0] + 1, array.shape[1]))
        p.node("ReverseSequence", [name, lengths], batch_axis=1, time_axis=0)


def made(p: Drawer) -> None:
    """Tensors that are made from nothing, or from indices."""
    name, array = p.value()
    kind = p.random.randrange(4)
    if kind == 0 and array.ndim == 2:
        p.node("EyeLike", [name], k=p.random.randint(-2, 2))
    elif kind == 1 and array.ndim >= 2:
        p.node("Trilu", [name, p.constant(p.random.randint(-2, 2))], upper=p.random.randrange(2))
    elif kind == 2 and array.dtype.kind == "i":
        values = p.constant([0, 1], p.random.choice(TYPES[:-1]))
        p.node("OneHot", [name, p.constant(4), values], axis=-1)
    elif kind == 3 and array.dtype.kind == "f":
        dtype = p.random.choice([np.int8, np.uint8])
        scale, zero = p.constant(0.125, array.dtype), p.constant(3, dtype)
        p.node("QuantizeLinear", [name, scale, zero])


def window(p: Drawer) -> None:
    """Convolutions and pools."""
    name, array = p.value("f", 3)
    spatial = array.shape[2:]
    if array.ndim > 4 or not all(spatial) or not array.shape[1]:
        return
    kernel = [p.random.randint(1, min(3, size)) for size in spatial]
    ways: dict[str, Any] = {"kernel_shape": kernel, "strides": [p.random.choice([1, 1, 2]) for _ in kernel]}
    ways |= p.random.choice([{}, {"pads": [kernel[0] - 1] * 2 * len(kernel)}, {"auto_pad": "SAME_UPPER"}])
    kind, features = p.random.randrange(5), p.random.choice([1, 2, 5])
    if kind == 1 and "auto_pad" in ways and any(map(int.__lt__, kernel, ways["strides"])):
        return  # ONNX's reference and ONNX Runtime give other sizes
    if kind == 1 and name not in p.shapes and any(map(int.__mod__, kernel, ways["strides"])):
        return  # what is computed may be NaN or infinite, which a tap that is not there makes NaN (importers.md)
    weights = lambda *sizes: p.constant(data(p.numbers, sizes, array.dtype), array.dtype)  # noqa: E731
    if kind == 0:
        p.node("Conv", [name, weights(features, array.shape[1], *kernel), weights(features)], **ways)
    elif kind == 1:
        p.node("ConvTranspose", [name, weights(array.shape[1], features, *kernel)], **ways)
    elif kind == 2:
        p.node("MaxPool", [name], p.random.choice([1, 2]), **ways)
    elif kind == 3:
        p.node("AveragePool", [name], **ways, count_include_pad=p.random.randrange(2))
    else:
        p.node("LpPool", [name], **ways)


def image(p: Drawer) -> None:
    """Resampling, and blocks of pixels to channels and back."""
    name, array = p.value("fiu", 4)
    if array.ndim != 4 or not array.size:
        return
    kind = p.random.randrange(3)
    if kind == 0:
        p.node("SpaceToDepth", [name], blocksize=p.random.choice([1, 2]))
    elif kind == 1:
        p.node("DepthToSpace", [name], blocksize=p.random.choice([1, 2]), mode=p.random.choice(["DCR", "CRD"]))
    elif array.dtype.kind == "f":
        mode = p.random.choice(["nearest", "linear", "cubic"])
        where = p.random.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
        sizes = [*array.shape[:2], *(p.random.randint(1, 2 * size + 1) for size in array.shape[2:])]
        p.node(
            "Resize", [name, "", "", p.constant(sizes)], mode=mode, coordinate_transformation_mode=where,
        )  # fmt: skip


STEPS = (
    unary, unary, binary, binary, divided, shifted, cast, choice, clip, reduction, along, norm, shape, shape, part,
    part, join, gather, gather, made, window, image,
)  # fmt: skip
