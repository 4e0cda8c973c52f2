"""How arguments of kernels are packed: 8 bytes each, little endian, in the parameter's own format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import BY_TEXT

_FORMATS = {"f32": "f4x", "f64": "d", "f16": "e6x", "i1": "?7x", "u64": "Q"}
_BFLOAT16 = "H6x"


def slot_format(kind: str) -> str:
    """The format character of the module `struct`, with padding, for a parameter of a type (IR text)."""
    if kind.startswith("*"):
        return "Q"
    if kind in _FORMATS:
        return _FORMATS[kind]
    dtype = BY_TEXT[kind]
    if dtype.is_float:
        return _BFLOAT16
    return "q" if dtype.is_signed else "Q"


def narrow_slots(kinds: Sequence[str]) -> list[int]:
    """Which parameters are floats that `struct` has no format for: `narrowed` packs their numbers."""
    return [index for index, kind in enumerate(kinds) if slot_format(kind) == _BFLOAT16]


def narrowed(value: Any) -> int:
    """The bits of a number as bfloat16."""
    return int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))
