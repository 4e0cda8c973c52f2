"""Convolutions of images on arrays of a GPU: by the Hopper kernel of tensor copies, or as implicit products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import DType, float8e4nv, float8e5, float32, int8, int32, uint8
from tilewright.errors import LaunchError, brief
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.launch.sizes import next_power_of_2
from tilewright.library.epilogue_parts import activated, quantized
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView

Pair = tuple[int, int]
Require = Callable[[Any, str], None]
_INTEGERS, _NARROW_FLOATS = (int8, uint8), (float8e4nv, float8e5)


def window_of(stride: Any, padding: Any, dilation: Any) -> tuple[Pair, Pair, Pair]:
    """Strides, padding and dilation of rows and columns, each given as one number or two; raises `LaunchError`."""
    return _pair(stride, "stride", 1), _pair(padding, "padding", 0), _pair(dilation, "dilation", 1)


def _pair(value: Any, name: str, least: int) -> Pair:
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if len(pair) != 2 or not all(isinstance(each, int) and each >= least for each in pair):
        raise LaunchError(f"{name} is a number or two of {least} or more, for rows and columns, got {brief(value)}")
    return int(pair[0]), int(pair[1])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LaunchError(message)


def result_shape(
    x: Sequence[int], w: Sequence[int], window: tuple[Pair, Pair, Pair], groups: int, require: Require = _require
) -> tuple[int, ...]:
    """The shape of the result for the shapes of images and weights; `require` is asked about each condition, with the
    text of the error where it does not hold."""
    shapes = f"x {list(x)}, w {list(w)}, {groups} groups"
    require(
        len(x) == len(w) == 4, f"conv2d takes x [images, height, width, channels] and w [features, …], got {shapes}"
    )
    misfit = f"{shapes} do not fit: w is [features, channels / groups, kernel height, kernel width]"
    require(groups >= 1, misfit)
    require(x[3] == w[1] * groups, misfit)
    require(w[0] % groups == 0, misfit)
    require(w[1] >= 1, f"conv2d adds over one channel or more, got {shapes}")
    extents = []
    for axis, (step, pad, apart) in enumerate(zip(*window, strict=True)):
        room = x[axis + 1] + 2 * pad - apart * (w[axis + 2] - 1) - 1
        fits = f"windows of {list(w[2:])} do not fit images of {list(x[1:3])}"
        require(w[axis + 2] >= 1, fits)
        require(room >= 0, fits)
        extents.append(room // step + 1)
    return (x[0], *extents, w[0])


def _check(
    x: ArrayView, w: ArrayView, given: Mapping[str, ArrayView], stored: DType, shape: Sequence[int]
) -> None:  # fmt: skip
    """Refuse types that there is no kernel for, and operands that do not fit; `given` are all arrays by name, `shape`
    is that of the result."""
    integers = x.element in _INTEGERS and w.element == int8
    narrow = integers or (x.element in _NARROW_FLOATS and w.element in _NARROW_FLOATS)
    if not narrow and (x.element not in arrays.FLOATS or w.element != x.element):
        raise LaunchError(
            "x and w must both be float32, float16 or bfloat16, or x int8 or uint8 and w int8, or both 8-bit floats, "
            f"got {x.element.name}, {w.element.name}"
        )
    own = (*_INTEGERS, int32) if integers else _NARROW_FLOATS
    if stored != x.element and not (narrow and stored in (*arrays.FLOATS, *own)):
        raise LaunchError(f"convolutions of {x.element.name} are not stored as {stored.name}")
    kinds = arrays.FLOATS if narrow else (x.element,)
    bias, features = given.get("bias"), w.shape[:1]
    if bias is not None and (bias.shape != features or bias.element not in kinds):
        raise LaunchError(f"bias must be {kinds[0].name} of shape {list(features)}, got {bias.described}")
    for name, lengths in (("scale_x", (1,)), ("scale_w", (1, *features))):
        found = given.get(name)
        if found is None:
            continue
        if not narrow or found.element != float32 or math.prod(found.shape) not in lengths:
            raise LaunchError(
                f"{name} of 8-bit numbers is float32 of {' or '.join(map(str, lengths))} numbers, got {found.described}"
            )
    added = given.get("residual")
    if added is not None and (added.shape != tuple(shape) or (not narrow and added.element != x.element)):
        raise LaunchError(f"residual must be contiguous {x.element.name} {list(shape)}, got {added.described}")
    for name, found in given.items():
        if not found.contiguous:
            raise LaunchError(f"{name} must be contiguous, got {found.described}")


def conv2d(
    x: Any, w: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    activation: str | None = None, residual: Any = None, out: Any = None, scale_x: Any = None, scale_w: Any = None,
    out_dtype: Any = None, out_scale: float | None = None,
) -> Any:  # fmt: skip
    """activation(convolution of x by w * scale_x * scale_w + bias + residual), of images whose channels are last.

    `x` is [images, height, width, channels] (PyTorch: ``x.permute(0, 2, 3, 1)`` of a channels-last tensor), `w`
    [features, channels / groups, kernel height, kernel width], `bias` [features], `residual` like the result
    [images, height', width', features]; all contiguous, of one type: float32, float16 or bfloat16.  Sums are float32.
    `stride`, `padding` and `dilation` are a number or two; activations are those of `matmul`, applied last.

    Or `x` is int8 or uint8 and `w` int8, with sums in int32; `scale_x` is one number, `scale_w` one or one for each
    feature, float32, bias and residual are floats.  The result is int32, or float32 if anything follows the sums, or of
    `out_dtype`: a float, int32, or int8 or uint8 of results divided by `out_scale`, rounded to the nearest and
    saturated.
    Or both are 8-bit floats (e4m3 or e5m2), with sums in float32, and the same scales.  The result is float32, or of
    `out_dtype`: a float, or an 8-bit float of results divided by `out_scale`, rounded to the nearest and saturated.

    On compute capability 9.0 16-bit images of channels in multiples of 8, and 8-bit ones of 16, go to the kernel of
    tensor copies.  Weights are put into the kernel's order by a small launch each time: engines, whose weights are
    constants, do that once.  Raises `LaunchError`.
    """
    image, weights = arrays.view(x, "x"), arrays.view(w, "w")
    optional = {"bias": bias, "residual": residual, "scale_x": scale_x, "scale_w": scale_w}
    present = {"x": image, "w": weights}
    present |= {name: arrays.view(value, name) for name, value in optional.items() if value is not None}
    steps, pads, apart = window = window_of(stride, padding, dilation)
    shape = result_shape(image.shape, weights.shape, window, groups)
    integers, narrow = image.element in _INTEGERS, image.element in (*_INTEGERS, *_NARROW_FLOATS)
    sums = int32 if integers and len(present) == 2 and not activation else float32
    default = sums if narrow else image.element
    given = None if out is None else arrays.view(out, "out")
    stored = arrays.result_type(default, given, out_dtype)
    _check(image, weights, present, stored, shape)
    activation = calls.checked_activation(activation)
    inverse = calls.scale_of_results(stored, stored.bits > 8, out_scale)
    target = calls.result_like(image, shape, stored, given)
    place = arrays.common_place([*present.values(), target], "conv2d")
    if 0 in target.shape:
        return target.base
    kinds = tuple((name, found.element, found.shape) for name, found in present.items())
    options = (steps, pads, apart, groups, activation, stored, inverse)

    def graph() -> Graph:
        b = GraphBuilder("conv2d")
        values = {name: b.input(name, kind, extents) for name, kind, extents in kinds}
        operands = [values[name] for name in ("x", "w", *(() if narrow else ("bias",))) if name in values]
        y = b.op("conv", operands, strides=steps, padding=tuple((each, each) for each in pads), dilation=apart,
                 groups=groups, layout="NHWC", dtype=(int32 if integers else float32) if narrow else None)  # fmt: skip
        y = _finished(b, y, values, activation, stored == int32) if narrow else _summed(b, y, values, activation)
        y = quantized(b, y, stored, inverse[0]) if inverse else y
        b.output(y if y.dtype == stored else b.op("cast", [y], dtype=stored))
        return b.finish()

    pixels = next_power_of_2(math.prod(shape[:-1]))
    alike = (image.element.name, pixels, weights.shape, steps, pads, apart, groups, activation, *present)
    alike = (*alike, weights.element.name, stored.name) if narrow else alike
    calls.prepared(("conv2d", kinds, options), alike, [*present.values(), target], place, graph).run(present, target)
    return target.base


def _finished(b: GraphBuilder, y: Value, values: Mapping[str, Value], activation: str | None, bare: bool) -> Value:
    """What follows sums of 8-bit numbers, in float32; nothing where `bare` sums of integers are stored."""
    if bare and len(values) == 2 and not activation:
        return y
    y = b.op("cast", [y], dtype=float32)
    for name in ("scale_x", "scale_w"):
        if name in values:
            one = math.prod(map(int, values[name].shape)) == 1  # type: ignore[arg-type]
            y = b.op("multiply", [y, b.op("reshape", [values[name]], shape=() if one else y.shape[-1:])])
    wide = {name: b.op("cast", [values[name]], dtype=float32) for name in ("bias", "residual") if name in values}
    y = b.op("add", [y, wide["bias"]]) if "bias" in wide else y
    return _summed(b, y, wide, activation)


def _summed(b: GraphBuilder, y: Value, values: Mapping[str, Value], activation: str | None) -> Value:
    """The residual, and the activation."""
    y = b.op("add", [y, values["residual"]]) if "residual" in values else y
    return activated(b, y, activation)
