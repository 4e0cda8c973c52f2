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


@tilewright.jit
def divided_by_one(x, quotients, rests, divisor, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(x + index, mask=inside, other=0)
    tl.store(quotients + index, value // divisor, mask=inside)
    tl.store(rests + index, value % divisor, mask=inside)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers_by_one_that_is_known_when_it_runs(dtype, rng):
    """Multiples of the divisor and their neighbours, of all sizes: one too few or many would be seen there."""
    limits = np.iinfo(dtype)
    for divisor in (1, 3, 7, 1000, 65537, 2**30 + 1, limits.max):
        near = rng.integers(limits.min // divisor, limits.max // divisor, 500) * divisor
        x = np.concatenate([near + shift for shift in (-1, 0, 1)] + [[limits.min, limits.max, 0]])
        x = x[(x >= limits.min) & (x <= limits.max)].astype(dtype)
        quotients, rests = np.zeros_like(x), np.zeros_like(x)
        divided_by_one[(-(-len(x) // 1024),)](x, quotients, rests, dtype(divisor), len(x), BLOCK=1024)
        whole = np.abs(x.astype(np.int64)) // divisor * np.sign(x.astype(np.int64))  # rounded towards zero
        assert np.array_equal(quotients, whole.astype(dtype)), divisor
        assert np.array_equal(rests, (x.astype(np.int64) - whole * divisor).astype(dtype)), divisor
