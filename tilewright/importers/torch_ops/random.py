"""Random numbers by counter. Under `torch.compile` PyTorch draws them itself."""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.importers import random_numbers as draw
from tilewright.importers.emitter import Scalar
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall

TABLE = RuleTable("Random numbers", "aten.")
rule = TABLE.rule


@rule("rand.default", "rand_like.default")
def rand(call: TorchCall, *_: Any, **__: Any) -> Value:
    return draw.uniform(call, call.shape, call.dtype)


@rule("randn.default", "randn_like.default")
def randn(call: TorchCall, *_: Any, **__: Any) -> Value:
    return draw.normal(call, call.shape, call.dtype)


@rule("uniform.default")
def uniform(call: TorchCall, x: Value, low: Scalar = 0.0, high: Scalar = 1.0, **_: Any) -> Value:
    wide = draw.wide(call.dtype)
    first, last = call.value(low, wide), call.value(high, wide)
    scaled = call.op("multiply", draw.uniform(call, call.shape, wide), call.op("subtract", last, first))
    return call.cast(call.op("add", scaled, first), call.dtype)


@rule("normal_functional.default", "normal.Tensor_Tensor", "normal.Tensor_float")
def normal(call: TorchCall, first: Value, *rest: Scalar, **_: Any) -> Value:
    """Of a mean and a deviation: those after `first`, or with `normal` from it on."""
    if "functional" not in str(call.node.target):
        rest = (first, *rest)
    return _shifted(call, *rest)


@rule("normal.float_Tensor", "normal.float_float")
def normal_of_numbers(call: TorchCall, mean: Scalar, std: Scalar = 1.0, *_: Any, **__: Any) -> Value:
    return _shifted(call, mean, std)


def _shifted(call: TorchCall, mean: Scalar = 0.0, std: Scalar = 1.0) -> Value:
    wide = draw.wide(call.dtype)
    scaled = call.op("multiply", draw.normal(call, call.shape, wide), call.value(std, wide))
    return call.cast(call.op("add", scaled, call.value(mean, wide)), call.dtype)


@rule("log_normal.default")
def log_normal(call: TorchCall, x: Value, mean: Scalar = 1.0, std: Scalar = 2.0, **_: Any) -> Value:
    return call.cast(call.op("exp", call.cast(_shifted(call, mean, std), draw.wide(call.dtype))), call.dtype)


@rule("exponential.default")
def exponential(call: TorchCall, x: Value, rate: Scalar = 1.0, **_: Any) -> Value:
    wide = draw.wide(call.dtype)
    return call.cast(call.op("divide", draw.exponential(call, call.shape, wide), call.value(rate, wide)), call.dtype)


@rule("cauchy.default")
def cauchy(call: TorchCall, x: Value, median: Scalar = 0.0, sigma: Scalar = 1.0, **_: Any) -> Value:
    wide = draw.wide(call.dtype)
    angle = call.op("multiply", call.op("subtract", draw.uniform(call, call.shape, wide), 0.5), math.pi)
    slope = call.op("divide", call.op("sin", angle), call.op("cos", angle))
    scaled = call.op("multiply", slope, call.value(sigma, wide))
    return call.cast(call.op("add", scaled, call.value(median, wide)), call.dtype)


@rule("geometric.default")
def geometric(call: TorchCall, x: Value, share: float, **_: Any) -> Value:
    """How many trials the first success takes."""
    ratio = call.op(
        "divide", draw.exponential(call, call.shape, float64), -math.log1p(-share) if share < 1 else math.inf
    )
    return call.cast(call.op("maximum", call.op("ceil", ratio), 1.0), call.dtype)


@rule("randint.default", "randint_like.default", "random.to")
def randint(call: TorchCall, first: Any, second: Any, *_: Any, **__: Any) -> Value:
    """Up to a number: the first argument of `randint`, the second of those of a tensor."""
    high = first if str(call.node.target).startswith("aten.randint.") else second
    return call.cast(draw.integers(call, call.shape, 0, high), call.dtype)


@rule("randint.low")
def randint_between(call: TorchCall, low: Scalar, high: Scalar, *_: Any, **__: Any) -> Value:
    return call.cast(draw.integers(call, call.shape, low, high), call.dtype)


@rule("randint_like.low_dtype")
def randint_like_between(call: TorchCall, x: Value, low: Scalar, high: Scalar, **_: Any) -> Value:
    return call.cast(draw.integers(call, call.shape, low, high), call.dtype)


@rule("randperm.default")
def randperm(call: TorchCall, length: Any, **_: Any) -> Value:
    return call.cast(draw.permutation(call, call.shape[0]), call.dtype)


@rule("bernoulli.default")
def bernoulli(call: TorchCall, share: Value, **_: Any) -> Value:
    return call.cast(draw.events(call, share, call.shape), call.dtype)


@rule("bernoulli.p", "bernoulli.Tensor")
def bernoulli_like(call: TorchCall, x: Value, share: Value | float = 0.5, **_: Any) -> Value:
    return call.cast(draw.events(call, share, call.shape), call.dtype)


@rule("multinomial.default")
def multinomial(call: TorchCall, weights: Value, samples: int, replacement: bool = False, **_: Any) -> Value:
    if not isinstance(samples, int):
        raise Unsupported("a number of samples that only the run knows", "draw a fixed number")
    return call.cast(draw.choices(call, weights, samples, replacement), int64)
