"""Special functions of the library against Python's own, and against integrals that converge to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tilewright
from tests.elementwise_kernels import binary, unary
from tests.host.language_support import launch
from tilewright.language.extra import libdevice

N = 64


def apply(name: str, x: np.ndarray, interpreted: bool) -> np.ndarray:
    out = np.zeros_like(x)
    with tilewright.settings.settings.scope(interpret=interpreted):
        unary[(1,)](x, out, FUNCTION=getattr(libdevice, name), N=x.size)
    return out


def check(name: str, reference: Callable[[float], float], x: np.ndarray, units: float, absolute: float = 0.0) -> None:
    """Errors in units of the last place of the dtype, of the interpreter and of compiled code."""
    expected = np.array([reference(float(value)) for value in x])
    epsilon = np.finfo(x.dtype).eps
    for interpreted in (True, False):
        actual = apply(name, x, interpreted).astype(np.float64)
        limit = units * epsilon * abs(expected) + absolute * epsilon + np.finfo(x.dtype).tiny
        worst = np.nanargmax(np.where(actual == expected, 0, abs(actual - expected) / limit))
        assert abs(actual[worst] - expected[worst]) <= limit[worst], (name, x[worst], actual[worst], expected[worst])


def scaled_complement(x: float) -> float:
    """exp(x * x) erfc(x) as (2 / sqrt(pi)) times the integral of exp(-t * t - 2 x t) over t > 0."""
    if x < 0:
        return 2 * math.exp(x * x) - scaled_complement(-x)
    t, step = np.linspace(-5.5, 5.5, 1401, retstep=True)
    node = np.exp(np.pi / 2 * np.sinh(t))  # the double exponential formula of Takahasi and Mori
    weight = np.pi / 2 * np.cosh(t) * node
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        terms = np.nan_to_num(np.exp(-node * node - 2 * x * node) * weight)
    return float(2 / math.sqrt(math.pi) * step * math.fsum(terms))


def quantile(reference: Callable[[float], float], y: float, low: float, high: float) -> float:
    """The x at which an increasing function is y, by bisection."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if reference(middle) < y else (low, middle)
    return low if abs(reference(low) - y) < abs(reference(high) - y) else high


def inverse_error_function(y: float) -> float:
    """Through erfc where erf is near 1 or -1 and its last place is many of the inverse's."""
    if abs(y) <= 0.5:
        return quantile(math.erf, y, -7, 7)
    return math.copysign(quantile(lambda x: -math.erfc(x), abs(y) - 1, 0, 7), y)


def bessel(order: int, x: float) -> float:
    """The mean of cos(order a - x sin a) over a period: the trapezoidal rule converges exponentially."""
    angle = np.arange(4096) * (2 * np.pi / 4096)
    return math.fsum(np.cos(order * angle - x * np.sin(angle))) / 4096


def modified(order: int, x: float) -> float:
    angle = np.arange(4096) * (2 * np.pi / 4096)
    return math.fsum(np.exp(x * np.cos(angle)) * np.cos(order * angle)) / 4096


ARGUMENTS: dict[str, tuple[Callable[[float], float], float, float, float, float]] = {
    # name: (reference, low, high, units for float32, units for float64)
    "erfc": (math.erfc, -5, 8, 1, 8),
    "erfcx": (scaled_complement, -4, 30, 1, 12),
    "normcdf": (lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), -4, 6, 1, 60),
    "lgamma": (math.lgamma, 1e-3, 60, 1, 8),
    "tgamma": (math.gamma, 0.01, 34, 1, 24),
    "exp10": (lambda x: math.pow(10.0, x), -30, 30, 1, 3),
    "sinpi": (lambda x: math.sin(math.pi * math.remainder(x, 2)), -0.5, 0.5, 1, 3),
    "cospi": (lambda x: math.cos(math.pi * math.remainder(x, 2)), -0.3, 0.3, 1, 3),
    "cyl_bessel_i0": (lambda x: modified(0, x), -25, 25, 1, 12),
    "cyl_bessel_i1": (lambda x: modified(1, x), 0.1, 25, 1, 12),
}


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_special_functions(name: str, dtype: str, rng: np.random.Generator) -> None:
    reference, low, high, single, double = ARGUMENTS[name]
    x = rng.uniform(low, high, N).astype(dtype)
    # Python's own lgamma is that far off near its zeros.
    check(name, reference, x, single if dtype == "float32" else double, absolute=8 if name == "lgamma" else 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inverses(dtype: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-1, 1, N // 2), rng.choice([-1, 1], N // 2) * 10 ** rng.uniform(-8, -1, N // 2)])
    x = x.astype(dtype)
    units = 1 if dtype == "float32" else 8
    check("erfinv", inverse_error_function, x, units)
    y = np.concatenate([rng.uniform(0.01, 1.99, N // 2), 10 ** rng.uniform(-30, -1, N // 2)]).astype(dtype)
    check("erfcinv", lambda value: quantile(lambda z: -math.erfc(z), -value, -7, 27), y, units, absolute=1)
    p = (y / 2).astype(dtype)
    check("normcdfinv", lambda value: quantile(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), value, -12, 6), p,
          units, absolute=1)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", [0, 1])
def test_bessel_functions(order: int, dtype: str, rng: np.random.Generator) -> None:
    x = rng.uniform(0.05, 60, N).astype(dtype)
    check(f"j{order}", lambda value: bessel(order, value), x, 2, absolute=6)
    # The second kind through the Wronskian: J1 Y0 - J0 Y1 = 2 / (pi x).
    for interpreted in (True, False):
        second = [apply(name, x.astype(np.float64), interpreted) for name in ("y0", "y1")]
        first = [np.array([bessel(kind, float(value)) for value in x]) for kind in (0, 1)]
        wronskian = first[1] * second[0] - first[0] * second[1]
        np.testing.assert_allclose(wronskian * np.pi * x.astype(np.float64) / 2, 1, rtol=2e-14 * x.max())


def test_values_of_the_second_kind() -> None:
    """M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, table 9.1."""
    x = np.array([0.5, 1, 2, 5, 10, 15, 0, -1])
    np.testing.assert_allclose(
        apply("y0", x, False)[:6],
        [-0.4445187335067066, 0.08825696421567697, 0.5103756726497451, -0.3085176252490338, 0.0556711672835994,
         0.2054642960389183], rtol=1e-9)  # fmt: skip
    assert np.isneginf(apply("y0", x, False)[6]) and np.isnan(apply("y1", x, False)[7])


def test_whole_orders(rng: np.random.Generator) -> None:
    order = rng.integers(0, 25, N).astype(np.int32)
    x = order * 0.7 + rng.uniform(0.5, 40, N)
    out = np.zeros(N)
    launch(binary, (1,), order, x, out, FUNCTION=libdevice.jn, N=N)
    expected = np.array([bessel(int(n), float(value)) for n, value in zip(order, x, strict=True)])
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-14)
    above, below = np.zeros(N), np.zeros(N)
    launch(binary, (1,), order, x, below, FUNCTION=libdevice.yn, N=N)
    launch(binary, (1,), order + 1, x, above, FUNCTION=libdevice.yn, N=N)
    upper = np.array([bessel(int(n) + 1, float(value)) for n, value in zip(order, x, strict=True)])
    np.testing.assert_allclose((upper * below - expected * above) * np.pi * x / 2, 1, rtol=1e-9)


def test_special_values() -> None:
    infinity, nan = math.inf, math.nan
    cases = {
        "erfc": {infinity: 0, -infinity: 2, nan: nan, 0.0: 1, 30.0: 0},
        "erfcx": {infinity: 0, -infinity: infinity, nan: nan, 0.0: 1},
        "erfinv": {1.0: infinity, -1.0: -infinity, 1.5: nan, 0.0: 0},
        "erfcinv": {0.0: infinity, 2.0: -infinity, -0.5: nan, 1.0: 0},
        "normcdf": {infinity: 1, -infinity: 0, 0.0: 0.5},
        "normcdfinv": {0.0: -infinity, 1.0: infinity, 0.5: 0, 2.0: nan},
        "lgamma": {0.0: infinity, -3.0: infinity, 1.0: 0, 2.0: 0, infinity: infinity, -infinity: infinity},
        "tgamma": {0.0: infinity, -3.0: nan, 5.0: 24, 180.0: infinity, -0.5: -2 * math.sqrt(math.pi)},
        "j0": {0.0: 1, infinity: 0, nan: nan},
        "j1": {0.0: 0, -infinity: 0},
        "sinpi": {1.0: 0, 0.5: 1, 1e300: 0, infinity: nan},
        "cospi": {1.0: -1, 0.5: 0, -2.0: 1},
    }
    for name, values in cases.items():
        x = np.array(list(values))
        for interpreted in (True, False):
            np.testing.assert_allclose(apply(name, x, interpreted), list(values.values()), rtol=1e-14, err_msg=name)


def test_gamma_below_zero(rng: np.random.Generator) -> None:
    x = -rng.uniform(0.05, 20, N)
    x = np.where(abs(x - np.rint(x)) < 0.02, x - 0.1, x)
    np.testing.assert_allclose(apply("tgamma", x, False), [math.gamma(value) for value in x], rtol=1e-13)
    np.testing.assert_allclose(apply("lgamma", x, False), [math.lgamma(value) for value in x], rtol=1e-13, atol=2e-14)
