"""Convolutions of images on arrays of a GPU: by the Hopper kernel of tensor copies, or as implicit products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import LaunchError, brief
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.launch.sizes import next_power_of_2
from tilewright.library.activations import ACTIVATIONS
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView

Pair = tuple[int, int]
Require = Callable[[Any, str], None]


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


def _check(x: ArrayView, w: ArrayView, bias: ArrayView | None) -> None:
    if x.element not in arrays.FLOATS or w.element != x.element:
        raise LaunchError(f"x and w must both be float32, float16 or bfloat16, got {x.element.name}, {w.element.name}")
    if bias is not None and (bias.shape != w.shape[:1] or bias.element != x.element):
        raise LaunchError(f"bias must be {x.element.name} of shape {list(w.shape[:1])}, got {bias.described}")
    for name, found in (("x", x), ("w", w), ("bias", bias)):
        if found is not None and not found.contiguous:
            raise LaunchError(f"{name} must be contiguous, got {found.described}")


def conv2d(
    x: Any, w: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    activation: str | None = None, residual: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """activation(convolution of x by w + bias + residual), of images whose channels are last.

    `x` is [images, height, width, channels] (PyTorch: ``x.permute(0, 2, 3, 1)`` of a channels-last tensor), `w`
    [features, channels / groups, kernel height, kernel width], `bias` [features], `residual` like the result
    [images, height', width', features]; all contiguous, of one type: float32, float16 or bfloat16.  Sums are float32.
    `stride`, `padding` and `dilation` are a number or two; activations are those of `matmul`, applied last.

    On compute capability 9.0 16-bit images of channels in multiples of 8 go to the kernel of tensor copies.  Weights
    are put into the kernel's order by a small launch each time: engines, whose weights are constants, do that once.
    Raises `LaunchError`.
    """
    image, weights = arrays.view(x, "x"), arrays.view(w, "w")
    shift = None if bias is None else arrays.view(bias, "bias")
    steps, pads, apart = window = window_of(stride, padding, dilation)
    shape = result_shape(image.shape, weights.shape, window, groups)
    _check(image, weights, shift)
    if activation and activation not in ACTIVATIONS:
        raise LaunchError(f"activation={brief(activation)}: there are {', '.join(ACTIVATIONS)}")
    added = None if residual is None else arrays.view(residual, "residual")
    if added is not None and (added.shape != shape or added.element != image.element or not added.contiguous):
        raise LaunchError(f"residual must be contiguous {image.element.name} {list(shape)}, got {added.described}")
    target = calls.result_like(image, shape, image.element, out)
    given = {"x": image, "w": weights, "bias": shift, "residual": added}
    present = {name: found for name, found in given.items() if found is not None}
    place = arrays.common_place([*present.values(), target], "conv2d")
    if 0 in target.shape:
        return target.base
    key = ("conv2d", image.element, image.shape, weights.shape, steps, pads, apart, groups, activation, *present)

    def graph() -> Graph:
        b = GraphBuilder("conv2d")
        values = {name: b.input(name, found.element, found.shape) for name, found in present.items()}
        operands = [values[name] for name in ("x", "w", "bias") if name in values]
        y = b.op("conv", operands, strides=steps, padding=tuple((each, each) for each in pads), dilation=apart,
                 groups=groups, layout="NHWC")  # fmt: skip
        y = b.op("add", [y, values["residual"]]) if "residual" in values else y
        b.output(_activated(b, y, activation))
        return b.finish()

    pixels = next_power_of_2(math.prod(shape[:-1]))
    alike = (image.element.name, pixels, weights.shape, steps, pads, apart, groups, activation, *present)
    calls.prepared(key, alike, [*present.values(), target], place, graph).run(present, target)
    return target.base


def _activated(b: GraphBuilder, y: Any, activation: str | None) -> Any:
    """An activation of a value, by its name in `library.activations.ACTIVATIONS`."""
    if not activation:
        return y
    return b.op("gelu", [y], approximate="tanh") if activation == "gelu_tanh" else b.op(activation, [y])
