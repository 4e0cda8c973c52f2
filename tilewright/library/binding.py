"""How sizes and slot operands become the parameters of a kernel call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import KernelCall, Operand
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


def launch(
    kernel: JITFunction,
    tensors: Mapping[str, Operand],
    sizes: Mapping[str, Size],
    constants: Mapping[str, Any],
    grid: tuple[Size, Size, Size],
    extra: ExtraReferences | None = None,
    threads: int = 0,
) -> KernelCall:
    """A launch on tensors and sizes by the names of the kernel's parameters, by so many threads (0: not told)."""
    operands: dict[str, Operand] = dict(tensors)
    types: dict[str, str] = {}
    known = dict(constants)
    bind_sizes(dict(sizes), operands, types, known)
    if extra is not None:
        bind_extra(extra, operands, types)
    return KernelCall(kernel, operands, types, known, grid, threads=threads)
