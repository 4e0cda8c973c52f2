"""Derive the polynomial coefficients of `tilewright/targets/llvm/math.py`.

    python tools/math_coefficients.py

Each function is approximated on its reduced interval by a polynomial of least maximum weighted
error (Lawson's iteration: weighted least squares, weights multiplied by the error of the last fit).
Function values come from mpmath at 50 digits.  Needs mpmath, which the package itself does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

mpmath.mp.dps = 50

Function = Callable[[mpmath.mpf], mpmath.mpf]


@dataclass(frozen=True)
class Fit:
    """`target(x)` by a polynomial in `variable(x)`; the error is counted times `weight(x)`."""

    name: str
    low: float
    high: float
    degree: int
    target: Function
    weight: Function
    variable: Function = lambda x: x
    single: bool = True  # coefficients rounded to float32


def _log_rest(f: mpmath.mpf) -> mpmath.mpf:
    return (mpmath.log1p(f) - f + f * f / 2) / f**3


FITS = (
    Fit("exp", -0.347, 0.347, 4, lambda r: (mpmath.exp(r) - 1 - r) / r**2, lambda r: r**2 / mpmath.exp(r)),
    Fit("exp2", -0.5, 0.5, 5, lambda r: (mpmath.power(2, r) - 1) / r, lambda r: r / mpmath.power(2, r)),
    Fit("log", 0.5**0.5 - 1, 2**0.5 - 1, 7, _log_rest, lambda f: f**3 / mpmath.log1p(f)),
    Fit("sin", 1e-3, 0.79, 2, lambda r: (mpmath.sin(r) - r) / r**3, lambda r: r**2, lambda r: r * r),
    Fit("cos", 1e-2, 0.79, 2, lambda r: (mpmath.cos(r) - 1 + r * r / 2) / r**4, lambda r: r**4, lambda r: r * r),
    Fit("tanh", 1e-3, 0.625, 4, lambda x: (mpmath.tanh(x) - x) / x**3, lambda x: x**2, lambda x: x * x),
    Fit("erf_small", 0.0, 0.95, 5, lambda x: mpmath.erf(x) / x - 1, lambda x: 1, lambda x: x * x),
    Fit("erf_large", 0.92, 4.0, 7, lambda x: -mpmath.log(mpmath.erfc(x)), lambda x: mpmath.erfc(x)),
    Fit(
        "log2_ratio", 1e-3, 0.1716, 4,
        lambda s: (2 * mpmath.atanh(s) / s / mpmath.log(2) - 2 / mpmath.log(2)) / s**2, lambda s: s**2,
        lambda s: s * s, single=False,
    ),
    Fit("arctangent", 1e-3, 1.0, 8, lambda x: (mpmath.atan(x) - x) / x**3, lambda x: x**2, lambda x: x * x),
    Fit("exp2_double", -0.5, 0.5, 6, lambda r: (mpmath.power(2, r) - 1) / r, lambda r: r, single=False),
)  # fmt: skip


def solve(fit: Fit, points: int = 400, iterations: int = 200) -> tuple[np.ndarray, float]:
    """Coefficients, lowest power first, and the greatest weighted error of the (unrounded) fit."""
    nodes = np.cos(np.pi * (np.arange(points) + 0.5) / points) * (fit.high - fit.low) / 2 + (fit.high + fit.low) / 2
    values = np.array([float(fit.target(mpmath.mpf(float(x)))) for x in nodes])
    weights = np.array([abs(float(fit.weight(mpmath.mpf(float(x))))) for x in nodes])
    variable = np.array([float(fit.variable(mpmath.mpf(float(x)))) for x in nodes])
    scale = np.abs(variable).max()
    basis = np.polynomial.chebyshev.chebvander(variable / scale, fit.degree)
    lawson = np.ones(points) / points
    best: tuple[float, np.ndarray] = (np.inf, np.zeros(0))
    for _ in range(iterations):
        factor = np.sqrt(lawson) * weights
        solution = np.linalg.lstsq(basis * factor[:, None], values * factor, rcond=None)[0]
        error = np.abs(basis @ solution - values) * weights
        if error.max() < best[0]:
            best = (error.max(), solution)
        lawson = lawson * error
        lawson /= lawson.sum()
    power = np.polynomial.chebyshev.cheb2poly(best[1])
    power = np.concatenate([power, np.zeros(fit.degree + 1 - len(power))])
    return power / scale ** np.arange(fit.degree + 1), best[0]


def main() -> None:
    for fit in FITS:
        coefficients, error = solve(fit)
        if fit.single:
            coefficients = coefficients.astype(np.float32)
        print(f"{fit.name}: weighted error 2^{np.log2(error):.1f}")
        print("    (" + ", ".join(repr(float(value)) for value in coefficients) + ")")


if __name__ == "__main__":
    main()
