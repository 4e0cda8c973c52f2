"""Layers: products, convolutions, pools, norms, attention, rotary embedding, resampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.einsum import einsum
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import grid_sample
from tilewright.symbolic import Size, lift, simplify

TABLE = RuleTable("Layers")
rule = TABLE.rule


@rule("MatMul")
def matmul(call: Call) -> Value:
    left, right = call[0], call[1]
    if left.rank == right.rank == 1:
        return call.reshape(call.matmul(call.unsqueeze(left, 0), call.unsqueeze(right, 1)), ())
    return call.matmul(left, right)


@rule("Gemm")
def gemm(call: Call) -> Value:
    left = call.transpose(call[0], 0, 1) if call.attribute("transA", 0) else call[0]
    product = call.op("matmul", left, call[1], transpose_b=bool(call.attribute("transB", 0)))
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    product = product if alpha == 1.0 else call.op("multiply", product, alpha)
    if not call.has(2) or beta == 0.0:
        return product
    bias = call[2] if beta == 1.0 else call.op("multiply", call[2], beta)
    return call.op("add", product, bias)


@rule("Einsum")
def einsum_(call: Call) -> Value:
    return einsum(call, call.attribute("equation"), [call[index] for index in range(len(call.inputs))])


# Convolutions and pools ------------------------------------------------------------------------------


def _window(call: Call, x: Value, kernel: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Strides, padding and dilation of a sliding window, with `auto_pad` worked out."""
    count = len(kernel)
    strides = list(call.attribute("strides") or [1] * count)
    dilation = list(call.attribute("dilations") or [1] * count)
    pads = list(call.attribute("pads") or [0] * 2 * count)
    auto = call.attribute("auto_pad", "NOTSET")
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


def _kernel(weight: Value) -> list[int]:
    kernel = list(weight.shape[2:])
    if not all(isinstance(size, int) for size in kernel):
        raise Unsupported("a convolution whose kernel size is not a number")
    return kernel  # type: ignore[return-value]


def convolve(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    """A convolution by the attributes of Conv and its kin."""
    strides, padding, dilation = _window(call, x, _kernel(weight))
    groups = call.attribute("group", 1)
    return call.op("conv", x, weight, bias, strides=strides, padding=padding, dilation=dilation, groups=groups)


@rule("Conv")
def convolution(call: Call) -> Value:
    return convolve(call, call[0], call[1], call.optional(2))


@rule("ConvTranspose")
def transposed_convolution(call: Call) -> Value:
    if call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or call.attribute("output_shape"):
        raise Unsupported("ConvTranspose with auto_pad or output_shape", "give explicit pads")
    x, weight = call[0], call[1]
    strides, padding, dilation = _window(call, x, _kernel(weight))
    extra = call.attribute("output_padding") or [0] * len(strides)
    groups = call.attribute("group", 1)
    return images.transposed_convolution(call, x, weight, call.optional(2), strides, padding, dilation, extra, groups)


@rule("MaxPool")
def max_pool(call: Call) -> tuple[Value, None]:
    kernel = call.attribute("kernel_shape")
    strides, padding, dilation = _window(call, call[0], kernel)
    ceil_mode = bool(call.attribute("ceil_mode", 0))
    pooled = call.op(
        "max_pool", call[0], kernel=kernel, strides=strides, padding=padding, dilation=dilation, ceil_mode=ceil_mode
    )
    return pooled, None


@rule("AveragePool")
def average_pool(call: Call) -> Value:
    kernel = call.attribute("kernel_shape")
    strides, padding, dilation = _window(call, call[0], kernel)
    return call.op(
        "average_pool",
        call[0],
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        ceil_mode=bool(call.attribute("ceil_mode", 0)),
        count_include_pad=bool(call.attribute("count_include_pad", 0)),
    )


@rule("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    return call.op("reduce_mean", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


@rule("GlobalMaxPool")
def global_max_pool(call: Call) -> Value:
    return call.op("reduce_max", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


# Norms -----------------------------------------------------------------------------------------------


@rule("LayerNormalization")
def layer_norm(call: Call) -> tuple[Value, None, None]:
    x = call[0]
    axis = call.attribute("axis", -1) % x.rank
    shape = x.shape[axis:]
    scale, bias = (None if item is None else call.broadcast(item, shape) for item in (call[1], call.optional(2)))
    return call.op("layer_norm", x, scale, bias, axis=axis, epsilon=call.attribute("epsilon", 1e-5)), None, None


@rule("RMSNormalization")
def rms_norm(call: Call) -> Value:
    x = call[0]
    axis = call.attribute("axis", -1) % x.rank
    scale = call.broadcast(call[1], x.shape[axis:])
    return call.op("rms_norm", x, scale, axis=axis, epsilon=call.attribute("epsilon", 1e-5))


@rule("BatchNormalization")
def batch_norm(call: Call) -> tuple[Value, None, None]:
    if call.attribute("training_mode", 0):
        raise Unsupported("batch normalisation in training mode", "export the model for inference")
    x = call[0]
    parts = [call.cast(call[index], x.dtype) for index in range(1, 5)]
    return call.op("batch_norm", x, *parts, epsilon=call.attribute("epsilon", 1e-5)), None, None


@rule("InstanceNormalization")
def instance_norm(call: Call) -> Value:
    x = call[0]
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("instance normalisation with a dynamic number of channels", "fix dimension 1")
    return call.op("group_norm", x, call[1], call[2], groups=channels, epsilon=call.attribute("epsilon", 1e-5))


@rule("GroupNormalization")
def group_norm(call: Call) -> Value:
    """From opset 21 scale and bias have one entry for each channel, before for each group."""
    x, groups = call[0], call.attribute("num_groups")
    channels = x.shape[1]
    scale, bias = call[1], call[2]
    if call.opset < 21 and scale.shape != (channels,):
        scale, bias = (images.repeat(call, item, 0, simplify(lift(channels) // groups)) for item in (scale, bias))
    return call.op("group_norm", x, scale, bias, groups=groups, epsilon=call.attribute("epsilon", 1e-5))


# Attention -------------------------------------------------------------------------------------------


def _heads(call: Call, x: Value, heads: int | None) -> Value:
    """[B, S, H D] as [B, H, S, D]; rank 4 as it is."""
    if x.rank == 4:
        return x
    if heads is None:
        raise Unsupported("attention on rank 3 without q_num_heads and kv_num_heads", "set both attributes")
    batch, length, width = x.shape
    split = call.reshape(x, (batch, length, heads, simplify(lift(width) // heads)))
    return call.permute(split, (0, 2, 1, 3))


@rule("Attention")
def attention(call: Call) -> tuple[Value | None, ...]:
    """Opset 23 and newer; with a past the new keys follow it, and a causal row sees all of the past."""
    call.attribute("qk_matmul_output_mode")
    if any(call.attribute(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise Unsupported("attention in a sliding window", "give the window as an attention mask")
    if call.attribute("softcap", 0.0) or call.has(6) or (call.outputs > 3):
        raise Unsupported("attention with softcap, key lengths or the score output", "leave these out")
    query_heads, key_heads = call.attribute("q_num_heads"), call.attribute("kv_num_heads")
    query = _heads(call, call[0], query_heads)
    key, value = (_heads(call, call[index], key_heads) for index in (1, 2))
    past = call.has(4)
    if past:
        key = call.op("concat", call[4], key, axis=2)
        value = call.op("concat", call[5], value, axis=2)
    causal, scale = bool(call.attribute("is_causal", 0)), call.attribute("scale")
    mask = call.optional(3)
    if past and causal:
        width = query.shape[-1]
        if scale is None and isinstance(width, int):
            scale = width**-0.5
        bias = None if mask is None else call.additive_mask(mask, query.dtype)
        result = call.op("attention", query, key, value, bias, scale=scale, causal=True)
    else:
        result = call.attention(query, key, value, mask, causal, scale)
    if call.tensor(0).shape != query.shape and len(call.tensor(0).shape) == 3:
        batch, heads, rows, width = result.shape
        result = call.reshape(call.permute(result, (0, 2, 1, 3)), (batch, rows, simplify(lift(heads) * width)))
    return result, key, value


@rule("RotaryEmbedding")
def rotary_embedding(call: Call) -> Value:
    """Opset 23: rotates pairs (halves, or neighbours when interleaved) of each head by cos and sin."""
    source = call[0]
    x = call.transpose(_heads(call, source, call.attribute("num_heads") or None), 1, 2)  # [B, S, H, D]
    width = call.attribute("rotary_embedding_dim", 0) or x.shape[3]
    cos, sin = call[1], call[2]
    if call.has(3):
        cos, sin = (call.op("gather", table, call[3], axis=0) for table in (cos, sin))
    cos, sin = (call.unsqueeze(table, 2) for table in (cos, sin))
    turned, rest = call.slice(x, 3, 0, width), call.slice(x, 3, width, x.shape[3])
    half = simplify(lift(width) // 2)
    if call.attribute("interleaved", 0):
        pairs = call.reshape(turned, (*turned.shape[:3], half, 2))
        first, second = call.select(pairs, 4, 0), call.select(pairs, 4, 1)
    else:
        first, second = call.slice(turned, 3, 0, half), call.slice(turned, 3, half, width)
    real = call.op("subtract", call.op("multiply", cos, first), call.op("multiply", sin, second))
    imaginary = call.op("add", call.op("multiply", sin, first), call.op("multiply", cos, second))
    if call.attribute("interleaved", 0):
        both = call.op("concat", call.unsqueeze(real, 4), call.unsqueeze(imaginary, 4), axis=4)
        joined = call.reshape(both, turned.shape)
    else:
        joined = call.op("concat", real, imaginary, axis=3)
    if width != x.shape[3]:
        joined = call.op("concat", joined, rest, axis=3)
    return call.reshape(joined, source.shape) if source.rank == 3 else call.transpose(joined, 1, 2)


# Resampling ------------------------------------------------------------------------------------------


@rule("Resize")
def resize(call: Call) -> Value:
    """Nearest, linear and cubic, static sizes; nearest by whole factors also for dynamic ones."""
    x, mode = call[0], call.attribute("mode", "nearest")
    coefficient, exclude_outside = call.attribute("cubic_coeff_a", -0.75), bool(call.attribute("exclude_outside", 0))
    for name in ("extrapolation_value", "nearest_mode"):
        call.attribute(name)  # of other modes
    call.attribute("keep_aspect_ratio_policy")
    if call.attribute("antialias", 0) or call.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Unsupported("Resize with antialias or cropping", "resample without them")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"Resize in mode {mode!r}", "use nearest, linear or cubic")
    axes = [axis % x.rank for axis in call.attribute("axes") or range(x.rank)]
    for axis, (size, factor) in zip(axes, _targets(call, x, axes), strict=True):
        extent = x.shape[axis]
        if size == extent:
            continue
        whole = simplify(lift(size) // extent)
        if not (isinstance(extent, int) and isinstance(size, int)):
            repeats = mode == "nearest" and isinstance(whole, int) and simplify(lift(extent) * whole) == size
            if not repeats or not isinstance(whole, int):
                raise Unsupported(f"Resize from {extent} to {size}", "fix the image size, or use a whole factor")
            x = images.repeat(call, x, axis, whole)
            continue
        places = _places(call, extent, size, factor)
        if mode == "nearest":
            positions = np.clip(_nearest(call, places), 0, extent - 1).astype(np.int64)
            x = call.op("gather", x, call.constant(positions, "positions"), axis=axis)
        elif mode == "linear":
            x = images.mix(call, x, axis, images.interpolation_matrix(places, extent))
        else:
            x = images.mix(call, x, axis, images.cubic_matrix(places, extent, float(coefficient), exclude_outside))
    return x


def _targets(call: Call, x: Value, axes: Sequence[int]) -> list[tuple[Size, float | None]]:
    """The new size of each axis, and its scale where scales are given."""
    if call.has(3):
        if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unsupported("Resize that keeps the aspect ratio", "give the sizes")
        return [(size, None) for size in call.sizes(3)]
    scales = call.tensor(2).known
    if scales is None or scales.dtype == object:
        raise Unsupported("Resize by scales computed from data", "use constant scales")
    targets: list[tuple[Size, float | None]] = []
    for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
        extent = x.shape[axis]
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
    mode = call.attribute("coordinate_transformation_mode", "half_pixel")
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


def _nearest(call: Call, places: np.ndarray) -> np.ndarray:
    mode = call.attribute("nearest_mode", "round_prefer_floor")
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    return np.ceil(places - 0.5) if mode == "round_prefer_floor" else np.floor(places + 0.5)


@rule("GridSample")
def sample_grid(call: Call) -> Value:
    mode = str(call.attribute("mode", "linear")).replace("bi", "", 1)  # bilinear and bicubic before opset 20
    padding, align_corners = call.attribute("padding_mode", "zeros"), call.attribute("align_corners", 0)
    return grid_sample(call, call[0], call[1], mode, str(padding), bool(align_corners))
