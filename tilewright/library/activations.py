"""Activations in the tile language: in float32 accuracy, and as exact as 16-bit results can tell, by hardware."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, int8, uint8
from tilewright.language.function import SourceFunction
from tilewright.library import functions


@tilewright.jit
def hardware_tanh(x):
    """tanh x within 2^-11, by the special function unit."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@tilewright.jit
def rough_quotient(x, y):
    """x / y within 2 units in the last place of float32: the exact one has a branch, around which a thread would hold
    all its sums in registers."""
    x, y = tl.broadcast(x, y)
    return tl.inline_asm_elementwise("div.full.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, True, 1)


# Activations for bfloat16 results, of half their argument: that half comes for nothing with what is added before.


@tilewright.jit
def gelu_of_half(half):
    """x Phi(x) within 4e-4 of x = 2 half: Phi as the logistic function of an odd polynomial, fitted for the least
    greatest error (1.4e-4; the rest is `hardware_tanh`)."""
    return tl.fma(half, hardware_tanh(half * tl.fma(half * half, 0.28225648, 1.59760284)), half)


@tilewright.jit
def gelu_tanh_of_half(half):
    """The tanh form of GELU within 3e-4 of x = 2 half."""
    return tl.fma(half, hardware_tanh(half * tl.fma(half * half, 0.2854192648, 1.5957691216)), half)


@tilewright.jit
def silu_of_half(half):
    """x / (1 + exp(-x)) within 3e-4 of x = 2 half."""
    return tl.fma(half, hardware_tanh(half), half)


@tilewright.jit
def sigmoid_of_half(half):
    """1 / (1 + exp(-x)) within 3e-4, x = 2 half."""
    return tl.fma(hardware_tanh(half), 0.5, 0.5)


def _of_whole(of_half):
    @tilewright.jit
    def activation(x):
        return of_half(0.5 * x)

    return activation


def _scaled(of_half):
    @tilewright.jit
    def activation(x, factor):
        return of_half(0.5 * x) * factor

    return activation


def _forms(found, scaled):
    """The forms of activations by name: of all of the argument, of half of it, and times a factor."""
    return {
        **{name: _of_whole(function) for name, function in found.items()},
        **{f"{name}_of_half": function for name, function in found.items()},
        **{f"{name}_scaled": function for name, function in scaled.items()},
    }


# The same times a constant, of the whole argument: x (f/2 + f/2 tanh) is a multiply-add and a product, of which the
# latter takes what is added next.


@tilewright.jit
def gelu_scaled(x, factor):
    """gelu(x) factor, as exact as `gelu_of_half`."""
    return x * tl.fma(hardware_tanh(x * tl.fma(x * x, 0.03528206, 0.79880142)), 0.5 * factor, 0.5 * factor)


@tilewright.jit
def gelu_tanh_scaled(x, factor):
    """gelu_tanh(x) factor, as exact as `gelu_tanh_of_half`."""
    return x * tl.fma(hardware_tanh(x * tl.fma(x * x, 0.0356774081, 0.7978845608)), 0.5 * factor, 0.5 * factor)


@tilewright.jit
def silu_scaled(x, factor):
    """silu(x) factor, as exact as `silu_of_half`."""
    return x * tl.fma(hardware_tanh(0.5 * x), 0.5 * factor, 0.5 * factor)


@tilewright.jit
def sigmoid_scaled(x, factor):
    """sigmoid(x) factor, as exact as `sigmoid_of_half`."""
    return tl.fma(hardware_tanh(0.5 * x), 0.5 * factor, 0.5 * factor)


@tilewright.jit
def gelu_of_half_float16(half):
    """x Phi(x) of x = 2 half, within 3e-5 plus the error of `hardware_tanh`: for float16, which is more precise than
    bfloat16. Phi as the logistic function of an odd polynomial."""
    square = tl.minimum(half * half, 12.5)
    inner = tl.fma(square, tl.fma(square, -0.01124853824, 0.296045176), 1.59501568)
    return tl.fma(half, hardware_tanh(half * inner), half)


@tilewright.jit
def relu(x):
    """The larger of x and 0; NaN stays."""
    return functions.maximum(x, 0.0)


@dataclass(frozen=True)
class Activation:
    """An activation in float32 accuracy, and, of half its argument by one instruction of the hardware, as exact as
    results of bfloat16 and of float16 can tell, where that is faster; the op of graphs that computes it."""

    exact: SourceFunction
    op: str
    of_half: SourceFunction | None = None
    of_half_float16: SourceFunction | None = None
    scaled: SourceFunction | None = None  # of the argument and a factor, as exact as `of_half`
    attributes: Mapping[str, Any] = field(default_factory=dict)


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(relu, "relu"),
    "gelu": Activation(functions.gelu, "gelu", gelu_of_half, gelu_of_half_float16, gelu_scaled),
    "gelu_tanh": Activation(
        functions.gelu_tanh, "gelu", gelu_tanh_of_half, gelu_tanh_of_half, gelu_tanh_scaled, {"approximate": "tanh"}
    ),
    "silu": Activation(functions.silu, "silu", silu_of_half, silu_of_half, silu_scaled),
    "sigmoid": Activation(functions.sigmoid, "sigmoid", sigmoid_of_half, sigmoid_of_half, sigmoid_scaled),
}

# Those that are as exact as results of a type can tell, by the names of the functions that they stand for; with
# `_of_half` after these of half the argument, with `_scaled` times a factor.
_HARDWARE = {name: each for name, each in ACTIVATIONS.items() if each.of_half}
_PRECISE = {name: each.of_half_float16 for name, each in _HARDWARE.items()}
ROUNDED: dict[DType, dict[str, SourceFunction]] = {
    bfloat16: _forms(
        {name: each.of_half for name, each in _HARDWARE.items()},
        {name: each.scaled for name, each in _HARDWARE.items()},
    ),
    float16: _forms(_PRECISE, {name: _scaled(function) for name, function in _PRECISE.items()}),
}
ROUNDED = {dtype: {**forms, "rough_quotient": rough_quotient} for dtype, forms in ROUNDED.items()}
ROUNDED |= {dtype: ROUNDED[bfloat16] for dtype in (int8, uint8, float8e4nv, float8e5)}
