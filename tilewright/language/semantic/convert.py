"""Constants, casts and broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.types import PointerType
from tilewright.language.context import LanguageError
from tilewright.language.semantic.promotion import fits, literal_dtype
from tilewright.language.tensor import emit, tensor, type_text
from tilewright.language.types import Number, block_type, dtype, unwrap, wrap


def is_literal(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def constant(value: Number, element: DType, shape: tuple[int, ...] = ()) -> tensor:
    """A compile-time number of a dtype, as a scalar or filling a block."""
    if element.is_float:
        number: Number = _float(value)
    elif element.is_bool:
        number = bool(value)
    else:
        number = _wrap_integer(_whole(value, element), element)
    result = emit("constant", [], {"value": number, "dtype": element, "shape": shape})
    if not shape:
        result.constant = number
    return result


def _float(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        raise LanguageError(
            f"an integer of {int(value).bit_length()} bits is too large for a float", 'float("inf") is infinity'
        ) from None


def _whole(value: Number, element: DType) -> int:
    """Floats as casts convert them: truncated, saturated where the dtype does not hold them, zero for NaN."""
    if not isinstance(value, float):
        return int(value)
    lowest = -(1 << (element.bits - 1)) if element.is_signed else 0
    if value != value:
        return 0
    return int(min(max(value, lowest), lowest + (1 << element.bits) - 1))


def _wrap_integer(value: int, element: DType) -> int:
    value &= (1 << element.bits) - 1
    return value - (1 << element.bits) if element.is_signed and value >> (element.bits - 1) else value


def to_tensor(value: Any) -> tensor:
    """A value as a tensor: literals are typed on their own."""
    value = unwrap(value)
    if isinstance(value, tensor):
        return value
    if is_literal(value):
        return constant(value, literal_dtype(value))
    raise _no_tensor(value)


def _no_tensor(value: Any) -> LanguageError:
    advice = getattr(value, "__operand_advice__", "") or "pass a number, a scalar or a block"
    return LanguageError(f"a tensor or a number is needed here, got {type_text(value)}", advice)


def full(shape: tuple[int, ...], value: Any, element: DType) -> tensor:
    """A block filled with a number or a scalar tensor."""
    check_shape(shape)
    value = unwrap(value)
    if is_literal(value):
        return constant(value, element, shape)
    value = to_tensor(value)
    if value.shape:
        raise LanguageError(
            f"the fill value must be a scalar, got a block of shape {value.shape}",
            "broadcast a block with tl.broadcast_to instead",
        )
    return broadcast_to(cast(value, element), shape)


def check_shape(shape: tuple[int, ...]) -> None:
    """A block has positive extents and at most 2^20 elements (the limits of a program instance)."""
    count = 1
    for extent in shape:
        if extent < 1:
            raise LanguageError(
                f"every extent of a block must be positive, got {list(shape)}",
                "pass the size that the block is to have",
            )
        count *= extent
    if count > 1 << 20:
        raise LanguageError(
            f"a block of shape {list(shape)} has {count} elements, the limit is {1 << 20}",
            "use smaller blocks and a loop or a larger grid",
        )


def cast(value: tensor, element: DType | PointerType, rounding: str = "rtne") -> tensor:
    """Convert to an element type: number to number, pointer to 64-bit integer and back, pointer to pointer."""
    source = value.element
    if source == element:
        return value
    if isinstance(source, PointerType) or isinstance(element, PointerType):
        return _cast_pointer(value, element)
    if dtypes.float8e4b15 in (source, element):
        return _cast_float8e4b15(value, element, rounding)
    if element.is_bool:
        return emit("compare", [value, constant(0, source, value.shape)], {"predicate": "ne"})
    if (
        source.is_integer
        and element.is_float
        and element.bits == 8
        or source.bits == 8
        and source.is_float
        and element.is_integer
    ):
        raise LanguageError(
            f"there is no direct conversion between {wrap(source)} and {wrap(element)}", "convert through fp16 or fp32"
        )
    if value.constant is not None:
        return constant(_convert_number(value.constant, element), element)
    return emit("cast", [value], {"dtype": element, "rounding": rounding})


def _cast_float8e4b15(value: tensor, element: DType, rounding: str) -> tensor:
    """To or from float8e4b15, which is the high byte of a float16 with the top exponent bit taken out.

    Going there, the number becomes a float16 first (so it is rounded twice), then its low seven bits are
    rounded; what is beyond the greatest number, 1.875, becomes that number, NaN too.
    """

    def filled(number: int) -> tensor:
        return constant(number, dtypes.uint16, value.shape)

    if value.number == dtypes.float8e4b15:
        bits = cast(bitcast(value, dtypes.uint8), dtypes.uint16)
        sign, magnitude = emit("and", [bits, filled(0x80)]), emit("and", [bits, filled(0x7F)])
        moved = emit("or", [_shifted("left", sign, 8), _shifted("left", magnitude, 7)])
        return cast(bitcast(moved, dtypes.float16), element)
    half = value if value.number == dtypes.float16 else cast(value, dtypes.float16, rounding)
    bits = bitcast(half, dtypes.uint16)
    magnitude = emit("and", [bits, filled(0x7FFF)])
    if rounding == "rtne":
        odd = emit("and", [_shifted("right", magnitude, 7), filled(1)])
        magnitude = emit("add", [emit("add", [magnitude, odd]), filled(0x3F)])
    code = emit("minimum", [_shifted("right", magnitude, 7), filled(0x7F)], {"propagate_nan": False})
    sign = emit("and", [_shifted("right", bits, 8), filled(0x80)])
    return bitcast(cast(emit("or", [sign, code]), dtypes.uint8), dtypes.float8e4b15)


def _shifted(direction: str, value: tensor, count: int) -> tensor:
    return emit(f"shift_{direction}", [value, constant(count, value.number, value.shape)])


def _convert_number(number: Number, element: DType) -> Number:
    if element.is_float:
        return float(np.asarray(_float(number)).astype(element.numpy))
    return _whole(number, element)


def _cast_pointer(value: tensor, element: DType | PointerType) -> tensor:
    if isinstance(value.element, PointerType) and isinstance(element, PointerType):
        return emit("bitcast", [value], {"element": element})
    if isinstance(value.element, PointerType):
        assert isinstance(element, DType)
        if element.is_bool:
            return cast(emit("bitcast", [value], {"element": dtypes.int64}), element)
        if not element.is_integer or element.bits != 64:
            raise LanguageError(
                f"a pointer can be cast to a 64-bit integer only, not to {wrap(element)}",
                "use .to(tl.int64), or .to(tl.pointer_type(dtype))",
            )
        return emit("bitcast", [value], {"element": element})
    if value.number != dtypes.int64 and value.number != dtypes.uint64:
        raise LanguageError(
            f"only a 64-bit integer can be cast to a pointer, got {value.dtype}", "cast it with .to(tl.int64) first"
        )
    return emit("bitcast", [value], {"element": element})


def bitcast(value: tensor, element: DType | PointerType) -> tensor:
    """Reinterpret the bits; the widths must be equal."""
    if value.element == element:
        return value
    if value.element.bits != element.bits:
        raise LanguageError(
            f"a bitcast needs equal widths: {value.dtype} has {value.element.bits} bits, "
            f"{wrap(element)} has {element.bits}",
            "convert the number with .to(dtype), without bitcast",
        )
    return emit("bitcast", [value], {"element": element})


def convert(value: Any, target: dtype, rounding: str | None = None, reinterpret: bool = False) -> tensor:
    """`x.to(dtype, …)`: a cast or, with `reinterpret`, a bitcast. Literals become scalars of the dtype.

    A type of blocks, such as ``y.type``, stands for its elements.
    """
    target = unwrap(target)
    if isinstance(target, block_type):
        target = target.scalar
    if not isinstance(target, dtype):
        raise LanguageError(
            f"a dtype such as tl.float32 is needed here, got {type_text(target)}", "pass a dtype of the language"
        )
    value = unwrap(value)
    if is_literal(value):
        if isinstance(target.element, DType) and not reinterpret:
            return constant(_convert_number(value, target.element), target.element)
        value = to_tensor(value)
    if not isinstance(value, tensor):
        raise _no_tensor(value)
    if reinterpret:
        return bitcast(value, target.element)
    mode = unwrap(rounding) or "rtne"
    if mode not in ("rtne", "rtz"):
        raise LanguageError(
            f"fp_downcast_rounding must be 'rtne' or 'rtz', got {brief(mode)}", "leave it out to round to nearest even"
        )
    narrows = value.dtype.is_floating() and target.is_floating() and target.element.bits < value.element.bits
    if mode == "rtz" and not narrows:
        raise LanguageError(
            f"rounding 'rtz' is for a float narrowed to a smaller float, not {value.dtype} to {target}",
            "leave fp_downcast_rounding out",
        )
    return cast(value, target.element, mode)


def literal_as(value: Number, element: DType) -> tensor:
    """A literal as a scalar of `element`; an integer that does not fit is an error."""
    if element.is_integer and not isinstance(value, float) and not fits(int(value), element):
        raise LanguageError(
            f"the literal {value} does not fit {wrap(element)}: it is out of range",
            "cast the other operand to a wider type first",
        )
    return constant(value, element)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape: ranks are padded with 1 on the left, then extents of 1 stretch."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for extents in zip(*padded, strict=True):
        extent = max(extents)
        if any(other not in (1, extent) for other in extents):
            texts = " and ".join(str(list(shape)) for shape in shapes if shape)
            raise LanguageError(
                f"shapes {texts} cannot be broadcast together",
                "extents must be equal or 1; insert axes with x[:, None]",
            )
        result.append(extent)
    return tuple(result)


def broadcast_to(value: tensor, shape: tuple[int, ...]) -> tensor:
    """Stretch to `shape`: scalars splat, missing leading axes are inserted, extents of 1 stretch."""
    if value.shape == shape:
        return value
    if not value.shape:
        if value.constant is not None:
            return constant(value.constant, value.number, shape)
        return emit("splat", [value], {"shape": shape})
    if broadcast_shapes(value.shape, shape) != shape:
        raise LanguageError(
            f"a block of shape {list(value.shape)} cannot be broadcast to {list(shape)}",
            "extents must be equal or 1; insert axes with x[:, None]",
        )
    while value.rank < len(shape):
        value = emit("expand_dims", [value], {"axis": 0})
    return value if value.shape == shape else emit("broadcast", [value], {"shape": shape})


def broadcast(*values: tensor) -> list[tensor]:
    """All values stretched to their common shape."""
    shape = broadcast_shapes(*(value.shape for value in values))
    return [broadcast_to(value, shape) for value in values]
