"""Transcendental functions against float64, over all exponents and at IEEE 754's special values."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.cpu_support import load
from tilewright.targets.cpu.assemble import assemble, function_attributes
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, Module, vector_type
from tilewright.targets.llvm.math import emit_math

_erf = np.frompyfunc(math.erf, 1, 1)
REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": lambda x: _erf(x).astype(np.float64), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "power": np.power,
}  # fmt: skip
UNARY = [name for name in REFERENCES if name != "power"]
# units in the last place that a function may be off; sigmoid divides two rounded numbers
LIMITS = {"exp": 1.05, "exp2": 1.0, "log": 1.0, "log2": 1.75, "sin": 1.75, "cos": 1.75, "tanh": 1.5, "erf": 1.5,
          "sigmoid": 2.5, "power": 0.55}  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e38,
           -1e38, 2.5, -2.5, 1e10, 16777217.0, -7.0, 88.8, -104.0, 128.0, -150.0, 2.0**-126, 3.4e38]  # fmt: skip
Function = Callable[..., np.ndarray]


@cache
def compiled(opcode: str, element: str = "float", lanes: int = 16, special: bool = True) -> Function:
    """The function over whole arrays (sizes in multiples of `lanes`), with or without `special` instructions."""
    target = CPUTarget.host()
    module = Module(features=frozenset(target.features if special else ()))
    parameters = [("ptr", name, "") for name in ("x", "y", "result")] + [("i64", "count", "")]
    b = LLVMBuilder(module, "f", "void", parameters, attributes=function_attributes(target))
    x, y, result, count = b.arguments
    kind = vector_type(element, lanes)
    with b.loop(b.integer(0), count, lanes) as loop:
        sources = (x, y) if opcode == "power" else (x,)
        operands = [b.load(kind, b.gep(source, loop.index, element), align=1) for source in sources]
        b.store(emit_math(b, opcode, *operands), b.gep(result, loop.index, element), align=1)
        loop.next([])
    b.finish()
    native = load(assemble(module.text, target), "f", [ctypes.c_void_p] * 3 + [ctypes.c_int64])

    def run(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        size = len(x)
        padded = [np.resize(operand, -(-size // lanes) * lanes) for operand in (x, x if y is None else y)]
        output = np.empty_like(padded[0])
        native(padded[0].ctypes.data, padded[1].ctypes.data, output.ctypes.data, len(output))
        return output[:size]

    return run


def units_off(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the float32 nearest to `expected`; overflow counts as 2^128."""
    nearest = expected.astype(np.float32)
    spacing = np.minimum(np.spacing(np.abs(np.nan_to_num(nearest, posinf=3e38, neginf=3e38))), 2.0**104)
    finite = np.where(np.isinf(nearest), np.copysign(2.0**128, nearest), expected)
    got = np.where(np.isinf(found), np.copysign(2.0**128, found), found.astype(np.float64))
    same = (np.isnan(found) & np.isnan(expected)) | (np.isinf(found) & (found == nearest))
    error = np.abs(got - finite) / np.maximum(spacing, 2.0**-149)
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def check(opcode: str, *operands: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = REFERENCES[opcode](*(operand.astype(np.float64) for operand in operands))
        off = units_off(compiled(opcode)(*operands), expected)
    worst = int(np.argmax(off))
    inputs = [operand[worst] for operand in operands]
    assert off[worst] <= LIMITS[opcode], f"{opcode}({inputs}): {off[worst]:.3f} units off {expected[worst]}"


@pytest.mark.parametrize("opcode", UNARY)
def test_special_instructions_change_nothing(opcode: str, rng: np.random.Generator) -> None:
    patterns = rng.integers(0, 2**32, 40_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([patterns, rng.uniform(-110, 100, 40_000).astype(np.float32), np.array(SPECIAL, np.float32)])
    found, plain = compiled(opcode)(x), compiled(opcode, special=False)(x)
    if opcode == "erf":  # with registers to look numbers up in it is another polynomial
        assert units_off(found, plain.astype(np.float64)).max() <= 2 * LIMITS[opcode]
    else:
        np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("opcode", UNARY)
def test_all_exponents(opcode: str, rng: np.random.Generator) -> None:
    step = 40_009 if opcode == "erf" else 8_009  # erf's reference is slow
    patterns = np.arange(rng.integers(step), 2**32, step, dtype=np.uint64).astype(np.uint32)
    check(opcode, patterns.view(np.float32))


@pytest.mark.parametrize("opcode", UNARY)
def test_where_values_vary(opcode: str, rng: np.random.Generator) -> None:
    for low, high in ((-110, 95), (-5, 5), (0.98, 1.02), (-1e5, 1e5)):
        check(opcode, rng.uniform(low, high, 40_000).astype(np.float32))


@pytest.mark.parametrize("opcode", UNARY)
def test_special_values(opcode: str) -> None:
    check(opcode, np.array(SPECIAL, np.float32))


@settings(max_examples=300, deadline=None)
@given(x=st.floats(width=32), opcode=st.sampled_from(UNARY))
def test_any_float(x: float, opcode: str) -> None:
    check(opcode, np.full(1, x, np.float32))


def test_power(rng: np.random.Generator) -> None:
    bases, exponents = (
        grid.ravel() for grid in np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32))
    )
    check("power", bases, exponents)
    patterns = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    check("power", patterns, rng.uniform(-5, 5, len(patterns)).astype(np.float32))
    check("power", rng.uniform(0, 50, 200_000).astype(np.float32), rng.uniform(-20, 20, 200_000).astype(np.float32))
    check("power", rng.uniform(-50, 50, 10_000).astype(np.float32), rng.integers(-9, 9, 10_000).astype(np.float32))


@pytest.mark.parametrize("opcode", UNARY)
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_scalars_and_other_vectors_agree(opcode: str, lanes: int, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-20, 20, 160), SPECIAL]).astype(np.float32)
    np.testing.assert_array_equal(compiled(opcode, lanes=lanes)(x), compiled(opcode)(x))


@pytest.mark.parametrize("opcode", [*UNARY, "power"])
def test_float64_is_the_c_library(opcode: str, rng: np.random.Generator) -> None:
    x, y = rng.uniform(0.1, 20, 64), rng.uniform(-3, 3, 64)
    operands = (x, y) if opcode == "power" else (x,)
    expected = REFERENCES[opcode](*operands)
    np.testing.assert_allclose(compiled(opcode, "double", 8)(*operands), expected, rtol=4 * np.finfo(np.float64).eps)


def test_half_is_rounded_from_float32(rng: np.random.Generator) -> None:
    x = rng.uniform(-5, 5, 64).astype(np.float16)
    np.testing.assert_array_equal(compiled("exp", "half")(x), np.exp(x.astype(np.float64)).astype(np.float16))


def test_unknown_function() -> None:
    builder = LLVMBuilder(Module(), "f", "float", [("float", "x", "")])
    with pytest.raises(KeyError):
        emit_math(builder, "gamma", builder.arguments[0])
