"""Activations from their formulas: GELU (erf and tanh forms), sigmoid, SiLU, softmax.

Products are flattened first, so that the order in which a model multiplies does not matter:

    0.5 * x * (1 + erf(x / sqrt 2)),   x * (0.5 * (1 + erf(…))),   …   all have the factors 0.5, x, 1 + erf(…)
"""

from __future__ import annotations

import math

from tilewright.dtypes import bfloat16
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_TOLERANCE = 1e-3  # models write 0.7978845608 or 0.797885
_COARSE = {bfloat16: 2.0**-9 * 1.01}  # numbers of these types are that far off themselves
_DEEPEST_PRODUCT = 6  # products nested deeper are no activation; squares of squares would take exponential time


def recognise_activations(graph: Graph) -> Graph:
    """Replace the formulas by `gelu`, `sigmoid`, `silu` and `softmax`."""
    rules = {
        "multiply": [_gelu, _silu],
        "divide": [_softmax, _silu_quotient, _sigmoid_quotient],
        "reciprocal": [_sigmoid],
    }
    return apply_rules(graph, rules)


def _close(number: float | None, wanted: float, x: Value) -> bool:
    """Whether a number of a formula in x is the one that is wanted."""
    return number is not None and math.isclose(number, wanted, rel_tol=_COARSE.get(x.dtype, _TOLERANCE))


def factors(value: Value | None, rewriter: GraphRewriter, depth: int = _DEEPEST_PRODUCT) -> tuple[float, list[Value]]:
    """A product as (number, other factors), seen through `depth` multiplications and divisions by numbers."""
    if value is None:
        return 1.0, []
    number = rewriter.uniform(value)
    if number is not None and value.rank == 0:
        return number, []
    node = rewriter.producer(value, "multiply", "divide")
    if node is None or depth == 0:
        return 1.0, [value]
    if node.op == "divide":
        divisor = rewriter.uniform(node.inputs[1])
        if not divisor:
            return 1.0, [value]
        scale, rest = factors(node.inputs[0], rewriter, depth - 1)
        return scale / divisor, rest
    left, right = (factors(item, rewriter, depth - 1) for item in node.inputs)
    return left[0] * right[0], left[1] + right[1]


def one_plus(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """x of 1 + x."""
    node = rewriter.producer(value, "add")
    if node is not None:
        for index in (0, 1):
            if rewriter.uniform(node.inputs[index]) == 1:
                return node.inputs[1 - index]
    return None


def _gelu(node: Node, rewriter: GraphRewriter) -> Value | None:
    left, right = (factors(item, rewriter) for item in node.inputs)
    scale, parts = left[0] * right[0], left[1] + right[1]
    if not _close(scale, 0.5, node.output) or len(parts) != 2:
        return None
    for x, other in (parts, parts[::-1]):
        inner = one_plus(other, rewriter)
        curve = rewriter.producer(inner, "erf", "tanh")
        if curve is None or x.shape != node.output.shape:
            continue
        argument = curve.inputs[0]
        if curve.op == "erf" and _is_scaled(argument, x, math.sqrt(0.5), rewriter):
            return rewriter.op("gelu", [x], approximate="none")
        if curve.op == "tanh" and _is_tanh_argument(argument, x, rewriter):
            return rewriter.op("gelu", [x], approximate="tanh")
    return None


def _is_scaled(value: Value | None, x: Value, scale: float, rewriter: GraphRewriter) -> bool:
    number, parts = factors(value, rewriter)
    return _close(number, scale, x) and len(parts) == 1 and parts[0] is x


def _is_tanh_argument(value: Value | None, x: Value, rewriter: GraphRewriter) -> bool:
    """sqrt(2/pi) (x + 0.044715 x^3), or sqrt(2/pi) x (1 + 0.044715 x^2)."""
    number, parts = factors(value, rewriter)
    if not _close(number, math.sqrt(2 / math.pi), x):
        return False
    if len(parts) == 1:
        node = rewriter.producer(parts[0], "add")
        if node is None:
            return False
        cubes = [item for item in node.inputs if item is not x]
        return len(cubes) == 1 and _is_power(cubes[0], x, 3, rewriter)
    if len(parts) == 2:
        rest = [item for item in parts if item is not x]
        return len(rest) == 1 and _is_power(one_plus(rest[0], rewriter), x, 2, rewriter)
    return False


def _is_power(value: Value | None, x: Value, count: int, rewriter: GraphRewriter) -> bool:
    number, parts = factors(value, rewriter)
    return _close(number, 0.044715, x) and len(parts) == count and all(part is x for part in parts)


def _sigmoid(node: Node, rewriter: GraphRewriter) -> Value | None:
    """1 / (1 + exp(-x))."""
    x = _logistic_denominator(node.inputs[0], rewriter)
    return rewriter.op("sigmoid", [x]) if x is not None else None


def _sigmoid_quotient(node: Node, rewriter: GraphRewriter) -> Value | None:
    x = _logistic_denominator(node.inputs[1], rewriter)
    return rewriter.op("sigmoid", [x]) if x is not None and rewriter.uniform(node.inputs[0]) == 1 else None


def _logistic_denominator(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """x of 1 + exp(-x)."""
    exponential = rewriter.producer(one_plus(value, rewriter), "exp")
    negative = rewriter.producer(exponential.inputs[0], "negate") if exponential is not None else None
    return negative.inputs[0] if negative is not None else None


def _silu(node: Node, rewriter: GraphRewriter) -> Value | None:
    """x * sigmoid(x)."""
    for index in (0, 1):
        gate = rewriter.producer(node.inputs[index], "sigmoid")
        if gate is not None and gate.inputs[0] is node.inputs[1 - index]:
            return rewriter.op("silu", gate.inputs)
    return None


def _silu_quotient(node: Node, rewriter: GraphRewriter) -> Value | None:
    """x / (1 + exp(-x))."""
    x = _logistic_denominator(node.inputs[1], rewriter)
    return rewriter.op("silu", [x]) if x is not None and x is node.inputs[0] else None


def _softmax(node: Node, rewriter: GraphRewriter) -> Value | None:
    """e / sum(e) with e = exp(x - max(x))."""
    total = rewriter.producer(node.inputs[1], "reduce_sum")
    exponential = rewriter.producer(node.inputs[0], "exp")
    if total is None or exponential is None or total.inputs[0] is not node.inputs[0]:
        return None
    axes = total.attributes["axes"]
    if len(axes) != 1 or not total.attributes["keepdims"]:
        return None
    shifted = rewriter.producer(exponential.inputs[0], "subtract")
    if shifted is not None:
        peak = rewriter.producer(shifted.inputs[1], "reduce_max")
        if peak is not None and peak.inputs[0] is shifted.inputs[0] and peak.attributes == total.attributes:
            return rewriter.op("softmax", [shifted.inputs[0]], axis=axes[0])
    return None
