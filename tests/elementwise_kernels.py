"""Kernels that apply a function of one, two or three blocks to arrays, element by element."""

# mypy: ignore-errors

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def unary(x, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i)))


@tilewright.jit
def binary(x, y, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i), tl.load(y + i)))


@tilewright.jit
def ternary(x, y, z, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i), tl.load(y + i), tl.load(z + i)))
