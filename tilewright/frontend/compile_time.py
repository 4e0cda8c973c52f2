"""Python's operators on compile-time values, with errors for users and limits on what a mistake may cost."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.language.context import LanguageError
from tilewright.language.tensor import type_text

GREATEST_BITS = 1 << 14  # of an integer; kernels have use for 64
GREATEST_LENGTH = 1 << 16  # of a tuple or string, and of an unrolled loop


def compute(symbol: str, function: Callable[..., Any], *operands: Any) -> Any:
    """`function` of compile-time values; raises `LanguageError` naming the operator where Python would raise."""
    _check_size(symbol, function, operands)
    try:
        return function(*operands)
    except LanguageError:
        raise
    except ZeroDivisionError:
        raise LanguageError(f"'{symbol}' by zero, at compile time", "test the divisor first") from None
    except TypeError:
        texts = " and ".join(type_text(value) for value in operands)
        raise LanguageError(
            f"'{symbol}' is not defined for {texts}", "use numbers, tensors, or tuples with + and *"
        ) from None
    except (ValueError, OverflowError) as error:
        raise LanguageError(f"'{symbol}': {error}", "compute it outside the kernel, or with smaller numbers") from None


def _check_size(symbol: str, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
    """Refuse results that would fill the memory."""
    if len(operands) != 2:
        return
    left, right = operands
    bits = 0
    if isinstance(left, int) and isinstance(right, int):
        if function is operator.pow and right > 0:
            bits = left.bit_length() * min(right, GREATEST_BITS) if abs(left) > 1 else 0
        elif function is operator.lshift:
            bits = left.bit_length() + max(right, 0)
        elif function is operator.mul:
            bits = left.bit_length() + right.bit_length()
    elif function is operator.mul:
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (tuple, list, str)) and isinstance(count, int):
                check_length(f"the result of '{symbol}'", len(sequence) * count)
    if bits > GREATEST_BITS:
        raise LanguageError(f"the result of '{symbol}' has thousands of digits", "kernels compute with up to 64 bits")


def check_length(subject: str, count: int) -> None:
    """Raise `LanguageError` for more entries than a kernel can be about."""
    if count > GREATEST_LENGTH:
        raise LanguageError(
            f"{subject} has {count} entries, more than {GREATEST_LENGTH}", "loop at run time with tl.range instead"
        )


def unrolled(numbers: range) -> list[int]:
    """The numbers of an unrolled loop, unless there are too many."""
    count = max(0, -(-(numbers.stop - numbers.start) // numbers.step))
    check_length("an unrolled loop", count)
    return list(numbers)


def member(value: Any, values: Iterable[Any]) -> bool:
    """``value in values``"""
    return value in values
