"""Matrix products."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.ops import PAIRS_FIT
from tilewright.language.context import LanguageError, active
from tilewright.language.semantic.convert import cast, constant
from tilewright.language.semantic.shape import reshape
from tilewright.language.tensor import emit, tensor, type_text
from tilewright.language.types import dtype, unwrap, wrap

DOT_PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
_OPERANDS = (dtypes.int8, dtypes.uint8, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
             dtypes.float8e5, dtypes.float8e4nv, dtypes.float8e5b16, dtypes.float8e4b8,
             dtypes.float8e4b15)  # fmt: skip


def _operand(value: Any, name: str) -> tensor:
    value = unwrap(value)
    if not isinstance(value, tensor) or value.rank < 2:
        raise LanguageError(
            f"dot needs blocks of rank 2 or more, `{name}` is {type_text(value)}",
            "add axes with x[:, None], or use tl.sum(a * b)",
        )
    if value.is_pointer or value.number not in _OPERANDS:
        texts = ", ".join(str(wrap(entry)) for entry in _OPERANDS)
        raise LanguageError(f"dot does not take {value.dtype} operands", f"cast `{name}` to one of {texts}")
    return value


def _check_shapes(a: tensor, b: tensor) -> tuple[int, ...]:
    if a.rank != b.rank:
        raise LanguageError(
            f"dot needs operands of equal rank, got {a.type} and {b.type}", "add a batch axis with tl.expand_dims"
        )
    if a.shape[:-2] != b.shape[:-2]:
        raise LanguageError(
            f"batch extents differ: {list(a.shape)} and {list(b.shape)}", "broadcast the batch axes first"
        )
    if a.shape[-1] != b.shape[-2]:
        raise LanguageError(
            f"inner extents differ: {list(a.shape)} times {list(b.shape)}",
            "the last extent of `a` must equal the last but one of `b`; tl.trans swaps them",
        )
    return (*a.shape[:-1], b.shape[-1])


def _result_dtype(element: DType, out_dtype: Any, accumulator: tensor | None) -> DType:
    if element.is_integer:
        return dtypes.int32
    if element == dtypes.float64:
        return element
    if element in (dtypes.float32, dtypes.bfloat16):
        natural = dtypes.float32
    elif accumulator is not None and accumulator.number in (dtypes.float16, dtypes.float32):
        natural = accumulator.number
    else:
        natural = dtypes.float32
    requested = unwrap(out_dtype)
    if requested is None:
        return natural
    if not isinstance(requested, dtype):
        raise LanguageError(f"out_dtype must be a dtype, got {brief(requested)}", "pass tl.float32 or tl.float16")
    allowed = (dtypes.float32, dtypes.float16) if element.bits <= 16 and element != dtypes.bfloat16 else (natural,)
    if requested.element not in allowed:
        raise LanguageError(f"dot of {wrap(element)} cannot give {requested}", "cast the fp32 result")
    assert isinstance(requested.element, DType)
    return requested.element


def dot(a: Any, b: Any, acc: Any, input_precision: Any, allow_tf32: Any, out_dtype: Any) -> tensor:
    """``a @ b + acc``; rank 2, or batched with any number of leading extents."""
    a, b, acc = _operand(a, "a"), _operand(b, "b"), unwrap(acc)
    if a.element != b.element and not (a.number.is_float == b.number.is_float and a.number.bits == b.number.bits == 8):
        raise LanguageError(f"dot needs operands of one dtype, got {a.dtype} and {b.dtype}", "cast one of them")
    if dtypes.float8e4b15 in (a.element, b.element):
        a, b = cast(a, dtypes.float16), cast(b, dtypes.float16)
    shape = _check_shapes(a, b)
    if acc is not None and (not isinstance(acc, tensor) or acc.shape != shape or acc.is_pointer):
        raise LanguageError(f"acc must have shape {list(shape)}, got {type_text(acc)}", "tl.zeros makes one")
    result = _result_dtype(a.number, out_dtype, acc)
    if acc is None:
        acc = constant(0, result, shape)
    elif acc.element != result:
        raise LanguageError(f"dot of {a.dtype} accumulates in {wrap(result)}, acc is {acc.dtype}", "cast acc first")
    precision = _precision(input_precision, allow_tf32, a.number.is_integer)
    if a.number != dtypes.float32 and precision != PAIRS_FIT:
        precision = "ieee"  # the choice is about fp32 operands only
    if len(shape) <= 3:
        return emit("dot", [a, b, acc], {"input_precision": precision})
    batch = acc.numel // (shape[-2] * shape[-1])
    flat = [reshape(value, (batch, *value.shape[-2:])) for value in (a, b, acc)]
    return reshape(emit("dot", flat, {"input_precision": precision}), shape)


def _precision(input_precision: Any, allow_tf32: Any, of_integers: bool) -> str:
    precision, legacy = unwrap(input_precision), unwrap(allow_tf32)
    if precision is None:
        return "ieee" if legacy is False else "tf32"
    if legacy is not None:
        raise LanguageError("dot takes input_precision or allow_tf32, not both", "input_precision alone says it")
    if of_integers and precision == PAIRS_FIT:
        return PAIRS_FIT
    if precision not in DOT_PRECISIONS:
        raise LanguageError(
            f"input_precision must be one of {', '.join(DOT_PRECISIONS)}, got {brief(precision)}",
            "leave it out for the default",
        )
    return precision


def accumulate(addend: Any, value: Any) -> tensor | None:
    """``addend + dot(a, b)`` as one product with an accumulator, when `value` is a product just emitted and
    nothing else can use it; None when this is something else."""
    if not isinstance(value, tensor) or not isinstance(addend, tensor) or addend.handle.type != value.handle.type:
        return None
    operations = active().builder.current.operations
    operation = value.handle.definition
    if operation is None or operation.opcode != "dot" or operation is not operations[-1]:
        return None
    a, b, accumulator = operation.operands
    zero = accumulator.definition
    if zero is None or zero.opcode != "constant" or zero.attributes["value"] != 0:
        return None
    operations.pop()
    return emit("dot", [tensor(a), tensor(b), addend], dict(operation.attributes))
