"""Operations of ONNX's own domain that ended before opset 10, as ONNX Runtime still runs them.

Converters of Core ML and early CNTK models wrote them; their meaning is ONNX Runtime's, as ONNX dropped its own.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops import shape
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Before opset 10")
rule = TABLE.rule


def _required(call: OnnxCall, name: str) -> float:
    value = call.attribute(name)
    if value is None:
        raise Invalid(f"the attribute {name!r} is missing")
    return float(value)


@rule("Affine")
def affine(call: OnnxCall) -> Value:
    scaled = call.op("multiply", call[0], float(call.attribute("alpha", 1.0)))
    return call.op("add", scaled, float(call.attribute("beta", 0.0)))


@rule("Scale")
def scale(call: OnnxCall) -> Value:
    return call.op("multiply", call[0], float(call.attribute("scale", 1.0)))


@rule("ScaledTanh")
def scaled_tanh(call: OnnxCall) -> Value:
    inner = call.op("tanh", call.op("multiply", call[0], _required(call, "beta")))
    return call.op("multiply", inner, _required(call, "alpha"))


@rule("ParametricSoftplus")
def parametric_softplus(call: OnnxCall) -> Value:
    """alpha * log(1 + exp(beta * x))"""
    inner = formulas.softplus(call, call.op("multiply", call[0], _required(call, "beta")))
    return call.op("multiply", inner, _required(call, "alpha"))


@rule("ImageScaler")
def image_scaler(call: OnnxCall) -> Value:
    """Pictures [N, C, H, W] times one factor, plus a number for each channel."""
    x, bias = call[0], call.attribute("bias")
    call.require_rank(x, 4, 4)
    if not bias or len(bias) != x.shape[1]:
        raise Invalid(f"the attribute 'bias' has {len(bias or [])} numbers for the channels of {x!r}")
    shift = call.constant(np.array(bias, x.dtype.numpy).reshape(-1, 1, 1), "bias")
    return call.op("add", call.op("multiply", x, float(call.attribute("scale", 1.0))), shift)


@rule("Crop")
def crop(call: OnnxCall) -> Value:
    """Pictures [N, C, H, W] without a border of left, top, right and bottom, or of a height and a width from there."""
    x, border, size = call[0], call.attribute("border") or [], call.attribute("scale") or []
    call.require_rank(x, 4, 4)
    if len(border) != 4 or len(size) not in (0, 2):
        raise Invalid(f"the attribute 'border' is {border} and 'scale' {size}; they have four and two numbers")
    height, width = x.shape[2:]
    left, top, right, bottom = border
    ends = [top + size[0], left + size[1]] if size else [height - bottom, width - right]
    return call.slice(call.slice(x, 2, top, ends[0]), 3, left, ends[1])


@rule("DynamicSlice")
def dynamic_slice(call: OnnxCall) -> Value:
    """The Slice of opset 10, whose starts, ends and axes are inputs."""
    call.opset = 10
    return shape.slice_(call)
