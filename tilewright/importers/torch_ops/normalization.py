"""Normalisation layers in their inference form."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from tilewright.graph.core import Value
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import Call
from tilewright.symbolic import Size

TABLE = RuleTable("Normalisation", "aten.")
rule = TABLE.rule


@rule("layer_norm.default")
def layer_norm(
    call: Call,
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
    call: Call, x: Value, normalized_shape: Sequence[Size], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, None, None]:
    return layer_norm(call, x, normalized_shape, weight, bias, eps), None, None


@rule("rms_norm.default")
def rms_norm(
    call: Call, x: Value, normalized_shape: Sequence[Size], weight: Value | None = None, eps: float | None = None
) -> Value:
    epsilon = float(ml_dtypes.finfo(x.dtype.numpy).eps) if eps is None else eps
    return call.op("rms_norm", x, weight, axis=x.rank - len(normalized_shape), epsilon=epsilon)


@rule("_fused_rms_norm.default")
def fused_rms_norm(
    call: Call, x: Value, normalized_shape: Sequence[Size], weight: Value | None, eps: float | None
) -> tuple[Value, None]:
    return rms_norm(call, x, normalized_shape, weight, eps), None


@rule("group_norm.default")
def group_norm(
    call: Call,
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
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Size,
    channels: Size,
    pixels: Size,
    group: int,
    eps: float,
) -> tuple[Value, None, None]:
    return group_norm(call, x, group, weight, bias, eps), None, None


@rule("instance_norm.default")
def instance_norm(
    call: Call,
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
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    eps: float,
) -> Value:
    if mean is None or variance is None:
        raise Unsupported("batch normalisation without running statistics", "track statistics and call model.eval()")
    weight = call.full((x.shape[1],), 1.0, x.dtype) if weight is None else weight
    bias = call.full((x.shape[1],), 0.0, x.dtype) if bias is None else bias
    parts = [call.cast(item, x.dtype) for item in (weight, bias, mean, variance)]
    return call.op("batch_norm", x, *parts, epsilon=eps)


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: Call,
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
    call: Call, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, None, None]:
    """Statistics of the batch itself: what instance normalisation is made of, never a training step."""
    if x.shape[0] == 1:  # of instances: rows of neighbouring elements
        rows = call.op("layer_norm", call.reshape(x, (x.shape[1], -1)), axis=1, epsilon=eps)
        result = call.reshape(rows, x.shape)
    else:
        axes = [axis for axis in range(x.rank) if axis != 1]
        mean, variance = call.mean_and_variance(x, axes, 0)
        result = call.op("multiply", call.op("subtract", x, mean), call.op("rsqrt", call.op("add", variance, eps)))
    for op, item in (("multiply", weight), ("add", bias)):
        if item is not None:
            result = call.op(op, result, call.reshape(item, (item.shape[0], *[1] * (x.rank - 2))))
    return result, None, None


@rule("batch_norm.default")
def batch_norm(
    call: Call,
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
