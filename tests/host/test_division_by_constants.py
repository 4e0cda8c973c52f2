"""Division of float32 by constants on CPUs, which multiplies by the reciprocal and corrects the quotient."""

import numpy as np
import pytest

import tilewright
import tilewright.language as tl

ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1.0, 3.0, 5.0]
DIVISORS = (3.0, 0.0067, 1.7, 0.1, 255.0, 1e-6, 7e17, float(np.float32(2 - 2**-23)), -3.0, 4.0, 1e-30)


@tilewright.jit
def divided(x, out, count, DIVISOR: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < count) / DIVISOR, mask=place < count)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_are_rounded_once(divisor, rng):
    bits = rng.integers(0, 1 << 32, 30_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([np.array(ODD, np.float32), rng.standard_normal(30_000).astype(np.float32), bits])
    x = x[(np.abs(x) >= 2.0**-100) | (x == 0) | np.isnan(x)]  # smaller ones may be a unit off
    out = np.empty_like(x)
    divided[(-(-len(x) // 1024),)](x, out, len(x), DIVISOR=divisor, BLOCK=1024)
    with np.errstate(all="ignore"):
        wanted = x / np.float32(divisor)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(out.view(np.uint32)[number], wanted.view(np.uint32)[number])
    assert np.isnan(out[~number]).all()
