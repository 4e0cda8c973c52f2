"""Complex tensors as pairs of real ones, inside a graph and at its borders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import Size

REAL_TYPES = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Complex:
    """A complex tensor: its real and imaginary parts, of one shape and element type."""

    real: Value
    imaginary: Value

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.real.shape

    @property
    def rank(self) -> int:
        return self.real.rank


def is_complex(fake: Any) -> bool:
    """Whether a fake tensor is complex."""
    return isinstance(fake, torch.Tensor) and fake.dtype in REAL_TYPES


def joined(emit: Emitter, value: Complex) -> Value:
    """Real and imaginary parts as a new last dimension, as complex numbers lie in memory."""
    parts = [emit.unsqueeze(part, -1) for part in (value.real, value.imaginary)]
    return emit.op("concat", *parts, axis=value.rank)


def divided(emit: Emitter, pairs: Value) -> Complex:
    """The complex numbers of pairs along the last dimension."""
    return Complex(emit.select(pairs, pairs.rank - 1, 0), emit.select(pairs, pairs.rank - 1, 1))
