"""The tile-language expression of every elementwise graph op: one table.

`{0}`, `{1}`, `{2}` are the operands' texts (names or literals).  Ops whose expression depends on
attributes or element types have a function in place of the template.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Union

import ml_dtypes
import numpy as np

import tilewright.language as tl
from tilewright.dtypes import BY_NAME, DType, carrier, float8e4b8, float8e4nv, float8e5, float8e5b16, float32
from tilewright.graph.core import Node

Rule = Union[str, Callable[[Node], str]]


def compute_type(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed: small floats in float32, types below a byte by their bits."""
    dtype = carrier(dtype)
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


def narrowed(text: str, dtype: DType) -> str:
    """A float32 as an element of a float type of fewer bits, rounded once; out of range as the type's own conversion
    gives: infinity, or NaN in types that have none. (The language's conversions to 8-bit floats saturate.)"""
    if dtype.bits == 8:
        limit, beyond = _FLOAT8_OVERFLOW[dtype]
        return f"round_to_float8({text}, tl.{dtype.name}, {limit}, {beyond})"
    return f"{text}.to(tl.{dtype.name})"


def _float8_overflow(dtype: DType) -> tuple[float, int]:
    """The least number that rounds to none of the type's finite ones, and the bits of what it becomes."""
    largest = dtype.numpy.type(ml_dtypes.finfo(dtype.numpy).max)
    step = float(largest) - float(np.nextafter(largest, dtype.numpy.type(0)))
    limit = float(largest) + step / 2
    if np.isfinite(dtype.numpy.type(limit)):  # halfway goes to the even neighbour
        limit = float(np.nextafter(np.float32(limit), np.float32(np.inf)))
    with np.errstate(all="ignore"):
        beyond = np.array(np.inf).astype(dtype.numpy)
    return limit, int(beyond.view(np.uint8))


_FLOAT8_OVERFLOW = {dtype: _float8_overflow(dtype) for dtype in (float8e5, float8e4nv, float8e5b16, float8e4b8)}


def _cast(node: Node) -> str:
    source = node.inputs[0]
    target: DType = node.attributes["dtype"]
    assert source is not None
    if source.dtype == target:
        return "{0}"
    if target.is_bool:
        return "({0} != 0)"
    if target.is_float:
        if target.bits < 32:
            wide = "{0}.to(tl.float32)" if target.bits == 8 else "{0}"
            return narrowed(wide, target) + ".to(tl.float32)"
        return "{0}" if compute_type(source.dtype) == target else f"{{0}}.to(tl.{target.name})"
    if source.dtype.is_float:
        # What was computed in float32 is rounded first: .9999 is 1 in bfloat16.
        exact = f"{narrowed('{0}', source.dtype)}.to(tl.float32)" if source.dtype.bits < 32 else "{0}"
        if target.name == "uint64":
            return f"truncate_to_uint64({exact})"
        wide = "64" if target.name in ("int64", "uint32") else "32"
        return f"truncate_to_int{wide}({exact}).to(tl.{target.name})"
    return f"{{0}}.to(tl.{target.name})"


def _bitcast(node: Node) -> str:
    source, target = (BY_NAME[node.attributes[name]] for name in ("of", "to"))
    source, target = carrier(source), carrier(target)
    text = "{0}"
    if source.is_float and source.bits < 32:
        text = narrowed(text, source)
    if source.is_bool or target.is_bool:  # a byte that is 0 or 1
        return f"({text} != 0)" if target.is_bool else f"{text}.to(tl.{target.name})"
    if source != target:
        text += f".to(tl.{target.name}, bitcast=True)"
    return f"{text}.to(tl.float32)" if target.is_float and target.bits < 32 else text


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
    return "divide_integers({0}, {1})" if _integer(node) else "{0} / {1}"


def _floor_divide(node: Node) -> str:
    return "floor_divide_integers({0}, {1})" if _integer(node) else "floor_divide_floats({0}, {1})"


def _remainder(node: Node) -> str:
    return "floor_remainder_of_integers({0}, {1})" if _integer(node) else "floor_remainder({0}, {1})"


def takes_types(node: Node, position: int) -> bool:
    """Whether numbers among the operands are written with their type."""
    if node.op in ("divide", "floor_divide", "remainder", "power", "shift_left", "shift_right") and _integer(node):
        return True
    return node.op == "where" or (node.op == "power" and position == 1)


def _power(node: Node) -> str:
    return "integer_power({0}, {1})" if _integer(node) else "tl.math.pow({0}, {1})"


def _relu(node: Node) -> str:
    return f"maximum({{0}}, {literal(0, node.output.dtype)})"


def _random_bits(node: Node) -> str:
    return f"random_bits({{0}}, {{1}}, {node.attributes['stream']})"


EXPRESSIONS: dict[str, Rule] = {
    "negate": "-{0}",
    "absolute": "tl.abs({0})",
    "sign": "sign({0})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
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
    "bitcast": _bitcast,
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": _divide,
    "power": _power,
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "remainder": _remainder,
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
    "random_bits": _random_bits,
    "asin": "libdevice.asin({0})",
    "acos": "libdevice.acos({0})",
    "atan": "libdevice.atan({0})",
    "atan2": "libdevice.atan2({0}, {1})",
    "erfinv": "libdevice.erfinv({0})",
    "erfc": "libdevice.erfc({0})",
    "lgamma": "libdevice.lgamma({0})",
}

# Estimated cost of one element, in simple vector operations; others cost one.
OPERATION_WEIGHTS: dict[str, float] = {
    "exp": 12, "exp2": 12, "log": 14, "sin": 16, "cos": 16, "tanh": 16, "erf": 16, "sigmoid": 16, "silu": 16,
    "gelu": 18, "sqrt": 6, "rsqrt": 6, "reciprocal": 4, "divide": 4, "power": 30, "remainder": 12, "floor_divide": 12,
    "asin": 40, "acos": 40, "atan": 40, "atan2": 40, "erfinv": 60, "erfc": 60, "lgamma": 80, "random_bits": 60,
}  # fmt: skip


def expression(node: Node) -> str:
    """The template of a node; raises `KeyError` for an op that is not elementwise."""
    rule = EXPRESSIONS[node.op]
    return rule if isinstance(rule, str) else rule(node)
