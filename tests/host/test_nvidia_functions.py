"""The math functions that GPU kernels call, as far as their code runs on a CPU too: against 120 bits."""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from tilewright.runtime.library import load_objects
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.gpu.division import divide
from tilewright.targets.gpu.functions import _trigonometric_far, logarithm, remainder
from tilewright.targets.gpu.functions_double import emit_double
from tilewright.targets.llvm.arithmetic import Arithmetic
from tilewright.targets.llvm.builder import LLVMBuilder, Module

C = {"float": ctypes.c_float, "double": ctypes.c_double}


def compiled(emit, kind, count=1):
    """A C function of one LLVM emission."""
    module = Module()
    builder = LLVMBuilder(module, f"probe_{kind}", kind, [(kind, f"x{number}", "") for number in range(count)])
    builder.ret(emit(builder, *builder.arguments))
    builder.finish()
    library = load_objects([assemble(module.text, CPUTarget.host()).image], [f"probe_{kind}"])
    function = ctypes.CFUNCTYPE(C[kind], *[C[kind]] * count)(library.address(f"probe_{kind}"))
    function.library = library
    return function


RANGES = {
    "exp": (-700, 700), "exp2": (-1000, 1000), "log": (0.5, 2), "log2": (0.5, 2), "sin": (-1e4, 1e4),
    "cos": (-1e4, 1e4), "tanh": (-3, 3), "erf": (-6, 6), "rsqrt": (1e-3, 1e3),
}  # fmt: skip
LIMITS = {"erf": 8}


def exact(name, x):
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.prec = 120
    x = mpmath.mpf(float(x))
    special = {
        "exp2": lambda: mpmath.mpf(2) ** x,
        "log2": lambda: mpmath.log(x, 2),
        "rsqrt": lambda: 1 / mpmath.sqrt(x),
    }
    return special[name]() if name in special else getattr(mpmath, name)(x)


@pytest.mark.parametrize("name", RANGES)
def test_float64_functions(name, rng):
    function = compiled(lambda builder, x: emit_double(builder, name, [x]), "double")
    for x in rng.uniform(*RANGES[name], 400):
        wanted = exact(name, x)
        unit = 2.0 ** (math.floor(math.log2(abs(float(wanted)))) - 52)
        assert abs(float((function(float(x)) - wanted) / unit)) <= LIMITS.get(name, 2.5), x


@pytest.mark.parametrize("name", ["log", "log2"])
def test_logarithms(name, rng):
    """Of all sizes, numbers near one and the least ones among them."""
    function = compiled(lambda builder, x: logarithm(builder, name, x), "float")
    numbers = (
        np.exp(rng.uniform(math.log(1e-45), math.log(3e38), 3000)),
        rng.uniform(0.5, 2, 3000),
        1 + rng.normal(0, 1e-4, 500),
    )
    for x in np.concatenate(numbers).astype(np.float32):
        wanted = getattr(math, name)(x) if x else -math.inf
        assert x == 0 or abs(function(x) - wanted) <= 2 * np.spacing(np.float32(abs(wanted))), x
    assert function(math.inf) == math.inf and function(0.0) == function(-0.0) == -math.inf and function(1.0) == 0
    assert all(math.isnan(function(x)) for x in (math.nan, -math.inf, -1.0, -1e-42))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_huge_angles(name, rng):
    function = compiled(lambda builder, x: _trigonometric_far(builder, name, x), "float")
    for x in np.exp(rng.uniform(math.log(1e5), math.log(3e38), 500)).astype(np.float32):
        x = float(x) * float(rng.choice([-1, 1]))
        assert abs(function(x) - getattr(math, name)(x)) < 2e-7, x


def test_the_sine_of_negative_zero():
    function = compiled(lambda builder, x: emit_double(builder, "sin", [x]), "double")
    assert [math.copysign(1, function(x)) for x in (-0.0, 0.0, -5e-324, 5e-324)] == [-1, 1, -1, 1]


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_huge_angles_of_float64(name, rng):
    """Also the float64 that is nearest to a multiple of pi / 2, and where the reduction begins."""
    function = compiled(lambda builder, x: emit_double(builder, name, [x]), "double")
    numbers = np.exp(rng.uniform(math.log(2.0**29), math.log(1.7e308), 500)) * rng.choice([-1, 1], 500)
    for x in [*numbers, 6381956970095103 * 2.0**797, -6381956970095103 * 2.0**797, 2.0**30, 2.0**30 + 1, 1e18]:
        wanted = exact(name, x)
        assert abs(function(float(x)) - wanted) <= 2.5 * math.ulp(float(wanted)), x
    assert all(math.isnan(function(x)) for x in (math.inf, -math.inf, math.nan))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_remainders_are_exact(kind, rng):
    function = compiled(lambda builder, x, y: remainder(builder, x, y), kind, 2)
    spread = 60 if kind == "float" else 400
    for _ in range(400):
        x, y = (C[kind](rng.normal() * 2.0 ** rng.integers(-spread, spread)).value for _ in range(2))
        assert function(x, y) == math.fmod(x, y), (x, y)
    assert math.isnan(function(math.inf, 1.0)) and math.isnan(function(1.0, 0.0))
    assert function(1.5, math.inf) == 1.5 and math.copysign(1, function(-4.0, 2.0)) == -1


class NearReciprocals:
    """Stands in for a GPU's reciprocals, which are up to one unit off."""

    def __init__(self, units):
        self.units = units

    def reciprocal(self, builder, x):
        m = Arithmetic(builder)
        return m.from_bits(m.add(m.bits(m.divide(1.0, x)), m.integer(self.units)))


@pytest.mark.parametrize("units", [-1, 0, 1])
def test_numbers_divided_together_are_rounded_right(units, rng):
    function = compiled(lambda builder, x, y: divide(NearReciprocals(units), builder, [x], [y])[0], "float", 2)
    for _ in range(2000):
        x = np.float32(rng.normal() * 2.0 ** rng.integers(-60, 100))
        y = np.float32(rng.normal() * 2.0 ** rng.integers(-40, 80))
        with np.errstate(all="ignore"):
            assert function(float(x), float(y)) == float(np.float32(x) / np.float32(y)), (x, y)
    for x in (math.inf, -math.inf):
        assert function(x, 3.0) == x and function(x, -3.0) == -x
    assert math.isnan(function(math.nan, 2.0)) and math.isnan(function(math.inf, math.inf))
    assert function(0.0, 3.0) == 0.0 and function(1.0, 0.0) == math.inf and function(1.0, math.inf) == 0.0
    for x, y in ((0.0, 3.0), (-0.0, 3.0), (0.0, -3.0), (-0.0, -3.0)):
        assert math.copysign(1, function(x, y)) == math.copysign(1, x) * math.copysign(1, y)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("place", range(3))
def test_each_of_several_numbers_is_rounded_right(shared, place, rng):
    """Of one divisor or of their own, with numbers among them that are huge, zeros or none."""

    def emit(builder, *given):
        divisors = [given[3]] * 3 if shared else given[3:]
        return divide(NearReciprocals(0), builder, given[:3], divisors)[place]

    function = compiled(emit, "float", 6)
    special = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**65, -(2.0**64), 2.0**64 * 1.9999999, 1e-30])
    unusual = np.array([0.0, -0.0, math.inf, math.nan, 1e-40, -1e-44, 2.0**-21, 2.0**60 * 1.1, 2.0**127])
    for _ in range(3000):
        x = (rng.normal(size=3) * 2.0 ** rng.integers(-60, 70, 3)).astype(np.float32)
        y = (rng.normal(size=3) * 2.0 ** rng.integers(-30, 70, 3)).astype(np.float32)
        chosen = rng.random(3) < 0.3
        x[chosen] = rng.choice(special, chosen.sum())
        chosen = rng.random(3) < 0.1
        y[chosen] = rng.choice(unusual, chosen.sum())
        with np.errstate(all="ignore"):
            wanted = x[place] / y[0 if shared else place]
        found = np.float32(function(*map(float, x), *map(float, y)))
        assert found.tobytes() == wanted.tobytes() or (np.isnan(found) and np.isnan(wanted)), (x, y)


class NoReciprocals:
    """Tells quotients by reciprocals, which are zeros, from divisions."""

    def reciprocal(self, builder, x):
        return builder.constant("float", 0.0)


@pytest.mark.parametrize("place", [0, 15])
def test_ordinary_numbers_of_any_sizes_are_divided_together(place, rng):
    """Numbers around one and two as well, of which the exponents have no bits in common."""
    emit = lambda builder, *given: divide(NoReciprocals(), builder, given[:16], given[16:] * 16)[place]  # noqa: E731
    function = compiled(emit, "float", 17)
    for _ in range(200):
        numbers = rng.normal(size=16) * 2.0 ** rng.integers(-60, 60, 16)
        assert function(*numbers, 3.0) == 0.0, numbers
        numbers[place], numbers[rng.integers(1, 15)] = 12.0, rng.choice([math.inf, -math.inf, 2.0**65, -(2.0**127)])
        assert function(*numbers, 3.0) == 4.0, numbers
    assert function(*[1.0, 2.0] * 8, 3.0) == 0.0


def test_reciprocals_of_several_numbers_are_rounded_right(rng):
    def emit(builder, y):
        return divide(NearReciprocals(0), builder, [builder.constant("float", 1.0)], [y])[0]

    function = compiled(emit, "float")
    for y in (rng.normal(size=2000) * 2.0 ** rng.integers(-140, 127, 2000)).astype(np.float32):
        with np.errstate(all="ignore"):
            assert function(float(y)) == float(np.float32(1) / y), y
    assert function(math.inf) == 0.0 and function(-0.0) == -math.inf and math.isnan(function(math.nan))
