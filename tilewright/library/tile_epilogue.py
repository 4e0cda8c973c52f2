"""Epilogues for kernels whose tensor cores wait while a tile's results are computed.

Generated epilogues (`generated.generate`) become cheaper there: activations behind which results are stored in 16 bits
are as exact as these can tell, by one instruction of the hardware; and what is loaded for each column is masked by
columns alone, so that a thread loads it once for all its rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.launch.jit import JITFunction
from tilewright.library.epilogue import OF_HALF, hardware_tanh
from tilewright.library.matmul.cpu import Slots

_LOAD = re.compile(r"tl\.load\((extra\[\d+\]) \+ \((.*)\), mask=mask\)")
_ISSUED = 128  # instructions of a multiprocessor and clock


def _rounded(of_half: Any) -> Any:
    @tilewright.jit
    def activation(x):  # type: ignore[no-untyped-def]
        return of_half(0.5 * x)

    return activation


@tilewright.jit
def _gelu_of_half(half):  # type: ignore[no-untyped-def]
    """x Phi(x) within 3e-5 of x = 2 half, beside what `hardware_tanh` is off: for float16, which tells more numbers
    apart than bfloat16. Phi as the logistic function of an odd polynomial."""
    square = tl.minimum(half * half, 12.5)
    inner = tl.fma(square, tl.fma(square, -0.01124853824, 0.296045176), 1.59501568)
    return tl.fma(half, hardware_tanh(half * inner), half)


_ROUNDED: dict[DType, dict[str, Any]] = {
    bfloat16: {name: _rounded(of_half) for name, of_half in OF_HALF.items()},
    float16: {name: _rounded(of_half) for name, of_half in {**OF_HALF, "gelu": _gelu_of_half}.items()},
}
_FUNCTIONS: dict[tuple[JITFunction, DType, int | None], JITFunction] = {}


@dataclass(frozen=True)
class TileEpilogue:
    """An epilogue, and how much it does for an element: loads by column and by element, activations."""

    slots: Slots
    column_loads: int
    element_loads: int
    activations: int

    @property
    def work(self) -> float:
        """Clocks of a multiprocessor for an element."""
        return (9.0 * self.activations + 2.0 * self.column_loads + 5.0 * self.element_loads) / _ISSUED


def plain_work(slots: Slots) -> float:
    """Clocks of a multiprocessor for an element of a generated epilogue as it is, with its activations exact."""
    return 50.0 * _activations(slots.function) / _ISSUED


def _activations(function: JITFunction) -> int:
    return sum(function.source.count(f"{name}(") for name in OF_HALF)


def tile_epilogue(slots: Slots, columns: int) -> TileEpilogue:
    """The epilogue of a product with so many columns, made cheaper where it is a generated one."""
    function = tile_function(slots.function, slots.stored.dtype, columns)
    loads = [match[2] for match in _LOAD.finditer(slots.function.source)]
    by_element = sum("row" in offset for offset in loads)
    plain = replace(slots, function=function)
    return TileEpilogue(plain, len(loads) - by_element, by_element, _activations(slots.function))


def tile_function(function: JITFunction, stored: DType, columns: int | None = None) -> JITFunction:
    """A generated function with the activations that suit results `stored` in 16 bits, and the masks of an epilogue
    over so many columns; other functions as they are. Always the same object for the same arguments."""
    names = function.function.__globals__
    if not names["__name__"].startswith("tilewright.generated."):
        return function
    key = (function, stored, columns)
    if key not in _FUNCTIONS:
        text = function.source
        if columns is not None:
            text = _LOAD.sub(lambda load: _by_column(load, columns), text)
        _FUNCTIONS[key] = JITFunction.from_source(text, function.__name__, {**names, **_ROUNDED.get(stored, {})})
    return _FUNCTIONS[key]


def _by_column(load: re.Match[str], columns: int) -> str:
    """A load of generated text: masked by columns if it does not depend on the row."""
    return load[0] if "row" in load[2] else f"tl.load({load[1]} + ({load[2]}), mask=column < {columns})"
