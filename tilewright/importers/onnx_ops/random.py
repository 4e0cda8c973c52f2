"""Random numbers: with a seed the host draws those of ONNX's reference, others follow from the graph's seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import DType, float32, float64, int1, int32, int64
from tilewright.graph.core import Value
from tilewright.importers import random_numbers
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, simplify

TABLE = RuleTable("Random numbers")
rule = TABLE.rule


def drawn(call: OnnxCall, shape: Sequence[Size], distribution: str, dtype: DType = float64) -> Value:
    """Numbers from 0 up to 1 ("uniform"), or of mean 0 and variance 1 ("normal"), by the attribute `seed`.

    Without it they are drawn by counter; in graphs inside by the host, anew each time.
    """
    seed = call.attribute("seed")
    if seed is None and not call.builder.is_inside:
        return (random_numbers.uniform if distribution == "uniform" else random_numbers.normal)(call, shape, dtype)
    if seed is not None and not math.isfinite(seed):
        raise Invalid(f"the seed is {seed}")
    number = None if seed is None else int(seed) % 2**32
    return call.op("random", shape=tuple(shape), distribution=distribution, of=dtype.name, seed=number)


def _numbers(call: OnnxCall, shape: Sequence[Size], distribution: str, names: tuple[str, str], dtype: DType) -> Value:
    """Numbers of a range or of a mean and scale, whose attributes have these names."""
    if not dtype.is_float:
        raise Invalid(f"random numbers of the type {dtype}")
    first, second = (float(call.attribute(name, other)) for name, other in zip(names, (0.0, 1.0), strict=True))
    width = second - first if distribution == "uniform" else second
    wide = call.op("add", call.op("multiply", drawn(call, shape, distribution), width), first)
    return call.cast(wide, dtype)


def _given_shape(call: OnnxCall) -> list[int]:
    shape = list(call.attribute("shape"))
    if min(shape, default=0) < 0:
        raise Invalid(f"the attribute 'shape' is {shape}; sizes are 0 or more")
    return shape


@rule("RandomUniform")
def uniform(call: OnnxCall) -> Value:
    return _numbers(call, _given_shape(call), "uniform", ("low", "high"), call.dtype("dtype") or float32)


@rule("RandomNormal")
def normal(call: OnnxCall) -> Value:
    return _numbers(call, _given_shape(call), "normal", ("mean", "scale"), call.dtype("dtype") or float32)


@rule("RandomUniformLike")
def uniform_like(call: OnnxCall) -> Value:
    x = call.tensor(0)
    return _numbers(call, x.shape, "uniform", ("low", "high"), call.dtype("dtype") or x.dtype)


@rule("RandomNormalLike")
def normal_like(call: OnnxCall) -> Value:
    x = call.tensor(0)
    return _numbers(call, x.shape, "normal", ("mean", "scale"), call.dtype("dtype") or x.dtype)


@rule("Bernoulli")
def bernoulli(call: OnnxCall) -> Value:
    """1 with the probability that an element is, else 0."""
    x = call[0]
    hit = call.op("less", drawn(call, x.shape, "uniform"), call.cast(x, float64))
    return call.cast(hit, call.dtype("dtype") or x.dtype)


@rule("Multinomial")
def multinomial(call: OnnxCall) -> Value:
    """Classes drawn from rows of logarithms of probabilities [N, C]: [N, samples]."""
    x, samples = call[0], call.positive("sample_size", 1)
    call.require_rank(x, 2, 2)
    sums = call.op("cumsum", call.op("softmax", call.cast(x, float64), axis=1), axis=1)
    number = call.unsqueeze(drawn(call, (x.shape[0], samples), "uniform"), 2)
    below = call.op("less_equal", call.unsqueeze(call.slice(sums, 1, 0, simplify(lift(x.shape[1]) - 1)), 1), number)
    found = call.op("reduce_sum", call.cast(below, int64), axes=(2,))
    return call.cast(found, call.dtype("dtype") or int32)


@rule("Dropout")
def dropout(call: OnnxCall) -> tuple[Value, Value]:
    """The second result says which elements are kept: all of them, which ONNX Runtime marks by 0 before opset 12."""
    if call.has(2):
        return _training_dropout(call)
    ratio, training = call.attribute("ratio", 0.5), call.opset < 7 and not call.attribute("is_test", 0)
    if training and ratio != 0:
        raise Unsupported("dropout in training mode", "export the model for inference")
    return call[0], call.full(call[0].shape, call.opset >= 12, int1 if call.opset >= 10 else call[0].dtype)


def _training_dropout(call: OnnxCall) -> tuple[Value, Value]:
    """A truth that may only be known at run time says whether elements are dropped."""
    x, training = call[0], call.tensor(2)
    ratio = call.number(1) if call.has(1) and not call.is_unknown(1) else 0.5 if not call.has(1) else None
    always = call.number(2) if training.known is not None else None
    if always is False or ratio == 0:
        call.attribute("seed")
        return x, call.full(x.shape, True, int1)
    share = call.cast(call[1], float64) if call.has(1) else call.value(0.5, float64)
    share = share if always else call.op("where", call.reshape(call[2], ()), call.reshape(share, ()), 0.0)
    survives = call.op("greater_equal", drawn(call, x.shape, "uniform"), share)
    wide = x if x.dtype.bits >= 32 else call.cast(x, float32)
    scale = call.cast(call.op("divide", 1.0, call.op("subtract", 1.0, share)), wide.dtype)
    scaled = call.cast(call.op("multiply", wide, scale), x.dtype)
    return call.op("where", survives, scaled, call.value(0.0, x.dtype)), survives
