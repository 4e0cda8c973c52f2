"""Activations behind products whose results have 16 bits: as exact as the result can tell, by one instruction.

A product's threads compute the epilogue of a tile while their tensor cores wait, so that an exact error function would
take as long as the product itself where the depth is small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilewright
from tilewright.dtypes import bfloat16, float16
from tilewright.frontend.jit import JITFunction
from tilewright.kernels.epilogues import OF_HALF
from tilewright.tactics.contraction import Slots


def _rounded(of_half: Any) -> Any:
    @tilewright.jit
    def activation(x):  # type: ignore[no-untyped-def]
        return of_half(0.5 * x)

    return activation


_ROUNDED: dict[str, Any] = {name: _rounded(of_half) for name, of_half in OF_HALF.items()}
_FUNCTIONS: dict[JITFunction, JITFunction] = {}


def rounded_slots(slots: Slots) -> Slots:
    """The same epilogue with activations within 4e-4 of their argument, where results are stored in 16 bits."""
    if slots.stored.dtype not in (float16, bfloat16):
        return slots
    return replace(slots, function=rounded_function(slots.function))


def rounded_function(function: JITFunction) -> JITFunction:
    """A generated function with the activations of `_ROUNDED`; itself if it calls none. Always the same object."""
    names = function.function.__globals__
    if not any(name in names and f"{name}(" in function.source for name in _ROUNDED):
        return function
    if not names["__name__"].startswith("tilewright.generated."):
        return function
    if function not in _FUNCTIONS:
        _FUNCTIONS[function] = JITFunction.from_source(function.source, function.__name__, {**names, **_ROUNDED})
    return _FUNCTIONS[function]
