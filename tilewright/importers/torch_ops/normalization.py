"""Normalisation layers in their inference form."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from tilewright.dtypes import DType, float32, float64
from tilewright.graph.core import Value
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall, dtype_of
from tilewright.symbolic import Size, floor_divide, product

TABLE = RuleTable("Normalisation", "aten.")
rule = TABLE.rule


def _statistics(call: TorchCall, x: Value, axes: Sequence[int], eps: float) -> tuple[Value | None, Value | None]:
    """Mean and 1 / sqrt(variance + eps) in the shape of the second result, where they are read; in float32 at least."""
    if not (call.is_read(1) or call.is_read(2)):
        return None, None
    shape = call.symbols.shape(call.results[1].shape)  # type: ignore[union-attr]
    mean, variance = call.mean_and_variance(call.wide(x), axes, 0)
    found = mean, call.op("rsqrt", call.op("add", variance, eps))
    mean, inverse = (call.cast(call.reshape(item, shape), x.dtype) for item in found)
    return mean, inverse


@rule("layer_norm.default")
def layer_norm(
    call: TorchCall,
    x: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    return call.op("layer_norm", x, weight, bias, axis=x.rank - len(normalized_shape), epsilon=eps)


@rule("native_layer_norm.default")
def native_layer_norm(
    call: TorchCall, x: Value, normalized_shape: Sequence[Size], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value | None, Value | None]:
    axes = range(x.rank - len(normalized_shape), x.rank)
    return layer_norm(call, x, normalized_shape, weight, bias, eps), *_statistics(call, x, axes, eps)


@rule("rms_norm.default")
def rms_norm(
    call: TorchCall, x: Value, normalized_shape: Sequence[Size], weight: Value | None = None, eps: float | None = None
) -> Value:
    epsilon = float(ml_dtypes.finfo(x.dtype.numpy).eps) if eps is None else eps
    return call.op("rms_norm", x, weight, axis=x.rank - len(normalized_shape), epsilon=epsilon)


@rule("_fused_rms_norm.default")
def fused_rms_norm(
    call: TorchCall, x: Value, normalized_shape: Sequence[Size], weight: Value | None, eps: float | None
) -> tuple[Value, None]:
    return rms_norm(call, x, normalized_shape, weight, eps), None


@rule("group_norm.default")
def group_norm(
    call: TorchCall,
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    return call.op("group_norm", x, weight, bias, groups=num_groups, epsilon=eps)


@rule("native_group_norm.default")
def native_group_norm(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Size,
    channels: Size,
    pixels: Size,
    group: int,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    rows = call.reshape(x, (batch, group, product([floor_divide(channels, group), pixels])))
    return group_norm(call, x, group, weight, bias, eps), *_statistics(call, rows, (2,), eps)


@rule("instance_norm.default")
def instance_norm(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    if not use_input_stats:
        return _batch_norm(call, x, weight, bias, mean, variance, eps)
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("instance normalisation with a dynamic number of channels", "fix dimension 1")
    return group_norm(call, x, channels, weight, bias, eps)


def _batch_norm(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    eps: float,
) -> Value:
    if mean is None or variance is None:
        raise Unsupported("batch normalisation without running statistics", "track statistics and call model.eval()")
    wide = _common(x, weight, bias, mean, variance)  # statistics in float32 may be no numbers of 16 bits
    weight = call.full((x.shape[1],), 1.0, wide) if weight is None else weight
    bias = call.full((x.shape[1],), 0.0, wide) if bias is None else bias
    parts = [call.cast(item, wide) for item in (x, weight, bias, mean, variance)]
    return call.cast(call.op("batch_norm", *parts, epsilon=eps), x.dtype)


def _common(*values: Value | None) -> DType:
    """The type of all, or one that holds those of all."""
    types = {value.dtype for value in values if value is not None}
    return types.pop() if len(types) == 1 else float64 if float64 in types else float32


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    return _batch_norm(call, x, weight, bias, mean, variance, eps), None, None


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    call: TorchCall, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, None, None]:
    """Statistics of the batch itself: what instance normalisation is made of, never a training step."""
    if x.shape[0] == 1:  # of instances: rows of neighbouring elements
        rows = call.op("layer_norm", call.reshape(x, (x.shape[1], -1)), axis=1, epsilon=eps)
        result = call.reshape(rows, x.shape)
    else:
        axes = [axis for axis in range(x.rank) if axis != 1]
        wide = call.wide(x)
        mean, variance = call.mean_and_variance(wide, axes, 0)
        scale = call.op("rsqrt", call.op("add", variance, eps))
        result = call.op("multiply", call.op("subtract", wide, mean), scale)
    result = call.cast(result, _common(result, weight, bias))
    for op, item in (("multiply", weight), ("add", bias)):
        if item is not None:
            factors = call.reshape(call.cast(item, result.dtype), (item.shape[0], *[1] * (x.rank - 2)))
            result = call.op(op, result, factors)
    return call.cast(result, x.dtype), None, None


@rule("_native_batch_norm_legit_functional.default")
def batch_norm_in_training(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value | None, Value | None, Value, Value]:
    """With statistics of the batch, which the running ones follow: the result, the mean, the inverse deviation, and
    the new running statistics."""
    if not training:
        found = _batch_norm(call, x, weight, bias, running_mean, running_variance, eps)
        return found, None, None, running_mean, running_variance
    wide = float64 if x.dtype == float64 else float32
    mean, variance, count = _of_channels(call, call.cast(x, wide))
    scale = call.op("rsqrt", call.op("add", variance, eps))
    factor = scale if weight is None else call.op("multiply", scale, call.cast(weight, wide))
    shape = (x.shape[1], *[1] * (x.rank - 2))
    centred = call.op("subtract", call.cast(x, wide), call.reshape(mean, shape))
    result = call.op("multiply", centred, call.reshape(factor, shape))
    if bias is not None:
        result = call.op("add", result, call.reshape(call.cast(bias, wide), shape))
    unbiased = call.op("divide", call.op("multiply", variance, count), call.op("subtract", count, 1.0))
    statistics = [mean, scale]
    for old, new in ((running_mean, mean), (running_variance, unbiased)):
        retained = call.op("multiply", call.cast(old, wide), 1.0 - momentum)
        statistics.append(call.op("add", retained, call.op("multiply", new, momentum)))
    # In the types that PyTorch has there, which are not the same on all devices.
    kinds = [wide if fake is None else dtype_of(fake.dtype) for fake in call.results[1:]]
    mean, scale, new_mean, new_variance = map(call.cast, statistics, kinds)
    return call.cast(result, x.dtype), mean, scale, new_mean, new_variance


def _of_channels(call: TorchCall, x: Value) -> tuple[Value, Value, Value]:
    """Mean and variance of each channel, [channels], and the number of its elements.

    Those of each image's channel first, whose elements are neighbours; then of the images: the variance is the mean of
    theirs and the variance of their means.
    """
    count = call.value(product([extent for axis, extent in enumerate(x.shape) if axis != 1]), x.dtype)
    if x.rank == 2:
        mean, variance = call.mean_and_variance(x, [0], 0)
        return call.reshape(mean, (x.shape[1],)), call.reshape(variance, (x.shape[1],)), count
    rows = call.reshape(x, (x.shape[0], x.shape[1], product(x.shape[2:])))
    means, variances = (call.reshape(item, x.shape[:2]) for item in call.mean_and_variance(rows, [2], 0))
    mean, between = call.mean_and_variance(means, [0], 0)
    within = call.op("reduce_mean", variances, axes=(0,), keepdims=False)
    return call.reshape(mean, (x.shape[1],)), call.op("add", within, call.reshape(between, (x.shape[1],))), count


@rule("batch_norm.default")
def batch_norm(
    call: TorchCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    if training:
        raise Unsupported("batch normalisation in training mode", "call model.eval() first")
    return _batch_norm(call, x, weight, bias, mean, variance, eps)
