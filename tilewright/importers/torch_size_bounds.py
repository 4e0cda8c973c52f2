"""Bounds the numbers that a torch.export program computes for its sizes.

PyTorch runs this arithmetic while it reads a program, on whole numbers without bounds: `pow(2**62, 2**62)`, or forty
products of a size with itself, would never end.  Each value gets an upper bound of its bits, as if each size of an
input had `_OF_AN_INPUT` bits, so that the degree in these sizes is bounded as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch._export.serde import schema
from torch._export.serde.union import _Union

from tilewright.errors import ImportModelError
from tilewright.importers.torch_schema import LARGEST_POWER, ON_SIZES, ValueRefused

_OF_AN_INPUT = 8.0
_MOST_BITS = 4096.0
_NUMBER_TAGS = ("as_int", "as_float", "as_bool", "as_sym_int", "as_sym_float", "as_sym_bool")
_POWER_OPERATORS = ("_operator.pow", "_operator.lshift", "_operator.rshift")


def check_growth(graph: Any, others: float = _OF_AN_INPUT) -> float:
    """The most bits of a value in a graph of PyTorch's schema; raises `ImportModelError` where they are too many.

    `others` are the bits of values that come from outside of it.
    """
    bits: dict[str, float] = {}
    for node in graph.nodes:
        if node.target in ON_SIZES and not node.target.endswith("getitem"):
            found = _arithmetic(node, bits, others)
        else:
            found = max((*_operands([entry.arg for entry in node.inputs], bits, others), others))
        if found > _MOST_BITS:
            raise ImportModelError(f"{node.target}: arithmetic on sizes with numbers of over {_MOST_BITS:.0f} bits")
        bits.update(dict.fromkeys(_names(node.outputs), found))
    return max((*bits.values(), others))


def _raised(target: str, each: list[float], power: float | None) -> float:
    """The bits of a power or a shift."""
    if len(each) != 2 or power is None or abs(power) > LARGEST_POWER:
        raise ValueRefused(f"{target}: a power that is no number up to {LARGEST_POWER}")
    return each[0] * max(1.0, abs(power)) if target == "_operator.pow" else each[0] + abs(power)


def _arithmetic(node: Any, bits: dict[str, float], others: float) -> float:
    """The bits of the result of an operation on sizes."""
    arguments = [entry.arg for entry in node.inputs]
    if any(_tag(argument) not in _NUMBER_TAGS for argument in arguments):
        raise ValueRefused(f"{node.target}: arithmetic on sizes of something that is no number")
    each = [max(_operands(argument, bits, others), default=0.0) for argument in arguments]
    if node.target in _POWER_OPERATORS:
        return _raised(node.target, each, _literal(arguments[-1]))
    if node.target == "_operator.mul":
        return sum(each)
    if node.target in ("_operator.add", "_operator.sub"):
        most = max(each)
        return most + math.log2(sum(2.0 ** (entry - most) for entry in each))
    if node.target == "_operator.truediv":
        divisor = _literal(arguments[-1])
        return each[0] + (abs(math.log2(abs(divisor))) if divisor else 0.0)
    return max(each, default=others)


def _tag(value: Any) -> str:
    """Which of its alternatives a value is, as a plain text: PyTorch's own compares with names of this union only."""
    return "".join(value.type)


def _literal(argument: Any) -> float | None:
    """The number that an argument is; None for a computed one."""
    value = getattr(argument.value, "value", argument.value)
    return float(value) if isinstance(value, (int, float)) else None


def _operands(value: Any, bits: dict[str, float], others: float) -> Iterator[float]:
    """The bits of all numbers and named values in an argument; graphs inside it are checked on the way."""
    if isinstance(value, (bool, int, float)):
        yield math.log2(abs(value)) if math.isfinite(value) and abs(value) > 1 else 0.0
    elif isinstance(value, (list, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _operands(entry, bits, others)
    elif isinstance(value, schema.GraphArgument):
        yield check_growth(value.graph, max((*bits.values(), others)))
    elif isinstance(value, _Union) and _tag(value) != "as_name":
        yield from _operands(value.value, bits, others)
    else:
        yield from (bits.get(name, others) for name in _names(value))


def _names(value: Any) -> Iterator[str]:
    """The names of values in an argument."""
    if isinstance(value, list):
        for entry in value:
            yield from _names(entry)
    elif isinstance(value, _Union):
        yield from [value.value] if _tag(value) == "as_name" else _names(value.value)
    elif isinstance(getattr(value, "name", None), str):
        yield value.name
