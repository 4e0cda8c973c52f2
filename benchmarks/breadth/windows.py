"""Convolutions, pools and resampling of the kinds that few models have."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, family, shape_text, short


@family
def depthwise(draw: Draw) -> Drawn:
    """A filter for each channel, or for each few: 1 to 3 dimensions, odd groups, long kernels."""
    dtype, dimensions = draw.dtype("float16", "float32", "bfloat16"), draw.choice((1, 2, 2, 3))
    each = draw.choice((1, 1, 2, 3))
    groups = draw.choice((3, 7, 12, 24, 48, 96, 128, 384))
    side = {1: draw.size(200, 20000), 2: draw.size(14, 160), 3: draw.size(8, 32)}[dimensions]
    kernel = draw.choice({1: (3, 4, 7, 31, 128), 2: (3, 5, 7, 13), 3: (3, 3, 5)}[dimensions])
    batch, stride = draw.size(1, 32), draw.choice((1, 1, 2))
    while batch * groups * each * side**dimensions > 1 << 24 and side > kernel:
        batch, side = max(1, batch // 2), max(kernel, side * 3 // 4)
    x = draw.tensor(batch, groups * each, *(side,) * dimensions, dtype=dtype)
    weight = draw.tensor(groups * each, each, *(kernel,) * dimensions, dtype=dtype, scale=(each * kernel) ** -0.5)
    apply = getattr(F, f"conv{dimensions}d")
    name = f"conv{dimensions}d {shape_text(*x.shape)} by {kernel} stride {stride} groups {groups} {short(dtype)}"
    return Drawn(name, lambda x, w: apply(x, w, stride=stride, padding=kernel // 2, groups=groups), (x, weight))


@family
def long_filter(draw: Draw) -> Drawn:
    """Filters that are long along one axis, or have one row or column."""
    dtype, kind = draw.dtype("float16", "float32"), draw.choice(("line", "row", "column", "whole"))
    channels, filters = draw.choice((1, 2, 8, 40, 80)), draw.choice((1, 16, 40, 64))
    kernel, batch = draw.choice((9, 25, 63, 251)), draw.size(1, 16)
    if kind == "line":
        x = draw.tensor(batch, channels, draw.size(1000, 30000), dtype=dtype)
        weight = draw.tensor(filters, channels, kernel, dtype=dtype, scale=(channels * kernel) ** -0.5)
        stride = draw.choice((1, 4, 10))
        name = f"conv1d {shape_text(*x.shape)} to {filters} by {kernel} stride {stride} {short(dtype)}"
        return Drawn(name, lambda x, w: F.conv1d(x, w, stride=stride, padding=kernel // 2), (x, weight))
    side = draw.size(16, 96)
    kernel = min(kernel, 25)
    shape = {"row": (1, kernel), "column": (kernel, 1), "whole": (kernel, kernel)}[kind]
    if kind == "whole":
        channels, filters = min(channels, 8), min(filters, 16)
    x = draw.tensor(batch, channels, side, side, dtype=dtype)
    weight = draw.tensor(filters, channels, *shape, dtype=dtype, scale=(channels * kernel) ** -0.5)
    padding = (shape[0] // 2, shape[1] // 2)
    name = f"conv2d {shape_text(*x.shape)} to {filters} by {shape_text(*shape)} {short(dtype)}"
    return Drawn(name, lambda x, w: F.conv2d(x, w, padding=padding), (x, weight))


@family
def transposed(draw: Draw) -> Drawn:
    """Transposed convolutions of 1 to 3 dimensions: strides, groups, padding of the result."""
    dtype, dimensions = draw.dtype("float16", "float32"), draw.choice((1, 2, 3))
    groups = draw.choice((1, 1, 1, 3))
    channels, filters = groups * draw.choice((1, 8, 20, 64)), groups * draw.choice((1, 8, 20, 32))
    side = {1: draw.size(100, 10000), 2: draw.size(7, 96), 3: draw.size(5, 24)}[dimensions]
    kernel, stride, batch = draw.choice((2, 3, 4, 5)), draw.choice((1, 2, 2, 3)), draw.size(1, 16)
    while batch > 1 and batch * max(channels, filters) * (side * stride) ** dimensions > 1 << 24:
        batch //= 2
    x = draw.tensor(batch, channels, *(side,) * dimensions, dtype=dtype)
    scale = (channels // groups * kernel**dimensions) ** -0.5
    weight = draw.tensor(channels, filters // groups, *(kernel,) * dimensions, dtype=dtype, scale=scale)
    apply, more = getattr(F, f"conv_transpose{dimensions}d"), draw.choice((0, stride - 1))
    name = f"{apply.__name__} {shape_text(*x.shape)} to {filters} by {kernel} stride {stride} groups {groups}"
    return Drawn(
        f"{name} {short(dtype)}",
        lambda x, w: apply(x, w, stride=stride, padding=kernel // 2, output_padding=more, groups=groups),
        (x, weight),
    )


def _turned(x: torch.Tensor) -> torch.Tensor:
    angles = torch.tensor([[0.8, -0.6, 0.1], [0.6, 0.8, 0.0]], device=x.device, dtype=x.dtype)
    grid = F.affine_grid(angles.expand(len(x), -1, -1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


@family
def resized(draw: Draw) -> Drawn:
    """Interpolation in every mode and number of dimensions, and pools of other kinds."""
    dtype = draw.dtype("float32", "float16")
    batch, channels, side = draw.size(1, 8), draw.size(1, 64), draw.size(9, 128)
    while batch * channels * side * side > 1 << 22:
        side = max(9, side // 2)
    x = draw.tensor(batch, channels, side, side, dtype=dtype)
    line, volume = x.flatten(2), x[:, :, : side // 8 * 8].reshape(batch, channels, 8, -1, side)
    size = draw.size(5, 2 * side)
    functions = {
        "linear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), line),
        "trilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear", align_corners=True), volume),
        "nearest-exact": (lambda x: F.interpolate(x, size=(size, size), mode="nearest-exact"), x),
        "nearest volume": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), volume),
        "area": (lambda x: F.interpolate(x, size=(max(1, size // 3), size), mode="area"), x),
        "antialias": (lambda x: F.interpolate(x, size=(size, size), mode="bilinear", antialias=True), x),
        "bicubic corners": (lambda x: F.interpolate(x, size=(size, side), mode="bicubic", align_corners=True), x),
        "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (7, 3)), x),
        "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (6, 7)), x),
        "lp": (lambda x: F.lp_pool2d(x.abs(), 2, 3, 2), x),
        "max and positions": (lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[0], x),
        "average of what is there": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x),
        "affine": (_turned, x),
        "global": (lambda x: torch.cat((x.amax((2, 3)), x.mean((2, 3))), 1), x),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    function, given = functions[kind]
    return Drawn(f"{kind} {shape_text(*given.shape)} to {size} {short(dtype)}", function, (given,))
