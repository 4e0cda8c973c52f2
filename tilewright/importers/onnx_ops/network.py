"""Layers: products, convolutions, pools, norms, resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers import images
from tilewright.importers.einsum import einsum
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import grid_sample
from tilewright.symbolic import Size, lift, lower_bound, simplify

TABLE = RuleTable("Layers")
rule = TABLE.rule


@rule("MatMul")
def matmul(call: Call) -> Value:
    left, right = call[0], call[1]
    for operand in (left, right):
        call.require_rank(operand, 1)
    if left.rank == right.rank == 1:
        return call.reshape(call.matmul(call.unsqueeze(left, 0), call.unsqueeze(right, 1)), ())
    return call.matmul(left, right)


@rule("Gemm")
def gemm(call: Call) -> Value:
    call.attribute("broadcast")  # before opset 7; the bias broadcasts where it can
    for index in range(2):
        call.require_rank(call[index], 2, 2)
    left = call.transpose(call[0], 0, 1) if call.attribute("transA", 0) else call[0]
    product = call.op("matmul", left, call[1], transpose_b=bool(call.attribute("transB", 0)))
    alpha, beta = (_factor(call, name, product.dtype) for name in ("alpha", "beta"))
    product = product if alpha == 1 else call.op("multiply", product, alpha)
    if not call.has(2) or beta == 0:
        return product
    if broadcast_shapes(product.shape, call[2].shape) != product.shape:
        raise Invalid(f"the bias {call[2]!r} does not broadcast to {product!r}")
    bias = call[2] if beta == 1 else call.op("multiply", call[2], beta)
    return call.op("add", product, bias)


def _factor(call: Call, name: str, dtype: DType) -> float:
    """A factor that the element type can hold."""
    found = float(call.attribute(name, 1.0))
    if dtype.is_integer and not found.is_integer():
        raise Unsupported(f"the attribute {name!r} of {found} for numbers of type {dtype}", "use a whole number")
    return found


@rule("Einsum")
def einsum_(call: Call) -> Value:
    return einsum(call, call.attribute("equation"), [call[index] for index in range(len(call.inputs))])


# Convolutions and pools ------------------------------------------------------------------------------


def _window(call: Call, x: Value, kernel: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Strides, padding and dilation of a sliding window, with `auto_pad` worked out."""
    count = len(kernel)
    strides = call.integers("strides", count, default=1, least=1)
    dilation = call.integers("dilations", count, default=1, least=1)
    pads = call.integers("pads", 2 * count, default=0, least=0)
    auto = call.choice("auto_pad", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        padding = [
            _same(x.shape[2 + i], kernel[i], strides[i], dilation[i], auto == "SAME_LOWER") for i in range(count)
        ]
    else:
        padding = [(0, 0) if auto == "VALID" else (pads[i], pads[i + count]) for i in range(count)]
    return strides, padding, dilation


def _same(extent: Size, kernel: int, stride: int, dilation: int, lower: bool) -> tuple[int, int]:
    """Padding that gives ceil(extent / stride) windows; the odd element goes to the end, or the front."""
    reach = dilation * (kernel - 1) + 1
    if stride == 1:
        total = reach - 1
    elif isinstance(extent, int):
        total = max(0, (-(-extent // stride) - 1) * stride + reach - extent)
    else:
        raise Unsupported("auto_pad with a stride on a dynamic image size", "give explicit pads")
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def _kernel(call: Call, x: Value, weight: Value) -> list[int]:
    """The kernel's size, which the weight has and an attribute may repeat."""
    call.require_rank(x, 3)
    call.require_rank(weight, x.rank, x.rank)
    kernel = list(weight.shape[2:])
    if not all(isinstance(size, int) for size in kernel):
        raise Unsupported("a convolution whose kernel size is not a number")
    if list(call.attribute("kernel_shape") or kernel) != kernel:
        raise Invalid(f"the attribute 'kernel_shape' is {call.attribute('kernel_shape')}, but the weight is {weight!r}")
    return kernel  # type: ignore[return-value]


def convolve(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    """A convolution by the attributes of Conv and its kin."""
    strides, padding, dilation = _window(call, x, _kernel(call, x, weight))
    groups = call.positive("group", 1)
    return call.op("conv", x, weight, bias, strides=strides, padding=padding, dilation=dilation, groups=groups)


@rule("Conv")
def convolution(call: Call) -> Value:
    return convolve(call, call[0], call[1], call.optional(2))


@rule("ConvTranspose")
def transposed_convolution(call: Call) -> Value:
    x, weight = call[0], call[1]
    kernel = _kernel(call, x, weight)
    if call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or call.attribute("output_shape"):
        raise Unsupported("ConvTranspose with auto_pad or output_shape", "give explicit pads")
    strides, padding, dilation = _window(call, x, kernel)
    extra = call.integers("output_padding", len(kernel), default=0, least=0)
    if any(more >= max(stride, step) for more, stride, step in zip(extra, strides, dilation, strict=True)):
        raise Invalid(f"the attribute 'output_padding' is {extra}; each must be less than the stride or the dilation")
    groups = call.positive("group", 1)
    if isinstance(weight.shape[0], int) and weight.shape[0] % groups:
        raise Invalid(f"{groups} groups do not divide the {weight.shape[0]} channels of the weight")
    return images.transposed_convolution(call, x, weight, call.optional(2), strides, padding, dilation, extra, groups)


def _pool(call: Call) -> dict[str, Any]:
    """The window of a pool, and how the last one counts."""
    call.require_rank(call[0], 3)
    kernel = call.integers("kernel_shape", call[0].rank - 2, default=0, least=1)
    strides, padding, dilation = _window(call, call[0], kernel)
    reach = [step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True)]
    if any(max(pair) >= size for pair, size in zip(padding, reach, strict=True)):
        raise Invalid(f"the padding {padding} is not less than the window {reach}, which could see nothing but padding")
    ceil_mode = bool(call.attribute("ceil_mode", 0))
    return {"kernel": kernel, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}


@rule("MaxPool")
def max_pool(call: Call) -> tuple[Value, None]:
    return call.op("max_pool", call[0], **_pool(call)), None


@rule("AveragePool")
def average_pool(call: Call) -> Value:
    counted = bool(call.attribute("count_include_pad", 0))
    return call.op("average_pool", call[0], **_pool(call), count_include_pad=counted)


@rule("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    call.require_rank(call[0], 3)
    return call.op("reduce_mean", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


@rule("GlobalMaxPool")
def global_max_pool(call: Call) -> Value:
    call.require_rank(call[0], 3)
    return call.op("reduce_max", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


# Norms -----------------------------------------------------------------------------------------------


@rule("LayerNormalization")
def layer_norm(call: Call) -> tuple[Value, None, None]:
    x = call[0]
    axis = call.axis(x.rank, -1)
    shape = x.shape[axis:]
    scale, bias = (None if item is None else call.broadcast(item, shape) for item in (call[1], call.optional(2)))
    return call.op("layer_norm", x, scale, bias, axis=axis, epsilon=call.attribute("epsilon", 1e-5)), None, None


@rule("RMSNormalization")
def rms_norm(call: Call) -> Value:
    x = call[0]
    axis = call.axis(x.rank, -1)
    scale = call.broadcast(call[1], x.shape[axis:])
    return call.op("rms_norm", x, scale, axis=axis, epsilon=call.attribute("epsilon", 1e-5))


@rule("BatchNormalization")
def batch_norm(call: Call) -> tuple[Value, None, None]:
    """Before opset 7 the attribute `is_test` says whether the model is for inference."""
    if call.attribute("training_mode", 0) or (call.opset < 7 and not call.attribute("is_test", 0)):
        raise Unsupported("batch normalisation in training mode", "export the model for inference")
    if not call.attribute("spatial", 1):
        raise Unsupported("batch normalisation of each element", "normalise channels")
    x = call[0]
    call.require_rank(x, 2)
    parts = [call.cast(call[index], x.dtype) for index in range(1, 5)]
    return call.op("batch_norm", x, *parts, epsilon=call.attribute("epsilon", 1e-5)), None, None


@rule("InstanceNormalization")
def instance_norm(call: Call) -> Value:
    x = call[0]
    call.require_rank(x, 3)
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("instance normalisation with a dynamic number of channels", "fix dimension 1")
    return call.op("group_norm", x, call[1], call[2], groups=channels, epsilon=call.attribute("epsilon", 1e-5))


@rule("GroupNormalization")
def group_norm(call: Call) -> Value:
    """From opset 21 scale and bias have one entry for each channel, before for each group."""
    x, groups = call[0], call.positive("num_groups")
    call.require_rank(x, 3)
    channels = x.shape[1]
    scale, bias = call[1], call[2]
    if call.opset < 21 and scale.shape != (channels,):
        scale, bias = (images.repeat(call, item, 0, simplify(lift(channels) // groups)) for item in (scale, bias))
    return call.op("group_norm", x, scale, bias, groups=groups, epsilon=call.attribute("epsilon", 1e-5))


# Resampling ------------------------------------------------------------------------------------------


_COORDINATES = ("pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_crop_and_resize",
                "tf_half_pixel_for_nn")  # fmt: skip
_LARGEST_MATRIX = 1 << 24  # elements of the weights between two sizes


@rule("Resize", "Upsample")
def resize(call: Call) -> Value:
    """Nearest, linear and cubic, static sizes; nearest by whole factors also for dynamic ones.

    Upsample, and Resize before opset 11, have no modes of coordinates.
    """
    x, mode = call[0], call.choice("mode", "nearest", "linear", "bilinear", "cubic").replace("bi", "", 1)
    call.choice("coordinate_transformation_mode", "half_pixel", *_COORDINATES)
    call.choice("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    call.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    for name in ("cubic_coeff_a", "exclude_outside", "extrapolation_value"):
        call.attribute(name)  # of other modes
    if call.attribute("antialias", 0) or call.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Unsupported("Resize with antialias or cropping", "resample without them")
    axes = call.places(call.attribute("axes") or range(x.rank), x.rank)
    for axis, (size, factor) in zip(axes, _targets(call, x, axes), strict=True):
        x = _resized(call, x, axis, size, factor, mode)
    return x


def _resized(call: Call, x: Value, axis: int, size: Size, factor: float | None, mode: str) -> Value:
    """One dimension with a new size."""
    extent = x.shape[axis]
    if size == extent:
        return x
    whole = simplify(lift(size) // extent) if lower_bound(extent) > 0 else 0
    if not (isinstance(extent, int) and isinstance(size, int)):
        repeats = mode == "nearest" and isinstance(whole, int) and simplify(lift(extent) * whole) == size
        if not repeats or not isinstance(whole, int):
            raise Unsupported(f"Resize from {extent} to {size}", "fix the image size, or use a whole factor")
        return images.repeat(call, x, axis, whole)
    if extent < 1 or size < 1:
        raise Invalid(f"dimension {axis} of {extent} elements cannot be resized to {size}")
    if extent * size > _LARGEST_MATRIX:
        raise Unsupported(f"Resize from {extent} to {size}", f"keep their product below {_LARGEST_MATRIX}")
    places = _places(call, extent, size, factor)
    if mode == "nearest":
        positions = np.clip(_nearest(call, places, size < extent), 0, extent - 1).astype(np.int64)
        return call.op("gather", x, call.constant(positions, "positions"), axis=axis)
    if mode == "linear":
        return images.mix(call, x, axis, images.interpolation_matrix(places, extent))
    coefficient, exclude_outside = call.attribute("cubic_coeff_a", -0.75), bool(call.attribute("exclude_outside", 0))
    return images.mix(call, x, axis, images.cubic_matrix(places, extent, float(coefficient), exclude_outside))


def _scales(call: Call, rank: int) -> list[float]:
    """The factors: an attribute of Upsample before opset 9, else an input."""
    if call.opset < 9:
        given = call.attribute("scales")
        if given is None:  # opset 1
            given = [1.0] * (rank - 2) + [call.attribute("height_scale"), call.attribute("width_scale")]
        return [float(scale) for scale in given]
    tensor = call.tensor(1 if call.opset < 11 else 2)
    if tensor.known is None or tensor.symbolic:
        raise Unsupported("Resize by scales computed from data", "use constant scales")
    return [float(scale) for scale in tensor.known.reshape(-1)]


def _targets(call: Call, x: Value, axes: Sequence[int]) -> list[tuple[Size, float | None]]:
    """The new size of each axis, and its scale where scales are given."""
    if call.opset >= 11 and call.has(3):
        sizes = call.sizes(3)
        if sizes or not call.has(2):
            if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
                raise Unsupported("Resize that keeps the aspect ratio", "give the sizes")
            if len(sizes) != len(axes):
                raise Invalid(f"there are {len(sizes)} sizes for {len(axes)} dimensions")
            return [(size, None) for size in sizes]
    scales = _scales(call, x.rank)
    if len(scales) != len(axes):
        raise Invalid(f"there are {len(scales)} scales for {len(axes)} dimensions")
    targets: list[tuple[Size, float | None]] = []
    for axis, scale in zip(axes, scales, strict=True):
        extent = x.shape[axis]
        if not 0 < scale < 2**31:
            raise Invalid(f"the scale of dimension {axis} is {scale}; it must be a positive number")
        if isinstance(extent, int):
            targets.append((int(np.floor(extent * scale)), scale))
        elif float(scale).is_integer():
            targets.append((simplify(lift(extent) * int(scale)), scale))
        else:
            raise Unsupported(f"Resize of a dynamic size by {scale}", "use a whole factor")
    return targets


def _places(call: Call, extent: int, size: int, factor: float | None) -> np.ndarray:
    """Where in the image each output pixel reads, by `coordinate_transformation_mode`."""
    scale = factor or size / extent
    target = np.arange(size, dtype=np.float64)
    mode = call.attribute("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    if mode == "asymmetric":
        return target / scale
    if mode == "align_corners":
        return target * (extent - 1) / max((extent * scale if factor else size) - 1, 1)
    if mode == "pytorch_half_pixel" and size == 1:
        return np.zeros(1)
    if mode == "half_pixel_symmetric":
        adjustment = size / (scale * extent)
        return extent / 2 * (1 - adjustment) + (target + 0.5) / scale - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (target + 0.5) / scale - 0.5
    raise Unsupported(f"Resize with coordinates {mode!r}")


def _nearest(call: Call, places: np.ndarray, smaller: bool) -> np.ndarray:
    """The pixel of each place; before opset 11 the one behind it when the image becomes smaller, else before it."""
    mode = call.attribute("nearest_mode", "round_prefer_floor")
    if call.opset < 11:
        mode = "ceil" if smaller else "floor"
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    return np.ceil(places - 0.5) if mode == "round_prefer_floor" else np.floor(places + 0.5)


@rule("GridSample")
def sample_grid(call: Call) -> Value:
    """Modes have other names before opset 20."""
    names = ("linear", "nearest", "cubic") if call.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = call.choice("mode", *names).replace("bi", "", 1)
    padding = call.choice("padding_mode", "zeros", "border", "reflection")
    x, places = call[0], call[1]
    call.require_rank(x, 3)
    call.require_rank(places, x.rank, x.rank)
    if places.shape[-1] != x.rank - 2 or places.shape[0] != x.shape[0]:
        raise Invalid(f"the places {places!r} are not those of images {x!r}: [{x.shape[0]}, ..., {x.rank - 2}]")
    return grid_sample(call, x, places, mode, padding, bool(call.attribute("align_corners", 0)))
