"""Loads of blocks that may exceed a tensor, with a hint how long caches shall keep what is read."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def fetch(pointer, offsets, mask, other: tl.constexpr, EVICTION: tl.constexpr = ""):
    """Elements as they are in memory."""
    if mask is None:
        value = tl.load(pointer + offsets, eviction_policy=EVICTION)
    else:
        value = tl.load(pointer + offsets, mask=mask, other=other, eviction_policy=EVICTION)
    return value


@tilewright.jit
def load_within(pointers, mask):
    """Elements where the mask holds, None: everywhere; zeros elsewhere."""
    if mask is None:
        block = tl.load(pointers)
    elif pointers.dtype.element_ty.is_floating():
        block = tl.load(pointers, mask=mask, other=0.0)
    else:
        block = tl.load(pointers, mask=mask, other=0)
    return block


@tilewright.jit
def read(pointer, offsets, mask, other: tl.constexpr, EVICTION: tl.constexpr = ""):
    """Elements as float32."""
    return fetch(pointer, offsets, mask, other, EVICTION).to(tl.float32)


@tilewright.jit
def read_once(pointer, offsets, mask, other: tl.constexpr):
    """Elements of sums, which nobody reads again: they make place in the L2 cache first. Kernels that write as much as
    they read lose by it (8 percent of a norm with residual on an H200)."""
    return read(pointer, offsets, mask, other, "evict_first")


@tilewright.jit
def read_lasting(pointer, offsets, mask, other: tl.constexpr):
    """Elements of rows whose results are written: these leave the L2 cache before what was read, early and steadily,
    which the memory of an H200 takes better (3 percent of a norm with residual, 4 of a wide softmax)."""
    return read(pointer, offsets, mask, other, "evict_last")
