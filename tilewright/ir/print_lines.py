"""The output of `print`, the same on every target: a line for each element of each operand.

    pid (0, 1, 0) idx ( 7) x: 0.500000
    pid (0, 1, 0) idx ( 7) x: (operand 1) 3        where there are several operands
    pid (0, 1, 0) idx () x: 3                      a scalar
    pid (0, 1, 0) done                             without operands

This is what Triton prints, so that what reads one reads the other; but a scalar is printed once and not by each thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.ir.core import Operation
from tilewright.ir.types import PointerType, TensorType

_PROGRAM = "pid (%d, %d, %d)"
_FLOAT_BITS = "a"  # the conversion that Python has not


def line_format(operation: Operation, number: int | None) -> str:
    """The format, for C's `printf`, of a line of operand `number` of a print; None: of a print without operands.

    It takes the three program ids and the element's index along each axis (`int`), then the element: `double` for
    floats, else 64 bits, an integer extended by its sign, or with zeros if it has none or its bits are shown.
    """
    label = _label(str(operation.attributes["prefix"]), bool(operation.operands)).replace("%", "%%")
    if number is None:
        return f"{_PROGRAM}{label}\n"
    kind = operation.operands[number].type
    index = ", ".join(f"%{len(str(extent - 1))}d" for extent in kind.shape)
    which = f"(operand {number}) " if len(operation.operands) > 1 else ""
    return f"{_PROGRAM} idx ({index}){label}{which}{_conversion(kind, bool(operation.attributes['hex']))}\n"


def _label(prefix: str, operands: bool) -> str:
    """The prefix with a space before it and, before a value, a colon and a space after it."""
    if operands:
        prefix = f"{prefix.removesuffix(' ').removesuffix(':')}: "
    return prefix if prefix in (": ", "") or prefix.startswith(" ") else f" {prefix}"


def _conversion(kind: TensorType, hexadecimal: bool) -> str:
    element = kind.element
    if isinstance(element, PointerType):
        return "0x%llx"
    if element.is_float:
        return f"%{_FLOAT_BITS}" if hexadecimal else "%f"
    if hexadecimal:
        return f"0x%0{2 * element.itemsize}llx"
    return "%lld" if element.is_signed else "%llu"


def lines(operation: Operation, program: Sequence[int], operands: Sequence[np.ndarray]) -> Iterator[str]:
    """The lines of a print in a program instance, elements in row-major order; each ends with a line feed."""
    if not operands:
        yield line_format(operation, None) % tuple(program)
    for number, block in enumerate(operands):
        kind = operation.operands[number].type
        head, percent, conversion = line_format(operation, number).rpartition("%")
        form = f"{head}{percent}{conversion.replace(_FLOAT_BITS, 's').replace('ll', '')}"
        for index, element in np.ndenumerate(block):
            yield form % (*program, *index, _formatted(element, kind, bool(operation.attributes["hex"])))


def _formatted(value: np.generic, kind: TensorType, hexadecimal: bool) -> int | float | str:
    """An element as Python's formatting takes it."""
    if isinstance(kind.element, PointerType):
        return int(value) % 2**64
    if kind.element.is_float:
        return _bits_of_float(float(value)) if hexadecimal else float(value)
    return int(value) % 2 ** (8 * kind.element.itemsize) if hexadecimal else int(value)


def _bits_of_float(value: float) -> str:
    """A float as C's ``%a`` shows it: `float.hex` without zeros at the fraction's end."""
    mantissa, letter, exponent = value.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.')}{letter}{exponent}" if "." in mantissa else value.hex()
