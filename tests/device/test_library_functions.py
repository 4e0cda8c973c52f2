"""The mathematical library on a GPU against the interpreter: random numbers, ends of domains, infinities, NaN."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.device.plain_support import run_both, run_on_gpu, traced
from tests.elementwise_kernels import binary, unary
from tilewright.graph import semantics as compute
from tilewright.language.extra import libdevice
from tilewright.library import activations

ROUNDED = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "cospi", "cyl_bessel_i0",
    "cyl_bessel_i1", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "exp10", "exp2", "expm1", "j0", "j1",
    "lgamma", "log", "log10", "log1p", "log2", "normcdf", "normcdfinv", "rcbrt", "rcp", "rsqrt", "sin", "sinh",
    "sinpi", "tan", "tanh", "tgamma", "y0", "y1",
)  # fmt: skip
EXACT = (
    "abs", "ceil", "floor", "trunc", "rint", "nearbyint", "round", "sqrt", "logb", "saturatef", "isnan", "isinf",
    "signbit", "ilogb", "llrint", "llround", "rcp_rn", "rcp_rz", "rcp_rd", "rcp_ru", "sqrt_rn", "sqrt_rz", "sqrt_rd",
    "sqrt_ru",
)  # fmt: skip
WHOLE = {"isnan": np.int32, "isinf": np.int32, "signbit": np.int32, "ilogb": np.int32, "llrint": np.int64,
         "llround": np.int64}  # fmt: skip
ODD = ("asin", "asinh", "atan", "atanh", "cbrt", "erf", "erfinv", "expm1", "log1p", "sin", "sinh", "tan", "tanh")
BINARY = (
    "atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "nextafter", "pow", "remainder", "rhypot",
    *(f"{name}_{mode}" for name in ("add", "sub", "mul", "div") for mode in ("rn", "rz", "rd", "ru")),
)  # fmt: skip
INEXACT = ("atan2", "hypot", "pow", "rhypot")


def numbers(rng, dtype):
    """Near zero, of medium size, special ones."""
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 1e-20, -1e-20, 1e-5, 1e18]
    return np.concatenate([rng.uniform(-0.99, 0.99, 48), rng.uniform(-8, 8, 64), special]).astype(dtype)


def same_kind(expected, found, x):
    """NaN, infinity and which of them in the same places."""
    wide = expected.astype(np.float64), found.astype(np.float64)
    for test in (np.isnan, np.isposinf, np.isneginf):
        wrong = test(wide[0]) != test(wide[1])
        assert not wrong.any(), (x[..., wrong], expected[wrong], found[wrong])


def close(expected, found, x, dtype):
    same_kind(expected, found, x)
    finite = np.isfinite(expected)
    # Near their zeros away from 0 functions are exact in the absolute only; exponentials of float32 lose bits with |x|.
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    error = np.abs(found[finite].astype(np.float64) - expected[finite].astype(np.float64))
    scale = np.abs(expected[finite].astype(np.float64))
    wrong = error > tolerance * (scale + np.minimum(np.abs(x[..., finite]).reshape(-1, error.size).max(0), 1.0) / 4)
    assert not wrong.any(), (x[..., finite][..., wrong], expected[finite][wrong], found[finite][wrong])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_functions(name, dtype, rng):
    x = numbers(rng, dtype)
    constants = {"FUNCTION": getattr(libdevice, name), "N": x.size}
    expected, found = run_both(unary, {"x": x, "out": np.zeros_like(x)}, constants)
    close(expected["out"], found["out"], x, dtype)
    if name in ODD:
        ends = np.isin(np.abs(x), [0, np.inf]) & ~np.isnan(expected["out"])
        assert np.array_equal(np.signbit(expected["out"][ends]), np.signbit(found["out"][ends]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(name, dtype, rng):
    x = numbers(rng, dtype)
    constants = {"FUNCTION": getattr(libdevice, name), "N": x.size}
    expected, found = run_both(unary, {"x": x, "out": np.zeros(x.size, WHOLE.get(name, dtype))}, constants)
    same_kind(expected["out"], found["out"], x)
    number = ~np.isnan(expected["out"].astype(np.float64))
    assert expected["out"][number].tobytes() == found["out"][number].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name, dtype, rng):
    ends = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, 3e-20, np.nan], dtype)
    x, y = (entry.ravel() for entry in np.meshgrid(ends, ends))
    x, y = (np.concatenate([part, rng.uniform(-9, 9, 64)]).astype(dtype) for part in (x, y))
    constants = {"FUNCTION": getattr(libdevice, name), "N": x.size}
    expected, found = run_both(binary, {"x": x, "y": y, "out": np.zeros_like(x)}, constants)
    if name in INEXACT:
        close(expected["out"], found["out"], np.stack([x, y]), dtype)
        return
    same_kind(expected["out"], found["out"], np.stack([x, y]))
    number = ~np.isnan(expected["out"])
    wanted, result = expected["out"][number], found["out"][number]
    if name in ("fmax", "fmin"):  # of zeros of both signs they give either
        wanted, result = wanted + 0, result + 0
    assert wanted.tobytes() == result.tobytes()


def exact_activation(name, x):
    if name.startswith("gelu"):
        return compute.gelu([x], {"approximate": "tanh" if name == "gelu_tanh" else "none"})
    return (x if name == "silu" else 1.0) / (1 + np.exp(-x))


@pytest.mark.capability(8)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "sigmoid"])
@pytest.mark.parametrize("factor", [0.0, 1e-3, 91.5])
def test_activations_of_rounded_results(name, factor, rng):
    """By the tanh of the hardware, of half the argument, and of all of it times a factor: within 4e-4 of the argument,
    over all arguments."""
    magnitudes = np.concatenate([np.geomspace(1e-8, 1e4, 2000), np.linspace(0, 12, 2096)])
    x = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    function = activations.ACTIVATIONS[name].of_half if factor == 0.0 else activations.ACTIVATIONS[name].scaled

    @tilewright.jit
    def apply(x, out, N: tl.constexpr):
        i = tl.arange(0, N)
        value = tl.load(x + i)
        if factor == 0.0:
            tl.store(out + i, function(0.5 * value))
        else:
            tl.store(out + i, function(value, factor))

    arguments = {"x": x, "out": np.zeros_like(x)}
    found = run_on_gpu(traced(apply, arguments, {"N": x.size}), list(arguments.values()))[1].astype(np.float64)
    scale = factor or 1.0
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = scale * exact_activation(name, wide)
    allowed = 4e-4 * scale * (np.ones_like(wide) if name == "sigmoid" else np.abs(wide)) + 1e-7 * np.abs(exact)
    assert np.all(np.abs(found - exact) <= allowed), np.max(np.abs(found - exact) / allowed)
