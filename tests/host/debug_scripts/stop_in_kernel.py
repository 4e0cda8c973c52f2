"""A kernel with a breakpoint, for `tests/host/test_frontend_eager.py`, which types at the debugger's prompt."""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def scaled(value, factor):
    return value * factor


@tilewright.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    value = tl.load(x + place, mask=inside)
    breakpoint()
    doubled = scaled(value, 2)
    tl.store(out + place, doubled, mask=inside)


if __name__ == "__main__":
    x = np.arange(6, dtype=np.float32)
    out = np.zeros_like(x)
    kernel[(2,)](x, out, 6, BLOCK=4)
    print("result", out)
