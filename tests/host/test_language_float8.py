"""The 8-bit floats: every code widened, and numbers of every magnitude rounded, on the interpreter and the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError
from tilewright.settings import settings

FORMATS = {
    tl.float8e5: ml_dtypes.float8_e5m2,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5b16: ml_dtypes.float8_e5m2fnuz,
    tl.float8e4b8: ml_dtypes.float8_e4m3fnuz,
}


@tilewright.jit
def convert(source, out, N: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr):
    lanes = tl.arange(0, N)
    value = tl.load(source + lanes)
    if value.dtype != FROM:
        value = value.to(FROM, bitcast=True)
    value = value.to(TO)
    tl.store(out + lanes, value.to(out.dtype.element_ty, bitcast=True))


@tilewright.jit
def product(a, b, out, N: tl.constexpr, FORMAT: tl.constexpr):
    lanes = tl.arange(0, N)
    tile = lanes[:, None] * N + lanes[None, :]
    left = tl.load(a + tile).to(FORMAT, bitcast=True)
    right = tl.load(b + tile).to(FORMAT, bitcast=True)
    tl.store(out + tile, tl.dot(left, right))


def numbers_of_e4m3b15() -> np.ndarray:
    """The value of each code: bias 15, subnormals, and every code a number."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-17, (1 + mantissa / 8) * 2.0 ** (exponent - 15))
    return np.where(codes > 127, -value, value).astype(np.float32)


def magnitudes(rng: np.random.Generator, count: int = 4088) -> np.ndarray:
    spread = rng.standard_normal(count) * 10.0 ** rng.uniform(-7, 6, count)
    edges = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-30, -1e-30, 1e30]
    numbers = np.concatenate([spread, edges]).astype(np.float32)
    halfway = numbers.view(np.uint32) & 0xFFF00000  # few bits, then one unit up or down: next to ties of every format
    beside = halfway + rng.integers(-1, 2, halfway.size).astype(np.uint32)
    return np.where(rng.random(halfway.size) < 0.5, beside.view(np.float32), numbers)


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_widened_and_rounded(form: tl.dtype, interpret: bool, rng: np.random.Generator):
    kind = FORMATS[form]
    codes, wide = np.arange(256, dtype=np.uint8), np.empty(256, np.float32)
    x, narrow = magnitudes(rng), np.empty(4096, np.uint8)
    with settings.scope(interpret=interpret):
        convert[(1,)](codes, wide, 256, form, tl.float32)
        convert[(1,)](x, narrow, 4096, tl.float32, form)
    numbers = codes.view(kind).astype(np.float32)
    np.testing.assert_array_equal(wide, numbers)
    defined = ~np.isnan(numbers)
    np.testing.assert_array_equal(np.signbit(wide[defined]), np.signbit(numbers[defined]))
    greatest = float(ml_dtypes.finfo(kind).max)
    with np.errstate(invalid="ignore"):
        expected = np.clip(x, -greatest, greatest).astype(kind)  # a number that does not fit becomes the greatest
    np.testing.assert_array_equal(np.isnan(narrow.view(kind)), np.isnan(x))
    kept = ~np.isnan(x)
    np.testing.assert_array_equal(narrow[kept], expected[kept].view(np.uint8))


@pytest.mark.parametrize("interpret", [False, True])
def test_e4m3b15_is_converted_through_float16(interpret: bool, rng: np.random.Generator):
    numbers = numbers_of_e4m3b15()
    codes, wide = np.arange(256, dtype=np.uint8), np.empty(256, np.float32)
    x, narrow = np.concatenate([numbers, magnitudes(rng, 3832)]), np.empty(4096, np.uint8)
    with settings.scope(interpret=interpret):
        convert[(1,)](codes, wide, 256, tl.float8e4b15, tl.float32)
        convert[(1,)](x, narrow, 4096, tl.float32, tl.float8e4b15)
    np.testing.assert_array_equal(wide, numbers)
    with np.errstate(over="ignore"):
        half = np.abs(x.astype(np.float16).astype(np.float64))
    half = np.where(np.isnan(half), np.inf, half)  # there is no NaN: it saturates too
    upper = np.minimum(np.searchsorted(numbers[:128], half), 127)  # the first number that is not smaller
    lower = np.maximum(upper - 1, 0)
    below, above = half - numbers[lower], numbers[upper] - half
    nearest = np.where((above < below) | (above == below) & (upper % 2 == 0) | (half >= numbers[127]), upper, lower)
    defined = ~np.isnan(x)
    np.testing.assert_array_equal(narrow & 0x7F, nearest)
    np.testing.assert_array_equal((narrow >> 7)[defined], np.signbit(x)[defined])


@pytest.mark.parametrize("form", [*FORMATS, tl.float8e4b15], ids=str)
def test_products(form: tl.dtype, rng: np.random.Generator):
    a, b = (rng.integers(0x20, 0x50, (16, 16), dtype=np.uint8) for _ in range(2))
    out = np.empty((16, 16), np.float32)
    product[(1,)](a, b, out, 16, form)
    kind = FORMATS.get(form)
    wide = [numbers_of_e4m3b15()[x] if kind is None else x.view(kind).astype(np.float64) for x in (a, b)]
    expected = wide[0].astype(np.float64) @ wide[1].astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=16 * 2.0**-23)


def test_other_arithmetic_on_e4m3b15_is_float16():
    @tilewright.jit
    def kernel(source, out):
        lanes = tl.arange(0, 16)
        x = tl.load(source + lanes).to(tl.float8e4b15, bitcast=True)
        total = x + x
        tl.static_assert(total.dtype == tl.float16)
        tl.store(out + lanes, total + tl.abs(x))

    codes, out = np.arange(0x90, 0xA0, dtype=np.uint8), np.empty(16, np.float32)
    kernel[(1,)](codes, out)
    numbers = numbers_of_e4m3b15()[codes]
    np.testing.assert_array_equal(out, 2 * numbers + np.abs(numbers))


def test_dtypes_by_name():
    assert tl.dtype("fp8e4b15") == tl.float8e4b15 and tl.dtype("fp8e5b16").is_fp8e5b16()
    assert [tl.dtype(name).name for name in tl.dtype.FP_TYPES] == tl.dtype.FP_TYPES
    biases = [tl.dtype(name).exponent_bias for name in tl.dtype.FP_TYPES]
    assert biases == [15, 7, 8, 15, 16, 15, 127, 127, 1023]
    with pytest.raises(CompilationError, match="no dtype named 'float7'"):
        tl.dtype("float7")
