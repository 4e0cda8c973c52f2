"""Kernels for Triton, the peer: the same source as ours."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(result + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)
