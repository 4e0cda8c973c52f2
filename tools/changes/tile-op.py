"""A kernel that rounds halves away from zero, as machine code and in the interpreter."""

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.settings import settings


@tilewright.jit
def rounded(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.math.round_away(tl.load(x + offsets)))


x = np.linspace(-4, 3.75, 32, dtype=np.float32)
for interpret in (False, True):
    out = np.empty_like(x)
    with settings.scope(interpret=interpret):
        rounded[(1,)](x, out, BLOCK=32)
    np.testing.assert_array_equal(out, np.copysign(np.floor(np.abs(x) + 0.5), x))
