"""Layers: products, convolutions, norms."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers import images
from tilewright.importers.einsum import einsum
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, ceil_divide, lift, maximum, simplify

TABLE = RuleTable("Layers")
rule = TABLE.rule


@rule("MatMul")
def matmul(call: OnnxCall) -> Value:
    left, right = call[0], call[1]
    for operand in (left, right):
        call.require_rank(operand, 1)
    if left.rank == right.rank == 1:
        return call.reshape(call.matmul(call.unsqueeze(left, 0), call.unsqueeze(right, 1)), ())
    return call.matmul(left, right)


@rule("Gemm")
def gemm(call: OnnxCall) -> Value:
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


def _factor(call: OnnxCall, name: str, dtype: DType) -> float:
    """A factor that the element type can hold."""
    found = float(call.attribute(name, 1.0))
    if dtype.is_integer and not found.is_integer():
        raise Unsupported(f"the attribute {name!r} of {found} for numbers of type {dtype}", "use a whole number")
    return found


@rule("Einsum")
def einsum_(call: OnnxCall) -> Value:
    return einsum(call, call.attribute("equation"), [call[index] for index in range(len(call.inputs))])


# Convolutions ------------------------------------------------------------------------------


def window(call: OnnxCall, x: Value, kernel: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
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


def padded_as_same(call: OnnxCall, x: Value, kernel: Sequence[int], filled: float) -> Value:
    """x with the padding of `auto_pad` where that depends on the sizes of a call; the attribute then asks for none."""
    auto, count = call.attribute("auto_pad", "NOTSET"), len(kernel)
    strides = call.integers("strides", count, default=1, least=1)
    dilation = call.integers("dilations", count, default=1, least=1)
    dynamic = any(
        not isinstance(extent, int) and stride > 1 for extent, stride in zip(x.shape[2:], strides, strict=True)
    )
    if auto not in ("SAME_UPPER", "SAME_LOWER") or not dynamic:
        return x
    for index, (size, stride, step) in enumerate(zip(kernel, strides, dilation, strict=True)):
        extent, reach = x.shape[2 + index], step * (size - 1) + 1
        windows = ceil_divide(extent, stride)
        total = simplify((lift(windows) - 1) * stride + reach - extent)
        total = total if reach >= stride else maximum(0, total)
        small = simplify(lift(total) // 2)
        large = simplify(lift(total) - small)
        low, high = (large, small) if auto == "SAME_LOWER" else (small, large)
        if total != 0:
            x = images.pad_by_sizes(call, x, 2 + index, low, high, call.builder.number(filled, x.dtype))
    call.attributes = {**call.attributes, "auto_pad": "VALID"}
    return x


def _cropped_as_same(call: OnnxCall, x: Value, kernel: Sequence[int]) -> Value:
    """x without the pixels that windows narrower than their stride skip at the front, as ONNX Runtime places them.

    The padding of `auto_pad` is negative there.  Of that many pixels fewer than half are skipped at the front.
    """
    auto = call.attribute("auto_pad", "NOTSET")
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        return x
    strides = call.integers("strides", len(kernel), default=1, least=1)
    dilation = call.integers("dilations", len(kernel), default=1, least=1)
    for axis, (size, stride, step) in enumerate(zip(kernel, strides, dilation, strict=True), start=2):
        extent, reach = x.shape[axis], step * (size - 1) + 1
        if reach < stride:
            spare = lift(extent) - (lift(ceil_divide(extent, stride)) - 1) * stride - reach
            start = maximum(0, simplify((spare - (2 if auto == "SAME_LOWER" else 1)) // 2))
            x = x if start == 0 else call.slice(x, axis, start, extent)
    return x


def _kernel(call: OnnxCall, x: Value, weight: Value) -> list[int]:
    """The kernel's size, which the weight has and an attribute may repeat."""
    call.require_rank(x, 3)
    call.require_rank(weight, x.rank, x.rank)
    kernel = list(weight.shape[2:])
    if not all(isinstance(size, int) for size in kernel):
        raise Unsupported("a convolution whose kernel size is not a number")
    if list(call.attribute("kernel_shape") or kernel) != kernel:
        raise Invalid(f"the attribute 'kernel_shape' is {call.attribute('kernel_shape')}, but the weight is {weight!r}")
    return kernel  # type: ignore[return-value]


def _padding_to_size(
    call: OnnxCall, x: Value, kernel: list[int], strides: list[int], dilation: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    """What a transposed convolution crops to give `output_shape`, or `auto_pad`'s stride times the image; below zero:
    what it adds, all of it at the end."""
    wanted = call.attribute("output_shape")
    wanted = list(wanted or [])[-len(kernel) :]
    if wanted and len(wanted) != len(kernel):
        raise Invalid(f"the attribute 'output_shape' is {wanted}; it must have {len(kernel)} entries")
    upper, padding = call.attribute("auto_pad") == "SAME_UPPER", []
    for index, size in enumerate(kernel):
        extent = x.shape[2 + index]
        reach = dilation[index] * (size - 1) + 1
        whole = simplify(lift(extent) * strides[index] + (reach + extra[index] - strides[index]))
        total = simplify(lift(whole) - (wanted[index] if wanted else lift(extent) * strides[index]))
        if not isinstance(total, int):
            raise Unsupported(f"the attribute 'output_shape' for a dynamic size {extent}", "give explicit pads")
        if not wanted:
            total = max(total, 0)
        small = max(total, 0) // 2
        padding.append((small, total - small) if upper or total < 0 else (total - small, small))
    return padding


def convolve(call: OnnxCall, x: Value, weight: Value, bias: Value | None, exact: bool = False) -> Value:
    """A convolution by the attributes of Conv and its kin; an `exact` one is of integers."""
    kernel = _kernel(call, x, weight)
    x = padded_as_same(call, _cropped_as_same(call, x, kernel), kernel, 0)
    strides, padding, dilation = window(call, x, kernel)
    groups = call.positive("group", 1)
    windows = {"strides": strides, "padding": padding, "dilation": dilation}
    return call.op("conv", x, weight, bias, **windows, groups=groups, exact=exact)


@rule("Conv")
def convolution(call: OnnxCall) -> Value:
    return convolve(call, call[0], call[1], call.optional(2))


@rule("ConvTranspose")
def transposed_convolution(call: OnnxCall) -> Value:
    x, weight = call[0], call[1]
    kernel = _kernel(call, x, weight)
    extra = call.integers("output_padding", len(kernel), default=0, least=0)
    strides, padding, dilation = window(call, x, kernel)
    if call.attribute("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER") or call.attribute("output_shape"):
        padding = _padding_to_size(call, x, kernel, strides, dilation, extra)
    if any(more >= max(stride, step) for more, stride, step in zip(extra, strides, dilation, strict=True)):
        raise Invalid(f"the attribute 'output_padding' is {extra}; each must be less than the stride or the dilation")
    groups = call.positive("group", 1)
    if isinstance(weight.shape[0], int) and weight.shape[0] % groups:
        raise Invalid(f"{groups} groups do not divide the {weight.shape[0]} channels of the weight")
    return images.transposed_convolution(call, x, weight, call.optional(2), strides, padding, dilation, extra, groups)


# Norms -----------------------------------------------------------------------------------------------


@rule("LayerNormalization")
def layer_norm(call: OnnxCall) -> tuple[Value, ...]:
    """The second and third result are the mean and 1 / the standard deviation of each row, in float32."""
    x = call[0]
    axis, epsilon = call.axis(x.rank, -1), call.attribute("epsilon", 1e-5)
    shape = x.shape[axis:]
    scale, bias = (None if item is None else call.broadcast(item, shape) for item in (call[1], call.optional(2)))
    result = call.op("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)
    return (result, *row_statistics(call, x, range(axis, x.rank), epsilon)) if call.outputs > 1 else (result,)


def row_statistics(call: OnnxCall, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Mean and 1 / sqrt(variance + epsilon) over `axes`, kept as ones, in float32 at least."""
    wide = call.wide(x)
    mean, variance = call.mean_and_variance(wide, axes, 0)
    return mean, call.op("rsqrt", call.op("add", variance, epsilon))


def inverse_length(call: OnnxCall, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """1 / sqrt(mean of squares + epsilon) over `axes`, kept as ones, in float32 at least."""
    wide = call.wide(x)
    power = call.op("reduce_mean", call.op("multiply", wide, wide), axes=tuple(axes), keepdims=True)
    return call.op("rsqrt", call.op("add", power, epsilon))


@rule("RMSNormalization")
def rms_norm(call: OnnxCall) -> Value:
    x = call[0]
    axis = call.axis(x.rank, -1)
    scale = call.broadcast(call[1], x.shape[axis:])
    return call.op("rms_norm", x, scale, axis=axis, epsilon=call.attribute("epsilon", 1e-5))


@rule("SimplifiedLayerNormalization")
def simplified_layer_norm(call: OnnxCall) -> tuple[Value, ...]:
    """RMSNormalization under the name that ONNX Runtime gives it; also 1 / the root of the mean square, in float32."""
    x = call[0]
    axis, epsilon = call.axis(x.rank, -1), call.attribute("epsilon", 1e-5)
    scale = call.broadcast(call.cast(call[1], x.dtype), x.shape[axis:])
    result = call.op("rms_norm", x, scale, axis=axis, epsilon=epsilon)
    if call.outputs < 2:
        return (result,)
    return result, inverse_length(call, x, range(axis, x.rank), epsilon)


@rule("BatchNormalization")
def batch_norm(call: OnnxCall) -> tuple[Value | None, ...]:
    """Before opset 7 the attribute `is_test` says whether the model is for inference."""
    if call.opset < 7 and not call.attribute("is_test", 0):
        raise Unsupported("batch normalisation in training mode", "export the model for inference")
    if not call.attribute("spatial", 1):
        raise Unsupported("batch normalisation of each element", "normalise channels")
    x, epsilon = call[0], call.attribute("epsilon", 1e-5)
    call.require_rank(x, 2)
    if call.attribute("training_mode", 0):
        return _batch_norm_of_batch(call, x, epsilon)
    parts = [call.cast(call[index], x.dtype) for index in range(1, 5)]
    return call.op("batch_norm", x, *parts, epsilon=epsilon), None, None


def _batch_norm_of_batch(call: OnnxCall, x: Value, epsilon: float) -> tuple[Value, Value, Value]:
    """Training mode: by the mean and variance of the batch, with which the running ones are mixed."""
    momentum = call.attribute("momentum", 0.9)
    wide = call.wide(x)
    scale, bias = (call.cast(call[index], wide.dtype) for index in (1, 2))
    axes = [axis for axis in range(x.rank) if axis != 1]
    mean, variance = (call.squeeze(item, axes) for item in call.mean_and_variance(wide, axes, 0))
    running = []
    for index, found in ((3, mean), (4, variance)):
        old = call.op("multiply", call[index], momentum)
        running.append(call.op("add", old, call.op("multiply", call.cast(found, old.dtype), 1 - momentum)))
    result = call.op("batch_norm", wide, scale, bias, mean, variance, epsilon=epsilon)
    return call.cast(result, x.dtype), running[0], running[1]


@rule("InstanceNormalization")
def instance_norm(call: OnnxCall) -> Value:
    x = call[0]
    call.require_rank(x, 3)
    channels = call[1].shape[0]
    if not isinstance(channels, int):
        raise Unsupported("instance normalisation with a dynamic number of channels", "fix dimension 1")
    x = must_be(call, x, (x.shape[0], channels, *x.shape[2:]))
    return call.op("group_norm", x, call[1], call[2], groups=channels, epsilon=call.attribute("epsilon", 1e-5))


@rule("GroupNormalization")
def group_norm(call: OnnxCall) -> Value:
    """From opset 21 scale and bias have one entry for each channel, before for each group."""
    x, groups = call[0], call.positive("num_groups")
    call.require_rank(x, 3)
    channels = x.shape[1]
    scale, bias = call[1], call[2]
    if call.opset < 21 and scale.shape != (channels,):
        scale, bias = (images.repeat(call, item, 0, simplify(lift(channels) // groups)) for item in (scale, bias))
    return call.op("group_norm", x, scale, bias, groups=groups, epsilon=call.attribute("epsilon", 1e-5))
