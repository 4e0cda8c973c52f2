"""Operators, comparison, selection and elementwise mathematics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.language.context import LanguageError, active
from tilewright.language.semantic.convert import (
    bitcast,
    broadcast,
    broadcast_shapes,
    broadcast_to,
    cast,
    constant,
    is_literal,
    literal_as,
    to_tensor,
)
from tilewright.language.semantic.promotion import literal_with_tensor, promote
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import Number, unwrap

_SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%"}


def _numeric(value: Any, symbol: str) -> tensor | Number:
    value = unwrap(value)
    if isinstance(value, tensor):
        if value.is_pointer:
            raise LanguageError(f"'{symbol}' does not take a pointer ({value.type})", "load from it first")
        return value
    if is_literal(value):
        return value
    raise LanguageError(
        f"'{symbol}' takes numbers and tensors, got {type_text(value)}", "pass a number, a scalar or a block"
    )


def promote_operands(
    left: Any, right: Any, symbol: str, division: bool = False, stretch: bool = True
) -> tuple[tensor, tensor]:
    """Both operands in their common dtype and (unless `stretch` is False) their common shape."""
    left, right = _numeric(left, symbol), _numeric(right, symbol)
    if isinstance(left, tensor) and isinstance(right, tensor):
        if stretch:
            broadcast_shapes(left.shape, right.shape)
        element = promote(left.number, right.number, division)
    elif isinstance(left, tensor):
        element, right = _with_literal(right, left, division)
    elif isinstance(right, tensor):
        element, left = _with_literal(left, right, division)
    else:
        left, right = to_tensor(left), to_tensor(right)
        element = promote(left.number, right.number, division)
    pair = [_as(value, element) for value in (left, right)]
    first, second = broadcast(*pair) if stretch else pair
    return first, second


def _with_literal(literal: Any, value: tensor, division: bool) -> tuple[DType, Any]:
    """The common dtype of a literal and a tensor, and the literal (a tensor if it was typed on its own)."""
    own = literal_with_tensor(literal, value.number)
    if own == value.number:
        short = division and own.is_float and own.bits < 32
        return (dtypes.float32 if short else own), literal
    return promote(own, value.number, division), literal


def _as(value: tensor | Number, element: DType) -> tensor:
    return cast(value, element) if isinstance(value, tensor) else literal_as(value, element)


def _fold(function: Callable[[Any, Any], Any], left: tensor, right: tensor) -> tensor | None:
    """The result for two known scalars, wrapped to their dtype; None when one is not known."""
    if left.constant is None or right.constant is None:
        return None
    element = left.number
    if element.is_float:
        with np.errstate(all="ignore"):
            kind = element.numpy.type
            return constant(float(function(kind(left.constant), kind(right.constant))), element)
    return constant(function(int(left.constant), int(right.constant)), element)


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}


def _shifted_pointer(pointer: tensor, index: Any, symbol: str) -> tensor:
    index = to_tensor(index)
    if index.is_pointer or not index.number.is_integer:
        raise LanguageError(
            f"a pointer moves by integers only, got {index.type}",
            "pointer - pointer and pointer + float are not defined",
        )
    if index.number.is_bool:
        index = cast(index, dtypes.int32)
    if symbol == "-":
        index = emit("negate", [cast(index, dtypes.int64)])
    pointer, index = broadcast(pointer, index)
    return emit("offset", [pointer, index])


def add(left: Any, right: Any, sanitize: bool = True) -> tensor:
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, tensor) and left.is_pointer:
        return _shifted_pointer(left, right, "+")
    if isinstance(right, tensor) and right.is_pointer:
        return _shifted_pointer(right, left, "+")
    return _arithmetic("add", left, right, sanitize)


def subtract(left: Any, right: Any, sanitize: bool = True) -> tensor:
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, tensor) and left.is_pointer:
        return _shifted_pointer(left, right, "-")
    return _arithmetic("subtract", left, right, sanitize)


def multiply(left: Any, right: Any, sanitize: bool = True) -> tensor:
    return _arithmetic("multiply", left, right, sanitize)


def _arithmetic(opcode: str, left: Any, right: Any, sanitize: bool = True) -> tensor:
    first, second = promote_operands(left, right, _SYMBOLS[opcode])
    if first.number.is_bool:  # one-bit arithmetic wraps
        return emit("and" if opcode == "multiply" else "xor", [first, second])
    folded = _fold(_FOLDS[opcode], first, second)
    if folded is not None:
        return folded
    if sanitize and active().sanitize_overflow:
        _assert_in_range(opcode, first, second)
    return emit(opcode, [first, second])


def _assert_in_range(opcode: str, first: tensor, second: tensor) -> None:
    """Stop at run time when integers of less than 64 bits overflow: the result in 64 bits must fit their own."""
    element = first.number
    if not element.is_integer or element.bits >= 64:
        return
    wide = emit(opcode, [cast(first, dtypes.int64), cast(second, dtypes.int64)])
    low = -(2 ** (element.bits - 1)) if element.is_signed else 0
    high = low + 2**element.bits - 1
    inside = [
        emit("compare", [wide, constant(limit, dtypes.int64, wide.shape)], {"predicate": predicate})
        for predicate, limit in (("ge", low), ("le", high))
    ]
    message = f"{first.dtype} overflow detected for operation {opcode}"
    emit_many("assert", [emit("and", inside)], {"message": message})


def true_divide(left: Any, right: Any) -> tensor:
    """`/`: integers divide as fp32."""
    _check_signs(left, right, "/")
    first, second = promote_operands(left, right, "/", division=True)
    if first.number.is_integer:
        first, second = cast(first, dtypes.float32), cast(second, dtypes.float32)
    return emit("divide", [first, second])


def _check_signs(left: Any, right: Any, symbol: str) -> None:
    """Integer tensors that are divided must both be signed, or both unsigned."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, tensor) and isinstance(right, tensor) and not left.is_pointer and not right.is_pointer:
        signs = left.number.is_signed, right.number.is_signed
        if left.number.is_integer and right.number.is_integer and signs[0] != signs[1]:
            raise LanguageError(
                f"Cannot use '{symbol}' on {left.dtype} and {right.dtype} because they have different signedness",
                "cast one of them so that both are signed, or both unsigned",
            )


def _integer_division(left: Any, right: Any, symbol: str) -> tuple[tensor, tensor]:
    _check_signs(left, right, symbol)
    first, second = promote_operands(left, right, symbol, division=True)
    if first.number.is_bool:
        first, second = cast(first, dtypes.int32), cast(second, dtypes.int32)
    divisor = unwrap(right)  # before it was broadcast
    if first.number.is_integer and (divisor.constant if isinstance(divisor, tensor) else divisor) == 0:
        raise LanguageError("integer division by the constant 0", "mask the zero with tl.where before dividing")
    return first, second


def floor_divide(left: Any, right: Any) -> tensor:
    """`//`: integers only; truncates toward zero."""
    first, second = _integer_division(left, right, "//")
    if first.number.is_float:
        raise LanguageError("'//' is for integers", "use tl.floor(x / y) for floats")
    folded = _fold(_truncating_quotient, first, second)
    return emit("divide", [first, second]) if folded is None else folded


def remainder(left: Any, right: Any) -> tensor:
    """`%`: takes the sign of the dividend; fmod for floats."""
    first, second = _integer_division(left, right, "%")
    if first.number.is_float:
        return emit("remainder", [first, second])
    folded = _fold(_truncating_remainder, first, second)
    return emit("remainder", [first, second]) if folded is None else folded


def _truncating_quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _truncating_remainder(left: int, right: int) -> int:
    return left - right * _truncating_quotient(left, right)


def bitwise(opcode: str, left: Any, right: Any) -> tensor:
    """`and`, `or`, `xor`: integers only."""
    symbol = {"and": "&", "or": "|", "xor": "^"}[opcode]
    first, second = promote_operands(left, right, symbol)
    _check_integer(first, symbol)
    return emit(opcode, [first, second])


def shift(opcode: str, left: Any, right: Any) -> tensor:
    """`<<` and `>>` in the common dtype; `>>` is arithmetic when the left operand is signed, whatever that is."""
    symbol = "<<" if opcode == "shift_left" else ">>"
    first, second = promote_operands(left, right, symbol)
    _check_integer(first, symbol)
    if first.number.is_bool:
        first, second = cast(first, dtypes.int32), cast(second, dtypes.int32)
    count = unwrap(right)
    if isinstance(count, int) and not 0 <= count < first.number.bits:
        active().remark("warning", f"a shift by {count} is out of range for {first.dtype}: the result is undefined")
    common = first.number
    if opcode == "shift_right" and to_tensor(left).number.is_signed and not common.is_signed:
        signed = dtypes.BY_NAME[f"int{common.bits}"]
        return bitcast(emit(opcode, [bitcast(first, signed), bitcast(second, signed)]), common)
    return emit(opcode, [first, second])


def _check_integer(value: tensor, symbol: str) -> None:
    if not value.number.is_integer:
        raise LanguageError(
            f"'{symbol}' needs integers: invalid operands of type {value.dtype}",
            "compare first, or bitcast to an integer type",
        )


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def compare(predicate: str, left: Any, right: Any) -> tensor:
    """An int1 result; floats compare ordered (NaN gives False) except `ne`."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, tensor) and left.is_pointer or isinstance(right, tensor) and right.is_pointer:
        first, second = broadcast(*_pointer_pair(left, right))
    else:
        first, second = promote_operands(left, right, predicate)
    if first.constant is not None and second.constant is not None:
        return constant(bool(_COMPARISONS[predicate](first.constant, second.constant)), dtypes.int1)
    return emit("compare", [first, second], {"predicate": predicate})


def _pointer_pair(left: Any, right: Any) -> tuple[tensor, tensor]:
    """Two pointers of one type; a literal or None compared with a pointer is an address."""
    pair = []
    for value, other in ((left, right), (right, left)):
        if not isinstance(value, tensor):
            if value is not None and not isinstance(value, int):
                raise LanguageError(
                    f"a pointer cannot be compared with {type_text(value)}", "compare pointers with pointers and None"
                )
            value = bitcast(constant(0 if value is None else int(value), dtypes.int64), other.element)
        pair.append(value)
    first, second = pair
    if first.element != second.element:
        raise LanguageError(f"pointers of different types: {first.dtype} and {second.dtype}", "cast one with .to(...)")
    return first, second


def negate(value: Any) -> tensor:
    value = to_tensor(value)
    if value.number.is_bool:
        value = cast(value, dtypes.int32)
    if value.constant is not None:
        return constant(-value.constant, value.number)
    return emit("negate", [value])


def invert(value: Any) -> tensor:
    value = to_tensor(value)
    _check_integer(value, "~")
    return emit("not", [value])


def logical(opcode: str, left: Any, right: Any) -> tensor:
    """`and` and `or` on run-time values: int1 only; both sides are evaluated."""
    pair = [to_tensor(left), to_tensor(right)]
    for value in pair:
        if value.is_pointer or not value.number.is_bool:
            raise LanguageError(
                f"'{opcode}' on run-time values needs int1, got {value.type}", "compare with != 0 first, or use & and |"
            )
    first, second = broadcast(*pair)
    return emit(opcode, [first, second])


def logical_not(value: tensor) -> tensor:
    if value.is_pointer:
        return compare("eq", value, None)
    if value.number.is_bool:
        return emit("not", [value])
    return emit("compare", [value, constant(0, value.number, value.shape)], {"predicate": "eq"})


def where(condition: Any, left: Any, right: Any) -> tensor:
    """Elementwise choice; all three broadcast; both sides may be pointers of one type."""
    condition = to_tensor(condition)
    if condition.is_pointer or not condition.number.is_bool:
        condition = logical_not(logical_not(condition))
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, tensor) and left.is_pointer or isinstance(right, tensor) and right.is_pointer:
        first, second = _pointer_pair(left, right)
    else:
        first, second = promote_operands(left, right, "where", stretch=False)
    shape = broadcast_shapes(condition.shape, first.shape, second.shape)
    return emit("select", [broadcast_to(value, shape) for value in (condition, first, second)])


def extremum(opcode: str, left: Any, right: Any, propagate_nan: Any = None) -> tensor:
    """`minimum` and `maximum`; `propagate_nan` is `tl.PropagateNan.NONE` or `.ALL`."""
    first, second = promote_operands(left, right, opcode)
    spread = propagates(propagate_nan)
    folded = None if first.number.is_float else _fold(min if opcode == "minimum" else max, first, second)
    return emit(opcode, [first, second], {"propagate_nan": spread}) if folded is None else folded


def propagates(mode: Any) -> bool:
    """Whether a `PropagateNan` argument asks for NaN to win."""
    return getattr(unwrap(mode), "name", "NONE") == "ALL"


def clamp(value: Any, low: Any, high: Any, propagate_nan: Any = None) -> tensor:
    raised = extremum("maximum", value, low, propagate_nan)
    return extremum("minimum", raised, high, propagate_nan)


def unary_math(opcode: str, value: Any) -> tensor:
    """A float function; integers become fp32; 16- and 8-bit floats are computed in fp32 and rounded back."""
    value = to_tensor(value)
    if value.is_pointer:
        raise LanguageError(f"{opcode} needs a number, got {value.type}", "load from the pointer first")
    element = value.number
    if element.is_integer:
        value, element = cast(value, dtypes.float32), dtypes.float32
    if element.bits >= 32:
        return emit(opcode, [value])
    active().remark("warning", f"{opcode} on {value.dtype} is computed in fp32 and rounded back")
    return cast(emit(opcode, [cast(value, dtypes.float32)]), element)


def absolute(value: Any) -> tensor:
    value = to_tensor(value)
    if value.number.is_bool or value.number.kind == "uint":
        return value
    if value.number == dtypes.float8e4b15:  # the sign bit alone
        return bitcast(bitwise("and", bitcast(value, dtypes.uint8), 0x7F), value.number)
    return emit("absolute", [value])


def fma(x: Any, y: Any, z: Any) -> tensor:
    """x * y + z, rounded once, in the common dtype of the three."""
    first, second = promote_operands(x, y, "fma", stretch=False)
    first, third = promote_operands(first, z, "fma", stretch=False)
    second, third = promote_operands(second, third, "fma", stretch=False)
    first = cast(first, third.number)
    operands = broadcast(first, second, third)
    if not first.number.is_float:
        return add(multiply(operands[0], operands[1]), operands[2])
    return emit("fma", operands)


def divide_floats(x: Any, y: Any, name: str) -> tensor:
    """`fdiv` and `div_rn`: float operands in their common dtype."""
    first, second = promote_operands(x, y, name)
    if not first.number.is_float:
        raise LanguageError(f"{name} needs floats, got {first.dtype}", "use / for integers")
    return emit("divide", [first, second])


def power(x: Any, y: Any) -> tensor:
    first, second = promote_operands(x, y, "pow")
    element = first.number
    if element.is_integer:
        first, second, element = cast(first, dtypes.float32), cast(second, dtypes.float32), dtypes.float32
    if element.bits >= 32:
        return emit("power", [first, second])
    active().remark("warning", f"pow on {first.dtype} is computed in fp32 and rounded back")
    wide = [cast(value, dtypes.float32) for value in (first, second)]
    return cast(emit("power", wide), element)


def multiply_high(x: Any, y: Any) -> tensor:
    first, second = promote_operands(x, y, "umulhi")
    if not first.number.is_integer or first.number.bits not in (32, 64):
        raise LanguageError(
            f"umulhi needs 32- or 64-bit integers, got {first.dtype}", "cast with .to(tl.uint32) or .to(tl.uint64)"
        )
    unsigned = dtypes.uint32 if first.number.bits == 32 else dtypes.uint64
    result = emit("multiply_high", [cast(first, unsigned), cast(second, unsigned)])
    return cast(result, first.number)
