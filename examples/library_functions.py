"""Functions of the mathematical library: the exact GELU and its derivative.

`tl.extra.libdevice` has the functions that are no operations of the language. Each is looked up for the machine
that a kernel is compiled for; they compute in their argument's dtype, so half precision is widened before.
"""

import math

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.language.extra import libdevice


@tilewright.jit
def gelu(x, out, slope, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    value = tl.load(x + index, mask=inside).to(tl.float32)
    below = libdevice.normcdf(value)  # the part of a normal distribution that is below the value
    density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
    tl.store(out + index, value * below, mask=inside)
    tl.store(slope + index, libdevice.fma(value, density, below), mask=inside)


def main() -> None:
    n = 20_000
    x = np.random.default_rng().normal(scale=2, size=n).astype(np.float16)
    out, slope = np.empty((2, n), np.float32)
    gelu[(tilewright.cdiv(n, 1024),)](x, out, slope, n, BLOCK=1024)

    wide = x.astype(np.float64)
    below = np.asarray([0.5 * math.erfc(-value / math.sqrt(2)) for value in wide])
    density = np.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    error = max(np.abs(out - wide * below).max(), np.abs(slope - (below + wide * density)).max())
    assert error < 1e-5
    print(f"GELU and its derivative of {n} numbers: largest error {error:.1e}")


if __name__ == "__main__":
    main()
