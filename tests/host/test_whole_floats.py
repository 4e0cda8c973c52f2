"""Floats without fractions that become integers of 8 bits and floats again, as quantized values do in kernels."""

import numpy as np
import pytest

import tilewright
import tilewright.language as tl

ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 2.0**24, -(2.0**24)]
SCALE = 0.05
BOUNDS = {"uint8": (0, 255), "int8": (-128, 127)}


@tilewright.jit
def rounded(x, codes, out, count, SCALE: tl.constexpr, ZERO: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    whole = tl.extra.cuda.libdevice.rint(tl.load(x + place, mask=place < count) / SCALE) + ZERO
    code = whole.to(codes.dtype.element_ty)
    tl.store(codes + place, code, mask=place < count)
    tl.store(out + place, (code.to(tl.float32) - ZERO) * SCALE, mask=place < count)


@pytest.mark.parametrize("zero", [0.0, 3.0, 135.0])
@pytest.mark.parametrize("name", BOUNDS)
def test_numbers_equal_those_of_the_integers(name, zero, rng):
    least, most = BOUNDS[name]
    drawn = [rng.standard_normal(5000) * 3, rng.integers(-300, 300, 2000) * SCALE]
    x = np.concatenate([np.array(ODD), *drawn]).astype(np.float32)
    codes, out = np.empty(len(x), name), np.empty_like(x)
    rounded[(-(-len(x) // 1024),)](x, codes, out, len(x), SCALE=SCALE, ZERO=zero, BLOCK=1024)
    with np.errstate(all="ignore"):
        whole = np.round(x / np.float32(SCALE)) + np.float32(zero)
        wanted = np.where(np.isnan(whole), 0, np.clip(whole, least, most)).astype(name)
        numbers = (wanted.astype(np.float32) - np.float32(zero)) * np.float32(SCALE)
    np.testing.assert_array_equal(codes, wanted)
    np.testing.assert_array_equal(out.view(np.uint32), numbers.view(np.uint32))
