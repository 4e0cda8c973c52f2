"""The tile-language expression of every elementwise graph op: one table.

`{0}`, `{1}`, `{2}` are the operands' texts (names or literals).  Ops whose expression depends on
attributes or element types have a function in place of the template.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Union

import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.core import Node

Rule = Union[str, Callable[[Node], str]]


def compute_type(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed: narrow floats in float32."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


def language_type(dtype: DType) -> tl.dtype:
    """The tile language's name of the type in which values of `dtype` are computed."""
    found: tl.dtype = getattr(tl, compute_type(dtype).name)
    return found


def literal(value: object, dtype: DType) -> str:
    """A Python number as tile-language text, which takes the type of the tensor beside it."""
    if dtype.is_bool:
        return str(bool(value))
    if dtype.is_integer:
        return str(int(value))  # type: ignore[call-overload]
    number = float(value)  # type: ignore[arg-type]
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def typed_literal(value: object, dtype: DType) -> str:
    """A number of a definite type."""
    return f"tl.full((), {literal(value, dtype)}, tl.{dtype.name})"


def _integer(node: Node) -> bool:
    value = node.inputs[0]
    return value is not None and value.dtype.is_integer


def _cast(node: Node) -> str:
    source = node.inputs[0]
    target: DType = node.attributes["dtype"]
    assert source is not None
    if compute_type(source.dtype) == compute_type(target) and target not in (float16, bfloat16):
        return "{0}"
    if target.is_bool:
        return "({0} != 0)"
    if target.is_float and target.bits < 32:
        return f"{{0}}.to(tl.{target.name}).to(tl.float32)"
    return f"{{0}}.to(tl.{target.name})"


def _clip(node: Node) -> str:
    text = "{0}"
    dtype = node.output.dtype
    if node.attributes["low"] is not None:
        text = f"maximum({text}, {literal(node.attributes['low'], dtype)})"
    if node.attributes["high"] is not None:
        text = f"minimum({text}, {literal(node.attributes['high'], dtype)})"
    return text


def _gelu(node: Node) -> str:
    return "gelu_tanh({0})" if node.attributes["approximate"] == "tanh" else "gelu({0})"


def _divide(node: Node) -> str:
    return "{0} // {1}" if _integer(node) else "{0} / {1}"


def _floor_divide(node: Node) -> str:
    return "floor_divide_integers({0}, {1})" if _integer(node) else "floor_divide_floats({0}, {1})"


def _relu(node: Node) -> str:
    return f"maximum({{0}}, {literal(0, node.output.dtype)})"


EXPRESSIONS: dict[str, Rule] = {
    "negate": "-{0}",
    "absolute": "tl.abs({0})",
    "sign": "sign({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "reciprocal": "1.0 / {0}",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "tl.math.tanh({0})",
    "erf": "tl.erf({0})",
    "sigmoid": "sigmoid({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "tl.math.rint({0})",
    "logical_not": "({0} == 0)",
    "isnan": "({0} != {0})",
    "relu": _relu,
    "silu": "silu({0})",
    "gelu": _gelu,
    "cast": _cast,
    "clip": _clip,
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": _divide,
    "power": "tl.math.pow({0}, {1})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "remainder": "floor_remainder({0}, {1})",
    "floor_divide": _floor_divide,
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "logical_and": "({0} & {1})",
    "logical_or": "({0} | {1})",
    "where": "tl.where({0}, {1}, {2})",
    "bitwise_not": "~{0}",
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})",
    "shift_left": "shift_left({0}, {1})",
    "shift_right": "shift_right({0}, {1})",
    "asin": "arcsine({0})",
    "acos": "arccosine({0})",
    "atan": "arctangent({0})",
    "atan2": "arctangent_of_two({0}, {1})",
    "erfinv": "inverse_error_function({0})",
    "lgamma": "log_gamma({0})",
}

# Estimated cost of one element, in simple vector operations; others cost one.
OPERATION_WEIGHTS: dict[str, float] = {
    "exp": 12, "log": 14, "sin": 16, "cos": 16, "tanh": 16, "erf": 16, "sigmoid": 16, "silu": 16, "gelu": 18,
    "sqrt": 6, "rsqrt": 6, "reciprocal": 4, "divide": 4, "power": 30, "remainder": 12, "floor_divide": 12,
    "asin": 40, "acos": 40, "atan": 40, "atan2": 40, "erfinv": 60, "lgamma": 80,
}  # fmt: skip


def expression(node: Node) -> str:
    """The template of a node; raises `KeyError` for an op that is not elementwise."""
    rule = EXPRESSIONS[node.op]
    return rule if isinstance(rule, str) else rule(node)
