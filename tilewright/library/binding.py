"""How sizes and slot operands become the parameters of a kernel call."""

from __future__ import annotations

from typing import Any

from tilewright.library.candidate import Operand
from tilewright.library.generated.source import ExtraReferences
from tilewright.symbolic import Size, lift, simplify


def divides(block: int, size: Size) -> bool:
    """Whether blocks cover a size exactly, whatever its value."""
    return simplify(lift(size) % block) == 0


def bind_sizes(
    sizes: dict[str, Size], operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any]
) -> None:
    """Known sizes become compile-time constants, the others run-time scalars."""
    for name, size in sizes.items():
        size = simplify(size)
        if isinstance(size, int):
            constants[name] = size
        else:
            operands[name] = size
            types[name] = "i64"


def bind_extra(extra: ExtraReferences, operands: dict[str, Operand], types: dict[str, str]) -> None:
    """The operands of a kernel's slots, named `extra_0`, `extra_1`, …"""
    operands.update(extra.operands)
    types.update(extra.types)
