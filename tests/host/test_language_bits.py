"""Functions of bits, directed rounding and exponents of the library, against exact arithmetic in Python."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.elementwise_kernels import binary, ternary, unary
from tests.host.language_support import launch
from tilewright.language.extra import libdevice

N = 64
MODES = ("rn", "rz", "rd", "ru")


KERNELS = {1: unary, 2: binary, 3: ternary}


def apply(name: str, *arguments: np.ndarray, out: Any) -> np.ndarray:
    result = np.zeros(arguments[0].size, out)
    launch(KERNELS[len(arguments)], (1,), *arguments, result, FUNCTION=getattr(libdevice, name), N=result.size)
    return result


def integers(rng: np.random.Generator, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, N, dtype, endpoint=True) >> rng.integers(0, info.bits, N).astype(dtype)
    x[:4] = [0, 1, info.max, info.min]
    return x


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bits(dtype: str, rng: np.random.Generator) -> None:
    x = integers(rng, dtype)
    width = x.itemsize * 8
    words = [int(value) % 2**width for value in x]
    assert apply("popc", x, out="int32").tolist() == [word.bit_count() for word in words]
    assert apply("clz", x, out="int32").tolist() == [width - word.bit_length() for word in words]
    assert apply("ffs", x, out="int32").tolist() == [(word & -word).bit_length() for word in words]
    reverse = apply("brev", x, out=dtype).astype(f"u{dtype}").tolist()
    assert reverse == [int(f"{word:0{width}b}"[::-1], 2) for word in words]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integer_arithmetic(dtype: str, rng: np.random.Generator) -> None:
    x, y = integers(rng, dtype), integers(rng, dtype)
    bits = x.itemsize * 8
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    assert apply("mulhi", x, y, out=dtype).tolist() == [(a * b) >> bits for a, b in pairs]
    assert apply("hadd", x, y, out=dtype).tolist() == [(a + b) >> 1 for a, b in pairs]
    assert apply("rhadd", x, y, out=dtype).tolist() == [(a + b + 1) >> 1 for a, b in pairs]
    if bits == 32:
        low = [((a & 0xFFFFFF) ^ 0x800000) - 0x800000 if dtype == "int32" else a & 0xFFFFFF for a in map(int, x)]
        high = [((b & 0xFFFFFF) ^ 0x800000) - 0x800000 if dtype == "int32" else b & 0xFFFFFF for b in map(int, y)]
        expected = [(a * b) % 2**32 for a, b in zip(low, high, strict=True)]
        assert apply("mul24", x, y, out=dtype).astype("uint32").tolist() == expected
        z = integers(rng, "uint32")
        expected = [(abs(a - b) + int(c)) % 2**32 for (a, b), c in zip(pairs, z, strict=True)]
        assert apply("sad", x, y, z, out=dtype).astype("uint32").tolist() == expected


def test_byte_permutation(rng: np.random.Generator) -> None:
    x, y, s = (integers(rng, "int32") for _ in range(3))

    def permuted(a: int, b: int, selector: int) -> int:
        source = (a % 2**32).to_bytes(4, "little") + (b % 2**32).to_bytes(4, "little")
        picked = []
        for place in range(4):
            group = (selector >> (4 * place)) & 0xF
            byte = source[group & 7]
            picked.append((0xFF if byte >= 0x80 else 0) if group & 8 else byte)
        return int.from_bytes(bytes(picked), "little", signed=True)

    expected = [permuted(int(a), int(b), int(c)) for a, b, c in zip(x, y, s, strict=True)]
    assert apply("byte_perm", x, y, s, out="int32").tolist() == expected


def rounded(exact: Fraction, dtype: str, mode: str) -> float:
    """A number rounded to a float dtype in a direction, from the two floats around it."""
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore"):
        near = kind(float(exact)) if abs(exact) < Fraction(2) ** 1030 else kind(math.copysign(math.inf, exact))
    if not np.isfinite(near):
        near = kind(math.copysign(float(np.finfo(dtype).max), exact))
    while Fraction(float(near)) > exact:
        near = np.nextafter(near, kind(-np.inf))
    while np.isfinite(above := np.nextafter(near, kind(np.inf))) and Fraction(float(above)) <= exact:
        near = above
    if Fraction(float(near)) == exact or mode == "rd" or (mode == "rz" and exact > 0):
        return float(near)
    return float(np.nextafter(near, kind(np.inf)))


def floats(rng: np.random.Generator, dtype: str, spread: int = 30) -> np.ndarray:
    return (rng.normal(size=N) * 2.0 ** rng.integers(-spread, spread, N)).astype(dtype)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["rz", "rd", "ru"])
def test_directed_arithmetic(mode: str, dtype: str, rng: np.random.Generator) -> None:
    x, y, z = (floats(rng, dtype) for _ in range(3))
    exact = [[Fraction(float(value)) for value in array] for array in (x, y, z)]
    for name, arguments, function in [
        ("add", (x, y), lambda a, b, c: a + b),
        ("sub", (x, y), lambda a, b, c: a - b),
        ("mul", (x, y), lambda a, b, c: a * b),
        ("div", (x, y), lambda a, b, c: a / b),
        ("rcp", (x,), lambda a, b, c: 1 / a),
        ("fma", (x, y, z), lambda a, b, c: a * b + c),
    ]:
        actual = apply(f"{name}_{mode}", *arguments, out=dtype).tolist()
        assert actual == [rounded(function(*values), dtype, mode) for values in zip(*exact, strict=True)], name
    root = apply(f"sqrt_{mode}", abs(x), out=dtype)
    for value, result in zip(exact[0], root, strict=True):
        below, above = (Fraction(float(np.nextafter(result, kind))) ** 2 for kind in (-np.inf, np.inf))
        if mode == "ru":
            assert below < abs(value) <= Fraction(float(result)) ** 2
        else:
            assert Fraction(float(result)) ** 2 <= abs(value) < above


def test_directed_overflow() -> None:
    x = np.full(4, 3e38, np.float32)
    largest = float(np.finfo(np.float32).max)
    assert apply("add_rz", x, x, out="float32").tolist() == [largest] * 4
    assert apply("add_ru", x, x, out="float32").tolist() == [math.inf] * 4
    assert apply("mul_rd", -x, x, out="float32").tolist() == [-math.inf] * 4
    infinite = np.full(4, np.inf, np.float32)
    assert apply("add_rz", infinite, x, out="float32").tolist() == [math.inf] * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["float", "double"])
def test_floats_to_integers(source: str, mode: str, rng: np.random.Generator) -> None:
    dtype = "float32" if source == "float" else "float64"
    x = floats(rng, dtype, 40)
    x[:6] = [0.5, 1.5, -0.5, 1e30, -1e30, np.nan]
    whole = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}[mode]
    for target, kind in [("int", "int32"), ("uint", "uint32"), ("ll", "int64"), ("ull", "uint64")]:
        signed = kind.removeprefix("u")
        actual = apply(f"{source}2{target}_{mode}", x, out=signed).astype(kind).tolist()
        info = np.iinfo(kind)
        expected = [0 if value != value else min(max(whole(float(value)), info.min), info.max) for value in x]
        assert actual == expected, target


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "kind"), [("int", "int32"), ("uint", "uint32"), ("ll", "int64"), ("ull", "uint64")])
def test_integers_to_floats(source: str, kind: str, mode: str, rng: np.random.Generator) -> None:
    x = integers(rng, kind)
    for target, dtype in (("float", "float32"), ("double", "float64")):
        if target == "double" and kind.endswith("32"):
            if mode != "rn":
                continue
        actual = apply(f"{source}2{target}_{mode}", x, out=dtype)
        if mode == "rn":
            assert actual.tolist() == x.astype(dtype).tolist()
        else:
            assert actual.tolist() == [rounded(Fraction(int(value)), dtype, mode) for value in x]


def test_double_to_float(rng: np.random.Generator) -> None:
    x = floats(rng, "float64", 100)
    for mode in ("rz", "rd", "ru"):
        expected = [rounded(Fraction(float(value)), "float32", mode) for value in x]
        assert apply(f"double2float_{mode}", x, out="float32").tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponents_and_neighbours(dtype: str, rng: np.random.Generator) -> None:
    x = floats(rng, dtype, 100)
    tiny = np.finfo(dtype).smallest_subnormal
    x[:3] = [tiny, 3 * tiny, -np.finfo(dtype).tiny]
    y = floats(rng, dtype)
    y[3] = x[3]
    assert apply("nextafter", x, y, out=dtype).tolist() == np.nextafter(x, y).tolist()
    exponents = [math.frexp(float(value))[1] - 1 for value in x]
    assert apply("ilogb", x, out="int32").tolist() == exponents
    assert apply("logb", x, out=dtype).tolist() == exponents
    power = rng.integers(-2 * np.finfo(dtype).maxexp, 2 * np.finfo(dtype).maxexp, N).astype(np.int32)
    with np.errstate(over="ignore", under="ignore"):
        assert apply("ldexp", x, power, out=dtype).tolist() == np.ldexp(x, power).astype(dtype).tolist()
    quotient = y * np.asarray(rng.integers(-1000, 1000, N) / 4, dtype)
    expected = [math.remainder(float(a), float(b)) for a, b in zip(quotient, y, strict=True)]
    assert apply("remainder", quotient, y, out=dtype).tolist() == expected


def test_halves_and_reinterpretation(rng: np.random.Generator) -> None:
    x = floats(rng, "float64", 100)
    low, high = apply("double2loint", x, out="int32"), apply("double2hiint", x, out="int32")
    assert apply("hiloint2double", high, low, out="float64").tolist() == x.tolist()
    assert apply("double_as_longlong", x, out="int64").tolist() == x.view(np.int64).tolist()
    single = x.astype(np.float32)
    assert apply("float_as_uint", single, out="int32").tolist() == single.view(np.int32).tolist()
    assert apply("int_as_float", single.view(np.int32), out="float32").tolist() == single.tolist()
    head = apply("rcp64h", x, out="float64")
    assert not (head.view(np.uint64) & 0xFFFFFFFF).any()
    np.testing.assert_allclose(head, 1 / x, rtol=2.0**-20)


def test_lengths(rng: np.random.Generator) -> None:
    x, y, z = (floats(rng, "float64", 3) * 1e290 for _ in range(3))
    with np.errstate(over="ignore"):
        scaled = np.sqrt((x / 1e290) ** 2 + (y / 1e290) ** 2 + (z / 1e290) ** 2) * 1e290
    np.testing.assert_allclose(apply("norm3d", x, y, z, out="float64"), scaled, rtol=1e-14)
    np.testing.assert_allclose(apply("rnorm3d", x, y, z, out="float64"), 1 / scaled, rtol=1e-14)
    single = rng.uniform(-2, 2, N).astype(np.float32)
    np.testing.assert_array_equal(apply("saturatef", single, out="float32"), np.clip(single, 0, 1))
